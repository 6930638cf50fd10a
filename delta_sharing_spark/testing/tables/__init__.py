"""A builder of Delta tables on local disk that also knows which rows a reader must see."""

from delta_sharing_spark.testing.tables.builder import DeltaTableBuilder
from delta_sharing_spark.testing.tables.data_files import FileStyle

__all__ = ["DeltaTableBuilder", "FileStyle"]
