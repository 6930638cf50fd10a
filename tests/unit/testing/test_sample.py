"""The demonstration's tables: deterministic, readable by another reader, nulls at every level."""

from __future__ import annotations

from pathlib import Path

import pytest

from delta_sharing_spark.testing.sample import write_sample

deltalake = pytest.importorskip("deltalake")


def test_sample(tmp_path: Path) -> None:
    first = write_sample(tmp_path / "a", trips=5000)
    again = write_sample(tmp_path / "b", trips=5000)
    assert [str(t) for t in first] == ["demo.city.stations", "demo.city.trips", "demo.city.customers"]
    for table, other in zip(first, again, strict=True):
        rows = deltalake.DeltaTable(table.path).to_pyarrow_table()
        assert rows.num_rows == table.rows
        assert rows.sort_by(rows.column_names[0]).equals(
            deltalake.DeltaTable(other.path).to_pyarrow_table().sort_by(rows.column_names[0])
        )
    trips = deltalake.DeltaTable(first[1].path)
    assert trips.metadata().partition_columns == ["city"]
    assert len({f["partition.city"] for f in trips.get_add_actions(flatten=True).to_struct_array().to_pylist()}) == 4
    customers = deltalake.DeltaTable(first[2].path).to_pyarrow_table().to_pylist()
    for path in (("address",), ("address", "geo"), ("phones",), ("preferences",), ("rides",), ("name",)):
        values = customers
        for name in path:
            values = [v[name] for v in values if v is not None]
        assert None in values
        assert any(v is not None for v in values)
