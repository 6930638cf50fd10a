"""Who asks: tokens that expire, passwords, OAuth tokens that are cached and renewed, signed assertions (peers.md T56)."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import jwt
import pytest

from delta_sharing_spark.errors import (
    ConfigError,
    NetworkError,
    ProfileError,
    RequestRefusedError,
    ResponseError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
)
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.sharing import auth
from delta_sharing_spark.sharing.identity import KeyConsent
from delta_sharing_spark.sharing.profile import load_profile
from unit.sharing.scripted_server import NAME, OK, TOKEN, Asked, Clock, Reply, Rest, ScriptedServer, refusal


@pytest.fixture(autouse=True)
def _no_token_known() -> None:
    auth._tokens.clear()
    auth._posted.clear()


def oauth_of(server: ScriptedServer, **more: Any) -> dict[str, Any]:
    return {
        "shareCredentialsVersion": 2,
        "type": "oauth_client_credentials",
        "tokenEndpoint": f"{server.endpoint}/oauth",
        "clientId": "me",
        "clientSecret": "cl1ent-s3cret",
    } | more


def issue(server: ScriptedServer, life: Any = 3600) -> None:
    """The token endpoint gives out t1, t2...; the version is told for the latest only."""
    issued: list[str] = []

    def token(_: Asked) -> Reply:
        issued.append(f"t{len(issued) + 1}-s3cret")
        return Reply({"access_token": issued[-1], "expires_in": life, "token_type": "Bearer"})

    def version(asked: Asked) -> Reply:
        ok = issued and asked.headers["authorization"] == f"Bearer {issued[-1]}"
        return OK if ok else refusal(401, "UNAUTHENTICATED", "bad token")

    server.on("/oauth", token)
    server.on("/version", version)


def revoke() -> None:
    """The server takes the process's token no more, before its end."""
    renewable = auth._tokens.items()[0][1]
    assert renewable.value is not None
    renewable.keep(replace(renewable.value, value="revoked"))


def tokens_asked(server: ScriptedServer) -> int:
    return sum(a.path.endswith("/oauth") for a in server.asked)


# Bearer tokens


