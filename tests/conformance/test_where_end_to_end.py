"""Functions in ``where``, end to end in both access modes: the rows of a filter of the whole table, from fewer files."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.testing.server import ServerSettings, SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

NOW = dt.datetime.now(dt.timezone.utc)
#: A condition, the ids that fulfil it, the most files that are read for it.
CASES: list[tuple[str, set[int], int]] = [
    ("ts > current_timestamp() - INTERVAL 7 DAYS", {8, 9}, 1),
    ("d >= current_date() - 7 AND contains(s, '%')", {9}, 1),
    ("year(ts) = 2020", {2, 3}, 1),
    ("CAST(ts AS DATE) IN ('2020-06-01', '2021-06-01')", {2, 3, 4, 5}, 2),
    ("date_trunc('YEAR', ts) <= TIMESTAMP '2019-01-01 00:00:00'", {0, 1}, 1),
    ("startswith(s, 'b')", {2, 3}, 1),
    ("coalesce(x, 0) = 0", {0, 5}, 2),
    ("f = 3.5", {7}, 5),
    ("f IN (0.0, 1.0) OR isnull(f)", {0, 2}, 5),
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingClient]:
    path: Path = tmp_path_factory.mktemp("functions")
    moments = [dt.datetime(year, 6, 1, 12, tzinfo=dt.timezone.utc) for year in (2019, 2020, 2021, 2022)]
    schema = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("s", pa.string()), ("x", pa.int32()), ("f", pa.float64())])  # fmt: skip
    table = DeltaTableBuilder(path, schema)
    for i, moment in enumerate([*moments, NOW - dt.timedelta(days=1)]):
        rows = {
            "id": [2 * i, 2 * i + 1], "ts": [moment, moment], "d": [moment.date()] * 2, "s": ["abcde"[i] + "x", "abcde"[i] + "%"],
            "x": [0 if i == 0 else 2, None if i == 2 else 3], "f": [float(i), float("nan") if i != 3 else 3.5],
        }  # fmt: skip
        table.append(pa.table(rows, schema=schema))
    with SharingServer(settings=ServerSettings(engine="reference")) as server:
        server.add_table("s.s.t", path, access_modes=("url", "dir"))
        yield SharingClient(server.profile())


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize(("where", "ids", "files"), CASES, ids=[c[0] for c in CASES])
def test_functions_select_rows_and_skip_files(
    shared: SharingClient, where: str, ids: set[int], files: int, mode: str
) -> None:
    scan = shared.table("s.s.t").scan(where=where, accessMode=mode)
    assert set(scan.to_arrow()["id"].to_pylist()) == ids
    assert sum(len(split.slices) for split in scan.plan().splits) <= files
