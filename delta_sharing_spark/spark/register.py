"""Registration for sessions where Spark does not find the data source by itself."""

from __future__ import annotations

from pyspark.sql import SparkSession

from delta_sharing_spark.spark.datasource import DeltaSharingDataSource


def register(spark: SparkSession, name: str | None = None) -> None:
    """Register the data source with a session.

    Args:
        spark: A classic or Connect session.
        name: Another name for ``format(...)``, where a JVM source already owns ``deltaSharing``.
    """
    source: type[DeltaSharingDataSource] = DeltaSharingDataSource
    if name is not None:
        source = type(
            f"DeltaSharingDataSource_{name}", (DeltaSharingDataSource,), {"name": classmethod(lambda cls: name)}
        )
    spark.dataSource.register(source)
