"""Reads checkpoints by column: classic, multi-part and V2, in JSON or Parquet, with sidecars (Delta protocol, "Checkpoints")."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_sharing_spark.deltalog.actions import (
    PARSED_BYTES,
    find_actions,
    metadata_from,
    parse_file_actions,
    protocol_from,
    split_lines,
)
from delta_sharing_spark.deltalog.add_batch import AddBatch, PartitionKeys, cast_alike, from_struct
from delta_sharing_spark.deltalog.commit_reconciliation import key_hashes, repeated_hashes, snapshot_keys
from delta_sharing_spark.deltalog.paths import SIDECAR_DIR, LogStore, decode_uri, is_absolute
from delta_sharing_spark.deltalog.segment import CheckpointFiles, refused
from delta_sharing_spark.errors import CorruptFileError, DeltaSharingError, FileGoneError, LogError, out_of_memory
from delta_sharing_spark.parquet.footer import TAIL, Footer, read_footer
from delta_sharing_spark.scan.fetching import BufferedRanges, FetchQueue, InlineExecutor
from delta_sharing_spark.scan.pace import Pace, Prefetch, connections_to
from delta_sharing_spark.scan.row_group_reader import RowGroup, plan_row_group, read_row_group
from delta_sharing_spark.schema.arrow_bridge import bools, mask, release_unused
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.storage.ranges import MemorySource, Range

_BATCH_ROWS = 1 << 13
#: Batches after which memory is given back: each time costs as much as a batch or two.
_RELEASED_EVERY = 16
#: Bytes that are fetched ahead of their parsing, over all files of a checkpoint.
_AHEAD_BYTES = 32 << 20
#: Actions that are no files, and a field that each of them has.
_OTHERS = {"remove": "path", "txn": "appId", "protocol": "minReaderVersion", "metaData": "id", "domainMetadata": "domain",
           "sidecar": "path", "checkpointMetadata": "version"}  # fmt: skip
_PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class _Part:
    """A Parquet file of a checkpoint; ``size`` in bytes, None where the checkpoint does not tell."""

    path: str
    size: int | None = None


@dataclass(slots=True)
class _OpenPart:
    """A file of a checkpoint whose footer was read: see ``OpenFile``. It stays open as long as the checkpoint is read."""

    path: str
    groups: list[RowGroup]
    reserved_bytes: int = 0
    is_held: bool = False

    def close(self) -> None:
        """Nothing goes."""


#: The columns to read of a file, whose path and footer are given, by dotted path.
_Columns: TypeAlias = "Callable[[str, Footer], list[str]]"


class Checkpoint:
    """One checkpoint of a table: its small actions, and its live files in batches, as long as its store is there.

    Raises (every method):
        LogError: A file of the checkpoint is missing or corrupt; names it.
    """

    _protocol: Protocol | None = None
    _metadata: Metadata | None = None

    def __init__(self, store: LogStore, files: CheckpointFiles, table: str) -> None:
        self.version = files.version
        # The store may keep this checkpoint; in a circle, its memory would wait for the garbage collector.
        self._store: LogStore = weakref.proxy(store)
        self._files, self._table = files, table
        #: The large files, with their ends: small actions are mostly there. Small ones are the store's to keep.
        self._large: dict[str, BufferedRanges] = {}
        self._footers: dict[str, Footer] = {}
        self._pace = Pace(connections=connections_to(store.root))
        self._sidecars: dict[str, _Part] = {}
        self._is_json = files.paths[0].endswith(".json")
        if self._is_json:
            data = self._json(files.paths[0])
            for name in ("protocol", "metaData"):
                for tree in find_actions(data, name, files.paths[0]):
                    self._take(name, tree, files.paths[0])
            for tree in find_actions(data, "sidecar", files.paths[0]):
                self._add_sidecar(tree, files.paths[0])
        else:
            self._read_parquet(files.paths[:1])
            if not self._is_complete():
                self._read_parquet(files.paths[1:])
        if self._protocol is None or self._metadata is None:
            raise self._corrupt(files.paths[0], "it lacks its protocol or metaData action")
        self.protocol, self.metadata = self._protocol, self._metadata

    def _is_complete(self) -> bool:
        return self._protocol is not None and self._metadata is not None

    def _json(self, path: str) -> bytes:
        with self._errors_of(path):
            return self._store.read(path)

    def _read_parquet(self, paths: Sequence[str]) -> None:
        parts = [_Part(path) for path in paths]

        def actions(_: str, footer: Footer) -> list[str]:
            return [name for name in ("protocol", "metaData") if _has_struct(footer, name)]

        def sidecars(_: str, footer: Footer) -> list[str]:
            fields = {f.name for f in footer.schema.field("sidecar").type} if _has_struct(footer, "sidecar") else ()
            return [f"sidecar.{name}" for name in ("path", "sizeInBytes") if name in fields]

        for path, batch in self._batches(parts, actions):
            self._take_all(batch, path)
            if self._is_complete():  # of each a checkpoint has one
                break
        for path, batch in self._batches(parts, sidecars):
            self._take_all(batch, path)

    def _take_all(self, batch: pa.RecordBatch, path: str) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            with self._errors_of(path):
                actions = column.filter(column.is_valid())
                actions.validate(full=True)  # text is UTF-8
            maps = [field.name for field in column.type if pa.types.is_map(field.type)]
            for row in actions.to_pylist():  # whose maps are lists of pairs
                self._take(name, row | {n: dict(row[n]) for n in maps if row[n] is not None}, path)

    def _take(self, name: str, row: Mapping[str, Any], path: str) -> None:
        # Some writers have every action in every row, with nothing in it.
        if name == "protocol" and row.get("minReaderVersion") is not None:
            self._protocol = protocol_from(row, path)
        elif name == "metaData" and row.get("id") is not None:
            self._metadata = metadata_from(row, path)
        elif name == "sidecar" and row.get("path") is not None:
            self._add_sidecar(row, path)

    def _add_sidecar(self, action: Mapping[str, Any], path: str) -> None:
        uri, size = action.get("path"), action.get("sizeInBytes")
        if not isinstance(uri, str) or not (size is None or type(size) is int):
            raise self._corrupt(path, "a sidecar has no path, or a size that is no number")
        decoded = decode_uri(uri)
        place = decoded if is_absolute(decoded) or "/" in decoded else f"{SIDECAR_DIR}/{decoded}"
        if place in self._sidecars:
            raise self._corrupt(path, f"it names the sidecar {decoded} twice")
        self._sidecars[place] = _Part(place, size)

    def adds(
        self, partition_columns: PartitionKeys, *, with_stats: bool, stats_columns: Collection[str] | None = None
    ) -> Iterator[AddBatch]:
        """The files of the checkpoint in batches.

        Args:
            partition_columns: Which partition values to read.
            with_stats: Whether to read statistics.
            stats_columns: Physical names of the top-level columns whose ``stats_parsed`` are read; None for all.
        """
        hashes: list[npt.NDArray[np.uint64]] = []
        for batch in self._adds(partition_columns, with_stats, stats_columns):
            keys = snapshot_keys(batch)
            if keys.null_count:
                raise self._corrupt(self._files.paths[0], "a deletion vector has no storageType or no pathOrInlineDv")
            hashes.append(key_hashes(keys))
            yield batch
        # A file that is named twice would be read twice. Hashes tell which may be.
        if hashes and len(suspects := repeated_hashes(np.concatenate(hashes))):
            self._check_each_once(suspects)

    def _check_each_once(self, suspects: npt.NDArray[np.uint64]) -> None:
        """Compare exactly the keys of files that have one of these hashes, and refuse a file that is listed twice."""
        keys_so_far: set[str] = set()
        for batch in self._adds({}, False, None):
            keys = snapshot_keys(batch)
            for key in keys.filter(mask(np.isin(key_hashes(keys), suspects))).to_pylist():
                if key in keys_so_far:
                    raise self._corrupt(self._files.paths[0], f"it names the file {key.partition(chr(0))[0]} twice")
                keys_so_far.add(key)

    def _adds(
        self, partition_columns: PartitionKeys, with_stats: bool, stats_columns: Collection[str] | None
    ) -> Iterator[AddBatch]:
        if self._is_json:
            yield from self._json_adds(self._files.paths[0], partition_columns)
        own = [path for path in self._files.paths if path.endswith(".parquet")]

        def columns(_: str, footer: Footer) -> list[str]:
            if _has_struct(footer, "add"):
                return _columns(footer, with_stats, stats_columns)
            others = [f"{name}.{field}" for name, field in _OTHERS.items() if _has_struct(footer, name)]
            if footer.metadata.num_rows and not others:
                raise ValueError("it has no column 'add'")
            return others

        for path, batch in self._batches([*map(_Part, own), *self._sidecars.values()], columns):
            with self._errors_of(path):
                adds = _from_parquet(batch, partition_columns, self._store.root)
            if adds is not None:
                yield adds

    def _json_adds(self, path: str, partition_columns: PartitionKeys) -> Iterator[AddBatch]:
        keys = [key for of_column in partition_columns.values() for key in of_column]
        for piece in split_lines(self._json(path), PARSED_BYTES):
            for chunk in parse_file_actions([(path, piece)], keys).column("add").chunks:
                adds = chunk.filter(chunk.is_valid())
                if len(adds):
                    yield from_struct(adds, self._store.root, partition_columns, stats=adds.field("stats"))

    def _batches(self, parts: Sequence[_Part], columns: _Columns) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of columns of several files, in order, with their file's path; what follows is fetched meanwhile.

        Raises:
            LogError: A file is missing or corrupt; names it.
        """

        def open_part(part: _Part, _: Prefetch, files: Executor, __: Executor) -> Future[_OpenPart]:
            return files.submit(self._open, part, columns)

        queue: FetchQueue[_Part, _OpenPart, RowGroup] = FetchQueue(
            self._table, parts, lambda _: Prefetch([]), open_part, _AHEAD_BYTES, self._pace
        )
        decoded = 0
        try:
            for part, group in queue.row_groups():
                with self._errors_of(part.path):
                    for batch in read_row_group(group, self._table, _AHEAD_BYTES, 0, _BATCH_ROWS):
                        yield part.path, batch
                        decoded += 1
                        if decoded % _RELEASED_EVERY == 0:
                            release_unused()
        finally:
            queue.close()
            release_unused()

    def _open(self, part: _Part, columns: _Columns) -> _OpenPart:
        """Open a file, whose footer is read once."""
        path = part.path
        with self._errors_of(path):
            source = self._large.get(path) or self._store.open(path, part.size)
            if part.size is not None and source.size != part.size:
                raise ValueError(f"it has {source.size} bytes, the checkpoint says {part.size}")
            if (footer := self._footers.get(path)) is None:
                if not isinstance(source, MemorySource):
                    source = self._large[path] = BufferedRanges(source, InlineExecutor(), self._pace)
                    source.add([Range(max(0, source.size - TAIL), source.size)])
                footer = self._footers[path] = read_footer(source, self._table)
            if not (names := columns(path, footer)):
                return _OpenPart(path, [])
            schema = footer.metadata.schema
            paths = [schema.column(leaf).path for leaf in range(footer.metadata.num_columns)]
            leaves = [i for i, leaf in enumerate(paths) if any(f"{leaf}.".startswith(f"{name}.") for name in names)]
            indices = range(footer.metadata.num_row_groups)
            groups = [plan_row_group(source, footer, i, leaves, _AHEAD_BYTES, self._pace) for i in indices]
            return _OpenPart(path, groups)

    @contextmanager
    def _errors_of(self, path: str) -> Iterator[None]:
        """Raises errors as ``LogError`` with the name of a file, whose path is relative to the table's root, or absolute."""
        try:
            yield
        except CorruptFileError as error:
            raise self._corrupt(path, str(error)) from error
        except (FileGoneError, FileNotFoundError):
            raise self._corrupt(path, "it is missing") from None
        except DeltaSharingError:
            raise
        except PermissionError as refusal:
            raise refused(self._table, path, refusal) from None
        except MemoryError as error:
            raise out_of_memory(
                f"the checkpoint of version {self.version} of {self._table}: {path}", error, path
            ) from None
        except _PARQUET_ERRORS as error:
            raise self._corrupt(path, str(error)) from error

    @property
    def num_actions(self) -> int:
        """Actions in all its files; valid after ``adds``."""
        own = sum(bool(line.strip()) for line in self._json(self._files.paths[0]).split(b"\n")) if self._is_json else 0
        return own + sum(footer.metadata.num_rows for footer in self._footers.values())

    def contradiction(self, path: str, what: str) -> LogError:
        """The error of a checkpoint that has other contents than ``path``, another file of the log, says."""
        return self._corrupt(self._files.paths[0], f"it has {what}, as {path} says")

    def _corrupt(self, path: str, why: str) -> LogError:
        for opened in (self._large, self._footers):  # should it be read again, it is opened anew
            opened.pop(path, None)
        return LogError(
            f"the checkpoint of version {self.version} of {self._table} cannot be read: {path}: {why}; "
            f"ask the provider to checkpoint the table again",
            file=path,
            in_checkpoint=True,
        )


