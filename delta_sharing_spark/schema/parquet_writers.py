"""Says which writers of Parquet files are known to tell their statistics rightly."""

from __future__ import annotations

import re

#: Before these releases parquet-mr compared signed bytes. parquet-cpp looked at a part of a dictionary, and compared decimals
#: byte by byte. parquet-rs looked at lengths first and compared decimals as unsigned; parquet-go and Polars did the latter in 2026.
_SOUND = re.compile(
    r"parquet-mr (?:compatible with Photon|version 1\.[1-9][0-9])|parquet-mr-trino version|DuckDB"
    r"|parquet-cpp-arrow version (?:1[2-9]|[2-9][0-9])\.|parquet-rs version (?:1[4-9]|[2-9][0-9])\."
)


def bounds_byte_arrays(created_by: str) -> bool:
    """Whether a footer's writer is known to compare strings, and decimals of a fixed length, as Spark does."""
    return _SOUND.match(created_by) is not None


def counts_nulls(created_by: str) -> bool:
    """Whether a footer's writer is not known to miscount NULLs: Polars added the count of the whole chunk for each page."""
    return not created_by.startswith("Polars")
