"""Data and change files of a table under construction: written as Parquet with statistics, remembered with their rows."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_sharing_spark.deltalog.add_batch import NumberText, dump
from delta_sharing_spark.scan.plan import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.testing.tables.columns import empty_is_null, to_logical, to_physical, without


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of the table's newest version.

    Attributes:
        add: Its ``add`` action (without the wrapper).
        rows: Every physical row with partition columns, under physical names; None when rows are not kept.
        deleted: Mask of the rows its deletion vector marks, or None.
    """

    add: Mapping[str, Any] = field(repr=False)
    rows: pa.Table | None = field(repr=False, default=None)
    deleted: npt.NDArray[np.bool_] | None = field(repr=False, default=None)

    @property
    def path(self) -> str:
        """``add.path``, still a URI."""
        return str(self.add["path"])

    def live(self) -> pa.Table:
        """The rows that are not deleted; raises RuntimeError where rows are not kept."""
        if self.rows is None:
            raise RuntimeError("this builder was made with keep_rows=False and does not know its rows")
        return self.rows if self.deleted is None else self.rows.filter(pa.array(~self.deleted))

    def remove(self, timestamp: int, *, data_change: bool = True) -> dict[str, Any]:
        """The ``remove`` action of this file."""
        same = {
            name: self.add[name] for name in ("path", "partitionValues", "size", "deletionVector") if name in self.add
        }
        own = {"deletionTimestamp": timestamp, "dataChange": data_change, "extendedFileMetadata": True}
        return {"remove": same | own}

    def marked(self, deleted: npt.NDArray[np.bool_], descriptor: dict[str, Any] | None, timestamp: int) -> LiveFile:
        """The same file with another deletion vector (None: without)."""
        add = {k: v for k, v in self.add.items() if k != "deletionVector"}
        add |= {"modificationTime": timestamp, "dataChange": True}
        if descriptor is None:
            return replace(self, add=add, deleted=None)
        add["deletionVector"] = descriptor
        if "stats" in add and "tightBounds" not in add["stats"]:
            add["stats"] = add["stats"].removesuffix("}") + ',"tightBounds":false}'
        return replace(self, add=add, deleted=deleted)


@dataclass(frozen=True, slots=True)
class FileStyle:
    """How data files are written.

    Attributes:
        row_group_size: Rows of a row group.
        parquet: Further arguments of ``pyarrow.parquet.write_table`` (``write_page_checksum``, ``compression``...).
        stats: Whether adds carry statistics.
        indexed: Leaf columns with statistics; -1 is all.
        field_ids: Whether Parquet fields carry the ids of column mapping.
        random_prefix: Two random characters as directory instead of the partition's (tables with mapped columns).
        required: Whether NOT NULL columns are REQUIRED in the file; False lets NULLs in.
        materialize_partitions: Files hold the partition columns too.
        location: Absolute directory outside of the table for the files, named by absolute URIs.
        keep_rows: Whether the builder remembers the rows, for deletes and expectations.
    """

    row_group_size: int | None = None
    parquet: Mapping[str, Any] = field(default_factory=dict)
    stats: bool = True
    indexed: int = 32
    field_ids: bool = False
    random_prefix: bool = False
    required: bool = True
    materialize_partitions: bool = False
    location: Path | None = None
    keep_rows: bool = True


