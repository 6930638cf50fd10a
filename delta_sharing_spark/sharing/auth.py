"""Who asks: a bearer token, a password, or OAuth tokens that are cached and renewed."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import requests

from delta_sharing_spark.errors import ConfigError, ProfileError, ResponseError
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.transport import TransportSettings, check_endpoint, read_body, send, with_retries

#: A token is renewed when it has less than this left, seconds, or a tenth of its life if that is shorter.
_MARGIN = 600.0
_ASSERTION_LIFE = 120
_CACHED = 32
_JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"

Auth = Callable[[requests.PreparedRequest], requests.PreparedRequest]


class _Token:
    """One OAuth token of this process, renewed by one thread at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: str | None = None
        self.renew_at = 0.0


_tokens: OrderedDict[Profile, _Token] = OrderedDict()
_tokens_lock = threading.Lock()


def authorization(profile: Profile, settings: TransportSettings, *, refused: str | None = None) -> str:
    """The Authorization header for a request.

    Args:
        profile: Who asks.
        settings: For the requests to a token endpoint.
        refused: A header that the server answered with 401: an OAuth token equal to it is renewed first.

    Raises:
        ResponseError: The token endpoint's answer is not one.
        UnauthenticatedError, NetworkError: It refused, or is unreachable.
    """
    if profile.type == "bearer_token":
        return f"Bearer {profile.bearer_token}"
    if profile.type == "basic":
        pair = f"{profile.username}:{profile.password}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"
    token = _token_of(profile)
    with token.lock:
        if token.value is None or settings.clock() >= token.renew_at or refused == f"Bearer {token.value}":
            token.value, life = _exchange(profile, settings)
            token.renew_at = settings.clock() + life - min(_MARGIN, life / 10)
        return f"Bearer {token.value}"


def renewable(profile: Profile) -> bool:
    """Whether a 401 may be cured by another token."""
    return profile.type.startswith("oauth_")


def header_auth(value: str) -> Auth:
    """The header as ``requests`` takes authentication; it is not sent on to another host by a redirect."""

    def add(request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = value
        return request

    return add


def _token_of(profile: Profile) -> _Token:
    with _tokens_lock:
        token = _tokens.pop(profile, None) or _Token()
        _tokens[profile] = token
        if len(_tokens) > _CACHED:
            _tokens.popitem(last=False)
        return token


def _exchange(profile: Profile, settings: TransportSettings) -> tuple[str, float]:
    """A new token and its life in seconds."""
    assert profile.token_endpoint is not None
    check_endpoint(profile.token_endpoint, "tokenEndpoint")

    def ask() -> tuple[str, float]:
        form, auth = _form(profile)
        response = send(
            settings,
            "POST",
            str(profile.token_endpoint),
            what="the OAuth token",
            auth=auth,
            data=form,
            headers={"Accept": "application/json"},
            expired="the client's id, secret or key was refused",
        )
        return _parse_token(read_body(response, "the OAuth token"))

    return with_retries(settings, ask)


def _form(profile: Profile) -> tuple[dict[str, str], Auth | None]:
    form: dict[str, str] = {}
    if profile.scope:
        form["scope"] = profile.scope
    if profile.type == "oauth_client_credentials":
        pair = base64.b64encode(f"{profile.client_id}:{profile.client_secret}".encode()).decode("ascii")
        return {"grant_type": "client_credentials", **form}, header_auth(f"Basic {pair}")
    return {"grant_type": _JWT_GRANT, "assertion": _assertion(profile), **form}, None


def _parse_token(text: str) -> tuple[str, float]:
    try:
        tree: Any = json.loads(text) if text.strip() else None
    except ValueError:
        raise _bad_token("The OAuth token endpoint did not answer with JSON") from None
    if not tree:
        if isinstance(tree, dict):
            raise _bad_token("Missing 'access_token' field in OAuth token response")
        raise _bad_token("Empty response from OAuth token endpoint")
    value = tree.get("access_token") if isinstance(tree, dict) else None
    if not isinstance(value, str) or not value:
        raise _bad_token("Missing 'access_token' field in OAuth token response")
    life = tree.get("expires_in")
    if life is None:
        raise _bad_token("Missing 'expires_in' field in OAuth token response")
    try:
        seconds = float(int(life)) if not isinstance(life, bool) else None
    except (TypeError, ValueError):
        seconds = None
    if seconds is None:
        raise _bad_token("'expires_in' field must be an integer or a string convertible to integer")
    return value, seconds


def _bad_token(why: str) -> ResponseError:
    return ResponseError(f"{why}; check tokenEndpoint in the profile, or ask the provider")


def _assertion(profile: Profile) -> str:
    """A signed JWT that proves possession of the profile's private key (RFC 7523)."""
    key = profile.private_key
    assert key is not None
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
    head = _base64({"alg": key.algorithm, "typ": "JWT", "kid": key.key_id})
    body = _base64(claims)
    signature = _sign(f"{head}.{body}".encode("ascii"), key.private_key_file, key.algorithm)
    return f"{head}.{body}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode('ascii')}"


def _base64(tree: dict[str, Any]) -> str:
    text = json.dumps(tree, separators=(",", ":")).encode("utf-8")
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode("ascii")


def _sign(message: bytes, key_file: str, algorithm: str) -> bytes:
    try:
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    except ImportError:
        raise ConfigError(
            "a profile with a private key needs the package 'cryptography'; pip install 'delta-sharing-spark[jwt]'"
        ) from None
    digests = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}
    digest = digests.get(algorithm[2:])
    try:
        with open(key_file, "rb") as file:
            key = serialization.load_pem_private_key(file.read(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ProfileError(
            f"the private key {key_file} cannot be read ({type(error).__name__}); check privateKeyFile in the profile"
        ) from None
    if digest is not None and algorithm.startswith("RS") and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, padding.PKCS1v15(), digest)
    if digest is not None and algorithm.startswith("ES") and isinstance(key, ec.EllipticCurvePrivateKey):
        r, s = utils.decode_dss_signature(key.sign(message, ec.ECDSA(digest)))
        width = (key.curve.key_size + 7) // 8
        return r.to_bytes(width, "big") + s.to_bytes(width, "big")
    raise ProfileError(f"the algorithm {algorithm!r} does not fit the private key {key_file}; check the profile")
