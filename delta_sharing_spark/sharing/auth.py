"""Makes the Authorization header of a profile: a bearer token, a password, or OAuth tokens that are cached and renewed."""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from delta_sharing_spark.errors import (
    ConfigError,
    CredentialError,
    NetworkError,
    ProfileError,
    ResponseError,
    UnavailableError,
)
from delta_sharing_spark.network.settings import NetworkSettings
from delta_sharing_spark.process_cache import ProcessCache
from delta_sharing_spark.sharing.profile import Profile, is_header_text
from delta_sharing_spark.sharing.transport import check_endpoint, read_text, send, with_retries

_log = logging.getLogger(__name__)

#: A token is renewed when it has less than this left, seconds, or a tenth of its life if that is shorter.
_MARGIN = 600.0
_ASSERTION_LIFE = 120
#: A token that says it is good for longer than ten years, in seconds, is as good for ever.
_LONGEST_LIFE = 10 * 365 * 86400.0
_CACHED = 32
#: How long a renewal may take while the old token is still good, and until the next one after it failed; seconds.
_EARLY, _PAUSE = 5.0, 30.0
#: Bytes of an answer with a token.
_LARGEST_TOKEN = 1 << 20
_SIGNING_ALGORITHMS = frozenset(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class _OAuthToken:
    """One OAuth token of this process, renewed by one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: str | None = None
        self.carry_until = 0.0
        self.renew_at = 0.0
        self.ends_at = 0.0


_tokens: ProcessCache[Profile, _OAuthToken] = ProcessCache(_CACHED)


def authorization(profile: Profile, settings: NetworkSettings, *, refused: str | None = None) -> str:
    """The Authorization header for a request.

    Args:
        profile: The server and the recipient.
        settings: How the token endpoint is asked.
        refused: A header that the server answered with 401: an OAuth token equal to it is renewed first.

    Raises:
        ResponseError: The token endpoint's answer is malformed.
        UnauthenticatedError, NetworkError: The token endpoint refuses, or is unreachable.
        CredentialError: The profile is an access token that has ended.
    """
    if profile.type == "bearer_token":
        if profile.is_carried and profile.expires is not None and profile.expires <= datetime.now(timezone.utc):
            raise CredentialError(
                f"the OAuth access token that the plan carries (carryProfile=token) ended at {profile.expires:%Y-%m-%dT%H:%M:%SZ}, "
                f"so that nothing more can be renewed with it; load the table again, or set carryProfile to true"
            )
        return f"Bearer {profile.bearer_token}"
    if profile.type == "basic":
        pair = f"{profile.username}:{profile.password}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"
    return f"Bearer {_current_token(profile, settings, refused=refused)[0]}"


def carried_profile(profile: Profile, settings: NetworkSettings, carry: bool | Literal["token"]) -> Profile | None:
    """The profile for executors; an access token in it has at least half its life left, if it can be renewed.

    Args:
        profile: The recipient's profile.
        settings: How the token endpoint is asked.
        carry: The option ``carryProfile``: the profile, nothing, or the access token of an OAuth profile alone.

    Raises:
        ConfigError: A profile with a password has no token.
        ResponseError, UnauthenticatedError, NetworkError: As ``authorization``.
    """
    if carry != "token" or profile.type == "bearer_token":
        return profile if carry else None
    if profile.type == "basic":
        raise ConfigError(
            "carryProfile=token: the profile signs in with a password and has no token that could be carried instead; "
            "set carryProfile to true, or to false"
        )
    value, ends_at = _current_token(profile, settings, for_executors=True)
    left = timedelta(seconds=min(max(0.0, ends_at - settings.clock()), _LONGEST_LIFE))
    ends = datetime.now(timezone.utc) + left
    return Profile(profile.endpoint, bearer_token=value, expiration_time=ends.isoformat(), is_carried=True)


def is_renewable(profile: Profile) -> bool:
    """Whether another token can be got after a 401."""
    return profile.type.startswith("oauth_")


def _current_token(
    profile: Profile, settings: NetworkSettings, *, refused: str | None = None, for_executors: bool = False
) -> tuple[str, float]:
    """An OAuth token that is still valid, and its end by the settings' clock."""
    token = _tokens.get_or_make(profile, _OAuthToken)
    with token.lock:
        now = settings.clock()
        if token.value is None or now >= token.ends_at or refused == f"Bearer {token.value}":
            _renew(token, profile, settings)
        elif now >= (token.carry_until if for_executors else token.renew_at):
            _renew_early(token, profile, settings)
        assert token.value is not None
        return token.value, token.ends_at


def _renew(token: _OAuthToken, profile: Profile, settings: NetworkSettings) -> None:
    token.value, life = _exchange(profile, settings)
    now = settings.clock()
    token.carry_until, token.ends_at = now + life / 2, now + life
    token.renew_at = token.ends_at - min(_MARGIN, life / 10)


def _renew_early(token: _OAuthToken, profile: Profile, settings: NetworkSettings) -> None:
    """Renew a token that is still valid, so that an outage of the token endpoint does not matter yet."""
    left = token.ends_at - settings.clock()
    try:
        _renew(token, profile, replace(settings, retry_seconds=min(_EARLY, left, settings.retry_seconds)))
    except (NetworkError, UnavailableError) as error:
        token.carry_until = settings.clock() + min(_PAUSE, left / 2)
        token.renew_at = max(token.renew_at, token.carry_until)
        _log.warning("the OAuth token could not be renewed yet, it is valid for %.0f s more: %s", left, error)


def _exchange(profile: Profile, settings: NetworkSettings) -> tuple[str, float]:
    """A new token and its life in seconds."""
    assert profile.token_endpoint is not None
    check_endpoint(profile.token_endpoint, "tokenEndpoint")

    def ask() -> tuple[str, float]:
        form, header = _form(profile)
        response = send(
            settings,
            "POST",
            str(profile.token_endpoint),
            what="the OAuth token",
            authorization=header,
            data=form,
            headers={"Accept": "application/json"},
            server="token endpoint",
            refused="check tokenEndpoint and the client's id, secret or key in the profile, or ask the provider for a new one",
            follow=False,  # the form may hold an assertion: it goes to the endpoint of the profile only
            secrets=[form[name] for name in ("assertion",) if name in form],
        )
        return _parse_token(read_text(response, "the OAuth token", _LARGEST_TOKEN))

    return with_retries(settings, ask)


def _form(profile: Profile) -> tuple[dict[str, str], str | None]:
    form: dict[str, str] = {}
    if profile.scope:
        form["scope"] = profile.scope
    if profile.type == "oauth_client_credentials":
        pair = base64.b64encode(f"{profile.client_id}:{profile.client_secret}".encode()).decode("ascii")
        return {"grant_type": "client_credentials", **form}, f"Basic {pair}"
    return {"grant_type": _JWT_GRANT, "assertion": _assertion(profile), **form}, None


def _parse_token(text: str) -> tuple[str, float]:
    try:
        tree: Any = json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        raise _bad_token("The OAuth token endpoint did not answer with JSON") from None
    if not tree:
        if isinstance(tree, dict):
            raise _bad_token("Missing 'access_token' field in OAuth token response")
        raise _bad_token("Empty response from OAuth token endpoint")
    value = tree.get("access_token") if isinstance(tree, dict) else None
    if not isinstance(value, str) or not is_header_text(value):
        raise _bad_token("Missing 'access_token' field in OAuth token response")
    life = tree.get("expires_in")
    if life is None:
        raise _bad_token("Missing 'expires_in' field in OAuth token response")
    try:
        seconds = float(int(life)) if not isinstance(life, bool) else None
    except (TypeError, ValueError, OverflowError):
        seconds = None
    if seconds is None or seconds <= 0:
        raise _bad_token("'expires_in' field must be an integer or a string convertible to integer")
    return value, seconds


def _bad_token(why: str) -> ResponseError:
    return ResponseError(f"{why}; check tokenEndpoint in the profile, or ask the provider")


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
        raise ConfigError(
            "a profile with a private key needs the package 'PyJWT'; pip install 'delta-sharing-spark[jwt]'"
        ) from None
    stated = profile.private_key
    assert stated is not None
    now = int(time.time())
    claims: dict[str, Any] = {
        "aud": profile.issuer,
        "iss": profile.client_id,
        "sub": profile.client_id,
        "iat": now,
        "exp": now + _ASSERTION_LIFE,
        "jti": str(uuid.uuid4()),
        "resource": profile.audience,
    }
    if profile.scope:
        claims["scope"] = profile.scope
    try:
        key: Any = load_pem_private_key(stated.pem.encode("utf-8"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ProfileError(
            f"the private key {stated.private_key_file} is not an unencrypted PEM key ({type(error).__name__}); check "
            f"privateKeyFile in the profile"
        ) from None
    if stated.algorithm in _SIGNING_ALGORITHMS:
        with suppress(jwt.InvalidKeyError, TypeError):
            return jwt.encode(claims, key, algorithm=stated.algorithm, headers={"kid": stated.key_id})
    raise ProfileError(
        f"the algorithm {stated.algorithm!r} does not fit the private key {stated.private_key_file}; check the profile"
    )
