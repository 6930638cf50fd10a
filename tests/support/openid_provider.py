"""A small OpenID provider on loopback: it signs and ends tokens, exchanges them (RFC 8693), and imitates the clouds' metadata services."""

from __future__ import annotations

import importlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

AUDIENCE = "api://sharing"
ISSUER = "https://issuer.example"


class OpenIdProvider:
    """Issues signed tokens, and tells which of them are good.

    Attributes:
        life: Seconds that a token is good for.
        asked: The requests of the metadata services and of the exchange: path, query or form, headers.
        revoked: Tokens that are no longer accepted.
        fails: Status that every request is answered with; None answers as it should.
    """

    def __init__(self) -> None:
        self.life = 3600.0
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.issued: list[str] = []
        self.revoked: set[str] = set()
        self.fails: int | None = None
        self._key = ec.generate_private_key(ec.SECP256R1())
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                owner._answer(self)

            do_POST = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> OpenIdProvider:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def exchange_endpoint(self) -> str:
        return f"{self.url}/exchange"

    def issue(self, audience: str = AUDIENCE, life: float | None = None, **claims: Any) -> str:
        """A new token; no two are the same."""
        now = time.time()
        claims = {
            "iss": ISSUER,
            "sub": "recipient",
            "aud": audience,
            "iat": int(now),
            "jti": str(len(self.issued)),
        } | claims
        claims["exp"] = int(now + (self.life if life is None else life))
        token = str(jwt.encode(claims, self._key, algorithm="ES256"))
        self.issued.append(token)
        return token

    def revoke_all(self) -> None:
        """End every token that was issued so far, before its time."""
        self.revoked.update(self.issued)

    def accepts(self, token: str, audience: str = AUDIENCE) -> bool:
        """Whether a token is signed here, for the audience, and good now."""
        try:
            jwt.decode(token, self._key.public_key(), algorithms=["ES256"], audience=audience, issuer=ISSUER)
        except jwt.InvalidTokenError:
            return False
        return token not in self.revoked

    def environment(self, monkeypatch: Any) -> None:
        """Have the vendors' libraries take this for the metadata services of Azure and Google."""
        host = self.url.removeprefix("http://")
        for name in (
            "IDENTITY_ENDPOINT",
            "MSI_ENDPOINT",
            "AZURE_FEDERATED_TOKEN_FILE",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", self.url)
        monkeypatch.setenv("GCE_METADATA_IP", host)
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        # Google's library reads the host where it is imported, its older releases into every address of theirs.
        from google.auth.compute_engine import _metadata

        importlib.reload(_metadata)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0)).decode()
        fields = {name: values[0] for name, values in parse_qs(body or parts.query).items()}
        headers = {name.lower(): value for name, value in handler.headers.items()}
        if parts.path != "/":
            self.asked.append((parts.path, fields, headers))
        status, kind, answer = self._reply(parts.path, fields, headers)
        data = answer.encode()
        handler.send_response(status)
        handler.send_header("Content-Type", kind)
        handler.send_header("Metadata-Flavor", "Google")
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    def _reply(self, path: str, fields: dict[str, str], headers: dict[str, str]) -> tuple[int, str, str]:
        if self.fails is not None and path != "/":
            return (
                self.fails,
                "application/json",
                json.dumps({"error": "denied", "error_description": json.dumps(fields)}),
            )
        if path == "/metadata/identity/oauth2/token" and headers.get("metadata") == "true":
            answer = {
                "access_token": self.issue(fields["resource"]),
                "expires_in": str(int(self.life)),
                "expires_on": str(int(time.time() + self.life)),
                "resource": fields["resource"],
                "token_type": "Bearer",
            }
            return 200, "application/json", json.dumps(answer)
        if path.endswith("/service-accounts/default/identity") and headers.get("metadata-flavor") == "Google":
            return 200, "text/html", self.issue(fields["audience"])
        if path.endswith("/service-accounts/default/"):
            return (
                200,
                "application/json",
                json.dumps({"email": "me@project.example", "scopes": [], "aliases": ["default"]}),
            )
        if path == "/exchange":
            if not self.accepts(fields.get("subject_token", ""), "exchange"):
                return (
                    400,
                    "application/json",
                    json.dumps({"error": "invalid_grant", "error_description": json.dumps(fields)}),
                )
            answer = {
                "access_token": self.issue(fields.get("audience", AUDIENCE)),
                "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
                "token_type": "Bearer",
                "expires_in": str(int(self.life)),
            }
            return 200, "application/json", json.dumps(answer)
        return 200 if path == "/" else 404, "text/plain", "ok"