@pytest.mark.parametrize(
    ("expiration", "message"),
    [
        ("2021-11-12T00:12:29.0Z", "the profile's token expired at 2021-11-12T00:12:29Z; ask the provider"),
        ("2021-11-12T02:12:29+02:00", "the profile's token expired at 2021-11-12T00:12:29Z"),
        ("2999-01-01T00:00:00Z", "the token is not valid; ask the provider"),
        ("whenever", "the token is not valid"),
        (None, "the token is not valid"),
    ],
)
def test_a_401_names_the_tokens_expiry(
    server: ScriptedServer, rest_of: Rest, expiration: str | None, message: str
) -> None:
    """The reference Python client never shows its hint (peers.md D3)."""
    server.on("", refusal(401, "UNAUTHENTICATED", "bad token"))
    with pytest.raises(UnauthenticatedError) as caught:
        rest_of(server, expirationTime=expiration).table_version(NAME)
    assert message in str(caught.value)
    assert "401 UNAUTHENTICATED: bad token" in str(caught.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "ask",
    [lambda rest: rest.table_version(NAME), lambda rest: rest.metadata(NAME), lambda rest: [*rest.list_shares()]],
    ids=["version", "metadata", "shares"],
)
@pytest.mark.parametrize("body", ["Unauthorized", "<html><body>Log in</body></html>", "", "[1]", '{"message": 1}'])
def test_a_401_need_not_be_json(server: ScriptedServer, rest_of: Rest, body: str, ask: Callable[[Any], object]) -> None:
    """The reference server answers a wrong token with a line of text."""
    server.on("", Reply(body, 401, {"Content-Type": "text/plain"}))
    with pytest.raises(UnauthenticatedError, match=r"401.*ask the provider") as caught:
        ask(rest_of(server))
    assert caught.value.status == 401


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Niue"])
@pytest.mark.parametrize(("hours", "expired"), [(1, False), (-1, True)])
def test_expiry_is_compared_in_utc(
    server: ScriptedServer, rest_of: Rest, monkeypatch: pytest.MonkeyPatch, zone: str, hours: int, expired: bool
) -> None:
    """The JVM client compares it with the local wall clock (peers.md D9)."""
    import time

    server.on("", refusal(401))
    moment = datetime.now(timezone.utc) + timedelta(hours=hours)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        rest = rest_of(server, expirationTime=moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
        with pytest.raises(UnauthenticatedError) as caught:
            rest.table_version(NAME)
        assert ("expired at" in str(caught.value)) == expired
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


def test_an_expired_token_is_tried_all_the_same(server: ScriptedServer, rest_of: Rest) -> None:
    server.on("", OK)
    assert rest_of(server, expirationTime="2001-01-01T00:00:00Z").table_version(NAME) == 7


def test_basic(server: ScriptedServer, rest_of: Rest) -> None:
    server.on("", OK)
    rest_of(server, shareCredentialsVersion=2, type="basic", username="mé", password="p:w").table_version(NAME)
    scheme, _, value = server.asked[0].headers["authorization"].partition(" ")
    assert (scheme, base64.b64decode(value).decode()) == ("Basic", "mé:p:w")


# OAuth


def test_a_token_is_asked_for_once(server: ScriptedServer, rest_of: Rest) -> None:
    issue(server)
    rest = rest_of(server, **oauth_of(server, scope="all of it"))
    for _ in range(3):
        assert rest.table_version(NAME) == 7
    assert tokens_asked(server) == 1
    asked = server.asked[0]
    assert (asked.method, asked.path) == ("POST", "/prefix/oauth")
    assert asked.form == {"grant_type": "client_credentials", "scope": "all of it"}
    assert base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode() == "me:cl1ent-s3cret"


def test_another_client_of_the_same_profile_shares_it(server: ScriptedServer, rest_of: Rest) -> None:
    issue(server)
    for _ in range(3):
        rest_of(server, **oauth_of(server)).table_version(NAME)
    assert tokens_asked(server) == 1
    rest_of(server, **oauth_of(server, clientId="you")).table_version(NAME)
    assert tokens_asked(server) == 2


@pytest.mark.parametrize(("life", "kept"), [(3600, 3200), ("3600", 3200), (36000, 35300), (10, 8)])
def test_a_token_is_renewed_before_it_ends(
    server: ScriptedServer, rest_of: Rest, clock: Clock, life: Any, kept: float
) -> None:
    """With ten minutes to go, or a tenth of a short life."""
    issue(server, life)
    rest = rest_of(server, **oauth_of(server))
    rest.table_version(NAME)
    clock.time += kept
    rest.table_version(NAME)
    assert tokens_asked(server) == 1
    clock.time += int(life) - kept - 0.5
    rest.table_version(NAME)
    assert tokens_asked(server) == 2


def test_a_token_to_carry_has_half_its_life_left(
    server: ScriptedServer, rest_of: Rest, clock: Clock, settings: NetworkSettings
) -> None:
    """Executors cannot renew it. While the token endpoint is down, the one at hand is carried."""
    issue(server)
    profile = load_profile({"endpoint": server.endpoint, **oauth_of(server)})
    rest = rest_of(server, **oauth_of(server))

    def carried() -> tuple[str | None, int]:
        carried_one = auth.carried_profile(profile, settings, "token")
        assert carried_one is not None
        assert carried_one.expires is not None
        return carried_one.bearer_token, round((carried_one.expires - datetime.now(timezone.utc)).total_seconds(), -2)

    assert carried() == ("t1-s3cret", 3600)
    clock.time += 1750
    assert carried() == ("t1-s3cret", 1800)
    clock.time += 100
    rest.table_version(NAME)
    assert tokens_asked(server) == 1, "who can renew it uses it longer"
    assert carried() == ("t2-s3cret", 3600)
    clock.time += 1900
    server.on("/oauth", refusal(503))
    asked = tokens_asked(server)
    assert carried() == carried() == ("t2-s3cret", 1700)
    assert tokens_asked(server) > asked
    rest.table_version(NAME)


def test_a_token_is_renewed_once_after_a_401(server: ScriptedServer, rest_of: Rest) -> None:
    issue(server)
    rest = rest_of(server, **oauth_of(server))
    rest.table_version(NAME)
    revoke()
    assert rest.table_version(NAME) == 7
    assert tokens_asked(server) == 2
    server.on("/version", refusal(401))
    with pytest.raises(UnauthenticatedError):
        rest.table_version(NAME)
    assert tokens_asked(server) == 3


def test_an_outage_of_the_token_endpoint_is_sat_out_while_the_token_is_good(
    server: ScriptedServer, rest_of: Rest, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    issue(server)
    rest = rest_of(server, **oauth_of(server))
    rest.table_version(NAME)
    clock.time += 3400
    server.on("/oauth", refusal(503))
    with caplog.at_level(logging.WARNING):
        assert rest.table_version(NAME) == 7
    assert "could not be renewed yet" in caplog.text
    assert "s3cret" not in caplog.text
    asked = tokens_asked(server)
    rest.table_version(NAME)
    assert tokens_asked(server) == asked, "not at every request"
    clock.time += 200
    with pytest.raises(UnavailableError, match="the OAuth token: the token endpoint answered 503"):
        rest.table_version(NAME)


def test_the_token_endpoint_is_retried(server: ScriptedServer, rest_of: Rest, clock: Clock) -> None:
    server.on("/version", OK)
    good = Reply({"access_token": "t", "expires_in": 60})
    server.on("/oauth", refusal(429, Retry_After="3"), Reply(reset=True), Reply(good.body, cut=4), good)
    assert rest_of(server, **oauth_of(server)).table_version(NAME) == 7
    assert len(clock.slept) == 3
    assert clock.slept[0] >= 3


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "Empty response from OAuth token endpoint"),
        ({}, "Missing 'access_token' field in OAuth token response"),
        ({"access_token": "", "expires_in": 5}, "Missing 'access_token'"),
        ({"access_token": 5, "expires_in": 5}, "Missing 'access_token'"),
        ({"access_token": "a\nb", "expires_in": 5}, "Missing 'access_token'"),
        ([1], "Missing 'access_token'"),
        *(
            ({"access_token": "s3cret", "expires_in": value}, "must be an integer or a string convertible to integer")
            for value in ("abc", [], True, 0, -5, "-5.5", "nan", 1e400, "9" * 400)
        ),
        ("<html>", "did not answer with JSON"),
        ("[" * 100_000, "did not answer with JSON"),
    ],
)
def test_answers_of_the_token_endpoint_that_are_none(
    server: ScriptedServer, rest_of: Rest, body: Any, message: str
) -> None:
    server.on("/oauth", Reply(json.dumps(body) if isinstance(body, list) else body))
    with pytest.raises(ResponseError, match=f"{message}.*tokenEndpoint") as caught:
        rest_of(server, **oauth_of(server)).table_version(NAME)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply({"error": "invalid_client", "error_description": "no cl1ent-s3cret here"}, 401), UnauthenticatedError),
        (Reply({"error": "invalid_scope", "error_description": "x"}, 400), RequestRefusedError),
        (Reply(status=307, headers={"Location": "https://elsewhere.example/"}), ResponseError),
    ],
)
def test_refusals_of_the_token_endpoint(
    server: ScriptedServer, rest_of: Rest, reply: Reply, kind: type[ServerError]
) -> None:
    """The client's secret is not quoted, and a redirect is not followed with it."""
    server.on("/oauth", reply)
    with pytest.raises(ServerError, match="the OAuth token: the token endpoint answered") as caught:
        rest_of(server, **oauth_of(server)).table_version(NAME)
    assert type(caught.value) is kind
    assert "s3cret" not in str(caught.value)
    assert len(server.asked) == 1 + (kind is UnauthenticatedError)  # once more with the secret in the form


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/o/token/", ("/prefix/o/token/", {})),
        ("/token?p=B2C_1A_policy", ("/prefix/token", {"p": "B2C_1A_policy"})),
        ("/token/?p=x&q=%2F", ("/prefix/token/", {"p": "x", "q": "/"})),
    ],
)
def test_a_token_endpoint_is_asked_as_it_is_written(
    server: ScriptedServer, rest_of: Rest, path: str, asked: tuple[str, dict[str, str]]
) -> None:
    server.on("", Reply({"access_token": "t", "expires_in": 60}, headers=OK.headers))
    assert rest_of(server, **oauth_of(server, tokenEndpoint=server.endpoint + path)).table_version(NAME) == 7
    assert (server.asked[0].path, server.asked[0].query) == asked


