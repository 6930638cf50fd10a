"""Tells who calls a Flight gateway: by a token in the header ``authorization``, else by a certificate."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

import pyarrow.flight as flight

#: The identity of a caller that needs no token: the gateway was told to ask for none.
ANYONE = "anyone"
_MIDDLEWARE = "identity"


class Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow is untyped
    """Checks the ``authorization`` header of every call.

    ``Bearer <token>`` is a token itself. ``Basic`` is for the handshake of clients that know nothing else. Its password is the
    token, its user's name is not looked at, and the answer's header has the bearer token.

    Args:
        tokens: The tokens that callers may have. A caller's identity is a digest of its token, which admits nobody.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tuple(tokens)

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Caller:
        """Identify the caller (``flight.ServerMiddlewareFactory``)."""
        values = next((v for k, v in headers.items() if k.lower() == "authorization"), ())
        kind, _, value = str(values[0] if len(values) == 1 else "").partition(" ")
        token = value.strip()
        if kind.lower() == "basic":
            token = _password(token)
        elif kind.lower() != "bearer":
            token = ""
        for expected in self._tokens:
            if hmac.compare_digest(expected.encode(), token.encode(errors="replace")):
                return _Caller(expected, is_handshake=kind.lower() == "basic")
        raise flight.FlightUnauthenticatedError(
            "the call has no token that this gateway knows; send the header 'authorization: Bearer <token>'",
            extra_info=b'{"error": "UnauthenticatedError"}',
        )


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow is untyped
    """The caller of one call."""

    def __init__(self, token: str, *, is_handshake: bool) -> None:
        self.identity = "token " + hashlib.sha256(token.encode()).hexdigest()[:16]
        self._answer = {"authorization": f"Bearer {token}"} if is_handshake else {}

    def sending_headers(self) -> dict[str, str]:
        """The bearer token, in answer to a basic handshake."""
        return self._answer


class HandshakeByHeader(flight.ServerAuthHandler):  # type: ignore[misc]  # pyarrow is untyped
    """Lets a handshake succeed whose header the middleware has checked; without a handler pyarrow refuses every handshake."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Accept: the middleware has checked the header."""

    def is_valid(self, token: bytes) -> bytes:
        """Return no identity: the middleware holds it."""
        return b""


def middleware(tokens: Sequence[str]) -> dict[str, flight.ServerMiddlewareFactory]:
    """The server's middleware; none where no token is asked for."""
    return {_MIDDLEWARE: Tokens(tokens)} if tokens else {}


def identity_of(context: flight.ServerCallContext) -> str:
    """The caller: by its token, else by its certificate's name, else ``ANYONE``."""
    caller = context.get_middleware(_MIDDLEWARE)
    if isinstance(caller, _Caller):
        return caller.identity
    return certificate_identity(context.peer_identity()) or ANYONE


def certificate_identity(name: bytes) -> str:
    """The identity of a caller whose certificate has this name; empty where there is none."""
    return f"certificate {name.decode(errors='replace')}" if name else ""


def _password(encoded: str) -> str:
    try:
        # arrow-go and ADBC leave the padding out.
        padded = encoded.rstrip("=") + "=" * (-len(encoded.rstrip("=")) % 4)
        return base64.b64decode(padded, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
