"""Lets Spark find the ``deltaSharing`` data source by itself, without a registration call."""

from delta_sharing_spark.spark.datasource import DeltaSharingDataSource


class DefaultSource(DeltaSharingDataSource):
    """Found by Spark's look-up of modules named ``pyspark_*``."""
