"""Plain HTTP to a server under test: no client of ours in between."""

from __future__ import annotations

import json
from typing import Any

import requests

from delta_sharing_spark.testing.server import SharingServer
from support import HANGS


class Asker:
    """Plain requests to one table of a server."""

    def __init__(self, server: SharingServer, table: str) -> None:
        share, schema, name = table.split(".")
        self.server, self.base = server, f"{server.endpoint}/shares/{share}/schemas/{schema}/tables/{name}"
        self.headers = {"Authorization": f"Bearer {server.token}"}

    def get(self, path: str, capabilities: str | None = None, **headers: str) -> requests.Response:
        return requests.get(f"{self.base}/{path}", headers=self._headers(capabilities, headers), timeout=HANGS)

    def query(
        self, body: dict[str, Any] | None = None, capabilities: str | None = None, path: str = "query", **headers: str
    ) -> requests.Response:
        headers_sent = self._headers(capabilities, headers)
        return requests.post(f"{self.base}/{path}", json=body or {}, headers=headers_sent, timeout=HANGS)

    def _headers(self, capabilities: str | None, more: dict[str, str]) -> dict[str, str]:
        merged = self.headers | more
        return merged if capabilities is None else merged | {"delta-sharing-capabilities": capabilities}


def lines(response: requests.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.content.split(b"\n") if line]


def files(response: requests.Response, *kinds: str) -> list[dict[str, Any]]:
    """The bodies of file lines, of the given kinds or all."""
    kinds_read = kinds or ("file", "add", "remove", "cdf")
    return [body for line in lines(response) for kind, body in line.items() if kind in kinds_read]


def refused(response: requests.Response, status: int) -> str:
    """The message of an error answer of that status."""
    assert response.status_code == status, response.text
    tree = response.json()
    assert set(tree) == {"errorCode", "message"}
    return str(tree["message"])