@pytest.mark.parametrize(
    ("told", "life"),
    [
        ({"expires_in": 1000}, 1000),
        ({"expires_in": "1000"}, 1000),
        ({"expires_in": 1000.0}, 1000),
        ({"expires_in": "1000.5"}, 1000.5),
        ({"exp": 1000}, 1000),
        ({"exp": 1000, "expires_in": 500}, 500),
    ],
)
def test_how_long_a_token_serves(
    server: ScriptedServer, rest_of: Rest, clock: Clock, told: dict[str, Any], life: float
) -> None:
    """``exp`` is what the token itself says, in seconds from now."""
    server.on("/version", OK)
    token = jwt.encode({"exp": time.time() + told["exp"]}, "k" * 32) if "exp" in told else "t"
    server.on("/oauth", Reply({"access_token": token} | told))
    rest = rest_of(server, **oauth_of(server))
    rest.table_version(NAME)
    server.on("/oauth", Reply(status=503))
    clock.time += life - 30
    rest.table_version(NAME)  # it cannot be renewed, and still serves
    clock.time += 60
    with pytest.raises(UnavailableError):
        rest.table_version(NAME)


@pytest.mark.parametrize("told", [{}, {"expires_in": None}, {"expires_in": ""}], ids=str)
def test_a_token_whose_end_nothing_tells_serves_until_it_is_refused(
    server: ScriptedServer, rest_of: Rest, clock: Clock, told: dict[str, Any]
) -> None:
    server.on("/version", OK)
    server.on("/oauth", Reply({"access_token": "t1", **told}))
    rest = rest_of(server, **oauth_of(server))
    for seconds in (0, 300, 299):
        clock.time += seconds
        rest.table_version(NAME)
    assert tokens_asked(server) == 1, "a job of many requests does not ask each minute"
    server.on("/oauth", Reply({"access_token": "t2", **told}))
    server.on("/version", lambda asked: OK if asked.headers["authorization"] == "Bearer t2" else refusal(401))
    assert rest.table_version(NAME) == 7
    assert tokens_asked(server) == 2


