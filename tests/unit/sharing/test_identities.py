"""Recipients without a secret: where their tokens come from, who may see them, and what no profile can start."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import pickle
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark._version import install_line
from delta_sharing_spark.access.open import resolve
from delta_sharing_spark.access.plan import plan
from delta_sharing_spark.errors import (
    ConfigError,
    CredentialError,
    DeltaSharingError,
    OptionError,
    ProfileError,
    RequestRefusedError,
    ResponseError,
    UnauthenticatedError,
)
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.options.declared import IDENTITY, OPTIONS, parse_options
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.sharing import auth
from delta_sharing_spark.sharing.identity import (
    TIME_LIMIT,
    Identity,
    parse_command,
    run_command,
    token_end,
    token_of,
    variable_of,
)
from delta_sharing_spark.sharing.profile import Profile, load_profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.openid_provider import AUDIENCE, OpenIdProvider
from support.refusals import not_refused
from unit.sharing.scripted_server import NAME, OK, Clock, Reply, ScriptedServer, refusal

KINDS = ("file", "command", "azure", "google", "environment", "exchange")
TABLE = "share.schema.t"


@pytest.fixture(autouse=True)
def _no_token_known() -> None:
    auth._tokens.clear()


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenIdProvider]:
    with OpenIdProvider() as running:
        running.environment(monkeypatch)
        yield running


@pytest.fixture
def sharing(provider: OpenIdProvider, tmp_path: Path) -> Iterator[SharingServer]:
    """A server that takes the provider's tokens and no others, with a table of two files."""
    with SharingServer() as server:
        server.identity.token = None
        server.identity.check_token = provider.accepts
        table = DeltaTableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
        for start in (0, 100):
            table.append(pa.table({"id": list(range(start, start + 100))}))
        server.add_table(TABLE, table.path)
        yield server


@dataclasses.dataclass
class Source:
    """One source of tokens: the options that ask for it, and how its platform renews what it gives."""

    options: dict[str, str]
    renew: Callable[[], None]


@pytest.fixture
def source_of(provider: OpenIdProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Source]:
    path = tmp_path / "token.jwt"

    def write(audience: str = AUDIENCE) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_text(provider.issue(audience) + "\n")
        os.replace(fresh, path)

    def make(kind: str) -> Source:
        if kind in ("azure", "google"):
            return Source({"identity": kind, "identityAudience": AUDIENCE}, lambda: None)
        if kind == "environment":
            renew = lambda: monkeypatch.setenv("MY_TOKEN", provider.issue())  # noqa: E731
            renew()
            return Source({"identity": kind, "identityVariable": "MY_TOKEN"}, renew)
        if kind == "exchange":
            write("exchange")
            exchange = {"tokenExchangeEndpoint": provider.exchange_endpoint, "tokenExchangeAudience": AUDIENCE}
            return Source({"bearerTokenFile": str(path), **exchange}, lambda: write("exchange"))
        write()
        if kind == "file":
            return Source({"bearerTokenFile": str(path)}, write)
        program = "import json, sys; print(json.dumps({'access_token': open(sys.argv[1]).read().strip(), 'expires_in': '900'}))"
        return Source({"bearerTokenCommand": json.dumps([sys.executable, "-c", program, str(path)])}, write)

    return make


def by_option(options: dict[str, str], profile: str) -> Callable[[], int]:
    def rows() -> int:
        scan = resolve(parse_options({"path": f"{profile}#{TABLE}", **options}))
        splits = [pickle.loads(pickle.dumps(split)) for split in plan(scan).splits]
        return sum(batch.num_rows for split in splits for batch in read_split(split))

    return rows


def by_argument(options: dict[str, str], profile: str) -> Callable[[], int]:
    client = SharingClient(profile, **options)
    return lambda: client.table(TABLE).scan().to_arrow().num_rows


def by_environment(options: dict[str, str], profile: str) -> Callable[[], int]:
    for name, value in options.items():
        os.environ[variable_of(name)] = value
    client = SharingClient()  # no profile at all: the endpoint is the one allowed
    return lambda: client.table(TABLE).scan().to_arrow().num_rows


