"""Three readers, one table: ours, the Rust kernel and deltalake return the same rows, feature by feature.

The builder's tables and those Delta Lake on Spark wrote; where another reader cannot, the reason is listed. Then
hypothesis draws schemas, values, vectors and row-group sizes.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from conformance.canonical import row_texts
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support.drawing import cases
from support.rust_kernel import kernel_rows

deltalake = pytest.importorskip("deltalake")

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "part": pa.string(),
        "n": pa.int32(),
        "at": pa.timestamp("us", "UTC"),
        "s": pa.struct({"x": pa.int32(), "l": pa.list_(pa.string())}),
    }
)
VECTORS = {"delta.enableDeletionVectors": "true"}
NAME, ID = ({"delta.columnMapping.mode": mode} for mode in ("name", "id"))
WIDENING = {"delta.enableTypeWidening": "true"}


def data(start: int = 0, count: int = 40) -> list[dict[str, Any]]:
    return [
        {"id": i, "part": "ab"[i % 2], "n": None if i % 9 == 0 else i * i, "s": {"x": i, "l": ["é", None][: i % 3]}}
        for i in range(start, start + count)
    ]


def table(path: Path, properties: dict[str, str] | None = None, **more: Any) -> DeltaTableBuilder:
    return DeltaTableBuilder(path, SCHEMA, properties=properties or {}, **more).append(data(), files=3)


def every(n: int) -> Callable[[pa.Table], Any]:
    return lambda rows: pa.array([value % n == 0 for value in rows["id"].to_pylist()])


BUILT: dict[str, Callable[[Path], DeltaTableBuilder]] = {
    "plain": lambda p: table(p),
    "partitioned": lambda p: table(p, partition_by=["part"]),
    "row groups": lambda p: table(p, style=FileStyle(row_group_size=3)),
    "materialized partitions": lambda p: table(p, partition_by=["part"], style=FileStyle(materialize_partitions=True)),
    "no statistics": lambda p: table(p, style=FileStyle(stats=False)),
    **{
        f"vectors {storage}": lambda p, storage=storage: table(p, VECTORS, style=FileStyle(row_group_size=4)).delete(
            every(3), deletion_vectors=True, storage=storage
        )
        for storage in "uip"
    },
    "vectors replaced": lambda p: (
        table(p, VECTORS).delete(every(5), deletion_vectors=True).delete(every(3), deletion_vectors=True, prefix="ab")
    ),
    "vectors undone": lambda p: table(p, VECTORS).delete(every(5), deletion_vectors=True).undelete(),
    "mapping name": lambda p: table(p, NAME).rename_column("n", "n 2").append([{"id": 99, "n 2": 1}]),
    "mapping id": lambda p: table(p, ID, style=FileStyle(field_ids=True)).rename_column("n", "m").drop_column("at"),
    "mapping nested": lambda p: table(p, NAME).rename_column("s.x", "y").append([{"id": 99, "s": {"y": 1}}]),
    "mapping legacy": lambda p: table(p, NAME, legacy_mapping=True).rename_column("n", "m"),
    "mapping partitioned": lambda p: table(p, NAME, partition_by=["part"]).rename_column("part", "p"),
    "widened": lambda p: table(p, WIDENING).widen("n", "long").append([{"id": 99, "n": 1 << 40}]),
    "widened nested": lambda p: table(p, WIDENING).widen("s.x", "long").append([{"id": 99, "s": {"x": 1 << 40}}]),
    **{
        f"checkpoint {kind}": lambda p, kind=kind: (
            table(p, VECTORS).delete(every(3), deletion_vectors=True).checkpoint(kind)
        )
        for kind in ("classic", "multipart", "v2-json", "v2-parquet", "v2-classic")
    },
    "expired log": lambda p: table(p).append(data(50)).checkpoint().append(data(90)).expire_log(2),
    "compacted log": lambda p: table(p).append(data(50)).append(data(90)).compact_log(1, 2),
    "in-commit timestamps": lambda p: table(p, {"delta.enableInCommitTimestamps": "true"}),
    "optimized": lambda p: table(p).append(data(50)).optimize(),
    "overwritten": lambda p: table(p).overwrite(data(7, 3)),
}

COMMITTED = {
    path.parent.name: path.parent for path in sorted(Path(__file__).parents[1].glob("data/delta_spark/*/expected.json"))
}

#: Tables another reader cannot read, or reads wrongly, by (reader, table); each must still fail, or leave the list.
CANNOT: dict[tuple[str, str], str] = {
    ("deltalake", "widened"): "deltalake refuses type widening",
    ("deltalake", "widened nested"): "deltalake refuses type widening",
    ("kernel", "type_widening"): "the kernel does not widen inside arrays and maps",
    ("kernel", "variant_shredded"): "the kernel does not read shredded variants",
    ("deltalake", "variant_shredded"): "deltalake refuses variantShredding",
    ("deltalake", "type_widening"): "deltalake refuses type widening",
    ("kernel", "timestamps_int96"): "INT96 as nanoseconds: the year 9999 overflows",
    ("deltalake", "timestamps_int96"): "INT96 as nanoseconds: the year 9999 overflows",
    ("kernel", "types"): "the kernel fails on a NULL map (found unmasked nulls for a non-nullable field)",
    ("deltalake", "types"): "INT96 as nanoseconds: the year 9999 overflows",
    ("kernel", "void_column"): "the kernel does not know void",
    ("kernel", "places"): "the kernel does not know geospatial",
    ("deltalake", "places"): "deltalake refuses geospatial",
}


def ours(path: Path) -> pa.Table:
    with SharingServer() as server:
        server.add_table("s.s.t", path, access_modes=("url", "dir"))
        shared = SharingClient(server.profile()).table("s.s.t")
        by_url = shared.scan(accessMode="url", responseFormat="delta").to_arrow()
        by_directory = shared.scan(accessMode="dir").to_arrow()
    assert row_texts(by_url) == row_texts(by_directory)
    assert by_url.schema == by_directory.schema
    return by_url


def by_deltalake(path: Path) -> pa.Table:
    return pa.table(
        deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path))).execute("SELECT * FROM t").read_all()
    )


OTHERS: dict[str, Callable[[Path], pa.Table]] = {"kernel": kernel_rows, "deltalake": by_deltalake}


def type_text(kind: pa.DataType) -> str:
    """A type's name, without what readers are free in: names of list and map children, widths of offsets, views, a
    zone that is UTC by another name, dictionaries and nullability."""
    if pa.types.is_dictionary(kind):
        return type_text(kind.value_type)
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if sorted(names) == ["metadata", "value"]:
            return "variant"
        return "struct<" + ", ".join(f"{n}: {type_text(kind.field(n).type)}" for n in names) + ">"
    if pa.types.is_map(kind):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"list<{type_text(kind.value_type)}>"
    text = str(kind).removeprefix("large_").removesuffix("_view")
    return text.replace("tz=+00:00", "tz=UTC").replace("tz=Z", "tz=UTC")


def types(table: pa.Table) -> dict[str, str]:
    return {field.name: type_text(field.type) for field in table.schema}


def same(left: pa.Table, right: pa.Table) -> bool:
    return types(left) == types(right) and row_texts(left) == row_texts(right, left.column_names)


def compare(reader: str, name: str, path: Path) -> None:
    mine = ours(path)
    if (reader, name) not in CANNOT:
        theirs = OTHERS[reader](path)
        assert types(theirs) == types(mine)
        assert row_texts(theirs, mine.column_names) == row_texts(mine)
        return
    try:
        agrees = same(mine, OTHERS[reader](path))
    except Exception:  # each reader has its own errors; which one is not our matter
        agrees = False
    assert not agrees, f"{reader} reads {name} by now: take it off the list"


@pytest.mark.parametrize("reader", OTHERS)
@pytest.mark.parametrize("name", BUILT)
def test_built_tables(tmp_path: Path, name: str, reader: str) -> None:
    builder = BUILT[name](tmp_path / "table")
    compare(reader, name, builder.path)
    assert same(ours(builder.path), builder.expected())


@pytest.mark.parametrize("reader", OTHERS)
@pytest.mark.parametrize("name", COMMITTED)
def test_committed_tables(name: str, reader: str) -> None:
    compare(reader, name, COMMITTED[name])


LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=8)),
    (pa.binary(), st.binary(max_size=8)),
    (pa.date32(), st.dates()),
    (pa.decimal128(12, 3), st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-3))),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(timezone.utc))),
    (pa.timestamp("us"), st.datetimes()),
]


def nested(children: Any) -> Any:
    return st.one_of(
        children.map(lambda c: (pa.list_(c[0]), st.lists(st.none() | c[1], max_size=3))),
        st.lists(children, min_size=1, max_size=3).map(
            lambda cs: (
                pa.struct([(f"f{i}", c[0]) for i, c in enumerate(cs)]),
                st.fixed_dictionaries({f"f{i}": st.none() | c[1] for i, c in enumerate(cs)}),
            )
        ),
        children.map(
            lambda c: (
                pa.map_(pa.string(), c[0]),
                st.dictionaries(st.text("abc", max_size=2), st.none() | c[1], max_size=3).map(
                    lambda d: list(d.items())
                ),
            )
        ),
    )


KINDS = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=4)


#: Types of partition columns, values that paths and logs must escape among them.
PARTITIONS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (
        pa.string(),
        st.sampled_from(["", " ", "a b", "%25", "é/ü", "x=y", "a:b", '"q"', "\\", "#?&", "\U0001f600", "NULL"]),
    ),
    (pa.int16(), st.integers(-3, 3)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates(min_value=date(1900, 1, 1))),
    (pa.decimal128(12, 3), st.sampled_from([Decimal("-0.001"), Decimal("0.000"), Decimal("999999999.999")])),
    (pa.timestamp("us"), st.datetimes(min_value=datetime(1900, 1, 1))),
    (pa.timestamp("us", "UTC"), st.datetimes(min_value=datetime(1900, 1, 1), timezones=st.just(timezone.utc))),
]


@st.composite
def drawn_tables(draw: Any) -> tuple[pa.Table, list[str], int, int, list[int], str, str]:
    """Rows, partition columns, files, row-group size, the ids to delete, a vector's storage and the mapping mode."""
    kinds = draw(st.lists(KINDS, min_size=1, max_size=4))
    count = draw(st.integers(1, 30))
    columns: dict[str, Any] = {"id": pa.array(range(count), pa.int64())}
    for index, (kind, values) in enumerate(kinds):
        columns[f"c{index}"] = pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)
    parts = draw(st.lists(st.sampled_from(PARTITIONS), max_size=2))
    for index, (kind, values) in enumerate(parts):
        few = draw(st.lists(st.none() | values, min_size=1, max_size=3))
        columns[f"p {index}"] = pa.array([few[row % len(few)] for row in range(count)], kind)
    gone = draw(st.lists(st.integers(0, count - 1), unique=True))
    mode = draw(st.sampled_from(["none", "name", "id"]))
    return (
        pa.table(columns),
        [name for name in columns if name.startswith("p ")],
        draw(st.integers(1, 3)),
        draw(st.integers(1, 10)),
        gone,
        draw(st.sampled_from("uip")),
        mode,
    )


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[SharingServer, SharingClient]]:
    with SharingServer() as server:
        yield server, SharingClient(server.profile())


