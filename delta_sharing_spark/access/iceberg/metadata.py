"""Parses an Iceberg table's metadata document (Iceberg, "Table Metadata Fields"), and refuses by name what is not read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from delta_sharing_spark.access.iceberg.schema import parse_name_mapping, parse_schema
from delta_sharing_spark.errors import ResponseError, UnsupportedFeatureError, VersionError
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.wire_records import broken

_VERSIONS = (1, 2, 3)
#: Properties that name other places of a table's files than its location.
_PLACES = ("write.data.path", "write.object-storage.path", "write.folder-storage.path", "write.metadata.path")
#: The id of the first partition field, where version 1 tells none (Iceberg, "Partition Evolution").
_FIRST_ID = 1000
_NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field of a partition spec: its own id, its source column's, its transform and its name in manifests."""

    id: int
    source_id: int
    transform: str
    name: str


@dataclass(frozen=True, slots=True)
class IcebergSnapshot:
    """A snapshot: where its manifest list lies, or in version 1 perhaps its manifests, and the schema it was written with."""

    id: int
    timestamp_ms: int
    manifest_list: str | None
    manifests: tuple[str, ...] = ()
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class IcebergMetadata:
    """A table's metadata.

    Attributes:
        table: How errors name it.
        version: The format's version, 1 to 3.
        id: The table's UUID, or its location in version 1.
        locations: Its location, and those that its properties name.
        schemas: By id.
        current_schema: Its id.
        specs: Partition specs by id.
        snapshots: By id.
        current: The current snapshot's id; None of an empty table.
        refs: Branches and tags: the snapshot's id, and whether it is a branch.
        log: Moments in milliseconds, and the snapshot that became the current one.
    """

    table: str
    version: int
    id: str
    locations: tuple[str, ...]
    schemas: Mapping[int, Struct] = field(repr=False)
    current_schema: int
    specs: Mapping[int, tuple[PartitionField, ...]]
    snapshots: Mapping[int, IcebergSnapshot] = field(repr=False)
    current: int | None
    refs: Mapping[str, tuple[int, bool]]
    log: tuple[tuple[int, int], ...] = field(repr=False)

    def snapshot(self, snapshot_id: int) -> IcebergSnapshot:
        """A snapshot by its id; raises VersionError where the table has it not, or not any more."""
        result = self.snapshots.get(snapshot_id)
        if result is None:
            last_ones = ", ".join(str(one) for one in list(self.snapshots)[-5:])
            raise VersionError(
                f"snapshot {snapshot_id} of {self.table} does not exist or has expired; versionAsOf takes the id of a snapshot"
                + (f": the last ones are {last_ones}" if last_ones else ", and the table has none")
            )
        return result

    def snapshot_at(self, millis: int) -> int:
        """The id of the snapshot that was current at a moment; raises VersionError where there was none."""
        latest = None
        for moment, snapshot_id in self.log:
            if moment <= millis:
                latest = snapshot_id
        if latest is None:
            raise VersionError(
                f"{self.table} has no snapshot at or before timestampAsOf by its snapshot log; ask for a later moment"
            )
        return latest

    def ref(self, name: str) -> tuple[int, bool]:
        """The snapshot of a branch or tag, and whether it is a branch; raises VersionError where there is none."""
        if name == "main" and name not in self.refs and self.current is not None:
            return self.current, True
        if name not in self.refs:
            names = ", ".join(sorted(map(repr, self.refs))[:10]) or "none"
            raise VersionError(f"{self.table} has no branch or tag {name!r}; it has {names}")
        return self.refs[name]

    def schema_of(self, snapshot: IcebergSnapshot) -> Struct:
        """The schema that a snapshot was written with; the table's where it does not tell."""
        schema = self.schemas.get(self.current_schema if snapshot.schema_id is None else snapshot.schema_id)
        return self.schemas[self.current_schema] if schema is None else schema


def parse_metadata(tree: Mapping[str, Any], table: str) -> IcebergMetadata:
    """The metadata of a catalog's answer.

    Raises:
        UnsupportedFeatureError: Another format version, or encryption.
        ResponseError: The document is malformed.
    """
    try:
        return _parsed(tree, table)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise malformed(table, f"{type(error).__name__} in its fields") from None