def _has_struct(footer: Footer, name: str) -> bool:
    """Whether a file has the column of an action; raises ValueError where that is no struct."""
    fields = [field for field in footer.schema if field.name == name]
    if len(fields) > 1:
        raise ValueError(f"it has several columns {name!r}")
    if fields and not pa.types.is_struct(fields[0].type):
        raise ValueError(f"its column {name!r} is {fields[0].type}, not a struct")
    return bool(fields)


def _columns(footer: Footer, with_stats: bool, stats_columns: Collection[str] | None) -> list[str]:
    """The leaves of ``add`` to read, by dotted path; raises ValueError where a file's path, size or partition values are none."""
    add = footer.schema.field("add").type
    names = {f.name for f in add}
    if missing := {"path", "partitionValues", "size"} - names:
        raise ValueError(f"its adds have no {', '.join(sorted(missing))}")
    if not pa.types.is_map(add.field("partitionValues").type):
        raise ValueError(f"its partitionValues are {add.field('partitionValues').type}, not a map")
    columns = [f"add.{name}" for name in ("path", "partitionValues", "size", "modificationTime", "deletionVector")]
    columns = [name for name in columns if name.partition(".")[2] in names]
    if not with_stats:
        return columns
    if "stats" in names and not ("stats_parsed" in names and _is_all_null(footer, "add.stats")):
        columns.append("add.stats")
    elif "stats_parsed" in names:
        parsed = add.field("stats_parsed").type
        # Bounds of old dates would be those of other days.
        is_julian = footer.julian(None) is not None
        for field in parsed if pa.types.is_struct(parsed) else ():
            prefix = f"add.stats_parsed.{field.name}"
            if not pa.types.is_struct(field.type) or (stats_columns is None and not is_julian):
                columns.append(prefix)
            else:
                readable = [f for f in field.type if not (is_julian and _has_calendar(f.type))]
                columns += [
                    f"{prefix}.{f.name}" for f in readable if stats_columns is None or f.name in set(stats_columns)
                ]
    return columns


