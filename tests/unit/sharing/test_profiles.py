"""Profiles: every type, every place they come from, and what is refused (peers.md T38 to T44)."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import ProfileError
from delta_sharing_spark.schema.instants import parse_instant
from delta_sharing_spark.sharing.identity import KeyConsent
from delta_sharing_spark.sharing.profile import ENVIRONMENT, load_profile, profile_from_environment
from unit.sharing.scripted_server import Reply, ScriptedServer

BEARER = {"shareCredentialsVersion": 1, "endpoint": "https://server/prefix/", "bearerToken": "t0ken-s3cret"}
OAUTH = {
    "shareCredentialsVersion": 2,
    "type": "oauth_client_credentials",
    "endpoint": "https://server",
    "tokenEndpoint": "https://login/token/",
    "clientId": "me",
    "clientSecret": "cl1ent-s3cret",
}
BASIC = {
    "shareCredentialsVersion": 2,
    "type": "basic",
    "endpoint": "https://server",
    "username": "me",
    "password": "p4ss-s3cret",
}


def jwt_fields(key_file: Path) -> dict[str, Any]:
    key = {"privateKeyFile": str(key_file), "keyId": "k1"}
    auth = {"tokenEndpoint": "https://login/token", "issuer": "iss", "clientId": "me", "audience": "aud"}
    return {
        "shareCredentialsVersion": 2,
        "type": "oauth_jwt_bearer_private_key_jwt",
        "endpoint": "https://server",
        "auth": auth | {"privateKey": key},
    }


def consent_to(key_file: Path) -> KeyConsent:
    return KeyConsent("https://login", "https://server", str(key_file), "iss")


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key.pem"
    path.write_text("-----BEGIN s3cret-----")
    return path


def test_version_one() -> None:
    profile = load_profile(BEARER | {"expirationTime": "2021-11-12T00:12:29.0Z", "icebergEndpoint": "x", "new": {}})
    assert (profile.endpoint, profile.type, profile.bearer_token) == (
        "https://server/prefix",
        "bearer_token",
        "t0ken-s3cret",
    )
    assert profile.expires == datetime(2021, 11, 12, 0, 12, 29, tzinfo=timezone.utc)


def test_version_two_with_a_bearer_token() -> None:
    """T42: the references refuse it; it is harmless, and servers hand it out (issue 3 asks for it)."""
    profile = load_profile(BEARER | {"shareCredentialsVersion": 2, "type": "bearer_token"})
    assert profile.bearer_token == "t0ken-s3cret"


def test_the_other_types(key_file: Path) -> None:
    oauth = load_profile(OAUTH | {"scope": "all"})
    assert (oauth.token_endpoint, oauth.client_id, oauth.client_secret, oauth.scope) == (
        "https://login/token/",
        "me",
        "cl1ent-s3cret",
        "all",
    )
    basic = load_profile(BASIC)
    assert (basic.username, basic.password) == ("me", "p4ss-s3cret")
    signed = load_profile(jwt_fields(key_file), key=consent_to(key_file))
    assert signed.private_key is not None
    assert (signed.issuer, signed.audience, signed.private_key.algorithm) == ("iss", "aud", "RS256")
    assert signed.private_key.pem == key_file.read_text(), "executors have not got the file"


@pytest.mark.parametrize("version", ["1", " 1", 1])
def test_a_version_may_be_text(version: Any) -> None:
    assert load_profile(BEARER | {"shareCredentialsVersion": version}).version == 1


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {k: v for k, v in fields.items() if k != name}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (_without(BEARER, "shareCredentialsVersion"), "Cannot find the 'shareCredentialsVersion' field"),  # T39
        (_without(BEARER, "endpoint"), "Cannot find the 'endpoint' field"),  # T40
        (_without(BEARER, "bearerToken"), "Cannot find the 'bearerToken' field"),
        (BEARER | {"bearerToken": " "}, "Cannot find the 'bearerToken' field"),
        (BEARER | {"bearerToken": 5}, "Cannot find the 'bearerToken' field"),
        (BEARER | {"shareCredentialsVersion": 100}, "is 100 which is too new.*upgrade delta-sharing-spark"),  # T41
        (BEARER | {"shareCredentialsVersion": 0}, "not a version number"),
        (BEARER | {"shareCredentialsVersion": 1.5}, "not a version number"),
        (BEARER | {"shareCredentialsVersion": True}, "not a version number"),
        (BEARER | {"shareCredentialsVersion": []}, "not a version number"),
        (OAUTH | {"shareCredentialsVersion": 1}, "'oauth_client_credentials' needs shareCredentialsVersion 2"),  # T42
        (BASIC | {"shareCredentialsVersion": 1}, "'basic' needs shareCredentialsVersion 2"),
        (OAUTH | {"type": "kerberos"}, "'kerberos' is unknown; upgrade"),
        *((_without(OAUTH, name), f"Cannot find the '{name}' field") for name in ("clientSecret", "clientId")),  # T44
        (_without(OAUTH, "tokenEndpoint"), "Cannot find the 'tokenEndpoint' field"),
        *((_without(BASIC, name), f"Cannot find the '{name}' field") for name in ("username", "password")),
        (OAUTH | {"type": "oauth_jwt_bearer_private_key_jwt"}, "Cannot find the 'auth' field"),
        (
            jwt_fields(Path("/nowhere/key.pem")),
            "would sign with a key for https://login/token.*set the options privateKeyFile",
        ),
        (BEARER | {"bearerToken": "two\nlines"}, "characters that no token has"),
        (BEARER | {"bearerToken": "tökén"}, "characters that no token has"),
        (BASIC | {"password": "\ud800"}, "'password' in the profile is not valid text"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ProfileError, match=message) as caught:
        load_profile(fields)
    assert "s3cret" not in str(caught.value)


def test_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path, a home directory, a file URL, any fsspec URL, UTF-16, a byte-order mark, JSON, and the environment."""
    import fsspec

    path = tmp_path / "profile with space.share"
    path.write_text("\ufeff" + json.dumps(BEARER), encoding="utf-8")
    fsspec.filesystem("memory").pipe("/p.share", json.dumps(BEARER).encode())
    for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):  # the first as PowerShell's > writes it
        (tmp_path / coding).write_bytes(json.dumps(BEARER | {"scope": "ü"}, ensure_ascii=False).encode(coding))
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = load_profile(BEARER)
    sources = [path, str(path), f"~/{path.name}", path.as_uri(), f"file:{path}", "memory://p.share"]
    sources += [tmp_path / coding for coding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32")]
    sources += [f" {json.dumps(BEARER)} ", f"\ufeff{json.dumps(BEARER)}"]
    assert [source for source in sources if load_profile(source) != expected] == []
    monkeypatch.setenv(ENVIRONMENT, str(path))
    assert profile_from_environment() == expected
    monkeypatch.setenv(ENVIRONMENT, json.dumps(BEARER))
    assert profile_from_environment() == expected
    monkeypatch.setenv(ENVIRONMENT, " ")
    assert profile_from_environment() is None


def test_from_a_web_server(server: ScriptedServer) -> None:
    server.on("/p.share", Reply(BEARER))
    assert load_profile(f"{server.endpoint}/p.share?sig=s3cret") == load_profile(BEARER)
    assert server.asked[0].query == {"sig": "s3cret"}
    with pytest.raises(ProfileError, match="web server answered 404") as caught:
        load_profile(f"{server.endpoint}/other.share?sig=s3cret")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("source", ["dbfs:/mnt/p.share", "dbfs:///mnt/p.share"])
def test_dbfs_is_its_mount(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.setattr(
        Path, "open", lambda self, _: io.BytesIO(json.dumps(BEARER | {"bearerToken": str(self)}).encode())
    )
    assert load_profile(source).bearer_token == "/dbfs/mnt/p.share"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/nowhere/p.share", "does not exist; check its path$"),
        ("nowhere/p.share", rf"nowhere/p.share does not exist \(here it means {os.getcwd()}/nowhere/p.share\); check"),
        ("~/nowhere/p.share", r"does not exist \(here it means /.*/nowhere/p.share\)"),
        ("memory://nowhere.share", "does not exist"),
        ("{not json", r"not valid JSON \(line 1, column 2: Expecting property name"),
        (
            '{"endpoint": "https://x",\n "bearerToken": "s3cret"\n "type": 1}',
            r"\(line 3, column 2: Expecting ',' delimiter\)",
        ),
        ("[" * 100_000, "cannot be read|does not exist"),
        ("/", "cannot be read"),
        ("nosuchscheme://x/y", "cannot be read"),
        ("~nosuchuser/p.share", "cannot be read"),
        ("a\0b", "cannot be read"),
        ("http://[::1", "cannot be read"),
        ("https://nowhere.invalid/p.share?sig=s3cret", "cannot be read"),
        ("http://nowhere.invalid/p.share?sig=s3cret", "not https"),
    ],
)
def test_what_cannot_be_read(source: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # a web server that is not there is asked again
    with pytest.raises(ProfileError, match=message) as caught:
        load_profile(source)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("artifacts", "words"), [("default", "^the profile"), ("26d280d8", "^on the Spark Connect server, the")]
)
def test_a_worker_of_spark_connect_says_whose_profile_is_missing(
    artifacts: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the client's is none of the server's."""
    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", artifacts)
    with pytest.raises(ProfileError, match=words):
        DeltaSharingDataSource({"path": "/nowhere/p.share#s.d.t"}).schema()


@pytest.mark.parametrize("text", ["[]", '"x"', "5", "null", ""])
def test_a_file_that_is_no_object(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.share"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"not a JSON object|not valid JSON"):
        load_profile(path)


@pytest.mark.parametrize(
    "fields", [lambda _: BEARER, lambda _: OAUTH, lambda _: BASIC, jwt_fields], ids=["bearer", "oauth", "basic", "key"]
)
def test_a_profile_shows_no_secret(key_file: Path, fields: Callable[[Path], dict[str, Any]]) -> None:
    profile = load_profile(fields(key_file), key=consent_to(key_file))
    assert "s3cret" not in repr(profile)
    assert "s3cret" not in str(profile)
    assert pickle.loads(pickle.dumps(profile)) == profile


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted({*BEARER, *OAUTH, *BASIC, "auth", "expirationTime", "scope"})
TYPES = ["bearer_token", "basic", "oauth_client_credentials", "oauth_jwt_bearer_private_key_jwt", "x"]


@given(
    st.dictionaries(st.sampled_from(KEYS), JSON),
    st.sampled_from([BEARER, OAUTH, BASIC, jwt_fields(Path("/nowhere"))]),
    st.sampled_from(TYPES),
)
def test_any_fields_are_a_profile_or_a_profile_error(spoilt: dict[str, Any], whole: dict[str, Any], kind: str) -> None:
    fields = whole | {"type": kind} | spoilt
    try:
        profile = load_profile(json.dumps(fields), key=consent_to(Path("/nowhere")))
    except ProfileError:
        return
    profile.expires  # noqa: B018  # must not fail either


@given(st.text(max_size=60))
def test_any_json_text_is_a_profile_or_a_profile_error(text: str) -> None:
    with pytest.raises(ProfileError):
        load_profile("{" + text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2021-11-12T00:12:29.0Z", "2021-11-12T00:12:29+00:00"),
        ("2021-11-12T00:12:29Z", "2021-11-12T00:12:29+00:00"),
        ("2021-11-12T00:12:29.123456789Z", "2021-11-12T00:12:29.123456+00:00"),
        ("2021-11-12T00:12:29,5+01:00", "2021-11-11T23:12:29.500000+00:00"),
        ("2021-11-12T00:12:29-0230", "2021-11-12T02:42:29+00:00"),
        ("2021-11-12 00:12+05", "2021-11-11T19:12:00+00:00"),
        ("2021-11-12", "2021-11-12T00:00:00+00:00"),
        ("9999-12-31T23:59:59-01:00", None),
        ("2021-13-12", None),
        ("tomorrow", None),
        ("", None),
    ],
)
def test_instants(text: str, expected: str | None) -> None:
    instant = parse_instant(text)
    assert (None if instant is None else instant.isoformat()) == expected


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_instants_as_python_writes_them(naive: datetime, minutes: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert parse_instant(moment.isoformat()) == moment


@pytest.mark.parametrize("url", ["hdfs://nowhere:1/p.share", "viewfs://nowhere/p.share", "dbfs:/nowhere/p.share"])
def test_a_file_system_of_hadoops_without_a_session_says_who_can_read_it(url: str) -> None:
    scheme = url.partition(":")[0]
    with pytest.raises(ProfileError, match=rf"Spark's Hadoop can read {scheme}:.*register\(spark\).*local path"):
        load_profile(url)