SPECIAL = {"clientId": "me: you&co", "clientSecret": "a+b/c=%41 \u00e9:s3cret"}


def test_id_and_secret_are_encoded_as_in_a_form_first(server: ScriptedServer, rest_of: Rest) -> None:
    """RFC 6749, section 2.3.1: a colon in the id would end it."""
    server.on("/version", OK)
    server.on("/oauth", Reply({"access_token": "t", "expires_in": 60}))
    rest_of(server, **oauth_of(server, **SPECIAL)).table_version(NAME)
    pair = base64.b64decode(server.asked[0].headers["authorization"].removeprefix("Basic ")).decode().split(":")
    assert [unquote_plus(text) for text in pair] == list(SPECIAL.values())
    assert "client_secret" not in server.asked[0].form


@pytest.mark.parametrize(
    "no",
    [
        refusal(401, "invalid_client"),
        Reply({"error": "invalid_client"}, 400),
        Reply({"error": "invalid_request", "error_description": "client_id is missing"}, 400),
        Reply({"error": "unauthorized_client"}, 403),
        Reply("Unauthorized", 401),
    ],
    ids=lambda no: str(no.status),
)
def test_a_server_that_refuses_basic_is_asked_once_by_post(
    server: ScriptedServer, rest_of: Rest, clock: Clock, no: Reply
) -> None:
    server.on("/version", OK)
    good = Reply({"access_token": "t", "expires_in": 60})
    server.on("/oauth", lambda asked: no if "authorization" in asked.headers else good)
    rest = rest_of(server, **oauth_of(server, **SPECIAL, scope="all"))
    rest.table_version(NAME)
    first, second = (asked for asked in server.asked if asked.path.endswith("/oauth"))
    assert "authorization" in first.headers
    assert second.form == {
        "grant_type": "client_credentials", "scope": "all",
        "client_id": SPECIAL["clientId"], "client_secret": SPECIAL["clientSecret"],
    }  # fmt: skip
    clock.time += 61
    rest.table_version(NAME)
    assert tokens_asked(server) == 3, "the way that was taken is remembered"


@pytest.mark.parametrize("basic", [Reply({"error": "invalid_scope"}, 400), refusal(403, "access_denied")])
def test_a_refusal_that_is_not_about_the_client_is_the_last_word(
    server: ScriptedServer, rest_of: Rest, basic: Reply
) -> None:
    server.on("/oauth", basic)
    with pytest.raises(ServerError):
        rest_of(server, **oauth_of(server)).table_version(NAME)
    assert tokens_asked(server) == 1


def test_the_first_refusal_is_told_where_both_ways_are_refused(server: ScriptedServer, rest_of: Rest) -> None:
    """And the secret, which the form holds as it is, is not quoted."""
    secret = SPECIAL["clientSecret"]
    by_post = Reply({"error": "invalid_client", "error_description": f"no {secret}"}, 401)
    by_basic = Reply({"error": "invalid_client", "error_description": f"unknown {secret}"}, 401)
    server.on("/oauth", lambda asked: by_basic if "authorization" in asked.headers else by_post)
    with pytest.raises(UnauthenticatedError, match=r"answered 401 invalid_client: unknown \[redacted\]"):
        rest_of(server, **oauth_of(server, **SPECIAL)).table_version(NAME)
    assert tokens_asked(server) == 2


