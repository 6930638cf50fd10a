"""Reads and describes tables in one call each, with the names and keywords of the reference Python client.

Of that client's keywords ``use_delta_format`` chooses the response format. ``jsonPredicateHints`` skips files and
filters no row, as there; ``where`` does both. ``convert_in_batches`` changes nothing: rows are always read in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import ConfigError, short_traceback
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.sharing.address import parse_address
from delta_sharing_spark.sharing.profile import Profile, profile_of
from delta_sharing_spark.table import Moment, SharedTable, response_format

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from delta_sharing_spark.options.keywords import LoadOptions


@short_traceback
def get_table_version(url: str, starting_timestamp: Moment | None = None) -> int:
    """The newest version of the table at ``<profile>#<share>.<schema>.<table>``, or the earliest at or after a moment."""
    return _table(url).version(starting_timestamp)


@short_traceback
def get_table_metadata(url: str, use_delta_format: bool = True) -> Metadata:
    """The newest metadata of a table, the same in either format."""
    return _table(url).metadata


@short_traceback
def get_table_protocol(url: str, use_delta_format: bool = True) -> Protocol:
    """The protocol of the newest version: what a reader of it must be able to do."""
    return _table(url).snapshot_head().protocol


@short_traceback
def load_as_arrow(
    url: str,
    limit: int | None = None,
    version: int | None = None,
    timestamp: Moment | None = None,
    jsonPredicateHints: str | None = None,
    use_delta_format: bool | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    **options: Unpack[LoadOptions],
) -> pa.Table:
    """A snapshot's rows as an Arrow table; further options as in ``load_as_pandas``."""
    chosen = columns, where, limit, version, timestamp
    scan = _table(url, options).scan(*chosen, **response_format(use_delta_format))
    return scan.hinted(jsonPredicateHints).to_arrow()


@short_traceback
def load_as_pandas(
    url: str,
    limit: int | None = None,
    version: int | None = None,
    timestamp: Moment | None = None,
    jsonPredicateHints: str | None = None,
    use_delta_format: bool | None = None,
    convert_in_batches: bool = False,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    **options: Unpack[LoadOptions],
) -> pd.DataFrame:
    """A snapshot's rows as a pandas DataFrame.

    Args:
        url: ``<profile>#<share>.<schema>.<table>``.
        limit: The maximum number of rows.
        version, timestamp: The table as of then.
        jsonPredicateHints: Files that hold no matching row are skipped; rows are not filtered. ``where`` does both.
        use_delta_format: Ask for the delta format, or for the parquet format; the server chooses if it is None.
        convert_in_batches: Changes nothing; rows are always read in batches.
        columns: The columns, in this order.
        where: A SQL boolean expression that every row fulfils.
        **options: Those of ``SharingClient`` (``accessMode="dir"``, ``caBundle=...``).
    """
    chosen = columns, where, limit, version, timestamp
    scan = _table(url, options).scan(*chosen, **response_format(use_delta_format))
    return scan.hinted(jsonPredicateHints).to_pandas()


@short_traceback
def load_as_polars(
    url: str,
    limit: int | None = None,
    version: int | None = None,
    timestamp: Moment | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    **options: Unpack[LoadOptions],
) -> pl.DataFrame:
    """A snapshot's rows as a Polars DataFrame; further options as in ``load_as_pandas``."""
    return _table(url, options).scan(columns, where, limit, version, timestamp).to_polars()


@short_traceback
def scan_share(
    url: str,
    version: int | None = None,
    timestamp: Moment | None = None,
    where: str | None = None,
    **options: Unpack[LoadOptions],
) -> pl.LazyFrame:
    """A snapshot as a lazy Polars frame, whose queries read only the columns and files they need.

    Args:
        url: ``<profile>#<share>.<schema>.<table>``.
        version, timestamp: The table as of then.
        where: A SQL boolean expression that every row fulfils, beside the conditions of the query itself.
        **options: Further options of the load.
    """
    return _table(url, options).scan(where=where, version=version, timestamp=timestamp).lazy()


@short_traceback
def load_as_spark(
    url: str,
    version: int | None = None,
    timestamp: Moment | None = None,
    delta_sharing_profile: Profile | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    spark: SparkSession | None = None,
    engine: str | None = None,
    **options: Unpack[LoadOptions],
) -> DataFrame:
    """A snapshot as a Spark DataFrame, in the active session unless one is given; ``engine`` as in ``Scan.to_spark``.

    Args:
        url: ``<profile>#<share>.<schema>.<table>``; ``<share>.<schema>.<table>`` beside ``delta_sharing_profile``.
        version, timestamp: The table as of then.
        delta_sharing_profile: A profile of ours or of the reference client.
        columns, where: As in ``load_as_pandas``.
        spark: The session.
        engine: As in ``Scan.to_spark``.
        **options: As in ``load_as_pandas``.
    """
    return (
        _table(url, options, delta_sharing_profile)
        .scan(columns, where, None, version, timestamp)
        .to_spark(_session(spark), engine)
    )


@short_traceback
def load_table_changes_as_pandas(
    url: str,
    starting_version: int | None = None,
    ending_version: int | None = None,
    starting_timestamp: Moment | None = None,
    ending_timestamp: Moment | None = None,
    use_delta_format: bool | None = None,
    convert_in_batches: bool = False,
) -> pd.DataFrame:
    """A change data feed as a pandas DataFrame; the last two arguments as those of ``load_as_pandas``."""
    bounds = (starting_version, ending_version, starting_timestamp, ending_timestamp)
    return _table(url).changes(*bounds, **response_format(use_delta_format)).to_pandas()


@short_traceback
def load_table_changes_as_spark(
    url: str,
    starting_version: int | None = None,
    ending_version: int | None = None,
    starting_timestamp: Moment | None = None,
    ending_timestamp: Moment | None = None,
    delta_sharing_profile: Profile | None = None,
    *,
    spark: SparkSession | None = None,
) -> DataFrame:
    """A change data feed as a Spark DataFrame, in the active session unless one is given; the profile as in ``load_as_spark``."""
    changes = _table(url, None, delta_sharing_profile).changes(
        starting_version, ending_version, starting_timestamp, ending_timestamp
    )
    return changes.to_spark(_session(spark))


def _table(url: str, options: LoadOptions | None = None, profile: object = None) -> SharedTable:
    address = parse_address(url)
    if profile is not None and address.profile:
        raise ConfigError(
            f"a profile is given twice, in {url!r} and as delta_sharing_profile; write {str(address.table)!r} beside the latter"
        )
    source = address.profile if profile is None else profile_of(profile)
    return SharingClient(source, **(options or {})).table(str(address.table))


def _session(spark: SparkSession | None) -> SparkSession:
    from delta_sharing_spark.spark.register import active_session

    return spark or active_session()
