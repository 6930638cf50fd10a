"""Holds protocol and metadata actions, and the Arrow types that file actions are read into (Delta protocol, "Actions")."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from delta_sharing_spark.errors import LogError, UnsupportedFeatureError
from delta_sharing_spark.schema import features
from delta_sharing_spark.schema.types import Struct, parse_schema

IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"

VECTOR_TYPE = pa.struct([
    ("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()),
    ("sizeInBytes", pa.int32()), ("cardinality", pa.int64()),
])  # fmt: skip


def file_action_schema(partition_columns: Collection[str]) -> pa.Schema:
    """The columns of JSON commits that a snapshot needs; partition values as a struct of their (physical) names."""
    partitions = pa.struct([(name, pa.string()) for name in sorted(set(partition_columns))])
    add = pa.struct([
        ("path", pa.string()), ("partitionValues", partitions), ("size", pa.int64()),
        ("modificationTime", pa.int64()), ("stats", pa.string()), ("deletionVector", VECTOR_TYPE),
    ])  # fmt: skip
    remove = pa.struct([("path", pa.string()), ("deletionVector", VECTOR_TYPE)])
    return pa.schema([("add", add), ("remove", remove)])


@dataclass(frozen=True, slots=True)
class Protocol:
    """The ``protocol`` action; ``reader_features`` is None where the action has none."""

    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    def check(self, table: str) -> None:
        """Refuse a table that asks for more than this reader does; see :func:`delta_sharing_spark.schema.features.check_protocol`."""
        features.check_protocol(self.min_reader_version, self.reader_features, table=table)


@dataclass(frozen=True, slots=True)
class Metadata:
    """The ``metaData`` action."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    description: str | None = None
    provider: str = "parquet"
    created_time: int | None = None

    def check(self, table: str) -> None:
        """Refuse a table whose files are not Parquet, or whose columns changed type in a way the protocol does not list.

        Raises:
            UnsupportedFeatureError
        """
        if features.TYPE_CHANGES in self.schema_string:
            features.check_type_changes(self.schema(table), table=table)
        if self.provider.lower() != "parquet":
            raise UnsupportedFeatureError(
                f"the files of {table} are {self.provider!r}, and this reader reads 'parquet' only; "
                f"ask the provider to share a Delta table of Parquet files",
                features=(self.provider,),
            )

    def schema(self, table: str) -> Struct:
        """The parsed schema; raises as :func:`delta_sharing_spark.schema.types.parse_schema`."""
        return parse_schema(self.schema_string, table)

    def is_enabled(self, key: str) -> bool:
        """Whether a boolean table property is on."""
        return self.configuration.get(key, "").lower() == "true"

    def mapping(self, protocol: Protocol, table: str) -> str:
        """The column mapping mode: ``"none"``, ``"name"`` or ``"id"``; ``"none"`` unless the protocol allows more.

        Raises:
            UnsupportedFeatureError: An unknown mode.
        """
        version, known = protocol.min_reader_version, protocol.reader_features
        return features.mapping_mode(self.configuration, version, known, table=table)

    def physical_partition_columns(self, mapping: str, table: str) -> dict[str, str]:
        """Logical to physical names of the partition columns, in the table's order.

        Raises:
            LogError: A partition column that the schema does not have.
        """
        if not self.partition_columns:
            return {}
        schema = self.schema(table)
        names = {}
        for name in self.partition_columns:
            field = schema.find(name)
            if field is None:
                raise LogError(
                    f"{table} is partitioned by {name!r}, which its schema does not have; its log is corrupt"
                )
            names[name] = field.physical_name if mapping != "none" else field.name
        return names


def protocol_from(tree: Mapping[str, Any], where: str) -> Protocol:
    """A ``protocol`` action from JSON or a checkpoint's row of the file ``where``; raises LogError where it is malformed."""
    try:
        writer = tree.get("minWriterVersion")
        return Protocol(
            _version(tree["minReaderVersion"]),
            0 if writer is None else _version(writer),
            _texts(tree.get("readerFeatures")),
            _texts(tree.get("writerFeatures")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed("protocol", where, error) from error


def metadata_from(tree: Mapping[str, Any], where: str) -> Metadata:
    """A ``metaData`` action from JSON or a checkpoint's row (maps may be lists of pairs). Raises as ``protocol_from``."""
    try:
        configuration = dict(tree.get("configuration") or {})
        return Metadata(
            id=text(tree["id"], "id"),
            schema_string=text(tree["schemaString"], "schemaString"),
            partition_columns=_texts(tree.get("partitionColumns")) or (),
            configuration={
                text(k, "a configuration key"): text(v, k) for k, v in configuration.items() if v is not None
            },
            name=text_or_none(tree.get("name"), "name"),
            description=text_or_none(tree.get("description"), "description"),
            provider=text_or_none((tree.get("format") or {}).get("provider"), "provider") or "parquet",
            created_time=tree.get("createdTime"),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed("metaData", where, error) from error


def _malformed(kind: str, where: str, error: Exception) -> LogError:
    return LogError(f"the {kind} action in {where} is malformed ({error!r}); the table's log is corrupt")


def _version(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"a version is {str(value)[:50]!r}")
    return value


def text(value: Any, name: object) -> str:
    """``value``, which an action calls ``name``; raises TypeError where it is not text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is {str(value)[:50]!r}, not text")
    return value


def text_or_none(value: Any, name: str) -> str | None:
    return None if value is None else text(value, name)


def _texts(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise TypeError(f"a list of names is {str(value)[:50]!r}")
    return tuple(text(name, "a name in a list") for name in value)
