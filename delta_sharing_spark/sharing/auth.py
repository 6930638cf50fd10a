"""Makes the Authorization header of a profile: a bearer token, a password, or tokens of OAuth and identities, cached and renewed."""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from math import inf
from typing import Any, Literal, TypeAlias
from urllib.parse import quote_plus

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import (
    ConfigError,
    CredentialError,
    DeltaSharingError,
    ProfileError,
    ResponseError,
    ServerError,
)
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.renewable import Renewable, Term, due_before
from delta_sharing_spark.sharing.identity import TokenExchange, is_header_text, jwt_claims, token_end, token_of
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.transport import (
    RequestPurpose,
    check_endpoint,
    read_bytes,
    secrets_in,
    send,
    unreadable_answer,
    with_retries,
)

#: A token is renewed this many seconds before its end, or when a tenth of its life is left if that is shorter.
_MARGIN_SECONDS, _MARGIN_SHARE = 600.0, 0.1
#: Seconds that a signed assertion is good for, which is shown to the token endpoint at once.
_ASSERTION_LIFE = 120
#: Executors are told no later end than ten years, in seconds: dates beyond the year 9999 cannot be written.
_LONGEST_LIFE = 10 * 365 * 86400.0
#: Profiles of which a process keeps the token.
_CACHED = 32
#: What ``Profile.carried`` says of an OAuth profile's token.
OAUTH = "the profile"
#: Seconds after which an identity's token without an end is read again: its file may have rotated.
_UNSTATED = 60.0
#: The most bytes of an answer that holds a token.
_LARGEST_TOKEN = 1 << 20
_SIGNING_ALGORITHMS = frozenset(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
_TOKEN_TYPE = "urn:ietf:params:oauth:token-type:"  # noqa: S105  # no secret


@dataclass(frozen=True, slots=True)
class _Token:
    """A token, and seconds of the settings' clock: until when executors are handed it, when it is renewed here, when it ends."""

    value: str = field(repr=False)
    carry_until: float
    renew_at: float
    ends_at: float


_tokens: ProcessCache[Profile, Renewable[_Token]] = ProcessCache(_CACHED)


def authorization(profile: Profile, settings: NetworkSettings, *, refused: str | None = None) -> str:
    """The Authorization header for a request.

    Args:
        refused: A header that the server answered with 401: a token equal to it is renewed first.

    Raises:
        ResponseError: The token endpoint's answer is malformed.
        UnauthenticatedError, NetworkError: The token endpoint refuses, or is unreachable.
        CredentialError: The profile is an access token that has ended; an identity gives none.
    """
    expires = profile.expires if profile.carried and profile.type == "bearer_token" else None
    if expires is not None and expires.timestamp() <= time.time():
        raise CredentialError(carried_end(profile, f"ended at {expires:%Y-%m-%dT%H:%M:%SZ}"))
    return _own_header(profile) or f"Bearer {_current_token(profile, settings, refused=refused).value}"


def _own_header(profile: Profile) -> str | None:
    """The header that a profile itself states; None where its token is asked for."""
    if profile.type == "basic":
        pair = f"{profile.username}:{profile.password}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"
    return f"Bearer {profile.bearer_token}" if profile.type == "bearer_token" else None


def secrets_of(profile: Profile) -> tuple[str, ...]:
    """What a server may echo of a profile, as this process knows it: an error asks for no other token."""
    renewable = _tokens.get(_issued_to(profile))
    token = None if renewable is None else renewable.value
    return secrets_in(_own_header(profile) or (None if token is None else f"Bearer {token.value}"))


def carried_end(profile: Profile, end: str) -> str:
    """What an error says where a carried token works no more: ``end`` says how, the profile where it is from."""
    if profile.carried == OAUTH:
        return (
            f"the OAuth access token that the plan carries (carryProfile=token) {end}, "
            f"so that nothing more can be renewed with it; load the table again, or set carryProfile to true"
        )
    return (
        f"the token of {profile.carried} that the plan carries {end}: the identity lives on the driver only, so that executors "
        f"cannot renew it; load the table again, or have longer tokens issued if one read takes longer than one lasts"
    )


def carried_profile(profile: Profile, settings: NetworkSettings, carry: bool | Literal["token"]) -> Profile | None:
    """The profile for executors; an access token in it has at least half its life left, if it can be renewed. Of an identity
    they are handed a token alone, whatever ``carry`` says: the identity itself is not pickled.

    Args:
        carry: The option ``carryProfile``: the profile, nothing, or the access token of an OAuth profile alone.

    Raises:
        ConfigError: A profile with a password has no token.
        ResponseError, UnauthenticatedError, NetworkError, CredentialError: As ``authorization``.
    """
    if not carry or profile.type == "bearer_token" or (carry != "token" and profile.identity is None):
        return profile if carry else None
    if profile.type == "basic":
        raise ConfigError(
            "carryProfile=token: the profile signs in with a password and has no token that could be carried instead; "
            "set carryProfile to true, or to false"
        )
    token = _current_token(profile, settings, for_executors=True)
    life = timedelta(seconds=min(max(0.0, token.ends_at - settings.clock()), _LONGEST_LIFE))
    ends = None if token.ends_at == inf else (datetime.now(timezone.utc) + life).isoformat()
    if profile.identity is None:
        return Profile(profile.endpoint, bearer_token=token.value, expiration_time=ends, carried=OAUTH)
    return replace(profile, bearer_token=token.value, expiration_time=ends, carried=profile.identity.option)


def carried_settings(settings: NetworkSettings, carry: bool | Literal["token"]) -> NetworkSettings:
    """The settings for executors: with the client's certificate where they are handed the profile, not with a token alone.

    Raises:
        OptionError: A file of the certificate cannot be read.
    """
    certificate = settings.client_certificate
    if certificate is None:
        return settings
    return replace(settings, client_certificate=certificate.with_bytes() if carry is True else None)


def is_renewable(profile: Profile) -> bool:
    """Whether another token can be got after a 401."""
    return profile.type.startswith("oauth_") or profile.identity is not None


def _current_token(
    profile: Profile, settings: NetworkSettings, *, refused: str | None = None, for_executors: bool = False
) -> Term[str]:
    """A token that is still valid, with its times by the settings' clock."""
    issued_to = _issued_to(profile)

    def term(token: _Token) -> Term[str]:
        return Term(token.value, token.carry_until if for_executors else token.renew_at, token.ends_at)

    return _tokens.get_or_make(issued_to, lambda: Renewable("the token", settings.clock, kind="token")).get(
        lambda token: None if token is None or refused == f"Bearer {token.value}" else term(token),
        lambda seconds: _new_token(issued_to, settings.early(seconds)),
        term,
        settings,
    )


def _issued_to(profile: Profile) -> Profile:
    """The profile that tokens are kept by: one that carries a token asks for the same ones as the one without."""
    return replace(profile, bearer_token=None, expiration_time=None, carried=None) if profile.carried else profile


def _new_token(profile: Profile, settings: NetworkSettings) -> _Token:
    value, life = _issued_token(profile, settings)
    now = settings.clock()
    if life == inf:
        again = now + (_MARGIN_SECONDS if profile.identity is None else _UNSTATED)
        return _Token(value, again, again, inf)
    renew_at = due_before(now + life, now, _MARGIN_SECONDS, _MARGIN_SHARE)
    return _Token(value, now + life / 2, renew_at, now + life)


def _issued_token(profile: Profile, settings: NetworkSettings) -> tuple[str, float]:
    """A new token and its life in seconds. What asks a token endpoint for it is made anew for each try."""
    identity = profile.identity
    if identity is None:
        signed = "" if profile.private_key is None else " (and this machine's clock, which the key's signature tells)"
        advice = f"check tokenEndpoint and the client's id, secret or key in the profile{signed}, or ask the provider for a new one"
        purpose = RequestPurpose("the OAuth token", "token endpoint", refused=advice)
        endpoint, field_name = profile.token_endpoint, "tokenEndpoint"
        ways: list[_Way] = [partial(_signed, profile)]
        if profile.type == "oauth_client_credentials":
            ways = [partial(way, profile) for way in (_by_basic, _by_post)]
            if _posted.get(profile):
                ways.reverse()
    else:
        value, life = token_of(identity)
        if identity.exchange is None:
            return value, inf if life is None else life
        advice = f"check tokenExchangeEndpoint and what {identity} is trusted with there"
        purpose = RequestPurpose("the token exchange", "exchange's endpoint", refused=advice)
        endpoint, field_name = identity.exchange.endpoint, "tokenExchangeEndpoint"
        ways = [partial(_exchange_form, identity.exchange, value)]
    assert endpoint is not None
    check_endpoint(endpoint, field_name)

    def ask(way: _Way) -> tuple[str, float]:
        form, header = way()
        hidden = (form.get("assertion"), form.get("subject_token"), profile.client_secret)
        # Not followed: the form may hold an assertion or a token, which goes to this endpoint only.
        response = send(
            settings,
            "POST",
            endpoint,
            replace(purpose, secrets=tuple(filter(None, hidden))),
            authorization=header,
            headers={"Accept": "application/json"},
            follow=False,
            data=form,
        )
        return _parse_token(read_bytes(response, purpose.what, _LARGEST_TOKEN), is_exchange=identity is not None)

    try:
        return with_retries(settings, partial(ask, ways[0]))
    except ServerError as refusal:
        # The endpoint may know the client when it shows its secret in the other way.
        is_unknown = refusal.status in (400, 403) and refusal.error_code in _UNKNOWN_CLIENT
        if len(ways) == 1 or not (refusal.status == 401 or is_unknown):
            raise
        try:
            answer = with_retries(settings, partial(ask, ways[1]))
        except DeltaSharingError:
            raise refusal from None
        _posted.put(profile, not _posted.get(profile))
        return answer


#: Makes the form of a request and its Authorization header, if it has one.
_Way: TypeAlias = Callable[[], tuple[dict[str, str], str | None]]
#: Profiles whose token endpoints take the client's secret in the form alone.
_posted: ProcessCache[Profile, bool] = ProcessCache(_CACHED)
#: Error codes by which token endpoints say that they do not know the client, or that its id is not where they look for it.
_UNKNOWN_CLIENT = ("invalid_client", "invalid_request", "unauthorized_client")


def _exchange_form(exchange: TokenExchange, subject: str) -> tuple[dict[str, str], str | None]:
    """The request of a token exchange (RFC 8693, section 2.1)."""
    kind = "access_token" if jwt_claims(subject) is None else "jwt"
    form = {"grant_type": _EXCHANGE_GRANT, "subject_token": subject, "subject_token_type": _TOKEN_TYPE + kind}
    optional = {"audience": exchange.audience, "scope": exchange.scope, "client_id": exchange.client_id}
    return form | {name: value for name, value in optional.items() if value is not None}, None


def _form(profile: Profile, **fields: str | None) -> dict[str, str]:
    return {name: value for name, value in {**fields, "scope": profile.scope}.items() if value}


def _signed(profile: Profile) -> tuple[dict[str, str], str | None]:
    return _form(profile, grant_type=_JWT_GRANT, assertion=_assertion(profile)), None


def _by_basic(profile: Profile) -> tuple[dict[str, str], str | None]:
    """The client's id and secret in the header, each encoded as in a form first (RFC 6749, section 2.3.1)."""
    pair = ":".join(quote_plus(text or "") for text in (profile.client_id, profile.client_secret))
    return _form(profile, grant_type="client_credentials"), f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"


def _by_post(profile: Profile) -> tuple[dict[str, str], str | None]:
    """Both in the form, for servers that take no header (``client_secret_post``)."""
    secret = {"client_id": profile.client_id, "client_secret": profile.client_secret}
    return _form(profile, grant_type="client_credentials", **secret), None


def _parse_token(answer: bytes, *, is_exchange: bool) -> tuple[str, float]:
    """The token and its seconds; infinity where neither the answer nor the token tells (RFC 6749, section 5.1)."""
    try:
        tree: Any = json.loads(answer) if answer.strip() else None
    except (ValueError, RecursionError):
        raise unreadable_answer(_bad_token("The OAuth token endpoint did not answer with JSON"), answer) from None
    if not tree and not isinstance(tree, dict):
        raise _bad_token("Empty response from OAuth token endpoint")
    value = tree.get("access_token") if isinstance(tree, dict) else None
    if not isinstance(value, str) or not is_header_text(value):
        raise _bad_token("Missing 'access_token' field in OAuth token response")
    if is_exchange and str(tree.get("token_type") or "bearer").lower() != "bearer":
        raise _bad_token("'token_type' of the token exchange is not 'Bearer', and no other is shown")
    life = tree.get("expires_in")
    if life is None or life == "":
        end = token_end(value)
        return value, inf if end is None else max(1.0, end - time.time())
    try:
        seconds = float(life) if not isinstance(life, bool) else 0.0
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if not 0 < seconds < inf:
        raise _bad_token("'expires_in' field must be an integer or a string convertible to integer")
    return value, seconds


def _bad_token(why: str) -> ResponseError:
    return ResponseError(f"{why}; check tokenEndpoint in the profile, or tokenExchangeEndpoint, or ask the provider")


def _assertion(profile: Profile) -> str:
    """Sign a JWT that proves possession of the profile's private key (RFC 7523).

    Raises:
        ProfileError: The key is no unencrypted PEM key, or its kind does not fit the algorithm.
        ConfigError: PyJWT is not installed.
    """
    try:
        import jwt
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise ConfigError(f"a profile with a private key needs the package 'PyJWT'; {install_line('jwt')}") from None
    key_of_profile = profile.private_key
    assert key_of_profile is not None
    now = int(time.time())
    claims: dict[str, Any] = {
        "aud": profile.issuer, "iss": profile.client_id, "sub": profile.client_id, "iat": now,
        "exp": now + _ASSERTION_LIFE, "jti": str(uuid.uuid4()), "resource": profile.audience,
    }  # fmt: skip
    if profile.scope:
        claims["scope"] = profile.scope
    try:
        key: Any = load_pem_private_key(key_of_profile.pem.encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ProfileError(
            f"the private key {key_of_profile.private_key_file} is not an unencrypted PEM key ({type(error).__name__}); check "
            f"privateKeyFile"
        ) from None
    if key_of_profile.algorithm in _SIGNING_ALGORITHMS:
        with suppress(jwt.InvalidKeyError, TypeError):
            return jwt.encode(claims, key, algorithm=key_of_profile.algorithm, headers={"kid": key_of_profile.key_id})
    raise ProfileError(
        f"the algorithm {key_of_profile.algorithm!r} does not fit the private key {key_of_profile.private_key_file}; check the profile"
    )