def malformed(table: str, why: str) -> ResponseError:
    """The error of a metadata document that is not one."""
    return broken(f"the metadata of the Iceberg table {table} is malformed: {why}; ask the provider to check the table")


def _parsed(tree: Mapping[str, Any], table: str) -> IcebergMetadata:
    version = _int(tree["format-version"])
    if version not in _VERSIONS:
        raise UnsupportedFeatureError(
            f"{table} is an Iceberg table of format version {version}, and this reader reads 1 to 3; upgrade "
            f"delta-sharing-spark, or ask the provider to share a table of version 3",
            features=(f"iceberg-v{version}",),
        )
    properties = {key: value for key, value in (tree.get("properties") or {}).items() if isinstance(value, str)}
    snapshots = {snapshot.id: snapshot for snapshot in map(_snapshot, tree.get("snapshots") or ())}
    is_encrypted = any(one.get("key-id") is not None for one in tree.get("snapshots") or ())
    if tree.get("encryption-keys") or "encryption.key-id" in properties or is_encrypted:
        raise UnsupportedFeatureError(
            f"{table} is an encrypted Iceberg table, which this reader does not read; ask the provider to share one that is "
            f"not encrypted",
            features=("encryption",),
        )
    text = properties.get(_NAME_MAPPING)
    names = None if text is None else parse_name_mapping(json.loads(text))
    documents = tree.get("schemas") or [tree["schema"]]
    schemas = {_int(one.get("schema-id", 0)): parse_schema(one, names) for one in documents}
    current_schema = _int(tree.get("current-schema-id", next(iter(schemas))))
    if current_schema not in schemas:
        raise malformed(table, f"it has no schema {current_schema}, which is its current one")
    listed = tree.get("partition-specs")
    specs: list[Mapping[str, Any]] = listed or [{"spec-id": 0, "fields": tree.get("partition-spec") or []}]
    current = tree.get("current-snapshot-id")
    current = None if current is None or current == -1 else _int(current)
    if current is not None and current not in snapshots:
        raise malformed(table, f"it has no snapshot {current}, which is its current one")
    location = _text(tree["location"])
    uuid = tree.get("table-uuid")
    return IcebergMetadata(
        table,
        version,
        uuid if isinstance(uuid, str) else location,
        (location, *(properties[name] for name in _PLACES if properties.get(name))),
        schemas,
        current_schema,
        {_int(spec["spec-id"]): tuple(map(_partition_field, spec["fields"], count(_FIRST_ID))) for spec in specs},
        snapshots,
        current,
        {
            _text(name): (_int(ref["snapshot-id"]), ref["type"] == "branch")
            for name, ref in (tree.get("refs") or {}).items()
        },
        tuple((_int(one["timestamp-ms"]), _int(one["snapshot-id"])) for one in tree.get("snapshot-log") or ()),
    )


def _snapshot(tree: Mapping[str, Any]) -> IcebergSnapshot:
    listed, schema = tree.get("manifest-list"), tree.get("schema-id")
    if listed is None and not isinstance(tree.get("manifests"), list):
        raise KeyError("manifest-list")
    return IcebergSnapshot(
        _int(tree["snapshot-id"]),
        _int(tree["timestamp-ms"]),
        None if listed is None else _text(listed),
        tuple(map(_text, tree.get("manifests") or ())),
        None if schema is None else _int(schema),
    )


def _partition_field(tree: Mapping[str, Any], usual_id: int) -> PartitionField:
    """A field of a spec; version 1 need not tell its id, which then goes by its place."""
    # Several sources are version 3's, for transforms that nothing here knows.
    source = tree["source-id"] if "source-id" in tree else tree["source-ids"][0]
    return PartitionField(
        _int(tree.get("field-id", usual_id)), _int(source), _text(tree["transform"]), _text(tree["name"])
    )


def _int(value: object) -> int:
    if type(value) is not int or abs(value) >= 1 << 63:
        raise TypeError("not a number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
