"""What handlers give back, and the errors they raise, before either becomes HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NDJSON = "application/x-ndjson; charset=utf-8"


@dataclass(frozen=True, slots=True)
class FileBody:
    """A slice of a local file, sent without passing through Python."""

    path: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Response:
    """One answer. ``kind`` names the request for metrics and fault rules."""

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