def _has_calendar(kind: pa.DataType) -> bool:
    """Whether dates or timestamps are in a type of statistics."""
    if pa.types.is_struct(kind):
        return any(_has_calendar(field.type) for field in kind)
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _is_all_null(footer: Footer, leaf: str) -> bool:
    """Whether a leaf holds only nulls, by the footer's statistics."""
    metadata = footer.metadata
    leaves = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path == leaf]
    if not leaves:
        return True
    for group in range(metadata.num_row_groups):
        statistics = footer.statistics(group, leaves[0])
        values = metadata.row_group(group).column(leaves[0]).num_values
        if statistics is None or statistics.null_count is None or statistics.null_count < values:
            return False
    return True


def _from_parquet(rows: pa.RecordBatch, partition_columns: PartitionKeys, root: str) -> AddBatch | None:
    """The files among a checkpoint's rows; raises ValueError for a row without the column that is no other action either."""
    if "add" not in rows.schema.names:
        tells = [bools(column.flatten()[0].is_valid()) for column in rows.columns]
        if not np.any(tells, axis=0).all():
            raise ValueError("it has no column 'add', and rows that are no other action")
        return None
    add = rows.column("add")
    if add.null_count == len(add):
        return None
    if add.null_count:
        add = add.filter(add.is_valid())
    stats = cast_alike(add.field("stats"), pa.string()) if add.type.get_field_index("stats") >= 0 else None
    batch = from_struct(add, root, partition_columns, stats=stats)
    for column in (batch.paths, batch.stats, batch.stats_parsed, batch.vectors, *batch.partition_values.values()):
        if column is not None:
            column.validate(full=True)  # text is UTF-8
    return batch
