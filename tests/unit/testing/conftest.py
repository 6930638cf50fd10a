"""A server, and tables with some history for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.testing.plain_http import Asker

SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string()), ("n", pa.int32())])
#: When version 0 of the table ``plain`` was committed, in milliseconds; the others follow a second apart.
T0 = 1_700_000_000_000


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
    """Shares ``s.default.plain`` and ``s.default.vectors``; it must not have failed by itself when the test is over."""
    with SharingServer({"s": {"default": {"plain": plain.path, "vectors": vectors.path}}}) as running:
        yield running
        assert list(running.failures) == []


@pytest.fixture
def ask(server: SharingServer) -> Asker:
    """Requests to ``s.default.plain``."""
    return Asker(server, "s.default.plain")
