"""The ``deltaSharing`` data source: Spark's entrance, without reading logic of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from delta_sharing_spark.access.load import Load


class DeltaSharingDataSource(DataSource):
    """Reads a table shared over Delta Sharing.

    ``spark.read.format("deltaSharing").load("<profile>#<share>.<schema>.<table>")``; the options are listed in
    ``docs/options.md``. What ``schema()`` resolves (version, access mode) travels with the instance to the planning
    worker; nothing of it, and no option, travels on to the tasks.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        from delta_sharing_spark.spark.inline_secrets import log_inline_secrets

        log_inline_secrets(options)
        self.options: Any = options
        self._load: Load | None = None

    @classmethod
    def name(cls) -> str:
        """The short name for ``format(...)``."""
        return "deltaSharing"

    def schema(self) -> StructType:
        """The table's schema, narrowed by ``columns``, with change columns for a change feed."""
        from delta_sharing_spark.access.load import resolve
        from delta_sharing_spark.options import parse_options
        from delta_sharing_spark.schema.spark import spark_schema_json

        self._load = resolve(parse_options(self.options, streaming=None))
        return StructType.fromJson(spark_schema_json(self._load.output))

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader for ``schema``: the loaded one, or one the user gave."""
        from delta_sharing_spark.spark.batch import make_reader

        reader = make_reader(self._take_options(), self._load, schema)
        self._load = None
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The stream reader for ``schema``."""
        from delta_sharing_spark.spark.streaming import make_stream_reader

        reader = make_stream_reader(self._take_options(), schema, given=self._load is None)
        self._load = None
        return reader

    def _take_options(self) -> dict[str, str]:
        """Move the options out: Spark pickles this instance into every task once a reader was made."""
        options, self.options = dict(self.options), {}
        return options
