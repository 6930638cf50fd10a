"""A builder of real Delta tables on local disk, with the features that no other Python library writes."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from delta_sharing_spark.deltalog.paths import LOG_DIR, commit_name
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.table_records import Protocol
from delta_sharing_spark.schema.types import (
    COLUMN_MAPPING_ID,
    COLUMN_MAPPING_NAME,
    Field,
    Struct,
    schema_to_json,
    with_each_field,
)
from delta_sharing_spark.testing.tables import checkpoints, protocols, schema_changes
from delta_sharing_spark.testing.tables.columns import (
    empty_is_null,
    schema_from_arrow,
    table_of,
    to_logical,
    to_physical,
)
from delta_sharing_spark.testing.tables.data_files import Change, FileStyle, FileWriter, LiveFile, changes_table
from delta_sharing_spark.testing.tables.rewrites import Rewrite, rewrite

Rows: TypeAlias = pa.Table | pa.RecordBatch | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _State:
    """The table at one version."""

    schema: Struct
    files: tuple[LiveFile, ...]


class DeltaTableBuilder:
    """Creates a Delta table (version 0) and adds a version with every call; the calls can be chained.

    Args:
        path: Directory of the table; made if absent.
        schema: Delta or Arrow schema.
        partition_by: Partition columns.
        properties: Table properties; they switch features on (``delta.enableDeletionVectors``,
            ``delta.columnMapping.mode``, ``delta.enableChangeDataFeed``, ``delta.enableInCommitTimestamps``...).
        features: Further reader features for the protocol, known to anyone or not.
        legacy_mapping: Column mapping as reader version 2, without a list of features.
        protocol: Exactly this protocol instead of the derived one.
        style: How data files are written; every write may override it.
        clock: Milliseconds since the epoch of the next commit; the commit file gets it as modification time.
        name, description, table_id: Of the ``metaData`` action.

    Attributes:
        path: The table's directory.
        version: The newest version.
        schema: The newest schema, with the metadata of column mapping and type widening.
        commits: Every version's actions as written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Struct | pa.Schema,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        *,
        features: Sequence[str] = (),
        legacy_mapping: bool = False,
        protocol: Protocol | None = None,
        style: FileStyle | None = None,
        clock: Callable[[], int] | None = None,
        name: str | None = None,
        description: str | None = None,
        table_id: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.version = -1
        self.schema = schema_from_arrow(schema) if isinstance(schema, pa.Schema) else schema
        self.partition_by = tuple(partition_by)
        self.properties = dict(properties or {})
        self.style = style or FileStyle()
        self.table_id = table_id or str(uuid.uuid4())
        self.name, self.description = name, description
        self.commits: dict[int, list[dict[str, Any]]] = {}
        self.clock = clock or (lambda: time.time_ns() // 1_000_000)
        self._features, self._legacy, self._fixed = tuple(features), legacy_mapping, protocol
        self._files: tuple[LiveFile, ...] = ()
        self._states: dict[int, _State] = {}
        self._changes: list[Change] = []
        self._last_stamp = 0
        self._created = self.clock()
        (self.path / LOG_DIR).mkdir(parents=True, exist_ok=True)
        self._map_columns(keep_names=False)
        self.commit([self.protocol_action(), self.metadata_action()], "CREATE TABLE")

    # What stands in the log

    @property
    def uri(self) -> str:
        """The table's location as a ``file:`` URI without percent-encoding."""
        return f"file://{self.path.absolute()}"

    @property
    def files(self) -> tuple[LiveFile, ...]:
        """The data files of the newest version."""
        return self._files

    @property
    def mapping(self) -> str:
        """Column mapping mode: ``"none"``, ``"name"`` or ``"id"``."""
        return self.properties.get(protocols.MAPPING_MODE, "none")

    @property
    def protocol(self) -> Protocol:
        """The protocol that the table has, or needs now."""
        if self._fixed is not None:
            return self._fixed
        return protocols.protocol_for(self.schema, self.properties, self._features, legacy=self._legacy)

    def protocol_action(self) -> dict[str, Any]:
        return {"protocol": protocols.protocol_body(self.protocol)}

    def metadata_action(self) -> dict[str, Any]:
        named = {"id": self.table_id, "name": self.name, "description": self.description}
        tree: dict[str, Any] = {key: value for key, value in named.items() if value is not None} | {
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(schema_to_json(self.schema), ensure_ascii=False, separators=(",", ":")),
            "partitionColumns": list(self.partition_by),
            "configuration": dict(self.properties),
            "createdTime": self._created,
        }
        return {"metaData": tree}

    def commit(
        self, actions: Sequence[Mapping[str, Any]], operation: str = "WRITE", *, stamp: int | None = None
    ) -> DeltaTableBuilder:
        """Write a commit of exactly these actions after a ``commitInfo``; rows are not tracked.

        Args:
            actions: Single actions in their wrappers.
            operation: For ``commitInfo``.
            stamp: The commit's time in milliseconds, as :meth:`_stamp` gave it.
        """
        stamp = self._stamp() if stamp is None else stamp
        info: dict[str, Any] = {"timestamp": stamp, "operation": operation, "operationParameters": {}}
        if self.properties.get(protocols.IN_COMMIT_TIMESTAMPS) == "true":
            info = {"inCommitTimestamp": stamp} | info
        self.version += 1
        lines = [{"commitInfo": info}, *actions]
        target = self.path / LOG_DIR / commit_name(self.version)
        hidden = target.with_name(f".{target.name}.tmp")
        text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
        hidden.write_text(text, encoding="utf-8")
        os.utime(hidden, ns=(stamp * 1_000_000, stamp * 1_000_000))
        hidden.replace(target)
        self.commits[self.version] = [dict(line) for line in lines]
        self._states[self.version] = _State(self.schema, self._files)
        return self

    def _stamp(self) -> int:
        """The next commit's time: the clock's, and later than the last one's."""
        self._last_stamp = max(self.clock(), self._last_stamp + 1)
        return self._last_stamp

    # Rows

    def append(
        self, data: Rows, *, files: int = 1, style: FileStyle | None = None, data_change: bool = True
    ) -> DeltaTableBuilder:
        """Add rows, in ``files`` files for each partition; zero rows make a zero-row file."""
        stamp = self._stamp()
        rows = table_of(data, self.schema)
        written = list(self._writer(style).write(rows, files, stamp, data_change=data_change))
        self._files += tuple(written)
        if data_change:
            self._note("insert", rows, stamp)
        return self.commit([{"add": dict(f.add)} for f in written], stamp=stamp)

    def append_physical(self, table: pa.Table) -> DeltaTableBuilder:
        """Add one file that holds ``table`` exactly as given, in no partition."""
        stamp = self._stamp()
        written = self._writer().add_existing(table, stamp)
        self._files += (written,)
        return self.commit([{"add": dict(written.add)}], stamp=stamp)

    def overwrite(self, data: Rows) -> DeltaTableBuilder:
        """Replace every row."""
        stamp = self._stamp()
        rows = table_of(data, self.schema)
        removes = [f.remove(stamp) for f in self._files]
        for file in self._files:
            self._note("delete", to_logical(file.live(), self.schema), stamp)
        self._files = tuple(self._writer().write(rows, 1, stamp))
        self._note("insert", rows, stamp)
        return self.commit([*removes, *({"add": dict(f.add)} for f in self._files)], stamp=stamp)

    def delete(
        self,
        where: Any,
        *,
        deletion_vectors: bool = False,
        storage: str = "u",
        prefix: str = "",
        offsets: bool = True,
        change_files: bool | None = None,
    ) -> DeltaTableBuilder:
        """Delete rows: files are rewritten, or get deletion vectors; a file without rows left is removed.

        Args:
            where: An Arrow expression, a function from a logical table to a mask, applied to each file's live rows.
            deletion_vectors: Mark rows instead of rewriting files.
            storage, prefix, offsets: As :func:`delta_sharing_spark.testing.tables.rewrites.write_vectors`.
            change_files: Whether to write ``_change_data`` files; by default where the feed is on and files are
                rewritten (a feed compares deletion vectors).
        """
        marks = storage if deletion_vectors else None
        return self._rewrite(Rewrite(where, None, marks, change_files, prefix, offsets))

    def update(
        self,
        where: Any,
        values: Callable[[pa.Table], Rows],
        *,
        deletion_vectors: bool = False,
        storage: str = "u",
        change_files: bool | None = None,
    ) -> DeltaTableBuilder:
        """Replace the rows that ``where`` chooses by what ``values`` makes of them. Arguments as :meth:`delete`."""
        return self._rewrite(Rewrite(where, values, storage if deletion_vectors else None, change_files))

    def undelete(self) -> DeltaTableBuilder:
        """Drop every deletion vector, so that the marked rows are back (``RESTORE`` does so)."""
        stamp = self._stamp()
        actions: list[dict[str, Any]] = []
        files = []
        for file in self._files:
            if file.deleted is None:
                files.append(file)
                continue
            assert file.rows is not None
            self._note("insert", to_logical(file.rows.filter(pa.array(file.deleted)), self.schema), stamp)
            files.append(file.marked(file.deleted, None, stamp))
            actions += [file.remove(stamp), {"add": dict(files[-1].add)}]
        self._files = tuple(files)
        return self.commit(actions, "RESTORE", stamp=stamp)

    def optimize(self, *, style: FileStyle | None = None) -> DeltaTableBuilder:
        """Rewrite all files into one for each partition; no row changes (``dataChange`` is false)."""
        stamp = self._stamp()
        rows = self.expected()
        removes = [f.remove(stamp, data_change=False) for f in self._files]
        self._files = tuple(self._writer(style).write(rows, 1, stamp, data_change=False))
        return self.commit([*removes, *({"add": dict(f.add)} for f in self._files)], "OPTIMIZE", stamp=stamp)

    def _rewrite(self, how: Rewrite) -> DeltaTableBuilder:
        stamp = self._stamp()
        if how.change_files is None:
            is_fed = self.properties.get(protocols.CHANGE_DATA_FEED) == "true"
            how = replace(how, change_files=is_fed and (how.storage is None or how.values is not None))
        done = rewrite(self._files, how, self.schema, self._writer(), self.path, stamp)
        for kind, rows in done.changes:
            self._note(kind, rows, stamp)
        self._files = done.files
        return self.commit(done.actions, "DELETE" if how.values is None else "UPDATE", stamp=stamp)

    def _note(self, kind: str, rows: pa.Table, stamp: int) -> None:
        if self.style.keep_rows and rows.num_rows:
            rows = empty_is_null(rows, self.partition_by)
            self._changes.append(Change(self.version + 1, stamp, kind, to_physical(rows, self.schema, required=False)))

    def _writer(self, style: FileStyle | None = None) -> FileWriter:
        style = style or self.style
        if self.mapping != "none":
            style = replace(style, field_ids=True, random_prefix=True)
        indexed = int(self.properties.get(protocols.INDEXED_COLUMNS, style.indexed))
        return FileWriter(self.path, self.schema, self.partition_by, replace(style, indexed=indexed))

    # What a reader must see

    def expected(self, version: int | None = None) -> pa.Table:
        """The rows of a version (the newest by default) in its schema, in no promised order."""
        state = self._states[self.version if version is None else version]
        tables = [to_logical(f.live(), state.schema) for f in state.files]
        return pa.concat_tables([arrow_schema(state.schema).empty_table(), *tables])

    def expected_changes(self, start: int = 0, end: int | None = None) -> pa.Table:
        """The change feed of a range with ``_change_type``, ``_commit_version`` and ``_commit_timestamp`` (UTC), in any order.

        Its schema is the newest one, or with column mapping that of the range's end, as Delta Lake has it.
        """
        end = self.version if end is None else end
        schema = self.schema if self.mapping == "none" else self._states[end].schema
        return changes_table([c for c in self._changes if start <= c.version <= end], schema)

    # Schema, properties, protocol

    def add_column(self, field: Field, *, parent: str = "") -> DeltaTableBuilder:
        """Add a column at the end, or a field to the struct column ``parent`` (a dotted path)."""
        return self._evolve(schema_changes.add(self.schema, parent, field), "ADD COLUMNS")

    def rename_column(self, path: str, new_name: str) -> DeltaTableBuilder:
        """Rename a column or nested field (with column mapping)."""
        if path in self.partition_by:
            self.partition_by = tuple(new_name if n == path else n for n in self.partition_by)
        return self._evolve(schema_changes.rename(self.schema, path, new_name), "RENAME COLUMN")

    def drop_column(self, path: str) -> DeltaTableBuilder:
        """Drop a column or nested field (with column mapping)."""
        return self._evolve(schema_changes.drop(self.schema, path), "DROP COLUMNS")

    def widen(self, path: str, new_type: str) -> DeltaTableBuilder:
        """Widen a type: ``path`` is dotted, with ``element``, ``key`` and ``value`` inside arrays and maps."""
        return self._evolve(schema_changes.widen(self.schema, path, new_type), "CHANGE COLUMN")

    def set_properties(self, **properties: str) -> DeltaTableBuilder:
        """Set properties (write ``**{"delta.x": "true"}``); raises the protocol where they need it."""
        before = self.mapping
        self.properties |= properties
        if self.mapping != before:
            self._map_columns(keep_names=True)
        stamp = self._stamp()
        if properties.get(protocols.IN_COMMIT_TIMESTAMPS) == "true":
            self.properties["delta.inCommitTimestampEnablementVersion"] = str(self.version + 1)
            self.properties["delta.inCommitTimestampEnablementTimestamp"] = str(stamp)
        return self.commit([self.protocol_action(), self.metadata_action()], "SET TBLPROPERTIES", stamp=stamp)

    def _evolve(self, schema: Struct, operation: str) -> DeltaTableBuilder:
        before, self.schema = self.protocol, schema
        self._map_columns(keep_names=False)
        actions = [self.metadata_action()]
        return self.commit(actions if self.protocol == before else [self.protocol_action(), *actions], operation)

    def _map_columns(self, *, keep_names: bool) -> None:
        """Give fields without one a column id and a physical name, which is the logical one in a table that is upgraded."""
        if self.mapping == "none":
            return

        def mapped(field: Field) -> Field:
            if COLUMN_MAPPING_ID in field.metadata:
                return field
            number = int(self.properties.get(protocols.MAX_COLUMN_ID, "0")) + 1
            self.properties[protocols.MAX_COLUMN_ID] = str(number)
            name = field.name if keep_names else f"col-{uuid.uuid4()}"
            return replace(field, metadata={**field.metadata, COLUMN_MAPPING_ID: number, COLUMN_MAPPING_NAME: name})

        self.schema = with_each_field(self.schema, mapped)

    # The log's other files

    def checkpoint(self, kind: str = "classic", **options: Any) -> DeltaTableBuilder:
        """Write a checkpoint of the newest version.

        Args:
            kind: ``"classic"``, ``"multipart"``, ``"v2-json"``, ``"v2-parquet"``, ``"v2-classic"`` (V2 in the classic name).
            **options: As :func:`delta_sharing_spark.testing.tables.checkpoints.write_checkpoint`.
        """
        checkpoints.write_checkpoint(self.path, self.version, self.commits, self.schema, kind, **options)
        return self

    def compact_log(self, start: int, end: int) -> DeltaTableBuilder:
        """Write ``<start>.<end>.compacted.json`` beside the commits."""
        checkpoints.write_compaction(self.path, self.commits, start, end)
        return self

    def expire_log(self, before: int) -> DeltaTableBuilder:
        """Delete the commit files of the versions below ``before``, as log clean-up does."""
        for version in range(before):
            (self.path / LOG_DIR / commit_name(version)).unlink(missing_ok=True)
        return self
