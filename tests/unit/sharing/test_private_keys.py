"""The recipient's own key signs for nobody whom the recipient did not name: not where a profile says, nor which key it says."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.asking import profile_and_table
from delta_sharing_spark.errors import ConfigError, OptionError, ProfileError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.sharing.identity import KeyConsent
from delta_sharing_spark.sharing.profile import ENVIRONMENT, load_profile, profile_from_environment
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.spark.session_settings import refuse_identity_options
from unit.sharing.scripted_server import NAME, OK, Reply, ScriptedServer
from unit.sharing.test_authentication import jwt_of, write_key

Fields = dict[str, Any]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    write_key(tmp_path / "key.pem", "rsa")
    return tmp_path / "key.pem"


@pytest.fixture
def other() -> Iterator[ScriptedServer]:
    """Whoever wrote the profile would like the assertion, or the token, sent here."""
    with ScriptedServer() as running:
        running.on("", Reply({"access_token": "t", "expires_in": 3600}))
        yield running


@pytest.fixture
def fields(server: ScriptedServer, key_file: Path) -> Fields:
    """A profile as it should be: all of one origin."""
    server.on("/oauth", Reply({"access_token": "t", "expires_in": 3600}))
    server.on("/version", OK)
    return jwt_of(server, key_file, None, issuer=f"{server.endpoint}/issuer") | {"endpoint": server.endpoint}


@pytest.fixture
def consent(server: ScriptedServer) -> KeyConsent:
    return KeyConsent(server.endpoint, server.endpoint)


def written(tmp_path: Path, fields: Fields) -> Path:
    path = tmp_path / "p.share"
    path.write_text(json.dumps(fields))
    return path


def test_a_key_of_a_local_profile_is_confirmed(
    tmp_path: Path, fields: Fields, consent: KeyConsent, server: ScriptedServer
) -> None:
    path = written(tmp_path, fields)
    with pytest.raises(ProfileError) as refused:
        load_profile(path)
    told = str(refused.value)
    assert told.endswith(
        f"would sign with the key {tmp_path}/key.pem for {server.endpoint}/oauth, and whether your key signs is not for a profile to "
        f"say: it was not read; if you trust this one, set the options privateKeyOrigin to the origin that may receive assertions, "
        f"and identityEndpoint to {server.endpoint}"
    )
    assert SharingRest(load_profile(path, key=consent), NetworkSettings()).table_version(NAME) == 7
    assert load_profile(path.as_uri(), key=consent) == load_profile(path, key=consent)


@pytest.mark.parametrize("place", ["object", "text", "URL", "fsspec"])
def test_a_profile_from_elsewhere_names_no_key(
    tmp_path: Path, fields: Fields, consent: KeyConsent, server: ScriptedServer, key_file: Path, place: str
) -> None:
    import fsspec

    server.on("/p.share", Reply(fields))
    fsspec.filesystem("memory").pipe("/keyed.share", json.dumps(fields).encode())
    sources: dict[str, Any] = {"object": fields, "text": json.dumps(fields), "URL": f"{server.endpoint}/p.share"}
    source = sources.get(place, "memory://keyed.share")
    with pytest.raises(
        ProfileError, match=r"would sign with a key for .*set the options privateKeyFile to your key"
    ) as refused:
        load_profile(source, key=consent)
    assert str(key_file) not in str(refused.value)
    read = load_profile(source, key=replace(consent, file=str(key_file)))
    assert read.private_key == load_profile(written(tmp_path, fields), key=consent).private_key


def changed(fields: Fields, **auth: Any) -> Fields:
    return fields | {"auth": fields["auth"] | auth}


HOSTILE: dict[str, tuple[Callable[[Fields, str], Fields], str]] = {
    "another token endpoint": (lambda good, evil: changed(good, tokenEndpoint=f"{evil}/oauth"), "assertions sent to .*privateKeyOrigin"),
    "an endpoint that sees the token": (lambda good, evil: good | {"endpoint": evil}, "names the endpoint .*identityEndpoint"),
    "a path that sees the token": (lambda good, evil: good | {"endpoint": good["endpoint"] + "/x"}, "names the endpoint"),
    "an audience elsewhere": (lambda good, evil: changed(good, issuer=evil), "assertions made for .*privateKeyAudience"),
    "an audience that is no URL": (lambda good, evil: changed(good, issuer="bank"), "assertions made for what is no URL.*privateKeyAudience"),
    "a token endpoint of two hosts": (
        lambda good, evil: changed(good, tokenEndpoint=f"{evil}\\@{good['endpoint'].partition('//')[2]}/oauth"), "assertions sent to what is no URL"
    ),
    "a user before the host": (
        lambda good, evil: changed(good, tokenEndpoint=good["auth"]["tokenEndpoint"].replace("//", "//s3cret@")), "assertions sent to what is no URL"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("is_named", [False, True])
def test_what_was_not_confirmed_reads_and_sends_nothing(
    tmp_path: Path,
    fields: Fields,
    consent: KeyConsent,
    server: ScriptedServer,
    other: ScriptedServer,
    case: str,
    is_named: bool,
) -> None:
    pipe = tmp_path / "pipe.pem"
    os.mkfifo(pipe)  # who reads it waits for ever
    consent = replace(consent, file=str(pipe) if is_named else None)
    fields["auth"]["privateKey"]["privateKeyFile"] = str(pipe)
    make, words = HOSTILE[case]
    with pytest.raises(ProfileError, match=f"{words}.* to what the profile names if you trust it") as refused:
        load_profile(written(tmp_path, make(fields, other.endpoint)), key=consent)
    assert "s3cret" not in str(refused.value)
    assert server.asked == other.asked == []


def test_an_audience_of_another_origin_is_the_recipients_to_allow(
    tmp_path: Path, fields: Fields, consent: KeyConsent, server: ScriptedServer
) -> None:
    path = written(tmp_path, changed(fields, issuer="urn:issuer"))
    profile = load_profile(path, key=replace(consent, audience="urn:issuer"))
    assert SharingRest(profile, NetworkSettings()).table_version(NAME) == 7
    claims = server.asked[0].form["assertion"].split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(claims + "=="))["aud"] == "urn:issuer"
    with pytest.raises(ProfileError, match="assertions made for"):
        load_profile(path, key=replace(consent, audience="urn:other"))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("https://evil.example/key.pem", "is not a path of this machine"),
        ("s3://bucket/key.pem", "is not a path of this machine"),
        ("file:///etc/key.pem", "is not a path of this machine"),
        ("dbfs:/key.pem", "is not a path of this machine"),
        ("{tmp}/pipe", "is not a regular file"),
        ("{tmp}", r"is not a regular file|cannot be read on this machine \(IsADirectoryError\)"),
        ("/dev/zero", "is not a regular file"),
        ("{tmp}/large", "has more than 64 KiB"),
        ("{tmp}/binary", "is not text in UTF-8 or UTF-16"),
        ("{tmp}/nowhere", r"cannot be read on this machine \(FileNotFoundError\)"),
        ("/a\0b", r"cannot be read on this machine \(ValueError\)"),
    ],
)
def test_keys_are_local_regular_files_of_bounded_size(
    tmp_path: Path, fields: Fields, consent: KeyConsent, file: str, words: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"-" * 70_000)
    (tmp_path / "binary").write_bytes(b"\x80\x81\x82\x83")
    fields["auth"]["privateKey"]["privateKeyFile"] = file.format(tmp=tmp_path)
    with pytest.raises(ProfileError, match=rf"^the private key .* ({words}); check privateKeyFile$"):
        load_profile(written(tmp_path, fields), key=consent)


# How the recipient says so


def test_by_option_argument_and_environment(
    tmp_path: Path, fields: Fields, server: ScriptedServer, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, fields)
    said = {"privateKeyOrigin": server.endpoint, "identityEndpoint": server.endpoint}
    named = said | {"privateKeyFile": str(key_file)}
    expected = load_profile(path, key=KeyConsent(server.endpoint, server.endpoint))
    address = f"{path}#a.b.c"
    assert profile_and_table(parse_options({"path": address, **said}))[0] == expected
    assert SharingClient(path, **said).profile == SharingClient(fields, **named).profile == expected  # type: ignore[arg-type]
    assert SharingClient(path, **said).table("share.schema.t").version() == 7  # type: ignore[arg-type]
    for name, value in said.items():
        monkeypatch.setenv(
            {"privateKeyOrigin": "DELTA_SHARING_PRIVATE_KEY_ORIGIN"}.get(name, "DELTA_SHARING_IDENTITY_ENDPOINT"), value
        )
    monkeypatch.setenv(ENVIRONMENT, str(path))
    assert profile_from_environment() == load_profile(path) == expected
    monkeypatch.setenv("DELTA_SHARING_PRIVATE_KEY_FILE", str(key_file))
    assert load_profile(json.dumps(fields)) == expected
    monkeypatch.delenv("DELTA_SHARING_PRIVATE_KEY_ORIGIN")
    with pytest.raises(ConfigError, match=r"DELTA_SHARING_PRIVATE_KEY_FILE.*needs 'privateKeyOrigin'"):
        load_profile(path)


ORIGIN, ENDPOINT = {"privateKeyOrigin": "https://login"}, {"identityEndpoint": "https://server"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"privateKeyFile": "key.pem"}, "option 'privateKeyFile' needs 'privateKeyOrigin'"),
        ({"privateKeyAudience": "x"} | ENDPOINT, "option 'privateKeyAudience' needs 'privateKeyOrigin'"),
        (ORIGIN, "option 'privateKeyOrigin' needs 'identityEndpoint'"),
        (
            ORIGIN | ENDPOINT | {"bearerTokenFile": "token"},
            "'privateKeyOrigin' does not go with 'identityEndpoint'|one or the other",
        ),
        (
            ORIGIN | ENDPOINT | {"bearerToken": "x", "path": "a.b.c"},
            "option 'bearerToken' does not go with 'privateKeyOrigin'",
        ),
        (ORIGIN | ENDPOINT | {"gateway": "grpc://h:1", "path": "a.b.c"}, "does not go with 'gateway'"),
        ({"privateKeyOrigin": "login"} | ENDPOINT, "'privateKeyOrigin' must be a URL"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({"path": "p.share#a.b.c", **options})


@pytest.mark.parametrize("option", ["privateKeyFile", "privatekeyorigin", "privateKeyAudience"])
def test_clients_of_spark_connect_do_not_use_the_servers_key(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "of-a-session")
    with pytest.raises(OptionError, match=f"option '{option}' is refused"):
        refuse_identity_options({option: "x"})
