"""The stored tables, and what is known of each: rows and types that Spark wrote down, a count of rows, or an error.

Golden tables lie in ``../shared/golden`` beside the checkout and are not copied here; without them theirs are left out. Those
of ``tests/data/delta_spark`` were written by Delta Lake, which read every version and change feed of them.
A new table is a directory in one of the two; a golden one without rows beside it needs a line in ``BROKEN`` or ``COUNTED``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from conformance.canonical import row_texts
from support.rust_kernel import kernel_changes

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
WRITTEN = Path(__file__).parents[1] / "data" / "delta_spark"

#: Tables without rows to read: the error, and words of its message.
BROKEN = {
    "checkpoint": ("CorruptFileError", "has only 1 bytes"),
    "data-reader-absolute-paths-escaped-chars": ("UnavailableError", "has no metaData action up to version 1"),
    "delete-re-add-same-file-different-transactions": ("CorruptFileError", "has only 1 bytes"),
    "deltalog-invalid-protocol-version": ("UnsupportedFeatureError", "asks for Delta reader version 99"),
    "no-delta-log-folder": ("NotFoundError", "has no Delta log"),
    "versions-not-contiguous": ("UnavailableError", "00000000000000000001.json is missing before version 2"),
}
#: Tables whose rows nobody wrote down: how many there are, counted by deltalake.
COUNTED = {
    "canonicalized-paths-normal-a": 0,
    "canonicalized-paths-special-a": 0,
    "cdf/cdf-table-partitioned": 2,
    "cdf/cdf-table-simple": 0,
    "cdf/cdf-table-with-dv": 10,
    "hive/delta/deltatbl-column-names-case-insensitive": 10,
    "hive/delta/deltatbl-deleted-path": 10,
    "hive/delta/deltatbl-incorrect-format-config": 10,
    "hive/delta/deltatbl-map-types-correctly": 1,
    "hive/delta/deltatbl-non-partitioned": 10,
    "hive/delta/deltatbl-not-allow-write": 10,
    "hive/delta/deltatbl-partition-prune": 5,
    "hive/delta/deltatbl-partitioned": 10,
    "hive/delta/deltatbl-schema-match": 10,
    "hive/delta/deltatbl-special-chars-in-partition-column": 10,
    "hive/delta/deltatbl-touch-files-needed-for-partitioned": 10,
}
#: Golden tables with a change feed, whose rows the Rust kernel reads.
FEEDS = ("cdf/cdf-table-partitioned", "cdf/cdf-table-simple", "cdf/cdf-table-with-dv")
#: Spark's names of the types that these have.
_TYPES = {"int32": "int", "int64": "bigint", "string": "string"}
#: Options that a table's answer was written by: that session was seven hours behind UTC (README of the golden tables).
OPTIONS = {"data-reader-partition-values": {"timeZone": "Etc/GMT+7"}}
#: Columns of type CHAR: files hold them unpadded, and it is Spark that pads them on reading, ours as Delta's.
PADDED = {"types": "c"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader must say of a load.

    Attributes:
        types: Each column's name and Spark's name of its type; None where nobody wrote them down.
        rows: Their texts, sorted (``canonical.py``); None where nobody wrote them down.
        count: How many rows there are.
        error: The class, and words of the message.
    """

    types: list[list[str]] | None = None
    rows: list[str] | None = None
    count: int | None = None
    error: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """A load of a stored table.

    Attributes:
        number: Of the table, among all.
        version: None: the newest. ``feed`` is the first and last version of a change feed.
        is_last: Whether it is the newest, or the last version before the schema changed.
        is_newest: Whether it is the newest version of the table, or its whole change feed.
    """

    table: str
    number: int
    path: Path
    version: int | None = None
    feed: tuple[int, int] | None = None
    is_last: bool = True
    is_newest: bool = True
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        part = f" {self.feed[0]}-{self.feed[1]}" if self.feed else "" if self.version is None else f" {self.version}"
        return f"{self.table}{part}"

    @property
    def shared_as(self) -> str:
        return f"stored.tables.t{self.number}"

    @property
    def has_reader_features(self) -> bool:
        """Whether response format ``parquet`` cannot say what the table holds; the server refuses it then."""
        log = (self.path / "_delta_log").glob("*.json")
        return any(re.search(r'"minReaderVersion":[^1]', commit.read_text(encoding="utf-8")) for commit in log)

    def answer(self) -> Answer:
        """What is known of it."""
        if self.path.parent == WRITTEN:
            kept = _expected(self.path)
            part = kept["changes"]["{}-{}".format(*self.feed)] if self.feed else kept["versions"][str(self.version)]
            return Answer(part["types"], part["rows"], len(part["rows"]))
        if self.feed is not None:
            return _kernel_answer(self.path, self.feed)
        if self.table in BROKEN:
            return Answer(error=BROKEN[self.table])
        if self.table in COUNTED:
            return Answer(count=COUNTED[self.table])
        return _golden_answer(self.path.parent / "expected")


