"""Holds a table's protocol and metadata, as its log and the answers of a sharing server state them, and reads them from JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from delta_sharing_spark.errors import LogError, UnsupportedFeatureError
from delta_sharing_spark.schema import features
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.typed_json import record_of
from delta_sharing_spark.schema.types import Struct, parse_schema

_PARQUET = "parquet"


class Protocol(msgspec.Struct, frozen=True, eq=False, rename="camel"):
    """The reader version and features that a table asks for, and those of writers, which reading needs not.

    Delta protocol, "Protocol Evolution"; a list of features that is missing is an empty one. Those are equal that ask the same of
    readers.
    """

    min_reader_version: int
    reader_features: tuple[str, ...] = ()
    min_writer_version: int | None = None
    writer_features: tuple[str, ...] = ()

    def __call__(self, use_delta_format: bool = True) -> Protocol:
        """Itself: the reference client has a method where a table here has a property."""
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Protocol) and self._of_readers == other._of_readers

    __ne__ = object.__ne__  # Struct's own compares identities here

    def __hash__(self) -> int:
        return hash(self._of_readers)

    @property
    def _of_readers(self) -> tuple[int, frozenset[str]]:
        return self.min_reader_version, frozenset(self.reader_features)

    def check(self, table: str) -> None:
        """Refuse a table that asks for more than this reader does; see :func:`delta_sharing_spark.schema.features.check_protocol`."""
        features.check_protocol(self.min_reader_version, self.reader_features, table=table)


class Format(msgspec.Struct, frozen=True):
    """The format of a table's files; options are none that reading needs."""

    provider: str = _PARQUET
    options: dict[str, str] = {}


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    """A table's metadata (Delta protocol, "Change Metadata").

    The schema of a table to which nothing was written yet may be missing in its log: its text is empty.
    ``num_files`` to ``access_modes`` stand in a server's answers alone; ``location`` to ``access_modes`` belong to directory access.
    """

    id: str
    schema_string: str = ""
    partition_columns: tuple[str, ...] = ()
    format: Format = Format()
    name: str | None = None
    description: str | None = None
    configuration: dict[str, str] = {}
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
    def provider(self) -> str:
        """The name of the files' format."""
        return self.format.provider

    @property
    def shape(self) -> tuple[object, ...]:
        """The parts of metadata that rows depend on."""
        return self.schema_string, self.partition_columns, self.provider, self.configuration

    def check(self, table: str) -> None:
        """Refuse a table whose files are not Parquet, or whose columns changed type in a way the protocol does not list.

        Raises:
            UnsupportedFeatureError
        """
        if features.TYPE_CHANGES in self.schema_string:
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
        version, listed = protocol.min_reader_version, protocol.reader_features
        return features.mapping_mode(self.configuration, version, listed, table=table)

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
            field = schema.find(name)
            if field is None:
                raise LogError(
                    f"{table} is partitioned by {name!r}, which its schema does not have; its log is corrupt"
                )
            names[name] = field.physical_name if mapping != "none" else field.name
        return names

    def _repr_html_(self) -> str:
        from delta_sharing_spark.schema.markup import html_table

        values = ((name, getattr(self, name)) for name in self.__struct_fields__ if name != "schema_string")
        return html_table([], [[name, _in_words(value)] for name, value in values if value not in (None, (), {})])


def _in_words(value: object) -> str:
    if isinstance(value, Format):
        return value.provider
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {text}" for name, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_PROTOCOL_FIELDS = Protocol.__struct_encode_fields__
_METADATA_FIELDS = (
    "id",
    "name",
    "description",
    "format",
    "schemaString",
    "partitionColumns",
    "configuration",
    "createdTime",
)


def read_protocol(tree: Mapping[str, Any]) -> Protocol:
    """A protocol from the object that states it: null counts as missing, unknown fields are ignored. Raises as ``record_of``."""
    return record_of(Protocol, _present(tree, _PROTOCOL_FIELDS), "protocol")


def read_metadata(tree: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> Metadata:
    """Metadata from the object of the log that states it, otherwise as ``read_protocol``.

    Args:
        beside: Fields of a server's answer beside those of the log.
    """
    values = _present(tree, _METADATA_FIELDS)
    if isinstance(stated := values.get("format"), dict):
        provider = stated.get("provider")
        values["format"] = {"provider": _PARQUET if provider in (None, "") else provider}
    if isinstance(configuration := values.get("configuration"), dict):
        values["configuration"] = {key: value for key, value in configuration.items() if value is not None}
    if type(created := values.get("createdTime")) is not int or abs(created) >> 63:  # which reading needs not
        values.pop("createdTime", None)
    return record_of(Metadata, {**values, **(beside or {})}, "metaData")


def _present(tree: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := tree.get(name)) is not None}
