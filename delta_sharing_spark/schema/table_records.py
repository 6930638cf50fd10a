"""Holds a table's protocol and metadata, as its log and the answers of a sharing server state them, and reads them from JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from delta_sharing_spark.errors import LogError, UnsupportedFeatureError
from delta_sharing_spark.schema import features
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.typed_json import record_of
from delta_sharing_spark.schema.types import TYPE_CHANGES, Struct, parse_schema

_PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Protocol:
    """The reader version and features that a table asks for, and those of writers, which reading needs not.

    Delta protocol, "Protocol Evolution"; a list of features that is missing is an empty one.
    """

    min_reader_version: int
    reader_features: tuple[str, ...] = ()
    min_writer_version: int | None = field(default=None, compare=False)
    writer_features: tuple[str, ...] = field(default=(), compare=False)

    def __call__(self, use_delta_format: bool = True) -> Protocol:
        """Itself: the reference client has a method where a table here has a property."""
        return self

    def check(self, table: str) -> None:
        """Refuse a table that asks for more than this reader does; see :func:`delta_sharing_spark.schema.features.check_protocol`."""
        features.check_protocol(self.min_reader_version, self.reader_features, table=table)


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a table's files, as the reference client names it."""

    provider: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metadata:
    """A table's metadata (Delta protocol, "Change Metadata").

    The schema of a table to which nothing was written yet may be missing in its log: its text is empty.
    ``num_files`` to ``access_modes`` stand in a server's answers alone; ``location`` to ``access_modes`` belong to directory access.
    """

    id: str
    schema_string: str = ""
    partition_columns: tuple[str, ...] = ()
    provider: str = _PARQUET
    name: str | None = None
    description: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    num_files: int | None = None
    size: int | None = None
    version: int | None = None
    location: str | None = None
    auxiliary_locations: tuple[str, ...] = ()
    access_modes: tuple[str, ...] = ()
    created_time: int | None = None

    def __call__(self, use_delta_format: bool = True) -> Metadata:
        """Itself: the reference client has a method where a table here has a property."""
        return self

    @property
    def format(self) -> Format:
        """The format of the files."""
        return Format(self.provider)

    @property
    def shape(self) -> tuple[object, ...]:
        """The parts of metadata that rows depend on."""
        return self.schema_string, self.partition_columns, self.provider, self.configuration

    def check(self, table: str) -> None:
        """Refuse a table whose files are not Parquet, or whose columns changed type in a way the protocol does not list.

        Raises:
            UnsupportedFeatureError
        """
        if TYPE_CHANGES in self.schema_string:
            features.check_type_changes(self.schema(table), table=table)
        self.check_format(table)

    def check_format(self, table: str) -> None:
        """Raise UnsupportedFeatureError for a table whose files are not Parquet."""
        if self.provider.lower() != _PARQUET:
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
        """The column mapping mode: ``"none"``, ``"name"`` or ``"id"``, which the protocol must allow; raises UnsupportedFeatureError for an unknown one."""
        version, names = protocol.min_reader_version, protocol.reader_features
        return features.mapping_mode(self.configuration, version, names, table=table)

    def partition_keys(self, mapping: str, table: str) -> dict[str, tuple[str, ...]]:
        """As :func:`delta_sharing_spark.schema.partition_values.partition_keys`, in order; raises LogError as :meth:`physical_partition_columns`."""
        return partition_keys(self.physical_partition_columns(mapping, table))

    def physical_partition_columns(self, mapping: str, table: str) -> dict[str, str]:
        """Logical to physical names of the partition columns, in order; raises LogError for one that the schema does not have."""
        if not self.partition_columns:
            return {}
        schema = self.schema(table)
        names = {}
        for name in self.partition_columns:
            column = schema.find(name)
            if column is None:
                raise LogError(
                    f"{table} is partitioned by {name!r}, which its schema does not have; its log is corrupt"
                )
            names[name] = column.physical_name if mapping != "none" else column.name
        return names

    def _repr_html_(self) -> str:
        from delta_sharing_spark.schema.markup import html_table

        values = ((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "schema_string")
        return html_table([], [[name, _in_words(value)] for name, value in values if value not in (None, (), {})])


def _in_words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {text}" for name, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


#: Fields of the records, and what the log calls them; ``format.provider`` is the field ``provider``.
_PROTOCOL = {
    "min_reader_version": "minReaderVersion",
    "reader_features": "readerFeatures",
    "min_writer_version": "minWriterVersion",
    "writer_features": "writerFeatures",
}
_METADATA = {
    "id": "id",
    "name": "name",
    "description": "description",
    "schema_string": "schemaString",
    "partition_columns": "partitionColumns",
    "configuration": "configuration",
    "created_time": "createdTime",
    "provider": "format.provider",
}
#: Fields of metadata that a server's answer states beside the log's own, and what it calls them.
STATED_BESIDE = {
    "num_files": "numFiles",
    "size": "size",
    "version": "version",
    "location": "location",
    "auxiliary_locations": "auxiliaryLocations",
    "access_modes": "accessModes",
}


def read_protocol(tree: Mapping[str, Any]) -> Protocol:
    """A protocol from the object that states it: null counts as missing, unknown fields are ignored. Raises as ``record_of``."""
    return record_of(Protocol, _present(tree, _PROTOCOL), "protocol", _PROTOCOL)


def read_metadata(tree: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> Metadata:
    """Metadata from the object of the log that states it, otherwise as ``read_protocol``.

    Args:
        beside: Those of ``STATED_BESIDE`` that a server's answer has.
    """
    values = _present(tree, _METADATA)
    if (file_format := tree.get("format")) is not None:
        values["provider"] = record_of(dict, file_format, "metaData.format").get("provider")
    if values.get("provider") in (None, ""):
        values["provider"] = _PARQUET
    if isinstance(configuration := values.get("configuration"), dict):
        values["configuration"] = {key: value for key, value in configuration.items() if value is not None}
    if type(created := values.get("created_time")) is not int or abs(created) >> 63:  # which reading needs not
        values.pop("created_time", None)
    return record_of(Metadata, {**values, **(beside or {})}, "metaData", _METADATA | STATED_BESIDE)


def _present(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: value for field, name in names.items() if (value := tree.get(name)) is not None}