@pytest.fixture
def keyless(sharing: SharingServer, tmp_path: Path) -> str:
    """A profile that holds an endpoint and no secret."""
    path = tmp_path / "keyless.share"
    path.write_text(json.dumps({"shareCredentialsVersion": 1, "endpoint": sharing.endpoint}))
    return str(path)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    for name in [name for name in os.environ if name.startswith("DELTA_SHARING_")]:
        del os.environ[name]


@pytest.mark.parametrize("way", [by_option, by_argument, by_environment])
@pytest.mark.parametrize("kind", KINDS)
def test_each_identity_in_each_way_reads_renews_and_shows_its_token_to_the_server_alone(
    kind: str,
    way: Callable[[dict[str, str], str], Callable[[], int]],
    sharing: SharingServer,
    provider: OpenIdProvider,
    source_of: Callable[..., Source],
    keyless: str,
) -> None:
    source = source_of(kind)
    rows = way({**source.options, "identityEndpoint": sharing.endpoint}, keyless)
    assert rows() == 200
    shown = len(provider.issued)
    assert rows() == 200
    assert len(provider.issued) == shown, "a token that is good is kept"
    provider.revoke_all()
    source.renew()
    assert rows() == 200, "after a 401 another one is asked for"
    provider.revoke_all()
    if kind in ("azure", "google"):
        provider.fails = 403
    with pytest.raises(DeltaSharingError) as refused:
        rows()
    assert "identit" in str(refused.value) or "bearerToken" in str(refused.value)
    assert not any(token in str(refused.value) for token in provider.issued)
    data = [request for request in sharing.requests if request.kind == "data"]
    assert data
    assert not any("authorization" in request.headers for request in data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_is_renewed_before_it_ends(
    kind: str,
    provider: OpenIdProvider,
    source_of: Callable[..., Source],
    server: ScriptedServer,
    settings: NetworkSettings,
    clock: Clock,
) -> None:
    """By the token's own ``exp``, and by what the command, the library or the exchange says where that is sooner."""
    server.on("/version", OK)
    life = 900 if kind == "command" else 3600
    source = source_of(kind)
    rest = SharingRest(_keyless(server.endpoint, source.options), settings)
    tokens = []
    for elapsed in (0, life * 0.8, life * 0.18):
        clock.time += elapsed
        source.renew()
        rest.table_version(NAME)
        tokens.append(server.asked[-1].headers["authorization"])
    assert tokens[0] == tokens[1] != tokens[2]


def _keyless(endpoint: str, options: dict[str, str]) -> Profile:
    from delta_sharing_spark.sharing.identity import identity_of

    identity = identity_of(parse_options({"path": "a.b.c", "identityEndpoint": endpoint, **options}))
    return load_profile({"shareCredentialsVersion": 1, "endpoint": endpoint}, identity)


def test_a_token_without_an_end_is_read_again_each_minute(
    server: ScriptedServer, settings: NetworkSettings, clock: Clock, tmp_path: Path
) -> None:
    server.on("/version", OK)
    path = tmp_path / "token"
    rest = SharingRest(_keyless(server.endpoint, {"bearerTokenFile": str(path)}), settings)

    def shown(elapsed: float) -> str:
        clock.time += elapsed
        rest.table_version(NAME)
        return server.asked[-1].headers["authorization"]

    path.write_text("opaque-1")
    assert shown(0) == "Bearer opaque-1"
    path.write_text("opaque-2")
    assert shown(30) == "Bearer opaque-1"
    assert shown(31) == "Bearer opaque-2"
    path.unlink()
    assert shown(61) == "Bearer opaque-2", "while it rotates, the old one is shown"
    carried = auth.carried_profile(rest.profile, settings, True)
    executors = pickle.loads(pickle.dumps(carried))
    assert (executors.bearer_token, executors.expires, executors.identity) == ("opaque-2", None, None)
    assert pickle.loads(pickle.dumps(rest.profile)) == rest.profile, "the planning worker renews"


def test_a_relative_file_is_that_of_the_directory_in_which_it_was_named(
    settings: NetworkSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two recipients with a ``token.jwt`` each, in their own directories, one was shown as the other."""
    profiles = {}
    for name in ("ann", "ben"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "token.jwt").write_text(f"token-of-{name}")
        monkeypatch.chdir(directory)
        profiles[name] = _keyless("http://127.0.0.1:1", {"bearerTokenFile": "token.jwt"})
    monkeypatch.chdir(tmp_path)
    tokens = {name: auth.authorization(profile, settings) for name, profile in profiles.items()}
    assert tokens == {"ann": "Bearer token-of-ann", "ben": "Bearer token-of-ben"}
    assert profiles["ann"].recipient != profiles["ben"].recipient


def test_after_a_401_the_same_token_is_not_shown_again(
    server: ScriptedServer, settings: NetworkSettings, tmp_path: Path
) -> None:
    server.on("/version", refusal(401))
    (tmp_path / "token").write_text("opaque-s3cret")
    rest = SharingRest(_keyless(server.endpoint, {"bearerTokenFile": str(tmp_path / "token")}), settings)
    with pytest.raises(UnauthenticatedError, match=r"the token of bearerTokenFile .* is refused: check its audience"):
        rest.table_version(NAME)
    assert len(server.asked) == 1


# Executors


@pytest.mark.parametrize("carry", ["true", "token", "false"])
def test_executors_are_handed_a_token_alone_and_say_where_the_identity_lives(
    carry: str,
    sharing: SharingServer,
    provider: OpenIdProvider,
    source_of: Callable[..., Source],
    keyless: str,
    tmp_path: Path,
) -> None:
    source = source_of("file")
    sharing.settings.min_url_expiration = True
    options = {**source.options, "identityEndpoint": sharing.endpoint, "carryProfile": carry, "maxSplitBytes": "1k"}
    pickled = pickle.dumps(plan(resolve(parse_options({"path": f"{keyless}#{TABLE}", **options}))).splits)
    token = Path(source.options["bearerTokenFile"]).read_text().strip()
    assert (token.encode() in pickled) == (carry != "false")
    driver_only = (source.options["bearerTokenFile"], "Identity", "identity_of")
    assert [text for text in driver_only if text.encode() in pickled] == []
    os.remove(source.options["bearerTokenFile"])
    auth._tokens.clear()  # as another process
    first, *others = pickle.loads(pickled)
    sharing.expire_urls()
    if carry == "false":
        with pytest.raises(DeltaSharingError, match="carryProfile"):
            list(read_split(first))
        return
    assert sum(batch.num_rows for batch in read_split(first)) == 100, "its URL is renewed with the carried token"
    provider.revoke_all()
    sharing.expire_urls()
    with pytest.raises(
        UnauthenticatedError,
        match=r"token of bearerTokenFile that the plan carries is refused: the identity lives on the driver only.*load the table",
    ):
        list(read_split(others[0]))


def test_in_the_drivers_own_process_the_identity_renews_in_mid_read(
    sharing: SharingServer, provider: OpenIdProvider, source_of: Callable[..., Source], keyless: str
) -> None:
    """A data frame of pandas, the native lane and a Flight gateway read where the identity lives."""
    source = source_of("file")
    options = {**source.options, "identityEndpoint": sharing.endpoint, "maxSplitBytes": "1k"}
    read = []
    for split in plan(resolve(parse_options({"path": f"{keyless}#{TABLE}", **options}))).splits:
        provider.revoke_all()
        source.renew()
        sharing.expire_urls()
        read.append(sum(batch.num_rows for batch in read_split(split)))
    assert read == [100, 100]


def test_a_carried_token_that_ended_is_not_shown(settings: NetworkSettings, server: ScriptedServer) -> None:
    ended = Profile(
        server.endpoint, bearer_token="s3cret", expiration_time="2020-01-01T00:00:00Z", carried="identity=azure"
    )
    with pytest.raises(
        CredentialError,
        match=r"identity=azure that the plan carries ended at 2020-01-01T00:00:00Z: the identity lives on the driver only",
    ):
        SharingRest(ended, settings).table_version(NAME)
    assert server.asked == []


# Profiles that others wrote


HOSTILE: dict[str, dict[str, Any]] = {
    "a file": {"bearerTokenFile": "/etc/passwd"},
    "a file, in another spelling": {"bearer_token_FILE": "/etc/passwd"},
    "a command": {"bearerTokenCommand": "{touch}"},
    "a command of a kube config": {"exec": {"command": "{touch}", "args": []}},
    "a command of an AWS profile": {"credential_process": "{touch}"},
    "a command, deep": {"auth": {"x": [{"tokenCommand": "{touch}"}]}},
    "an identity": {"identity": "azure", "identityAudience": "https://vault.azure.net"},
    "an identity of a type": {"type": "experimental:managed_identity", "shareCredentialsVersion": 2},
    "an identity by OIDC": {"type": "oidc", "shareCredentialsVersion": 2},
    "a managed identity": {"managedIdentity": {"clientId": "x"}},
    "a variable": {"tokenEnv": "AWS_SECRET_ACCESS_KEY"},
    "a variable of ours": {"identityVariable": "AWS_SECRET_ACCESS_KEY"},
    "an allowed endpoint": {"identityEndpoint": "https://evil.example"},
    "an exchange": {"tokenExchangeEndpoint": "https://evil.example/token"},
    "a subject token": {"subject_token_file": "/var/run/secrets/token"},
    "a command in lists": {"x": [[{"y": [{"exec": {}}]}]]},
    "a source of Google's": {"credential_source": {"executable": {"command": "{touch}"}}},
}


@pytest.mark.parametrize("with_identity", [False, True])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_profile_starts_nothing(
    what: str, with_identity: bool, sharing: SharingServer, provider: OpenIdProvider, tmp_path: Path
) -> None:
    """It is refused even where the recipient asked for an identity, before anything is run, read or asked for."""
    marker = tmp_path / "started"
    hostile = json.dumps(HOSTILE[what]).replace("{touch}", f"touch {marker}")
    profile = {"shareCredentialsVersion": 1, "endpoint": sharing.endpoint, "bearerToken": "t"} | json.loads(hostile)
    asked = (
        {"identity": "azure", "identityAudience": AUDIENCE, "identityEndpoint": sharing.endpoint}
        if with_identity
        else {}
    )
    if what in ("an identity of a type", "an identity by OIDC") and with_identity:
        SharingClient(profile, **asked)  # only the endpoint is read of it, and it is the allowed one
    else:
        with pytest.raises(
            ProfileError,
            match=r"starts no command, reads no token's file and asks for no identity of yours.*identityEndpoint",
        ):
            SharingClient(profile, **asked)
    assert not marker.exists()
    assert (provider.asked, provider.issued, sharing.count()) == ([], [], 0)


@pytest.mark.parametrize(
    "token",
    [
        "$(touch {marker})",
        "`touch {marker}`",
        "file:///etc/passwd",
        "${{AWS_SECRET_ACCESS_KEY}}",
        "env:HOME",
        "@/etc/passwd",
    ],
)
def test_a_bearer_token_of_a_profile_is_text(
    token: str, server: ScriptedServer, settings: NetworkSettings, tmp_path: Path
) -> None:
    marker = tmp_path / "started"
    token = token.format(marker=marker).replace(" ", "\t".strip() or "_")
    server.on("/version", OK)
    profile = load_profile({"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": token})
    SharingRest(profile, settings).table_version(NAME)
    assert server.asked[0].headers["authorization"] == f"Bearer {token}"
    assert not marker.exists()


def test_fields_that_start_nothing_are_still_ignored() -> None:
    fields = {"shareCredentialsVersion": 1, "endpoint": "https://x", "bearerToken": "t", "icebergEndpoint": "y"}
    load_profile(
        fields | {"comment": "identity", "displayName": "exec", "files": 3, "description": {"text": "command"}}
    )


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example/prefix",
        "{origin}/other",
        "{origin}/prefix/../other",
        "{origin}/prefix?x=1",
        "{origin}/prefix#x",
        "https://{host}/prefix",
        "http://127.0.0.1:1/prefix",
        "http://user@{host}/prefix",
        "{origin}",
    ],
)
def test_a_token_is_asked_for_only_for_the_endpoint_that_was_allowed(
    elsewhere: str, server: ScriptedServer, settings: NetworkSettings, provider: OpenIdProvider
) -> None:
    origin = server.endpoint.removesuffix("/prefix")
    identity = Identity(server.endpoint, "azure", audience=AUDIENCE)
    endpoint = elsewhere.format(origin=origin, host=origin.removeprefix("http://"))

    def ask() -> None:
        profile = load_profile({"shareCredentialsVersion": 1, "endpoint": endpoint}, identity)
        SharingRest(profile, settings).table_version(NAME)

    with pytest.raises(ConfigError):
        ask()
    assert (server.asked, provider.asked) == ([], [])


@pytest.mark.parametrize("endpoint", ["https://sharing.example/x/", "https://SHARING.example:443/x"])
def test_the_allowed_endpoint_may_be_spelled_otherwise(endpoint: str) -> None:
    identity = Identity("https://Sharing.Example:443/x", "azure", audience="a")
    assert load_profile({"shareCredentialsVersion": 1, "endpoint": endpoint}, identity).identity == identity


def test_a_redirect_does_not_carry_the_token_to_another_origin(
    server: ScriptedServer, settings: NetworkSettings, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("opaque-s3cret")
    with ScriptedServer() as other:
        other.on("/version", OK)
        server.on("/version", Reply(status=307, headers={"Location": f"{other.endpoint}/version"}))
        rest = SharingRest(_keyless(server.endpoint, {"bearerTokenFile": str(tmp_path / "token")}), settings)
        rest.table_version(NAME)
        assert "authorization" in server.asked[0].headers
        assert "authorization" not in other.asked[0].headers


def test_the_environment_serves_profiles_without_credentials_at_its_endpoint_only(
    sharing: SharingServer, source_of: Callable[..., Source], keyless: str
) -> None:
    for name, value in {**source_of("file").options, "identityEndpoint": sharing.endpoint}.items():
        os.environ[variable_of(name)] = value
    assert len(SharingClient(keyless).list_shares()) == 1
    own = SharingClient({"shareCredentialsVersion": 1, "endpoint": sharing.endpoint, "bearerToken": "own"})
    assert own.profile.bearer_token == "own", "a profile's own credentials are used as ever"
    with pytest.raises(ProfileError, match=r"may be shown to http://127.0.0.1:\d+/\S+ only: no token was asked for"):
        SharingClient({"shareCredentialsVersion": 1, "endpoint": "https://evil.example"})
    os.environ["DELTA_SHARING_IDENTITY"] = "azure"
    with pytest.raises(ConfigError, match=r"environment's .*DELTA_SHARING_BEARER_TOKEN_FILE.*exactly one source"):
        SharingClient(keyless)


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"identity": "azure"}, "needs 'identityEndpoint'"),
        ({"identity": "azure", "identityEndpoint": "https://x"}, "identity=azure needs the option 'identityAudience'"),
        ({"identity": "google", "endpoint": "https://x"}, "identity=google needs the option 'identityAudience'"),
        ({"identity": "environment", "endpoint": "https://x"}, "needs the option 'identityVariable'"),
        ({"identity": "asure", "endpoint": "https://x"}, "did you mean 'azure'"),
        ({"identityEndpoint": "https://x"}, "exactly one source of the token"),
        ({"identity": "azure", "bearerTokenFile": "/x", "endpoint": "https://x"}, "exactly one source of the token"),
        ({"bearerTokenFile": "/x", "bearerToken": "s3cret", "endpoint": "https://x"}, "'bearerToken' does not go with"),
        ({"bearerTokenFile": "/x", "type": "basic", "endpoint": "https://x"}, "'type' does not go with"),
        (
            {"bearerTokenFile": "/x", "identityAudience": "a", "endpoint": "https://x"},
            "is for identity=azure and google",
        ),
        (
            {"bearerTokenFile": "/x", "tokenExchangeScope": "a", "endpoint": "https://x"},
            "needs 'tokenExchangeEndpoint'",
        ),
        ({"bearerTokenFile": "/x", "endpoint": "https://x", "identityEndpoint": "https://y"}, "name two endpoints"),
        ({"bearerTokenFile": "/x", "gateway": "grpc+tcp://127.0.0.1:1"}, "does not go with 'gateway'"),
        *(
            ({"bearerTokenCommand": text, "endpoint": "https://x"}, "must be a program and its arguments")
            for text in ("'s3cret", "[]", '["x", 5]', '["x"', '[""]', "''")
        ),
    ],
)
def test_options_that_do_not_fit(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as refused:
        SharingClient(None, **options)
    assert "s3cret" not in str(refused.value)


def test_an_identity_is_the_clients_and_no_scans(sharing: SharingServer, source_of: Callable[..., Source]) -> None:
    options = {**source_of("file").options, "identityEndpoint": sharing.endpoint}
    client = SharingClient({"shareCredentialsVersion": 1, "endpoint": sharing.endpoint, "bearerToken": "t"})
    with pytest.raises(OptionError, match="to SharingClient"):
        client.table(TABLE).scan(**options).to_arrow()


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("azure", "azure.identity", "azure-identity"), ("google", "google.oauth2.id_token", "google-identity")],
)
def test_a_missing_library_is_named_with_the_line_that_installs_it(
    kind: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"identity={kind} needs the package .*{re.escape(install_line(extra))}"):
        token_of(Identity("https://x", kind, audience="a"))


@pytest.mark.parametrize(
    ("said", "connect", "refused"),
    [("", False, False), ("", True, True), ("allow", True, False), ("refuse", False, True), ("Refuse", True, True)],
)
@pytest.mark.parametrize("name", [option.name for option in OPTIONS if option.group == IDENTITY])
def test_a_client_of_spark_connect_asks_for_nothing_of_the_servers(
    said: str, connect: bool, refused: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delta_sharing_spark.spark.session_settings import IDENTITY_OPTIONS, refuse_identity_options

    monkeypatch.setenv(IDENTITY_OPTIONS, said)
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "a-session" if connect else "default")
    if refused:
        with pytest.raises(OptionError, match=rf"'{name.lower()}' is refused.*run, read or sign in as the server"):
            refuse_identity_options({"path": "a.b.c", name.lower(): "x"})
    else:
        refuse_identity_options({"path": "a.b.c", name: "x"})
    refuse_identity_options({"path": "a.b.c", "endpoint": "https://x", "bearerToken": "t"})


# Files, commands, tokens


@pytest.mark.parametrize("content", ["", " \n", "two words", "a\nb", "tök", "x" * 70_000, "\0"])
def test_a_file_without_a_token(content: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(content)
    with pytest.raises(
        CredentialError, match=r"bearerTokenFile .*token.*(is empty|holds no token|more than 64 KiB)"
    ) as refused:
        token_of(Identity("https://x", "file", str(tmp_path / "token")))
    assert "two words" not in str(refused.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    paths = ("/dev/zero", str(tmp_path / "pipe"), str(tmp_path), str(tmp_path / "none"), "a\0b", "~nosuchuser/x")
    reads = [partial(token_of, Identity("https://x", "file", path)) for path in paths]
    assert not_refused(CredentialError, "bearerTokenFile", *reads) == []


def test_a_token_that_has_ended_is_not_shown(provider: OpenIdProvider, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(provider.issue(life=-100))
    with pytest.raises(CredentialError, match=r"ended 10\d s ago and has not been renewed") as refused:
        token_of(Identity("https://x", "file", str(tmp_path / "token")))
    assert not any(token in str(refused.value) for token in provider.issued)


@given(st.text(max_size=40) | st.builds(lambda a: f"h.{a}.s", st.text(max_size=40)))
def test_any_text_has_an_end_or_none(text: str) -> None:
    token_end(text)


def _printing(text: str, *, then: str = "") -> tuple[str, ...]:
    return sys.executable, "-c", f"import sys, time; sys.stdout.write({text!r}); sys.stdout.flush(); {then}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("opaque\n", ("opaque", None)),
        ('{"access_token": "opaque"}', ("opaque", None)),
        ('{"access_token": "opaque", "expires_in": 60}', ("opaque", 60)),
        ('{"access_token": "opaque", "expires_in": "60", "expiration": "2999-01-01T00:00:00Z"}', ("opaque", 60)),
        ('{"access_token": "opaque", "expiration": "IN_AN_HOUR"}', ("opaque", 3600)),
    ],
)
def test_what_a_command_may_print(text: str, expected: tuple[str, float | None]) -> None:
    text = text.replace('"IN_AN_HOUR"', str(int(time.time()) + 3600))
    token, life = token_of(Identity("https://x", "command", json.dumps(_printing(text))))
    assert token == expected[0]
    assert life is None if expected[1] is None else life is not None and abs(life - expected[1]) < 5


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (_printing("two s3cret"), "holds no token"),
        (_printing(""), "is empty"),
        (_printing('{"token": "s3cret"}'), "without 'access_token'"),
        (_printing('{"access_token": 5}'), "without 'access_token'"),
        (_printing('{"access_token": "s3cret", "expires_in": "soon"}'), "'expires_in' that is no number"),
        (_printing('{"access_token": "s3cret", "expiration": "soon"}'), "'expires_in' that is no number"),
        (_printing('{"access_token": "s3cret", "expires_in": 1e400}'), "'expires_in' that is no number"),
        (_printing('{"access_token": "s3cret", "expires_in": -5}'), "ended 5 s ago"),
        (_printing("{s3cret"), "without 'access_token'"),
        (_printing("s3cret", then="sys.stderr.write('s3cret'); sys.exit(3)"), "ended with status 3; run it by hand"),
        (_printing("s3cret" * 20_000), "printed more than 64 KiB"),
        (("/nowhere/s3cretless", "s3cret"), "cannot be started .FileNotFoundError"),
        (("/etc/passwd", "s3cret"), "cannot be started .PermissionError"),
    ],
)
def test_a_command_that_gives_no_token(command: tuple[str, ...], message: str) -> None:
    with pytest.raises(CredentialError, match=message) as refused:
        token_of(Identity("https://x", "command", json.dumps(command)))
    shown = str(refused.value).replace("/nowhere/s3cretless", "")
    assert "s3cret" not in shown + repr(Identity("https://x", "command", json.dumps(command)))


def test_a_command_has_a_time_limit_and_ends_with_what_it_started(tmp_path: Path) -> None:
    """A child that holds the pipe open is ended as well."""
    child = f"import time, pathlib; time.sleep(2); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    started = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
    begin = time.monotonic()
    with pytest.raises(CredentialError, match=r"took more than 0\.7 s"):
        run_command((sys.executable, "-c", started), 0.7)
    while time.monotonic() - begin < 3:
        time.sleep(0.1)
    assert not (tmp_path / "late").exists()


def test_a_command_is_no_shells_and_sees_no_secret_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTA_SHARING_PROFILE", "{s3cret}")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "s3cret")
    monkeypatch.setenv("PYSPARK_GATEWAY_SECRET", "s3cret")
    monkeypatch.setenv("MY_PLATFORM", "kept")
    program = tmp_path / "show it"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ), sys.stdin.read()]))\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    command = parse_command(f"'{program}' $HOME '*' ; touch {tmp_path}/x && echo `id` | cat > y")
    arguments, environment, stdin = json.loads(run_command(command))
    assert arguments == ["$HOME", "*", ";", "touch", f"{tmp_path}/x", "&&", "echo", "`id`", "|", "cat", ">", "y"]
    assert not (tmp_path / "x").exists()
    assert stdin == ""
    assert environment["MY_PLATFORM"] == "kept"
    assert "s3cret" not in str(environment)
    assert TIME_LIMIT == 30


# The exchange (RFC 8693)


def _exchanging(server: ScriptedServer, tmp_path: Path, token: str = "opaque-s3cret", **more: str) -> Profile:
    (tmp_path / "token").write_text(token)
    named = {"bearerTokenFile": str(tmp_path / "token"), "tokenExchangeEndpoint": f"{server.endpoint}/exchange"}
    return _keyless(server.endpoint, named | more)


def test_the_exchange_asks_as_the_rfc_says(
    server: ScriptedServer, settings: NetworkSettings, provider: OpenIdProvider, tmp_path: Path
) -> None:
    server.on("/exchange", Reply({"access_token": "exchanged", "token_type": "bearer", "issued_token_type": "x"}))
    server.on("/version", OK)
    subject = provider.issue()
    more = {"tokenExchangeAudience": "a", "tokenExchangeScope": "b c", "tokenExchangeClientId": "me"}
    SharingRest(_exchanging(server, tmp_path, subject, **more), settings).table_version(NAME)
    asked = server.asked[0]
    assert asked.form == {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": subject,
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "audience": "a",
        "scope": "b c",
        "client_id": "me",
    }
    assert "authorization" not in asked.headers
    assert server.asked[1].headers["authorization"] == "Bearer exchanged"
    auth._tokens.clear()
    SharingRest(_exchanging(server, tmp_path), settings).table_version(NAME)
    assert server.asked[2].form["subject_token_type"] == "urn:ietf:params:oauth:token-type:access_token"


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (
            Reply({"error": "invalid_grant", "error_description": "opaque-s3cret"}, 400),
            RequestRefusedError,
            "check tokenExchangeEndpoint",
        ),
        (Reply({"error_description": "no eyJh-x.eyJs3cret.sig_s3cret"}, 403), DeltaSharingError, r"no \[redacted\]"),
        (
            Reply({"access_token": "x", "token_type": "N_A"}),
            ResponseError,
            "'token_type' of the token exchange is not 'Bearer'",
        ),
        (Reply({"token": "opaque-s3cret"}), ResponseError, "Missing 'access_token'"),
        (Reply({"access_token": "x", "expires_in": "soon"}), ResponseError, "'expires_in' field must be an integer"),
        (
            Reply(status=307, headers={"Location": "/prefix/elsewhere"}),
            ResponseError,
            "the exchange's endpoint answered 307",
        ),
    ],
)
def test_an_exchange_that_gives_no_token(
    reply: Reply,
    kind: type[DeltaSharingError],
    message: str,
    server: ScriptedServer,
    settings: NetworkSettings,
    tmp_path: Path,
) -> None:
    server.on("/exchange", reply)
    with pytest.raises(kind, match=message) as refused:
        SharingRest(_exchanging(server, tmp_path), settings).table_version(NAME)
    assert "s3cret" not in str(refused.value)
    assert [asked.path for asked in server.asked] == ["/prefix/exchange"]


def test_the_exchange_is_https(server: ScriptedServer, settings: NetworkSettings, tmp_path: Path) -> None:
    profile = _exchanging(server, tmp_path, tokenExchangeEndpoint="http://login.example/token")
    with pytest.raises(ConfigError, match="tokenExchangeEndpoint"):
        SharingRest(profile, settings).table_version(NAME)


# Secrets


@pytest.mark.parametrize("kind", KINDS)
def test_no_token_is_shown_anywhere(
    kind: str,
    sharing: SharingServer,
    provider: OpenIdProvider,
    source_of: Callable[..., Source],
    keyless: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the most talkative level of every library, in errors with their causes, and in every repr."""
    source = source_of(kind)
    told = ""
    with caplog.at_level(logging.DEBUG):
        client = SharingClient(keyless, identityEndpoint=sharing.endpoint, **source.options)
        scan = client.table(TABLE).scan()
        scan.to_arrow()
        told += repr(client) + repr(client.profile) + repr(scan) + repr(scan.resolved()) + str(client.rest)
        provider.revoke_all()
        provider.fails = 403
        try:
            client.table(TABLE).scan().to_arrow()
        except DeltaSharingError as error:
            chain: BaseException | None = error
            while chain is not None:
                told += str(chain) + repr(chain) + str(vars(chain))
                chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    logged = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert provider.issued
    assert not [token for token in provider.issued if token in told or token in logged]
