"""Small files from a storage that refuses, breaks off and falls silent now and then: exact rows, whichever way they are fetched."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support.buckets import BucketServer

FILES, ROWS = 24, 4000
#: What hits one request in five, in turn.
FAULTS = (
    {"status": 503, "retry_after": "0"},
    {"reset": True},
    {"reset": True, "truncate": 700},
    {"stall": 0.8, "stall_at": 50},
    {"truncate": -1},
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    """Files of one row group, in which three columns that lie apart are a third of the bytes."""
    draw = np.random.default_rng(3)
    schema = pa.schema([(name, pa.int64()) for name in "abcdefghi"])
    style = FileStyle(parquet={"compression": "none", "use_dictionary": False, "write_page_checksum": True})
    made = DeltaTableBuilder(tmp_path_factory.mktemp("small") / "t", schema, style=style)
    data = pa.table({name: draw.integers(0, 1 << 62, FILES * ROWS) for name in schema.names}, schema)
    return made.append(data, files=FILES)


@pytest.fixture(scope="module")
def storage(small: DeltaTableBuilder) -> Iterator[BucketServer]:
    with BucketServer({"s.d.url": small.path}) as running:
        running.add_bucket_table("s.d.dir", small.path)
        yield running
        assert not running.failures


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize("near", [0.0, 1.0], ids=["far", "near"])
@pytest.mark.parametrize("columns", ["abcdefghi", "aei"], ids=["whole", "columns"])
def test_small_files_are_exact(
    small: DeltaTableBuilder,
    storage: BucketServer,
    mode: str,
    near: float,
    columns: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delta_sharing_spark.scan.pace.WHOLE_FILE", 4 << 20)
    monkeypatch.setattr("delta_sharing_spark.scan.pace._NEAR", near)
    storage.faults.clear()
    added = [storage.faults.add("data", skip=5 * n, **FAULTS[n % len(FAULTS)]) for n in range(len(FAULTS))]
    client = SharingClient(storage.profile(), storageEndpoint=storage.storage_endpoint, readTimeout="500ms")
    rows = client.table(f"s.d.{mode}").scan(columns=[*columns]).to_arrow()
    assert rows.sort_by("a").equals(small.expected().select([*columns]).sort_by("a"))
    assert all(fault.hits for fault in added)


@pytest.mark.parametrize(
    ("latency", "rate", "requests"),
    [(0.04, 30e6, 1), (0.15, 10e6, 1), (0.005, 100e6, 1), (0.04, 1e6, 4), (0.0005, 1e9, 4)],
)
def test_columns_of_small_files_wait_no_more_often_than_whole_files(
    storage: BucketServer, latency: float, rate: float, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far away a file comes in one request, if that is sooner than another; where bytes rule, less than twice those wanted.

    The first read teaches the pace: how many files are begun before it is known depends on the machine.
    """
    monkeypatch.setattr("delta_sharing_spark.scan.pace.WHOLE_FILE", 4 << 20)
    learn = Pace.learn
    monkeypatch.setattr(Pace, "learn", lambda pace, length, _: learn(pace, length, latency + length / rate))
    for cache in ("pace._paces", "split_reader._habits"):
        monkeypatch.setattr(f"delta_sharing_spark.scan.{cache}", ProcessCache(4))
    storage.faults.clear()
    table = SharingClient(storage.profile()).table("s.d.url")

    def cost(columns: str) -> tuple[int, int]:
        storage.reset_metrics()
        assert table.scan(columns=[*columns]).to_arrow().num_rows == FILES * ROWS
        return storage.count("data"), storage.bytes_sent("data")

    cost("aei")
    some, sent = cost("aei")
    assert requests == 1 or sent < 2 * FILES * (ROWS * 8 * 3 + 3000)
    assert FILES == cost("abcdefghi")[0] <= some <= requests * FILES