def loads() -> list[Load]:
    """Every load there is, table by table."""
    found: list[Load] = []
    for number, (name, path) in enumerate(tables().items()):
        if path.parent == WRITTEN:
            found += _written_loads(name, number, path)
        else:
            found.append(Load(name, number, path, options=OPTIONS.get(name, {})))
        if name in FEEDS:
            newest = len([*(path / "_delta_log").glob("*.json")]) - 1
            spans = [(0, newest), *((version, version) for version in range(newest + 1))]
            found += [
                Load(name, number, path, feed=span, is_last=span[0] != span[1], is_newest=span[0] != span[1])
                for span in spans
            ]
    return found


def tables() -> dict[str, Path]:
    """Every stored table's directory, by its name."""
    return golden_tables() | {path.parent.name: path.parent for path in sorted(WRITTEN.glob("*/expected.json"))}


def golden_tables() -> dict[str, Path]:
    """Every directory with a Delta log or one called ``delta``, by its name below the golden directory."""
    if not GOLDEN.is_dir():
        return {}
    logs = {str(log.parent.relative_to(GOLDEN)): log.parent for log in GOLDEN.rglob("_delta_log")}
    logs |= {
        str(path.relative_to(GOLDEN)): path for path in GOLDEN.glob("*/delta") if not any(path.rglob("_delta_log"))
    }
    return {name.removesuffix("/delta"): path for name, path in sorted(logs.items())}


def _written_loads(name: str, number: int, path: Path) -> Iterator[Load]:
    kept = _expected(path)
    versions = list(kept["versions"])
    for version, after in zip(versions, [*versions[1:], None], strict=True):
        is_last = after is None or kept["versions"][version]["types"] != kept["versions"][after]["types"]
        yield Load(name, number, path, int(version), is_last=is_last, is_newest=after is None)
    ranges = [span for span, answer in kept.get("changes", {}).items() if "error" not in answer]  # Delta refuses some
    for span in ranges:
        start, end = map(int, span.split("-"))
        yield Load(name, number, path, feed=(start, end), is_last=span == ranges[0], is_newest=span == ranges[0])


def _expected(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "expected.json").read_text(encoding="utf-8")))


def _golden_answer(directory: Path) -> Answer:
    """Spark's own answer: rows, and the types that it wrote into the files."""
    from pyspark.sql.types import StructType

    files = sorted(directory.glob("*.parquet"))
    schema = StructType.fromJson(
        json.loads(pq.read_schema(files[0]).metadata[b"org.apache.spark.sql.parquet.row.metadata"])
    )
    parts = [pq.read_table(file, coerce_int96_timestamp_unit="us", partitioning=None) for file in files]
    rows = pa.concat_tables([_in_utc(part, schema) for part in parts])
    types = [[column.name, column.dataType.simpleString()] for column in schema.fields]
    return Answer(types, row_texts(rows), rows.num_rows)


def _kernel_answer(path: Path, feed: tuple[int, int]) -> Answer:
    """The kernel's rows of a change feed, but for their times: of unpacking, which Delta Lake and we let grow from commit to commit."""
    rows = kernel_changes(path, *feed).drop_columns(["_commit_timestamp"])
    return Answer([[field.name, _TYPES[str(field.type)]] for field in rows.schema], row_texts(rows), rows.num_rows)


def _in_utc(rows: pa.Table, schema: Any) -> pa.Table:
    """With the zone that INT96 does not keep."""
    names = [column.name for column in schema.fields if column.dataType.simpleString() == "timestamp"]
    for name in names:
        place = rows.schema.get_field_index(name)
        if rows.schema.field(place).type == pa.timestamp("us"):
            rows = rows.set_column(place, name, rows.column(place).cast(pa.timestamp("us", "UTC")))
    return rows
