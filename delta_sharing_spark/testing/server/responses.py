"""What handlers give back, the errors they raise, and what is remembered of each request."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

#: Where the paths of the protocol begin.
PREFIX = "/delta-sharing"
NDJSON = "application/x-ndjson; charset=utf-8"


def segments(path: str) -> list[str]:
    """The parts of a path of the protocol, behind the prefix."""
    return [unquote(part) for part in path.removeprefix(PREFIX + "/").split("/")]


@dataclass(frozen=True, slots=True)
class FileBody:
    """A slice of a local file, sent without passing through Python."""

    path: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    status: int
    body: bytes | FileBody = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json; charset=utf-8"

    @property
    def length(self) -> int:
        return len(self.body) if isinstance(self.body, bytes) else self.body.length


def json_response(tree: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, json.dumps(tree).encode(), headers or {})


def lines_response(lines: Sequence[bytes], headers: Mapping[str, str]) -> Response:
    return Response(200, b"\n".join(lines) + b"\n", headers, NDJSON)


class Refusal(Exception):
    """An error answer: ``{"errorCode": ..., "message": ...}`` with its status."""

    def __init__(self, status: int, error_code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.error_code, self.message, self.headers = status, error_code, message, headers or {}

    def response(self) -> Response:
        return json_response({"errorCode": self.error_code, "message": self.message}, self.status, self.headers)


def bad_request(message: str) -> Refusal:
    return Refusal(400, "INVALID_PARAMETER_VALUE", message)


def not_found(message: str) -> Refusal:
    return Refusal(404, "RESOURCE_DOES_NOT_EXIST", message)


@dataclass(slots=True)
class Request:
    """One request; it is remembered before its answer's last byte is sent.

    Attributes:
        method, path: The path is without its query.
        query: Empty once it is answered: it may hold a signature.
        headers: By lower-case name; the value of ``authorization`` is left out once it is answered.
        body: What came with the request; empty for tokens once it is answered.
        connection: Number of the connection it came over.
        base: Scheme and host, as the client reached the server.
        kind: Kinds are those that faults go by.
        file: Local path of the file that a data URL names.
        status: Of the answer.
        bytes: Bytes of the answer's body that were sent.
        began, ended: When it came and when its answer was sent, in seconds of ``time.monotonic``; 0 while it is under way.
    """

    method: str
    path: str
    query: str = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    body: builtins.bytes = field(repr=False)
    connection: int
    base: str
    kind: str = "unknown"
    file: str = ""
    status: int = 0
    bytes: int = 0
    began: float = field(default_factory=time.monotonic, repr=False, compare=False)
    ended: float = field(default=0.0, repr=False, compare=False)

    def forget_secrets(self) -> None:
        self.query = ""
        if "authorization" in self.headers:
            self.headers["authorization"] = ""
        if self.kind == "token":
            self.body = b""

    @property
    def range(self) -> str | None:
        """The header ``Range``."""
        return self.headers.get("range")

    @property
    def json(self) -> Any:
        """The body of a REST request."""
        return json.loads(self.body) if self.body.strip() else {}
