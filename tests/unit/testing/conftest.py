"""A table with some history, a server that shares it, and plain HTTP to ask it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import requests

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("n", pa.int32())])
#: Commit times of the table ``plain``: one second apart.
T0 = 1_700_000_000_000


class Asker:
    """Plain requests to one table of a server."""

    def __init__(self, server: SharingServer, table: str) -> None:
        share, schema, name = table.split(".")
        self.server, self.base = server, f"{server.endpoint}/shares/{share}/schemas/{schema}/tables/{name}"
        self.headers = {"Authorization": f"Bearer {server.token}"}

    def get(self, path: str, capabilities: str | None = None, **headers: str) -> requests.Response:
        return requests.get(f"{self.base}/{path}", headers=self._headers(capabilities, headers), timeout=10)

    def query(
        self, body: dict[str, Any] | None = None, capabilities: str | None = None, path: str = "query", **headers: str
    ) -> requests.Response:
        found = self._headers(capabilities, headers)
        return requests.post(f"{self.base}/{path}", json=body or {}, headers=found, timeout=10)

    def _headers(self, capabilities: str | None, more: dict[str, str]) -> dict[str, str]:
        found = self.headers | more
        return found if capabilities is None else found | {"delta-sharing-capabilities": capabilities}


def lines(response: requests.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.content.split(b"\n") if line]


def files(response: requests.Response, *kinds: str) -> list[dict[str, Any]]:
    """The bodies of file lines, of the given kinds or all."""
    wanted = kinds or ("file", "add", "remove", "cdf")
    return [body for line in lines(response) for kind, body in line.items() if kind in wanted]


def refused(response: requests.Response, status: int) -> str:
    """The message of an error answer of that status."""
    assert response.status_code == status, response.text
    tree = response.json()
    assert set(tree) == {"errorCode", "message"}
    return str(tree["message"])


@pytest.fixture
def plain(tmp_path: Path) -> DeltaTableBuilder:
    """Versions: 0 empty, 1 append, 2 delete, 3 append, 4 update; with a change data feed."""
    times = (T0 + 1000 * n for n in itertools.count(-1))
    feed = {"delta.enableChangeDataFeed": "true"}
    table = DeltaTableBuilder(tmp_path / "plain table", SCHEMA, ["city"], feed, clock=lambda: next(times))
    table.append([{"id": i, "city": "ab"[i % 2], "n": i} for i in range(10)])
    table.delete(pc.field("id") == 3)
    table.append([{"id": i, "city": None, "n": None} for i in range(10, 13)])
    return table.update(pc.field("id") == 4, lambda rows: rows.set_column(2, "n", pc.add(rows["n"], 100)))


@pytest.fixture
def vectors(tmp_path: Path) -> DeltaTableBuilder:
    """A table with deletion vectors in a file and inline, and mapped columns."""
    properties = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    table = DeltaTableBuilder(tmp_path / "vectors", SCHEMA, properties=properties)
    table.append([{"id": i, "city": "x", "n": i} for i in range(10)], files=2)
    table.delete(pc.field("id") == 1, deletion_vectors=True)
    return table.delete(pc.field("id") == 8, deletion_vectors=True, storage="i")


@pytest.fixture
def server(plain: DeltaTableBuilder, vectors: DeltaTableBuilder) -> Iterator[SharingServer]:
    with SharingServer({"s": {"default": {"plain": plain.path, "vectors": vectors.path}}}) as found:
        yield found
        assert list(found.failures) == []


@pytest.fixture
def ask(server: SharingServer) -> Asker:
    return Asker(server, "s.default.plain")
