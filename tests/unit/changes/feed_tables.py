"""Tables with a change data feed, and the ways they are asked for."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.deltalog.paths import commit_name
from delta_sharing_spark.schema.types import Field, Primitive
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

#: How a table is asked for: the access mode, and the response format of url mode.
WAYS: dict[str, dict[str, str]] = {
    "url-parquet": {"accessMode": "url", "responseFormat": "parquet"},
    "url-delta": {"accessMode": "url", "responseFormat": "delta"},
    "dir": {"accessMode": "dir"},
}
SCHEMA = pa.schema(
    {"id": pa.int64(), "part": pa.string(), "n": pa.int32(), "s": pa.struct({"x": pa.int32(), "t": pa.string()})}
)
FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = FEED | {"delta.enableDeletionVectors": "true"}
NAME, ID = (FEED | {"delta.columnMapping.mode": mode} for mode in ("name", "id"))
#: When version 0 was committed, in milliseconds; the others follow a second apart.
T0 = 1_700_000_000_000


def moment(seconds: float) -> datetime:
    """So many seconds after version 0: of version 2 where it is 2."""
    return datetime.fromtimestamp(T0 / 1000 + seconds, timezone.utc)


def rows(start: int = 0, count: int = 10) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "part": ("a", "b", None)[i % 3],
            "n": None if i % 5 == 4 else i * i,
            "s": {"x": i, "t": f"t{i}"} if i % 4 else None,
        }
        for i in range(start, start + count)
    ]


def created(path: Path, properties: dict[str, str], **more: Any) -> DeltaTableBuilder:
    """Version 0, without rows."""
    times = itertools.count(T0 - 1000, 1000)  # the first is the table's own time of creation
    return DeltaTableBuilder(path, SCHEMA, properties=properties, clock=lambda: next(times), **more)


def table(path: Path, properties: dict[str, str], **more: Any) -> DeltaTableBuilder:
    """Versions 0 and 1: ten rows in two files, or two of each partition."""
    return created(path, properties, **more).append(rows(), files=2)


def ids(*numbers: int) -> Any:
    return lambda rows: pc.is_in(rows["id"], value_set=pa.array(numbers, pa.int64()))


def doubled(column: str = "n") -> Callable[[pa.Table], pa.Table]:
    def values(rows: pa.Table) -> pa.Table:
        index = rows.schema.get_field_index(column)
        return rows.set_column(index, column, pc.multiply(rows[column], 2))

    return values


def moved(rows: pa.Table) -> pa.Table:
    """To another partition."""
    return rows.set_column(1, "part", pa.array(["c"] * rows.num_rows))


def text(name: str) -> Field:
    return Field(name, Primitive("string"))


def _all_kinds_of_vectors(t: DeltaTableBuilder) -> DeltaTableBuilder:
    t.delete(ids(1, 2), deletion_vectors=True).delete(ids(3, 7), deletion_vectors=True, storage="i")
    t.update(ids(5), doubled(), deletion_vectors=True, change_files=False, storage="p")
    return t.undelete().delete(lambda rows: pc.less(rows["id"], 5), deletion_vectors=True)


def _grown(t: DeltaTableBuilder) -> DeltaTableBuilder:
    t.add_column(text("more")).append([{"id": 20, "part": "a", "more": "m"}])
    t.add_column(text("inner"), parent="s").append([{"id": 21, "part": "b", "s": {"x": 1, "inner": "i"}}])
    return t.update(ids(2, 21), doubled()).delete(ids(20), change_files=False)


def _renamed(t: DeltaTableBuilder) -> DeltaTableBuilder:
    t.update(ids(2), doubled()).rename_column("n", "square").rename_column("s.t", "text")
    t.append([{"id": 20, "part": "a", "square": 7, "s": {"x": 1, "text": "one"}}])
    t.update(ids(3, 20), doubled("square")).drop_column("square").add_column(Field("n", Primitive("integer")))
    return t.append([{"id": 21, "part": "b", "n": 8}]).delete(ids(2, 21), change_files=False)


def _named_again(t: DeltaTableBuilder) -> DeltaTableBuilder:
    """Mapped after some versions: a column is dropped, and another one has its name."""
    t.set_properties(**{"delta.columnMapping.mode": "name"}).append([{"id": 20, "part": "a", "n": 6}])
    t.drop_column("n").add_column(Field("n", Primitive("integer"))).drop_column("s.t").add_column(text("t"), parent="s")
    return t.append([{"id": 21, "part": "b", "n": 8}]).update(ids(3, 21), doubled())


def _without_nulls(t: DeltaTableBuilder) -> DeltaTableBuilder:
    """Delta Lake leaves NULLs out of the partition values of files that it copies from a table's state."""
    for version in range(2, t.version + 1):
        commit = t.path / "_delta_log" / commit_name(version)
        written, text = commit.stat().st_mtime_ns, commit.read_text("utf-8")
        commit.write_text(re.sub(r',?"(part|id)":null', "", text).replace("{,", "{"), "utf-8")
        os.utime(commit, ns=(written, written))
    return t


