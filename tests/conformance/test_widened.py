"""Widened columns under ``where``: files and partitions written before are found by statistics and values of the old type."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

#: The old type, the new one, two values, and a condition that only the second fulfils.
WIDENED: list[tuple[pa.DataType, str, list[Any], str]] = [
    (pa.int8(), "long", [1, 100], "n > 50"),
    (pa.int16(), "double", [1, 100], "n > 1.5"),
    (pa.int32(), "decimal(12,2)", [1, 100], "n > 1.01"),
    (pa.int64(), "decimal(20,0)", [1, 1 << 60], "n > 2"),
    (pa.int8(), "decimal(4,1)", [-128, 127], "n > 126.9"),
    (pa.int16(), "decimal(5,0)", [-(1 << 15), (1 << 15) - 1], "n = 32767"),
    (pa.int64(), "decimal(19,0)", [-(1 << 63), (1 << 63) - 1], "n > 9223372036854775806"),
    # 0.1 as a float is more than 0.1 as a double, and less than this.
    (pa.float32(), "double", [0.1, 2.5], "n > 0.100000002"),
    (pa.decimal128(5, 2), "decimal(12,4)", [Decimal("99.99"), Decimal(100)], "n > 99.9901"),
    (pa.date32(), "timestamp_ntz", [date(1500, 1, 1), date(2024, 1, 2)], "n > TIMESTAMP_NTZ'2024-01-01 10:00:00'"),
]


@pytest.mark.parametrize("way", [{"accessMode": "url", "responseFormat": "delta"}, {"accessMode": "dir"}])
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(("old", "new", "values", "where"), WIDENED, ids=lambda v: str(v)[:20])
def test_where_on_a_widened_column(
    tmp_path: Path, old: pa.DataType, new: str, values: list[Any], where: str, partitioned: bool, way: dict[str, str]
) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", old)])
    properties = {"delta.enableTypeWidening": "true"}
    table = DeltaTableBuilder(tmp_path, schema, ["n"] if partitioned else [], properties)
    table.append(pa.table([[1, 2], pa.array(values, old)], schema=schema), files=2).widen("n", new)
    rows = table.expected().sort_by("id")
    with SharingServer() as server:
        server.add_table("s.s.t", tmp_path, access_modes=("url", "dir"))
        shared = SharingClient(server.profile()).table("s.s.t")
        assert shared.scan(**way).to_arrow().sort_by("id").equals(rows)
        assert shared.scan(where=where, **way).to_arrow().equals(rows.filter(pc.field("id") == 2))