class FileWriter:
    """Writes files of one schema below ``root``."""

    def __init__(self, root: Path, schema: Struct, partition_by: tuple[str, ...], style: FileStyle) -> None:
        self._root, self._schema, self._partition_by, self._style = root, schema, partition_by, style

    def write(self, table: pa.Table, files: int, timestamp: int, *, data_change: bool = True) -> Iterator[LiveFile]:
        """Data files for logical rows: ``files`` of about the same size for each partition."""
        for values, rows in self._by_partition(table):
            step = max(1, -(-rows.num_rows // files))
            for start in range(0, max(rows.num_rows, 1), step):
                yield self._write_one(rows.slice(start, step), values, timestamp, data_change)

    def write_changes(self, table: pa.Table, change_types: pa.Array) -> Iterator[dict[str, Any]]:
        """``cdc`` actions of change files below ``_change_data`` for logical rows."""
        typed = table.append_column("_change_type", change_types)
        for values, rows in self._by_partition(typed):
            kinds = rows.column("_change_type")
            physical = self._physical(rows.drop_columns(["_change_type"]))
            held = self._held(physical).append_column("_change_type", kinds)
            size, uri = self._put(held, values, "_change_data/")
            yield {"cdc": {"path": uri, "partitionValues": values, "size": size, "dataChange": False}}

    def add_existing(self, table: pa.Table, timestamp: int) -> LiveFile:
        """A file that holds ``table`` exactly as given (physical columns, of whatever shape)."""
        return LiveFile(self._put_with_statistics(table, {}, timestamp, True))

    def _write_one(self, rows: pa.Table, values: dict[str, str | None], timestamp: int, data_change: bool) -> LiveFile:
        physical = self._physical(rows)
        add = self._put_with_statistics(self._held(physical), values, timestamp, data_change)
        return LiveFile(add, empty_is_null(physical, list(values)) if self._style.keep_rows else None)

    def _put_with_statistics(
        self, held: pa.Table, values: dict[str, str | None], timestamp: int, data_change: bool
    ) -> dict[str, Any]:
        size, uri = self._put(held, values, "")
        add: dict[str, Any] = {"path": uri, "partitionValues": values, "size": size}
        add |= {"modificationTime": timestamp, "dataChange": data_change}
        if self._style.stats:
            add["stats"] = statistics(held, indexed=self._style.indexed)
        return add

    def _physical(self, rows: pa.Table) -> pa.Table:
        return to_physical(rows, self._schema, field_ids=self._style.field_ids, required=self._style.required)

    def _held(self, physical: pa.Table) -> pa.Table:
        """The columns a file holds: no void ones, and partition columns only where they are materialized."""
        dropped = () if self._style.materialize_partitions else self._partition_by
        return physical.select([f.physical_name for f in without(self._schema, dropped).fields])

    def _by_partition(self, table: pa.Table) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
        """The rows of each partition, partitions in the order they first appear."""
        if not self._partition_by:
            yield {}, table
            return
        fields = [field for name in self._partition_by if (field := self._schema.find(name)) is not None]
        numbered = table.append_column("__row", pa.array(np.arange(table.num_rows)))
        groups = numbered.group_by([f.name for f in fields], use_threads=False).aggregate([("__row", "list")])
        for index, rows in enumerate(groups.column("__row_list")):
            values = {f.physical_name: serialize(groups.column(f.name)[index].as_py()) for f in fields}
            yield values, table.take(rows.values)

    def _put(self, table: pa.Table, values: dict[str, str | None], below: str) -> tuple[int, str]:
        unique = uuid.uuid4()
        name = f"part-00000-{unique}.c000.snappy.parquet"
        folder = unique.hex[:2] if self._style.random_prefix else directory(values)
        relative = below + (f"{folder}/{name}" if folder else name)
        base = self._style.location or self._root
        path = base / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"row_group_size": self._style.row_group_size, "store_schema": False}
        pq.write_table(table, path, **(options | dict(self._style.parquet)))
        uri = relative if self._style.location is None else f"file://{base.absolute()}/{relative}"
        return path.stat().st_size, encode_uri(uri)


def mask_of(where: Any, table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of a logical table ``where`` chooses: an Arrow expression, a function of the table, or a mask."""
    if isinstance(where, pc.Expression):
        numbered = table.append_column("__row", pa.array(np.arange(table.num_rows)))
        mask = np.zeros(table.num_rows, dtype=np.bool_)
        mask[numbered.filter(where).column("__row").to_numpy()] = True
        return mask
    chosen = where(table) if callable(where) else where
    if isinstance(chosen, (pa.Array, pa.ChunkedArray)):
        chosen = pc.fill_null(chosen, False).to_pylist()
    mask = np.asarray(chosen, dtype=np.bool_)
    if mask.shape != (table.num_rows,):
        raise ValueError(f"a mask of shape {mask.shape} does not fit {table.num_rows} rows")
    return mask


_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: What Hive and Spark escape in a partition's directory name, beside control characters.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^")
#: What Hadoop's Path.toUri leaves as it is; everything else in ASCII is percent-encoded, the rest kept.
_URI_SAFE = "/!$&'()*+,;=:@-._~"


def serialize(value: Any) -> str | None:
    """One partition value as the log keeps it (Delta protocol, "Partition Value Serialization"); None for null.

    Args:
        value: A Python value as Arrow gives it (``as_py``).
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, datetime.datetime) and value.tzinfo:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    return str(value).lower() if isinstance(value, bool) else str(value)


def directory(values: dict[str, str | None]) -> str:
    """``a=1/b=x%3Ay``: the directory of a partition, escaped as Hive does; empty for no values."""
    return "/".join(f"{_escape(name)}={_escape(value) if value else _HIVE_NULL}" for name, value in values.items())


def _escape(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED or ord(c) < 0x20 or ord(c) == 0x7F else c for c in text)


def encode_uri(path: str) -> str:
    """A path as ``add.path`` has it: percent-encoded once, non-ASCII characters kept, as Hadoop writes them."""
    return "".join(c if ord(c) > 0x7F else quote(c, safe=_URI_SAFE) for c in path)


_STRING_PREFIX = 32
#: Sorts after every character that a truncated maximum may go on with.
_TIE_BREAKER = "\U0010ffff"


def statistics(table: pa.Table, *, indexed: int) -> str:
    """The ``stats`` JSON of a file holding ``table`` (physical names, no partition columns).

    Args:
        table: The file's rows, deleted ones included.
        indexed: So many leaf columns, counted in order, get statistics; -1 is all.
    """
    trees: tuple[_Tree, _Tree, _Tree] = ({}, {}, {})
    columns = zip(table.schema, table.columns, strict=True)
    _add_statistics(columns, trees, iter(range(indexed if indexed >= 0 else 1 << 30)))
    named = zip(("minValues", "maxValues", "nullCount"), trees, strict=True)
    return dump({"numRecords": table.num_rows, **dict(named)})


_Tree = dict[str, Any]


def _add_statistics(
    columns: Iterable[tuple[pa.Field, pa.ChunkedArray]], trees: tuple[_Tree, _Tree, _Tree], budget: Iterator[int]
) -> None:
    """Add the minimum, the maximum and the nulls of each column to the trees, of so many leaves as the budget has."""
    low, high, nulls = trees
    for named, column in columns:
        if pa.types.is_struct(named.type) and named.type.num_fields:
            inner: tuple[_Tree, _Tree, _Tree] = ({}, {}, {})
            _add_statistics(zip(named.type, column.flatten(), strict=True), inner, budget)
            for tree, part in zip(trees, inner, strict=True):
                tree |= {named.name: part} if part else {}
        elif next(budget, None) is not None:
            nulls[named.name] = column.null_count
            bounds = _bounds(column)
            if bounds is not None:
                low[named.name], high[named.name] = bounds


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    kind = column.type
    types = pa.types
    comparable = (
        types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
        or types.is_date(kind) or types.is_timestamp(kind) or types.is_string(kind)
    )  # fmt: skip
    if not comparable or column.null_count == len(column):
        return None
    if types.is_floating(kind):
        return _float_bounds(column)
    extremes = pc.min_max(column)
    least, greatest = extremes["min"].as_py(), extremes["max"].as_py()
    if types.is_string(kind):
        cut = greatest if len(greatest) <= _STRING_PREFIX else greatest[:_STRING_PREFIX] + _TIE_BREAKER
        return least[:_STRING_PREFIX], cut
    if types.is_timestamp(kind):
        return _millis(extremes["min"].value, kind.tz), _millis(extremes["max"].value, kind.tz)
    if types.is_decimal(kind):
        return NumberText(format(least, "f")), NumberText(format(greatest, "f"))
    if types.is_date(kind):
        return least.isoformat(), greatest.isoformat()
    return least, greatest


def _float_bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    """Spark orders NaN above everything and writes it as a string."""
    numbers = column.filter(pc.invert(pc.fill_null(pc.is_nan(column), True)))
    extremes = pc.min_max(numbers)
    least = math.nan if not len(numbers) else extremes["min"].as_py()
    has_nan = len(numbers) + column.null_count < len(column)
    greatest = math.nan if has_nan else extremes["max"].as_py()
    return _float(least), _float(greatest)


def _float(value: float) -> Any:
    return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), value)


