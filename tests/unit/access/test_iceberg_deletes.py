"""Which delete files hold for a data file, where writers spell its partition and its path in different ways."""

from __future__ import annotations

import math
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from delta_sharing_spark.access.iceberg.deletes import DeleteIndex
from delta_sharing_spark.access.iceberg.manifests import DATA, EQUALITY, POSITIONS, Entry
from delta_sharing_spark.access.iceberg.metadata import PartitionField
from delta_sharing_spark.errors import NullInRequiredError, UnsupportedFeatureError
from delta_sharing_spark.schema.types import Field, Primitive
from support.shared_iceberg import SharedIceberg

SPECS = {0: [PartitionField(1000, 1, "day", "at_day")], 1: [], 2: [PartitionField(1000, 1, "identity", "at_day")]}
PATH = "s3://lake/t/data/a.parquet"


def file(
    content: int, partition: dict[int | str, Any], sequence: int = 1, spec: int = 0, path: str = "", **tree: Any
) -> Entry:
    place = path or (PATH if content == DATA else f"s3://lake/t/data/{content}.parquet")
    return Entry(place, "PARQUET", 10, 5, content, spec, partition, sequence, {"equality_ids": [1], **tree})


def holds(delete: Entry, data: Entry) -> bool:
    index = DeleteIndex(
        [delete],
        lambda ids, path: tuple(Field(f"_{number}", Primitive("long")) for number in ids),
        SPECS.__getitem__,
        "",
    )
    vector, deletes = index.of(data)
    return vector is not None or bool(deletes)


@pytest.mark.parametrize("content", [POSITIONS, EQUALITY])
@pytest.mark.parametrize(
    ("value", "other", "is_same"),
    [
        (18262, date(2020, 1, 1), True), (18263, date(2020, 1, 1), False), (None, None, True), (None, 0, False),
        (math.nan, float("nan"), True), (0.0, -0.0, False), (Decimal("1.50"), Decimal("1.5"), True), ("a", "b", False), ("1", 1, False),
        (UUID(int=5), UUID(int=5).bytes, True), (datetime(2020, 1, 1), datetime(2020, 1, 1, tzinfo=timezone.utc), True), ([1], [1], True),
    ],
)  # fmt: skip
def test_partitions(content: int, value: Any, other: Any, is_same: bool) -> None:
    """Manifests of one table may have a day as a date or as a number, and fields by their ids or, without these, by name."""
    pairs = [(key, *pair) for pair in ((value, other), (other, value)) for key in (1000, "at_day")]
    held = [holds(file(content, {key: one}, 2), file(DATA, {1000: another})) for key, one, another in pairs]
    assert held == [is_same] * 4


@pytest.mark.parametrize(("content", "sequences"), [(POSITIONS, [1, 2]), (EQUALITY, [2])])
def test_sequence_numbers(content: int, sequences: list[int]) -> None:
    own = {1000: 1}
    assert [n for n in (0, 1, 2) if holds(file(content, own, n), file(DATA, own, 1))] == sequences


@pytest.mark.parametrize(
    ("content", "spec", "is_held"),
    [(POSITIONS, 1, False), (EQUALITY, 1, True), (POSITIONS, 2, False), (EQUALITY, 2, False)],
)
def test_deletes_of_another_spec(content: int, spec: int, is_held: bool) -> None:
    """By no field they are of all files, if they are by equality."""
    partition: dict[int | str, Any] = {1000: 1} if SPECS[spec] else {}
    assert holds(file(content, partition, 2, spec), file(DATA, {1000: 1})) == is_held


def bounds(low: str, high: str) -> dict[str, Any]:
    return {name: {2147483546: text.encode()} for name, text in (("lower_bounds", low), ("upper_bounds", high))}


@pytest.mark.parametrize(
    ("tree", "is_held"),
    [
        (bounds(PATH, PATH), True),
        (bounds("s3://lake/t/data/b", "s3://lake/t/data/c"), False),
        (bounds("s3://lake/t/d", "s3://lake/t/e"), True),  # cut bounds
        ({"referenced_data_file": PATH}, True),
        ({"referenced_data_file": PATH + "x"}, False),
        ({}, True),
    ],
)
def test_paths(tree: dict[str, Any], is_held: bool) -> None:
    assert holds(file(POSITIONS, {1000: 1}, **tree), file(DATA, {1000: 1})) == is_held


@pytest.mark.parametrize("spellings", [("file:/t/a", "file:///t/a"), ("file:///t/a", "file:/t/a")])
def test_local_paths_in_two_spellings(spellings: tuple[str, str]) -> None:
    one, other = spellings
    data = file(DATA, {1000: 1}, path=one)
    trees = (bounds(other, other), {"referenced_data_file": other}, bounds(other, other + "z"), {})
    assert [tree for tree in trees if not holds(file(POSITIONS, {1000: 1}, **tree), data)] == []


@pytest.mark.parametrize("is_required", [False, True])
def test_a_delete_file_that_lacks_its_key(tmp_path: Path, is_required: bool) -> None:
    """Its rows have NULL there, as Iceberg's own reader has it; one that may be no NULL is refused, there as here."""
    with SharedIceberg(tmp_path) as server:
        writer = server.writer
        writer.insert([{1: 1, 2: None}, {1: 2, 2: "a"}])
        writer.commit()
        writer.delete_equal([(writer.columns[0],)], [{1: 1}])
        writer._deletes[-1]["equality_ids"] = [2]
        writer.commit()
        text = writer.metadata_path.read_text()
        if is_required:
            text = text.replace('"name": "kind", "required": false', '"name": "kind", "required": true')
            writer.metadata_path.write_text(text)
        table = server.client().table("s.db.t").select("id")
        if is_required:
            with pytest.raises(NullInRequiredError, match=r"/data/deletes-.* has a NULL in column 'kind \(2\)'"):
                table.to_arrow()
        else:
            assert table.to_arrow()["id"].to_pylist() == [2]


@pytest.mark.parametrize("key", ["element", "key"])
def test_keys_within_lists_and_maps_are_refused(tmp_path: Path, key: str) -> None:
    """Which field of them is compared the specification does not say: it allows none."""
    with SharedIceberg(tmp_path) as server:
        writer = server.writer
        writer.insert([{1: 1, 2: "a"}])
        writer.commit()
        writer.delete_equal([(writer.columns[0],)], [{1: 1}])
        writer._deletes[-1]["equality_ids"] = [7]
        writer.commit()
        nested = {"element": '{"type": "list", "element-id": 7, "element": "int", "element-required": false}',
                  "key": '{"type": "map", "key-id": 7, "key": "int", "value-id": 8, "value": "int", "value-required": false}'}  # fmt: skip
        text = writer.metadata_path.read_text()
        field = f'{{"id": 6, "name": "nested", "required": false, "type": {nested[key]}}}, '
        writer.metadata_path.write_text(text.replace('{"id": 2, "name": "kind"', f'{field}{{"id": 2, "name": "kind"'))
        with pytest.raises(
            UnsupportedFeatureError, match=r"deletes rows by the field 7, which is no column or field of a struct"
        ):
            server.client().table("s.db.t").select("id").to_arrow()