def _merged_in_vain(t: DeltaTableBuilder) -> DeltaTableBuilder:
    """A MERGE that rewrote files and changed no row; they are said to change data."""
    commit = t.optimize().path / "_delta_log" / commit_name(t.version)
    written, text = commit.stat().st_mtime_ns, commit.read_text("utf-8")
    counts = json.dumps({f"numTargetRows{done}": "0" for done in ("Inserted", "Updated", "Deleted")})
    text = text.replace('"OPTIMIZE"', f'"MERGE","operationMetrics":{counts}').replace(":false", ":true")
    commit.write_text(text, "utf-8")
    os.utime(commit, ns=(written, written))
    return t


#: By name: from the path to a table whose newest version is a handful. ``access/test_every_way.py`` reads each without its feed, too.
FEEDS: dict[str, Callable[[Path], DeltaTableBuilder]] = {
    "mapped, then named again": lambda p: _named_again(table(p, FEED).update(ids(2), doubled())),
    "change files": lambda p: table(p, FEED).delete(ids(3)).update(ids(4, 5), doubled()).append(rows(20, 3)),
    "inferred": lambda p: (
        table(p, FEED)
        .delete(ids(3), change_files=False)
        .update(ids(4), doubled(), change_files=False)
        .delete(lambda rows: pc.greater_equal(rows["id"], 5))
        .overwrite(rows(7, 3))
    ),
    "partitioned": lambda p: (
        table(p, FEED, partition_by=["part"])
        .update(ids(1, 2), moved)
        .delete(lambda rows: pc.is_null(rows["part"]))
        .delete(ids(0, 1), change_files=False)
    ),
    "partitions without NULLs": lambda p: _without_nulls(
        table(p, VECTORS, partition_by=["part"])
        .delete(ids(2), deletion_vectors=True)
        .update(ids(5), doubled())
        .delete(lambda rows: pc.is_null(rows["part"]))
        .append([{"id": 30, "part": None}, {"id": 31, "part": "a"}])
    ),
    "several row groups": lambda p: table(p, FEED, style=FileStyle(row_group_size=2)).update(ids(0, 9), doubled()),
    "vectors": lambda p: _all_kinds_of_vectors(table(p, VECTORS)),
    "vectors in partitions": lambda p: _all_kinds_of_vectors(table(p, VECTORS, partition_by=["part"])),
    "vectors rewritten": lambda p: (
        table(p, VECTORS)
        .delete(ids(1), deletion_vectors=True)
        .delete(ids(2))
        .delete(ids(3), deletion_vectors=True)
        .update(ids(4), doubled(), deletion_vectors=True)
    ),
    "compacted": lambda p: (
        table(p, VECTORS)
        .delete(ids(1, 6), deletion_vectors=True)
        .optimize()
        .append(rows(20, 2), data_change=False)
        .delete(ids(2))
    ),
    "merged in vain": lambda p: _merged_in_vain(table(p, FEED)).append(rows(20, 2)),
    "properties set": lambda p: table(p, FEED).set_properties(comment="none").append(rows(20, 2)),
    "grown": lambda p: _grown(table(p, FEED)),
    "renamed": lambda p: _renamed(table(p, NAME)),
    "renamed by id": lambda p: _renamed(table(p, ID, style=FileStyle(field_ids=True))),
    "renamed partition": lambda p: (
        table(p, NAME, partition_by=["part"])
        .delete(ids(1), change_files=False)
        .rename_column("part", "p 2")
        .delete(ids(2))
        .append([{"id": 20, "p 2": "é,=%"}])
    ),
    "mapped later": lambda p: (
        table(p, FEED)
        .delete(ids(1))
        .set_properties(**{"delta.columnMapping.mode": "name"})
        .rename_column("n", "square")
        .delete(ids(2))
    ),
    "mapped vectors": lambda p: (
        table(p, NAME | VECTORS).rename_column("n", "m").delete(ids(1), deletion_vectors=True).undelete()
    ),
    "widened": lambda p: (
        table(p, FEED | {"delta.enableTypeWidening": "true"})
        .widen("n", "long")
        .widen("s.x", "long")
        .append([{"id": 20, "part": "a", "n": 1 << 40, "s": {"x": 1 << 41}}])
        .delete(ids(1, 20))
    ),
    "times in commits": lambda p: table(p, FEED | {"delta.enableInCommitTimestamps": "true"}).delete(ids(3)),
    "checkpointed": lambda p: table(p, VECTORS).delete(ids(3), deletion_vectors=True).checkpoint().append(rows(20, 2)),
}


def ways(built: DeltaTableBuilder) -> list[str]:
    """Format ``parquet`` cannot say what a table with reader features holds; the server refuses it."""
    return [way for way in WAYS if way != "url-parquet" or built.protocol.min_reader_version == 1]


def texts(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


def struct_of(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, str(field.type)) for field in schema]