def test_an_answer_that_was_damaged_is_asked_for_again(server: ScriptedServer, rest_of: Rest) -> None:
    server.on("/version", OK)
    server.on("/oauth", Reply('{"access_tok\x00'), Reply({"access_token": "t", "expires_in": 60}))
    assert rest_of(server, **oauth_of(server)).table_version(NAME) == 7


@pytest.mark.parametrize(
    "endpoint", ["http://login.example/token", "login", "https://me:s3cret@login.example", "https://h/t#f"]
)
def test_the_token_endpoint_is_https(server: ScriptedServer, rest_of: Rest, endpoint: str) -> None:
    with pytest.raises(ConfigError, match="tokenEndpoint") as caught:
        rest_of(server, **oauth_of(server, tokenEndpoint=endpoint)).table_version(NAME)
    assert "s3cret" not in str(caught.value)


def test_a_token_endpoint_that_is_not_there(server: ScriptedServer, rest_of: Rest, clock: Clock) -> None:
    fields = oauth_of(server, tokenEndpoint="http://127.0.0.1:1/token")
    with pytest.raises(NetworkError, match=r"the token endpoint 127.0.0.1 could not be reached"):
        rest_of(server, **fields).table_version(NAME)
    assert sum(clock.slept) <= 15


def test_the_cache_of_tokens_is_bounded(server: ScriptedServer, rest_of: Rest) -> None:
    issue(server)
    for number in range(40):
        rest_of(server, **oauth_of(server, clientId=f"c{number}")).table_version(NAME)
    assert len(auth._tokens) == 32


# Signed assertions


def write_key(path: Path, kind: str) -> Any:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if kind == "ec":
        key: Any = ec.generate_private_key(ec.SECP256R1())
    else:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(text)
    return key


def jwt_of(server: ScriptedServer, key_file: Path, algorithm: str | None, **more: Any) -> dict[str, Any]:
    key = {"privateKeyFile": str(key_file), "keyId": "k1"} | ({"algorithm": algorithm} if algorithm else {})
    fields = {"tokenEndpoint": f"{server.endpoint}/oauth", "issuer": "iss", "clientId": "me", "audience": "aud"}
    return {
        "shareCredentialsVersion": 2,
        "type": "oauth_jwt_bearer_private_key_jwt",
        "auth": fields | more | {"privateKey": key},
    }


