"""delta-sharing-spark: read Delta Sharing tables from PySpark with nothing but ``pip install``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delta_sharing_spark._version import __version__ as __version__

if TYPE_CHECKING:
    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.errors import DeltaSharingError
    from delta_sharing_spark.functions import (
        get_table_metadata,
        get_table_protocol,
        get_table_version,
        load_as_arrow,
        load_as_pandas,
        load_as_polars,
        load_as_spark,
        load_table_changes_as_pandas,
        load_table_changes_as_spark,
        scan_share,
    )
    from delta_sharing_spark.sharing.profile import Profile
    from delta_sharing_spark.sharing.wire_records import Schema, Share, Table
    from delta_sharing_spark.spark.format_loads import register
    from delta_sharing_spark.table import Scan, SharedTable

__all__ = [
    "DeltaSharingError",
    "Profile",
    "Scan",
    "Schema",
    "Share",
    "SharedTable",
    "SharingClient",
    "Table",
    "get_table_metadata",
    "get_table_protocol",
    "get_table_version",
    "load_as_arrow",
    "load_as_pandas",
    "load_as_polars",
    "load_as_spark",
    "load_table_changes_as_pandas",
    "load_table_changes_as_spark",
    "register",
    "scan_share",
]

#: Where names are that are not in ``functions``. They are imported when they are used: importing the package is part of every
#: query's latency.
_HOMES = {
    "DeltaSharingError": "errors",
    "Profile": "sharing.profile",
    "Scan": "table",
    "Schema": "sharing.wire_records",
    "Share": "sharing.wire_records",
    "SharedTable": "table",
    "SharingClient": "client",
    "Table": "sharing.wire_records",
    "register": "spark.format_loads",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if name == "register":
        from delta_sharing_spark.frames.row_source import library

        library("pyspark", "register()")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'functions')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
