"""Every golden table read through the log and the scan, without Spark: exactly the rows and types of ``expected/``."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.deltalog.replay import load_snapshot
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.scan.plan import FileTask, pack
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.testing.server.table_logs import LocalLogStore
from unit.scan.local_access import LocalAccess, read, spec_of

GOLDEN = (Path(__file__).parents[3] / "../shared/golden").resolve()
if not GOLDEN.is_dir():
    pytest.skip("the golden tables are not here", allow_module_level=True)

TABLES = sorted(p.parent.name for p in GOLDEN.glob("*/expected"))


def rows_of(table: pa.Table) -> Counter[str]:
    return Counter(repr(_plain(row)) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, datetime.datetime) else value


def expected_rows(name: str, schema: pa.Schema) -> pa.Table:
    files = sorted((GOLDEN / name / "expected").glob("*.parquet"))
    tables = [pq.read_table(f, coerce_int96_timestamp_unit="us", partitioning=None) for f in files]
    if not tables:
        return schema.empty_table()
    table = pa.concat_tables(tables)
    # Spark wrote the answers: types are equal but for labels that Parquet does not keep (INT96 has no zone).
    assert table.schema.names == schema.names
    return table.cast(pa.schema([_labelled(a, b) for a, b in zip(table.schema, schema, strict=True)]))


def _labelled(have: pa.Field, want: pa.Field) -> pa.Field:
    same = have.type.equals(want.type) or str(have.type).replace("[us]", "[us, tz=UTC]") == str(want.type)
    return pa.field(want.name, want.type) if same or pa.types.is_nested(want.type) else have


@pytest.mark.parametrize("max_split", [1 << 40, 700])
@pytest.mark.parametrize("name", TABLES)
def test_golden_table_has_exactly_its_rows(name: str, max_split: int) -> None:
    root = GOLDEN / name / "delta"
    snapshot = load_snapshot(LocalLogStore(root), table=name)
    tasks: list[FileTask] = list(snapshot.tasks())
    spec = spec_of(snapshot.schema, partition_columns=snapshot.metadata.partition_columns, mapping=snapshot.mapping)
    access = LocalAccess()
    parts = [read(spec, access, slices=slices) for slices in pack(tasks, max_split)]
    schema = arrow_schema(snapshot.schema)
    got = pa.concat_tables(parts) if parts else schema.empty_table()
    want = expected_rows(name, schema)
    if name == "data-reader-partition-values":
        # The answer was written seven hours behind UTC (the golden README).
        column = got.schema.get_field_index("as_timestamp")
        got = got.set_column(column, got.schema.field(column), _shifted(got.column(column)))
    assert [str(f.type) for f in want.schema] == [str(f.type) for f in got.schema]
    assert rows_of(got) == rows_of(want)


def _shifted(column: pa.ChunkedArray) -> pa.ChunkedArray:
    micros = column.cast(pa.int64()).to_pylist()
    return pa.chunked_array([pa.array([None if m is None else m + 7 * 3_600_000_000 for m in micros])]).cast(
        column.type
    )


@pytest.mark.parametrize(
    "name", ["versions-not-contiguous", "deltalog-invalid-protocol-version", "no-delta-log-folder"]
)
def test_invalid_golden_table_is_an_error(name: str) -> None:
    with pytest.raises(DeltaSharingError):
        list(load_snapshot(LocalLogStore(GOLDEN / name / "delta"), table=name).tasks())