def consent_to(server: ScriptedServer, key_file: Path) -> KeyConsent:
    """What lets a profile of ``jwt_of`` sign with a key."""
    return KeyConsent(server.endpoint, server.endpoint, str(key_file), "iss")


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@pytest.mark.parametrize(
    ("kind", "algorithm"), [("rsa", None), ("rsa", "RS256"), ("rsa", "RS512"), ("rsa", "PS256"), ("ec", "ES256")]
)
def test_an_assertion_is_signed(
    server: ScriptedServer, rest_of: Rest, tmp_path: Path, kind: str, algorithm: str | None
) -> None:
    """The signature is checked with the public key, by another implementation's verify."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, utils

    issue(server)
    key = write_key(tmp_path / "key.pem", kind)
    path = tmp_path / "key.pem"
    rest = rest_of(server, key=consent_to(server, path), **jwt_of(server, path, algorithm, scope="all"))
    (tmp_path / "key.pem").unlink()
    assert pickle.loads(pickle.dumps(rest.profile)) == rest.profile, "an executor asks without the file"
    assert rest.table_version(NAME) == 7
    form = server.asked[0].form
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    head, body, signature = form["assertion"].split(".")
    name = algorithm or "RS256"
    assert json.loads(_decoded(head)) == {"alg": name, "typ": "JWT", "kid": "k1"}
    claims = json.loads(_decoded(body))
    assert claims["exp"] - claims.pop("iat") == 120
    assert len({claims.pop("jti"), claims.pop("exp")}) == 2
    assert claims == {"aud": "iss", "iss": "me", "sub": "me", "scope": "all", "resource": "aud"}
    signed, raw = f"{head}.{body}".encode(), _decoded(signature)
    digest = {"256": hashes.SHA256(), "512": hashes.SHA512()}[name[2:]]
    if name.startswith("ES"):
        half = len(raw) // 2
        der = utils.encode_dss_signature(int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big"))
        key.public_key().verify(der, signed, ec.ECDSA(digest))
    elif name.startswith("PS"):
        key.public_key().verify(raw, signed, padding.PSS(padding.MGF1(digest), digest.digest_size), digest)
    else:
        key.public_key().verify(raw, signed, padding.PKCS1v15(), digest)


@pytest.mark.parametrize(
    ("kind", "algorithm", "message"),
    [
        ("ec", "RS256", "'RS256' does not fit the private key"),
        ("rsa", "ES256", "'ES256' does not fit"),
        ("rsa", "HS256", "'HS256' does not fit"),
        ("rsa", "none", "'none' does not fit"),
        ("garbage", "RS256", "not an unencrypted PEM key"),
    ],
)
def test_keys_that_do_not_fit(
    server: ScriptedServer, rest_of: Rest, tmp_path: Path, kind: str, algorithm: str, message: str
) -> None:
    path = tmp_path / "key.pem"
    if kind == "garbage":
        path.write_text("-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----")
    else:
        write_key(path, kind)
    with pytest.raises(ProfileError, match=message) as caught:
        rest_of(server, key=consent_to(server, path), **jwt_of(server, path, algorithm)).table_version(NAME)
    assert "s3cret" not in str(caught.value)


# Secrecy


def test_an_answer_that_echoes_a_token_is_told_without_it_and_no_other_is_asked_for(
    server: ScriptedServer, rest_of: Rest, clock: Clock
) -> None:
    """The token ends while the answer arrives, and the token endpoint is gone by then."""
    issue(server)

    def echo(asked: Asked) -> Reply:
        clock.time += 4000
        server.on("/oauth", Reply(reset=True))
        return Reply({"error": f"do not show {asked.headers['authorization'].partition(' ')[2]}"})

    server.on("/shares", echo)
    with pytest.raises(ResponseError, match=r"a listing holds an error: do not show \[redacted\];"):
        list(rest_of(server, **oauth_of(server)).list_shares())
    assert tokens_asked(server) == 1


def _echo(status: int) -> Callable[[Asked], Reply]:
    return lambda asked: refusal(status, "ECHO", f"{asked.headers.get('authorization')} {asked.body.decode()}")


@pytest.mark.parametrize("faulty", ["/shares", "/oauth"])
@pytest.mark.parametrize(
    "fault",
    [_echo(400), _echo(401), _echo(503), Reply(reset=True), Reply("<html>"), Reply(status=302)],
    ids=["400", "401", "503", "reset", "HTML", "302"],
)
def test_no_secret_is_told_anywhere(
    server: ScriptedServer,
    rest_of: Rest,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    clock: Clock,
    fault: Any,
    faulty: str,
) -> None:
    """Of every type of profile, whatever goes wrong: not in messages, causes, representations or logs at DEBUG."""
    write_key(tmp_path / "key.pem", "rsa")
    secrets = {TOKEN, "cl1ent-s3cret", "p4ss-s3cret", "t1-s3cret", (tmp_path / "key.pem").read_text()[60:120]}
    secrets |= {base64.b64encode(f"me:{s}".encode()).decode() for s in ("cl1ent-s3cret", "p4ss-s3cret")}
    profiles: dict[str, dict[str, Any]] = {
        "bearer": {},
        "oauth": oauth_of(server),
        "basic": {"shareCredentialsVersion": 2, "type": "basic", "username": "me", "password": "p4ss-s3cret"},
        "key": {"key": consent_to(server, tmp_path / "key.pem"), **jwt_of(server, tmp_path / "key.pem", None)},
    }
    told = dict.fromkeys(profiles, "")
    with caplog.at_level(logging.DEBUG):
        for kind, fields in profiles.items():
            auth._tokens.clear()
            issue(server)
            server.on("/shares", Reply({}))
            server.on(faulty, fault)
            rest = rest_of(server, NetworkSettings(retry_seconds=2, sleep=clock.sleep, clock=clock), **fields)
            told[kind] = repr(rest) + str(rest)
            try:
                list(rest.list_shares())
            except Exception as error:
                chain: BaseException | None = error
                while chain is not None:
                    told[kind] += str(chain) + repr(chain) + str(vars(chain))
                    chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    told["log"] = caplog.text + "".join(str(vars(r)) for r in caplog.records)
    assert {kind: text for kind, text in told.items() if any(s in text for s in secrets)} == {}
    assert len(caplog.records) >= 4
