"""Signed values: data URLs, page tokens and refresh tokens."""

from __future__ import annotations

import base64
import hmac
import json
import time
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qs

from delta_sharing_spark.testing.server.responses import bad_request
from delta_sharing_spark.testing.server.settings import ServerSettings

#: The Rust kernel takes a URL for presigned by a parameter of this name.
_SIGNATURE = "&X-Amz-Signature="


class Signer:
    """Signs with a key of this server.

    Paths are remembered as long as the server lives: one entry for each file it ever shared.

    Args:
        key: Secret.
        settings: Of the server.
    """

    def __init__(self, key: bytes, settings: ServerSettings) -> None:
        self._key, self._settings = key, settings
        self._paths: dict[str, str] = {}
        self._names: dict[str, str] = {}
        #: URLs of earlier generations have expired, whatever they say.
        self.generation = 0

    def sign(self, text: str) -> str:
        return hmac.digest(self._key, text.encode(), "sha256").hex()

    def terms(self, expires_ms: int) -> str:
        """The query of URLs that work until ``expires_ms``, still without signature; made once for an answer."""
        query = f"exp={expires_ms}&gen={self.generation}&iat={time.time_ns()}"
        if self._settings.url_style == "s3":
            now = datetime.now(timezone.utc)
            life = max(0, int(expires_ms / 1000 - now.timestamp()))
            query += f"&X-Amz-Date={now:%Y%m%dT%H%M%SZ}&X-Amz-Expires={life}"
        elif self._settings.url_style == "azure":
            query += f"&se={datetime.fromtimestamp(expires_ms / 1000, timezone.utc):%Y-%m-%dT%H%%3A%M%%3A%SZ}"
        return query

    def url(self, base: str, path: str, terms: str) -> str:
        """A URL of a local file under these terms."""
        opaque = self._names.get(path)
        if opaque is None:
            opaque = self._names[path] = self.sign(path)[:32]
            self._paths[opaque] = path
        return f"{base}/data/{opaque}?{terms}{_SIGNATURE}{self.sign(opaque + terms)}"

    def path_of(self, opaque: str, query: str) -> tuple[str, bool] | None:
        """The local file of a URL and whether it has expired; None if the URL is not ours."""
        terms, _, signature = query.partition(_SIGNATURE)
        path = self._paths.get(opaque)
        if path is None or not hmac.compare_digest(signature.encode(), self.sign(opaque + terms).encode()):
            return None
        values = parse_qs(terms)
        stale = int(values["gen"][0]) < self.generation or int(values["exp"][0]) <= time.time() * 1000
        return path, stale

    def name_of(self, opaque: str) -> str:
        """The local file of a URL, whatever its signature; the empty string if unknown."""
        return self._paths.get(opaque, "")

    def token(self, kind: str, body: dict[str, Any]) -> str:
        """An opaque token of ``kind`` that carries ``body``."""
        text = json.dumps({"kind": kind, "issued": time.time(), **body}, sort_keys=True)
        return base64.urlsafe_b64encode(json.dumps([text, self.sign(text)]).encode()).decode()

    def read(self, kind: str, token: str, ttl: float, expired: str) -> dict[str, Any]:
        """The body of a token.

        Raises:
            Refusal: It is not ours, of another kind, or too old.
        """
        try:
            text, signature = json.loads(base64.urlsafe_b64decode(token))
            body: dict[str, Any] = json.loads(text)
        except (ValueError, TypeError):
            raise bad_request(f"Error decoding the {kind} token.") from None
        if not hmac.compare_digest(str(signature).encode(), self.sign(text).encode()) or body.get("kind") != kind:
            raise bad_request(f"Error decoding the {kind} token.")
        if body["issued"] + ttl <= time.time():
            raise bad_request(expired)
        return body
