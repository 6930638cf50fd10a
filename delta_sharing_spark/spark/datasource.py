"""Registers as the ``deltaSharing`` data source of Spark, without reading logic of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from delta_sharing_spark.errors import AddressError, ConfigError
from delta_sharing_spark.spark.entrances import READ_ONLY, entrance, refuse_catalog_table, table_named

if TYPE_CHECKING:
    from delta_sharing_spark.access.resolved_scan import ResolvedScan


class DeltaSharingDataSource(DataSource):
    """Reads a table shared over Delta Sharing.

    ``spark.read.format("deltaSharing").load("<profile>#<share>.<schema>.<table>")``; the options are listed in
    ``docs/options.md``. What ``schema()`` resolves (version, access mode) travels with the instance to the planning
    worker; nothing of it, and no option, travels on to the tasks.
    """

    @entrance
    def __init__(self, options: Mapping[str, str]) -> None:
        from delta_sharing_spark.spark.session_settings import log_inline_secrets, refuse_identity_options

        refuse_catalog_table(options)
        refuse_identity_options(options)
        log_inline_secrets(options)
        self.options: Any = _with_directory(options)
        self._scan: ResolvedScan | None = None
        self._loaded_at = time.time_ns() // 1000

    @classmethod
    def name(cls) -> str:
        """The short name for ``format(...)``."""
        return "deltaSharing"

    @entrance
    def schema(self) -> StructType:
        """The table's schema, narrowed by ``columns``, with change columns for a change feed."""
        from delta_sharing_spark.access.open import resolve
        from delta_sharing_spark.options.declared import parse_options
        from delta_sharing_spark.schema.types import has_spatial, spark_schema_json

        with table_named(self.options.get("path", "")):
            self._scan = resolve(parse_options(self.options, is_stream=None, loaded_at=self._loaded_at))
        if has_spatial(self._scan.output):
            from delta_sharing_spark.spark.spark_types import source_schema

            return source_schema(self._scan.output)
        return StructType.fromJson(spark_schema_json(self._scan.output))

    @entrance
    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader for ``schema``: the loaded one, or one the user gave."""
        from delta_sharing_spark.spark.batch import make_reader

        options = self._take_options()
        with table_named(options.get("path", "")):
            reader = make_reader(options, self._scan, schema, self._loaded_at)
        self._scan = None
        return reader

    @entrance
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The stream reader for ``schema``."""
        from delta_sharing_spark.spark.streaming import make_stream_reader

        reader = make_stream_reader(self._take_options(), schema, columns_chosen=self._scan is None)
        self._scan = None
        return reader

    @entrance
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse to write.

        Raises:
            ConfigError: Always; Delta Sharing is read-only.
        """
        raise ConfigError(READ_ONLY)

    streamWriter = writer

    def _take_options(self) -> dict[str, str]:
        """Return the options and drop them from this instance, which Spark pickles into every task once a reader was made."""
        options, self.options = dict(self.options), {}
        return options


def _with_directory(options: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a load, whose profile is named by a whole path: on Connect a stream's worker runs in another directory than this one."""
    from delta_sharing_spark.sharing.address import parse_address
    from delta_sharing_spark.sharing.profile import with_directory

    with suppress(AddressError):  # is raised where the address is read
        address = parse_address(options.get("path", ""))
        if address.profile is not None:
            return {**options, "path": f"{with_directory(address.profile)}#{address.table}"}
    return options
