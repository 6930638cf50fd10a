"""The demonstration's tables: deterministic, readable by another reader, nulls at every level."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.sample import BICYCLE_DAYS, share_sample, write_sample
from delta_sharing_spark.testing.server import SharingServer

deltalake = pytest.importorskip("deltalake")


def test_sample(tmp_path: Path) -> None:
    first = write_sample(tmp_path / "a", trips=5000)
    again = write_sample(tmp_path / "b", trips=5000)
    assert [t.name for t in first] == ["stations", "trips", "customers", "bicycles", "types"]
    tables, others = ([deltalake.DeltaTable(t.path).to_pyarrow_table() for t in some[:3]] for some in (first, again))
    assert [table.num_rows for table in tables] == [t.rows for t in first[:3]]
    ours, theirs = ([rows.sort_by(rows.column_names[0]) for rows in some] for some in (tables, others))
    assert ours == theirs
    trips = deltalake.DeltaTable(first[1].path)
    assert trips.metadata().partition_columns == ["city"]
    assert len({f["partition.city"] for f in trips.get_add_actions(flatten=True).to_struct_array().to_pylist()}) == 4
    customers = deltalake.DeltaTable(first[2].path).to_pyarrow_table().to_pylist()

    def kinds(*path: str) -> set[bool]:
        """Whether there are values that are null, and such that are not."""
        values = customers
        for name in path:
            values = [v[name] for v in values if v is not None]
        return {v is None for v in values}

    paths = (("address",), ("address", "geo"), ("phones",), ("preferences",), ("rides",), ("name",))
    assert [path for path in paths if kinds(*path) != {True, False}] == []


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_what_the_sample_is_there_to_show(tmp_path: Path, mode: str) -> None:
    """A history of four versions, a change feed, a deletion vector, files to skip, a column of each type."""
    with SharingServer() as server:
        tables = share_sample(server, tmp_path, trips=5000)
        client = SharingClient(server.profile(), accessMode=mode)
        bicycles = client.table("demo.city.bicycles")
        assert [bicycles.scan(version=v).count() for v in range(4)] == [0, 12, 12, 10]
        assert [bicycles.version(f"{day}T00:00:00Z") for day in BICYCLE_DAYS] == [0, 1, 2, 3]
        assert bicycles.scan(timestamp="2026-03-15T00:00:00Z").count() == 12
        kinds = Counter(bicycles.changes(1).to_arrow().column("_change_type").to_pylist())
        assert kinds == {"insert": 12, "update_preimage": 3, "update_postimage": 3, "delete": 2}
        assert "deletionVector" in Path(tables[3].path, "_delta_log", f"{3:020}.json").read_text()
        trips = client.table("demo.city.trips").scan(where="started < '2025-02-01'").plan()
        assert trips.report.files == 4
        ordinary, extreme, nulls = client.table("demo.city.types").scan().to_arrow().to_pylist()
        assert ordinary["a_string"] == "København"
        assert (extreme["a_long"], str(extreme["a_date"])) == (2**63 - 1, "1582-10-15")
        assert set(nulls.values()) == {None}