def _millis(micros: int, zone: str | None) -> str:
    """Timestamps are cut down to milliseconds, minimum and maximum alike."""
    clock = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=micros // 1000)
    return clock.isoformat(timespec="milliseconds") + ("Z" if zone else "")


_TYPES = ((CHANGE_TYPE, pa.string()), (COMMIT_VERSION, pa.int64()), (COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")))


@dataclass(frozen=True, slots=True)
class Change:
    """Rows of one kind of change in one commit, under physical names; ``timestamp`` in milliseconds."""

    version: int
    timestamp: int
    kind: str
    rows: pa.Table = field(repr=False)


def changes_table(changes: Sequence[Change], schema: Struct) -> pa.Table:
    """The changes in the shape of ``schema``, with the three change columns at the end."""
    tables = [_with_columns(to_logical(c.rows, schema), c) for c in changes]
    if tables:
        return pa.concat_tables(tables)
    empty = arrow_schema(schema)
    for name, kind in _TYPES:
        empty = empty.append(pa.field(name, kind))
    return empty.empty_table()


def _with_columns(table: pa.Table, change: Change) -> pa.Table:
    values = (change.kind, change.version, change.timestamp * 1000)
    for (name, kind), value in zip(_TYPES, values, strict=True):
        scalar = pa.scalar(value, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.scalar(value, kind)
        table = table.append_column(name, pa.repeat(scalar, table.num_rows))
    return table
