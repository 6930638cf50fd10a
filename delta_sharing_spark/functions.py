"""The common case in one call each; names follow the reference Python client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.sharing.actions import Metadata, Protocol
from delta_sharing_spark.sharing.address import parse_address
from delta_sharing_spark.table import Moment, Scan, SharedTable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def get_table_version(url: str, starting_timestamp: Moment | None = None) -> int:
    """The newest version of the table at ``<profile>#<share>.<schema>.<table>``, or the earliest at or after a moment."""
    return _table(url).version(starting_timestamp)


def get_table_metadata(url: str) -> Metadata:
    """The newest metadata of a table."""
    return _table(url).metadata


def get_table_protocol(url: str) -> Protocol:
    """What a reader of the newest version must be able to do."""
    return _table(url).head().protocol


def load_as_arrow(
    url: str,
    limit: int | None = None,
    version: int | None = None,
    timestamp: Moment | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> pa.Table:
    """A snapshot's rows as an Arrow table."""
    return _scan(url, limit, version, timestamp, columns, where).to_arrow()


def load_as_pandas(
    url: str,
    limit: int | None = None,
    version: int | None = None,
    timestamp: Moment | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> pd.DataFrame:
    """A snapshot's rows as a pandas DataFrame."""
    return _scan(url, limit, version, timestamp, columns, where).to_pandas()


def load_as_polars(
    url: str,
    limit: int | None = None,
    version: int | None = None,
    timestamp: Moment | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
) -> pl.DataFrame:
    """A snapshot's rows as a Polars DataFrame."""
    return _scan(url, limit, version, timestamp, columns, where).to_polars()


def load_as_spark(
    url: str,
    version: int | None = None,
    timestamp: Moment | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """A snapshot as a Spark DataFrame, in the active session unless one is given."""
    return _scan(url, None, version, timestamp, columns, where).to_spark(_session(spark))


def load_table_changes_as_pandas(
    url: str,
    starting_version: int | None = None,
    ending_version: int | None = None,
    starting_timestamp: Moment | None = None,
    ending_timestamp: Moment | None = None,
) -> pd.DataFrame:
    """A change data feed as a pandas DataFrame."""
    changes = _table(url).changes(starting_version, ending_version, starting_timestamp, ending_timestamp)
    return changes.to_pandas()


def load_table_changes_as_spark(
    url: str,
    starting_version: int | None = None,
    ending_version: int | None = None,
    starting_timestamp: Moment | None = None,
    ending_timestamp: Moment | None = None,
    spark: SparkSession | None = None,
) -> DataFrame:
    """A change data feed as a Spark DataFrame, in the active session unless one is given."""
    changes = _table(url).changes(starting_version, ending_version, starting_timestamp, ending_timestamp)
    return changes.to_spark(_session(spark))


def _scan(
    url: str,
    limit: int | None,
    version: int | None,
    timestamp: Moment | None,
    columns: Sequence[str] | None,
    where: str | None,
) -> Scan:
    return _table(url).scan(columns, where, limit, version, timestamp)


def _table(url: str) -> SharedTable:
    address = parse_address(url)
    return SharingClient(address.profile).table(str(address.table))


def _session(spark: SparkSession | None) -> SparkSession:
    if spark is not None:
        return spark
    from delta_sharing_spark.spark.register import active_session

    return active_session()
