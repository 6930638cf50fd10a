"""Reads checkpoints by column: classic, multi-part and V2, in JSON or Parquet, with sidecars (Delta protocol, "Checkpoints")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.deltalog.actions import Metadata, Protocol, metadata_from, protocol_from
from delta_sharing_spark.deltalog.add_batch import AddBatch, cast_alike, from_struct
from delta_sharing_spark.deltalog.arrow_bridge import mask, release_unused
from delta_sharing_spark.deltalog.commit_parser import find_actions, parse_file_actions
from delta_sharing_spark.deltalog.commit_reconciliation import key_hashes, repeated_hashes, snapshot_keys
from delta_sharing_spark.deltalog.paths import SIDECAR_DIR, LogStore, decode_uri, is_absolute
from delta_sharing_spark.deltalog.segment import CheckpointFiles, refused
from delta_sharing_spark.errors import CorruptFileError, DeltaSharingError, LogError
from delta_sharing_spark.scan.footer import Footer, read_footer

_BATCH_ROWS = 1 << 13
_BUFFER = 1 << 18
#: Batches after which memory is given back: each time costs as much as a batch or two.
_RELEASED_EVERY = 16
_PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class _Sidecar:
    """A file of a V2 checkpoint that holds its adds; ``size`` in bytes, None where the checkpoint does not tell."""

    path: str
    size: int | None


@dataclass(frozen=True, slots=True)
class _Part:
    """An open Parquet file of a checkpoint."""

    path: str
    file: pq.ParquetFile
    footer: Footer


class Checkpoint:
    """One checkpoint of a table: its small actions, and its live files in batches.

    Raises (every method):
        LogError: A file of the checkpoint is missing or corrupt; names it.
    """

    def __init__(self, store: LogStore, files: CheckpointFiles, table: str) -> None:
        self.version = files.version
        self._store, self._files, self._table = store, files, table
        self._footers: dict[str, Footer] = {}
        self._protocol: Protocol | None = None
        self._metadata: Metadata | None = None
        self._sidecars: dict[str, _Sidecar] = {}
        self._json: bytes | None = None
        if files.paths[0].endswith(".json"):
            self._read_json(files.paths[0])
        else:
            for path in files.paths:
                self._read_parquet(path)
                if files.kind == "multipart" and self._is_complete():
                    break
        if not self._is_complete():
            raise self._corrupt(files.paths[0], "it lacks its protocol or metaData action")

    def _is_complete(self) -> bool:
        return self._protocol is not None and self._metadata is not None

    @property
    def protocol(self) -> Protocol:
        assert self._protocol is not None
        return self._protocol

    @property
    def metadata(self) -> Metadata:
        assert self._metadata is not None
        return self._metadata

    def _read_json(self, path: str) -> None:
        data = self._json = self._read(path)
        for tree in find_actions(data, "protocol", path):
            self._take("protocol", tree, path)
        for tree in find_actions(data, "metaData", path):
            self._take("metaData", tree, path)
        for tree in find_actions(data, "sidecar", path):
            self._add_sidecar(tree, path)

    def _read_parquet(self, path: str) -> None:
        with self._open(path) as part:
            names = [name for name in ("protocol", "metaData") if _has_struct(part, name)]
            for batch in _batches(part, names) if names else ():
                self._take_all(batch, path)
                if self._is_complete():  # of each a checkpoint has one
                    break
            if _has_struct(part, "sidecar"):
                fields = {field.name for field in part.footer.schema.field("sidecar").type}
                for batch in _batches(part, [f"sidecar.{name}" for name in ("path", "sizeInBytes") if name in fields]):
                    self._take_all(batch, path)

    def _take_all(self, batch: pa.RecordBatch, path: str) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            actions = column.filter(column.is_valid())
            actions.validate(full=True)  # text is UTF-8
            for row in actions.to_pylist():
                self._take(name, row, path)

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
        self._sidecars[place] = _Sidecar(place, size)

    def adds(
        self, partition_columns: Collection[str], *, with_stats: bool, stats_columns: Collection[str] | None = None
    ) -> Iterator[AddBatch]:
        """The files of the checkpoint in batches.

        Args:
            partition_columns: Physical names.
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
        seen: set[str] = set()
        for batch in self._adds((), False, None):
            keys = snapshot_keys(batch)
            for key in keys.filter(mask(np.isin(key_hashes(keys), suspects))).to_pylist():
                if key in seen:
                    raise self._corrupt(self._files.paths[0], f"it names the file {key.partition(chr(0))[0]} twice")
                seen.add(key)

    def _adds(
        self, partition_columns: Collection[str], with_stats: bool, stats_columns: Collection[str] | None
    ) -> Iterator[AddBatch]:
        if self._json is not None:
            yield from self._json_adds(partition_columns)
        own = [_Sidecar(path, None) for path in self._files.paths if path.endswith(".parquet")]
        for number, sidecar in enumerate([*own, *self._sidecars.values()]):
            with self._open(sidecar.path, sidecar.size) as part:
                if not _has_struct(part, "add"):
                    # Only a checkpoint that keeps its files in sidecars has none of its own.
                    if part.footer.metadata.num_rows and not (number < len(own) and self._sidecars):
                        raise self._corrupt(sidecar.path, "it has no column 'add'")
                    continue
                for batch in _batches(part, _columns(part, with_stats, stats_columns)):
                    adds = _from_parquet(batch.column("add"), partition_columns, self._store.root)
                    if adds is not None:
                        yield adds

    def _json_adds(self, partition_columns: Collection[str]) -> Iterator[AddBatch]:
        path = self._files.paths[0]
        assert self._json is not None
        actions = parse_file_actions([(path, self._json)], partition_columns)
        for chunk in actions.column("add").chunks:
            adds = chunk.filter(chunk.is_valid())
            if len(adds):
                yield from_struct(adds, self._store.root, partition_columns, stats=adds.field("stats"))

    def _read(self, path: str) -> bytes:
        try:
            return self._store.read(path)
        except FileNotFoundError:
            raise self._corrupt(path, "it is missing") from None
        except PermissionError:
            raise refused(self._table, path) from None

    @contextmanager
    def _open(self, path: str, size: int | None = None) -> Iterator[_Part]:
        """Open a Parquet file, whose footer is read once; errors inside the context are raised as ``LogError`` with its name.

        Args:
            path: Relative to the table's root, or absolute.
            size: Its bytes, None if unknown.
        """
        try:
            with self._store.open(path) as raw:
                footer = self._footers.get(path)
                if footer is None:
                    source = _Source(path, raw)
                    if size is not None and source.size != size:
                        raise self._corrupt(path, f"it has {source.size} bytes, the checkpoint says {size}")
                    footer = self._footers[path] = read_footer(source, self._table, 0)
                with pq.ParquetFile(
                    pa.PythonFile(raw, mode="r"),
                    metadata=footer.metadata,
                    coerce_int96_timestamp_unit="us",
                    pre_buffer=not isinstance(raw, pa.NativeFile),
                    buffer_size=_BUFFER if isinstance(raw, pa.NativeFile) else 0,
                ) as file:
                    yield _Part(path, file, footer)
        except CorruptFileError as error:
            raise self._corrupt(path, str(error)) from error
        except DeltaSharingError:
            raise
        except PermissionError:
            raise refused(self._table, path) from None
        except FileNotFoundError:
            raise self._corrupt(path, "it is missing") from None
        except _PARQUET_ERRORS as error:
            raise self._corrupt(path, str(error)) from error

    def _corrupt(self, path: str, why: str) -> LogError:
        return LogError(
            f"the checkpoint of version {self.version} of {self._table} cannot be read: {path}: {why}; "
            f"ask the provider to checkpoint the table again",
            file=path,
        )


