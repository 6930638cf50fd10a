"""Who may ask: a bearer token, a password, OAuth tokens that the server issues itself."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from delta_sharing_spark.testing.server.responses import Refusal, Response, json_response

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass(slots=True)
class Identity:
    """Credentials the server accepts; several kinds at once.

    Attributes:
        token: The bearer token; None accepts none.
        username, password: Basic authentication.
        client_id, client_secret: OAuth client credentials.
        token_ttl: Seconds that an issued OAuth token is valid.
        check_token: Decides on a bearer token that somebody else issued; None accepts none.
        check_assertion: Decides on the claims of a private-key JWT and its raw text; None refuses such requests.
        issued: OAuth tokens to the time they end.
        token_requests: How many tokens were asked for.
    """

    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    token_ttl: float = 3600.0
    check_token: Callable[[str], bool] | None = field(default=None, repr=False)
    check_assertion: Callable[[dict[str, Any], str], bool] | None = field(default=None, repr=False)
    issued: dict[str, float] = field(default_factory=dict, repr=False)
    token_requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check(self, header: str | None) -> None:
        """Let a REST request pass.

        Raises:
            Refusal: 401.
        """
        scheme, _, value = (header or "").partition(" ")
        value = value.strip()
        if scheme.lower() == "bearer" and value:
            if self.token is not None and secrets.compare_digest(value.encode(), self.token.encode()):
                return
            if self.issued.get(value, 0.0) > time.time():
                return
            if self.check_token is not None and self.check_token(value):
                return
        if scheme.lower() == "basic" and self.username is not None and value == _basic(self.username, self.password):
            return
        raise Refusal(401, "UNAUTHENTICATED", "The bearer token is missing or incorrect.")

    def revoke(self) -> None:
        """End every OAuth token now."""
        with self._lock:
            self.issued.clear()

    def token_response(self, header: str | None, body: bytes) -> Response:
        """Answer a request to the OAuth token endpoint."""
        with self._lock:
            self.token_requests += 1
        form = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if not self._granted(header, form):
            return json_response({"error": "invalid_client", "error_description": "unknown client or grant"}, 401)
        token = secrets.token_urlsafe(24)
        with self._lock:
            self.issued[token] = time.time() + self.token_ttl
        return json_response({"access_token": token, "token_type": "Bearer", "expires_in": int(self.token_ttl)})

    def _granted(self, header: str | None, form: dict[str, str]) -> bool:
        grant = form.get("grant_type")
        if grant == "client_credentials" and self.client_id is not None:
            if header is not None:
                return header.partition(" ")[2].strip() == _basic(self.client_id, self.client_secret)
            return form.get("client_id") == self.client_id and form.get("client_secret") == self.client_secret
        if grant == JWT_BEARER and self.check_assertion is not None:
            assertion = form.get("assertion", "")
            try:
                claims = json.loads(_unpadded(assertion.split(".")[1]))
            except (ValueError, IndexError, binascii.Error):
                return False
            return self.check_assertion(claims, assertion)
        return False


def _basic(user: str, password: str | None) -> str:
    return base64.b64encode(f"{user}:{password or ''}".encode()).decode()


def _unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
