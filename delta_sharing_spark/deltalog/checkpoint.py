"""Checkpoints: classic, multi-part and V2 (JSON or Parquet, with sidecars), read by column (Delta protocol, "Checkpoints")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delta_sharing_spark.deltalog.actions import Metadata, Protocol, metadata_from, protocol_from
from delta_sharing_spark.deltalog.adds import AddBatch, from_struct
from delta_sharing_spark.deltalog.columns import release_unused
from delta_sharing_spark.deltalog.commits import find_actions, parse_file_actions
from delta_sharing_spark.deltalog.paths import SIDECAR_DIR, LogStore, decode_uri, is_absolute
from delta_sharing_spark.deltalog.segment import CheckpointFiles, refused
from delta_sharing_spark.errors import DeltaSharingError, LogError

_BATCH_ROWS = 1 << 13
_BUFFER = 1 << 18
#: Batches after which memory is given back: each time costs as much as a batch or two.
_RELEASED_EVERY = 16
_PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError)


class Checkpoint:
    """One checkpoint of a table: its small actions, and its live files in batches.

    Raises (every method):
        LogError: A file of it is missing or corrupt, by its name.
    """

    def __init__(self, store: LogStore, files: CheckpointFiles, table: str) -> None:
        self.version = files.version
        self._store, self._files, self._table = store, files, table
        self._footers: dict[str, pq.FileMetaData] = {}
        self._protocol: Protocol | None = None
        self._metadata: Metadata | None = None
        self._sidecars: list[str] = []
        self._json: bytes | None = None
        if files.paths[0].endswith(".json"):
            self._read_json(files.paths[0])
        else:
            for path in files.paths:
                self._read_parquet(path)
                if files.kind == "multipart" and self._complete():
                    break
        if not self._complete():
            raise self._corrupt(files.paths[0], "it lacks its protocol or metaData action")

    def _complete(self) -> bool:
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
            self._sidecars.append(self._sidecar_path(tree.get("path"), path))

    def _read_parquet(self, path: str) -> None:
        with self._open(path) as file:
            present = set(file.schema_arrow.names)
            wanted = [name for name in ("protocol", "metaData", "sidecar") if name in present]
            if not wanted:
                return
            for batch in _batches(file, wanted):
                for name in wanted:
                    column = batch.column(name)
                    for row in column.filter(column.is_valid()).to_pylist():
                        self._take(name, row, path)

    def _take(self, name: str, row: Mapping[str, Any], path: str) -> None:
        if name == "protocol" and row.get("minReaderVersion") is not None:
            self._protocol = protocol_from(row, path)
        elif name == "metaData" and row.get("id") is not None:
            self._metadata = metadata_from(row, path)
        elif name == "sidecar" and row.get("path") is not None:
            self._sidecars.append(self._sidecar_path(row["path"], path))

    def _sidecar_path(self, uri: Any, path: str) -> str:
        if not isinstance(uri, str):
            raise self._corrupt(path, "a sidecar has no path")
        decoded = decode_uri(uri)
        return decoded if is_absolute(decoded) or "/" in decoded else f"{SIDECAR_DIR}/{decoded}"

    def adds(
        self, partition_columns: Collection[str], *, stats: bool, stats_columns: Collection[str] | None = None
    ) -> Iterator[AddBatch]:
        """The files of the checkpoint in batches.

        Args:
            partition_columns: Physical names.
            stats: Whether to read statistics.
            stats_columns: Physical names of the top-level columns whose ``stats_parsed`` are read; None for all.
        """
        if self._json is not None:
            yield from self._json_adds(partition_columns)
        paths = [p for p in self._files.paths if p.endswith(".parquet")] + self._sidecars
        for path in paths:
            with self._open(path) as file:
                columns = _columns(file, stats, stats_columns)
                if not columns:
                    continue
                for batch in _batches(file, columns):
                    found = _from_parquet(batch.column("add"), partition_columns, self._store.root)
                    if found is not None:
                        yield found

    def _json_adds(self, partition_columns: Collection[str]) -> Iterator[AddBatch]:
        path = self._files.paths[0]
        assert self._json is not None
        if b'"add"' not in self._json:
            return
        actions = parse_file_actions([(path, self._json)], partition_columns)
        for chunk in actions.column("add").chunks:
            kept = chunk.filter(chunk.is_valid())
            if len(kept):
                yield from_struct(kept, self._store.root, partition_columns, stats=kept.field("stats"))

    def _read(self, path: str) -> bytes:
        try:
            return self._store.read(path)
        except FileNotFoundError:
            raise self._corrupt(path, "it is missing") from None
        except PermissionError:
            raise refused(self._table, path) from None

    @contextmanager
    def _open(self, path: str) -> Iterator[pq.ParquetFile]:
        """An open Parquet file whose footer is read once; what goes wrong inside is an error that names it."""
        try:
            with (
                self._store.open(path) as raw,
                pq.ParquetFile(
                    pa.PythonFile(raw, mode="r"),
                    metadata=self._footers.get(path),
                    coerce_int96_timestamp_unit="us",
                    pre_buffer=not isinstance(raw, pa.NativeFile),
                    buffer_size=_BUFFER if isinstance(raw, pa.NativeFile) else 0,
                ) as file,
            ):
                self._footers[path] = file.metadata
                yield file
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


def _batches(file: pq.ParquetFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    # A few small columns gain nothing from threads, and each thread has an allocator's pool of its own.
    for number, batch in enumerate(file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False), 1):
        yield batch
        if number % _RELEASED_EVERY == 0:
            release_unused()
    release_unused()


def _columns(file: pq.ParquetFile, stats: bool, stats_columns: Collection[str] | None) -> list[str]:
    """The leaves of ``add`` to read, by dotted path; empty if the file has no adds."""
    index = file.schema_arrow.get_field_index("add")
    if index < 0:
        return []
    add = file.schema_arrow.field(index).type
    names = {f.name for f in add}
    if "path" not in names or file.metadata.num_rows == 0:
        return []
    wanted = ["path", "partitionValues", "size", "modificationTime", "deletionVector"]
    columns = [f"add.{name}" for name in wanted if name in names]
    if not stats:
        return columns
    if "stats" in names and not ("stats_parsed" in names and _all_null(file, "add.stats")):
        columns.append("add.stats")
    elif "stats_parsed" in names:
        for part in add.field("stats_parsed").type:
            prefix = f"add.stats_parsed.{part.name}"
            if not pa.types.is_struct(part.type) or stats_columns is None:
                columns.append(prefix)
            else:
                columns += [f"{prefix}.{f.name}" for f in part.type if f.name in set(stats_columns)]
    return columns


def _all_null(file: pq.ParquetFile, leaf: str) -> bool:
    """Whether the footer says that a leaf holds nothing but nulls."""
    leaves = [i for i in range(file.metadata.num_columns) if file.metadata.schema.column(i).path == leaf]
    if not leaves:
        return True
    for group in range(file.metadata.num_row_groups):
        chunk = file.metadata.row_group(group).column(leaves[0])
        statistics = chunk.statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count < chunk.num_values:
            return False
    return True


def _from_parquet(add: pa.StructArray, partition_columns: Collection[str], root: str) -> AddBatch | None:
    if add.null_count == len(add):
        return None
    if add.null_count:
        add = add.filter(add.is_valid())
    stats = add.field("stats") if add.type.get_field_index("stats") >= 0 else None
    return from_struct(add, root, partition_columns, stats=stats)