class _Source:
    """Presents an open file as a ``ByteSource``, for its footer to be read."""

    def __init__(self, name: str, raw: BinaryIO) -> None:
        self.name, self._raw = name, raw
        self.size = raw.seek(0, 2)

    def read(self, start: int, length: int) -> memoryview:
        self._raw.seek(start)
        return memoryview(self._raw.read(length))

    def close(self) -> None:
        """Do nothing: the owner closes the file."""


def _has_struct(part: _Part, name: str) -> bool:
    """Whether a file has the column of an action.

    Raises:
        ValueError: The column is no struct.
    """
    schema = part.footer.schema
    if schema.names.count(name) > 1:
        raise ValueError(f"it has several columns {name!r}")
    index = schema.get_field_index(name)
    if index >= 0 and not pa.types.is_struct(schema.field(index).type):
        raise ValueError(f"its column {name!r} is {schema.field(index).type}, not a struct")
    return index >= 0


def _batches(part: _Part, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # A few small columns gain nothing from threads, and each thread has an allocator's pool of its own.
    rows = 0
    for number, batch in enumerate(part.file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False), 1):
        rows += batch.num_rows
        yield batch
        if number % _RELEASED_EVERY == 0:
            release_unused()
    if rows != part.footer.metadata.num_rows:
        raise ValueError(f"it holds {rows} rows, its footer says {part.footer.metadata.num_rows}")
    release_unused()


def _columns(part: _Part, with_stats: bool, stats_columns: Collection[str] | None) -> list[str]:
    """The leaves of ``add`` to read, by dotted path.

    Raises:
        ValueError: A file's path, size or partition values are not columns of it.
    """
    add = part.footer.schema.field("add").type
    names = {f.name for f in add}
    if missing := {"path", "partitionValues", "size"} - names:
        raise ValueError(f"its adds have no {', '.join(sorted(missing))}")
    if not pa.types.is_map(add.field("partitionValues").type):
        raise ValueError(f"its partitionValues are {add.field('partitionValues').type}, not a map")
    columns = [f"add.{name}" for name in ("path", "partitionValues", "size", "modificationTime", "deletionVector")]
    columns = [name for name in columns if name.partition(".")[2] in names]
    if not with_stats:
        return columns
    if "stats" in names and not ("stats_parsed" in names and _is_all_null(part.footer, "add.stats")):
        columns.append("add.stats")
    elif "stats_parsed" in names:
        parsed = add.field("stats_parsed").type
        for field in parsed if pa.types.is_struct(parsed) else ():
            prefix = f"add.stats_parsed.{field.name}"
            if not pa.types.is_struct(field.type) or stats_columns is None:
                columns.append(prefix)
            else:
                columns += [f"{prefix}.{f.name}" for f in field.type if f.name in set(stats_columns)]
    return columns


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


def _from_parquet(add: pa.StructArray, partition_columns: Collection[str], root: str) -> AddBatch | None:
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
