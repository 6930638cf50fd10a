"""The batch reader: plans once in the planning worker, reads splits in the tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from delta_sharing_spark.access.load import Load
    from delta_sharing_spark.scan.plan import Split


class SplitPartition(InputPartition):
    """One split, as Spark carries it to a task. Its ``repr`` names no URL and no secret."""

    def __init__(self, split: Split) -> None:
        super().__init__(split.index)
        self.split = split

    def __repr__(self) -> str:
        return f"SplitPartition({self.split.index}, files={len(self.split.slices)})"


class DeltaSharingReader(DataSourceReader):
    """Plans in ``partitions()``, reads in ``read()``. A task's copy holds nothing: splits carry what they need."""

    def __init__(self, options: dict[str, str], load: Load | None, schema: StructType) -> None:
        self._options = options
        self._load = load
        self._schema = schema
        self._filters: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def partitions(self) -> list[InputPartition]:
        """Query the server, or replay the log, and balance the files into splits."""
        from dataclasses import replace

        from delta_sharing_spark.access.load import resolve
        from delta_sharing_spark.access.planning import plan
        from delta_sharing_spark.options import parse_options
        from delta_sharing_spark.schema.types import Struct, parse_type

        load = self._load or resolve(parse_options(self._options))
        wanted = parse_type(self._schema.jsonValue(), str(load.table), "")
        assert isinstance(wanted, Struct)
        if self._filters:
            from delta_sharing_spark.spark.filters import to_expression

            load = replace(load, pushed=to_expression(self._filters, wanted, load.options.time_zone))
        scan = plan(load, wanted=wanted)
        return [SplitPartition(split) for split in scan.splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split; an empty plan comes as a partition without one."""
        if not isinstance(partition, SplitPartition):
            return iter(())
        from delta_sharing_spark.scan.read import read_split

        return read_split(partition.split)


class FilteringReader(DeltaSharingReader):
    """With ``pushdown=query``: Spark's filters become hints and skip files and row groups. Spark applies them again."""

    def __init__(self, options: dict[str, str], load: Load | None, schema: StructType) -> None:
        super().__init__(options, load, schema)
        from delta_sharing_spark.spark.filters import PushedFilters

        self.pushFilters = PushedFilters(self._filters.extend)  # type: ignore[method-assign]  # see PushedFilters


def make_reader(options: dict[str, str], load: Load | None, schema: StructType) -> DataSourceReader:
    """The reader for these options.

    Raises:
        OptionError: The load was resolved when it was not known to be a batch, and its options are a stream's.
    """
    from delta_sharing_spark.options import check_batch

    if load is not None:
        check_batch(load.options)
    pushdown = next((v for k, v in options.items() if k.lower() == "pushdown"), "off")
    reader = FilteringReader if pushdown.strip().lower() == "query" else DeltaSharingReader
    return reader(options, load, schema)