@cases(40, suppress_health_check=list(HealthCheck))
@given(drawn=drawn_tables())
def test_drawn_tables(running: tuple[SharingServer, SharingClient], drawn: tuple[Any, ...]) -> None:
    rows, parts, files, group, gone, storage, mode = drawn
    server, client = running
    with tempfile.TemporaryDirectory() as folder:
        properties = VECTORS | ({} if mode == "none" else {"delta.columnMapping.mode": mode})
        style = FileStyle(row_group_size=group, field_ids=mode == "id")
        builder = DeltaTableBuilder(folder, rows.schema, parts, properties, style=style).append(rows, files=files)
        if gone:
            chosen = pa.array(gone, pa.int64())
            builder.delete(lambda t: pc.is_in(t["id"], value_set=chosen), deletion_vectors=True, storage=storage)
        server.add_table("s.s.drawn", folder, access_modes=("url", "dir"))
        expected_texts = row_texts(builder.expected())
        for options in ({"accessMode": "url", "responseFormat": "delta"}, {"accessMode": "dir"}):
            assert row_texts(client.table("s.s.drawn").scan(**options).to_arrow()) == expected_texts
        low = math.floor(rows.num_rows / 2)
        kept = client.table("s.s.drawn").scan(columns=["id"], where=f"id >= {low}").to_arrow()["id"].to_pylist()
        assert sorted(kept) == sorted(set(range(low, rows.num_rows)) - set(gone))
        empty = any("" in rows[name].to_pylist() for name in parts)
        for reader, read in OTHERS.items():
            if reader == "deltalake" and empty:
                continue  # it gives an empty string where the protocol says NULL
            theirs = read(Path(folder))
            assert row_texts(theirs, rows.column_names) == expected_texts
            assert types(theirs) == types(builder.expected())
