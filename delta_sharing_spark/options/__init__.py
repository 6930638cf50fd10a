"""Defines the options of a read: :mod:`declared` declares and documents them, :mod:`parsing` checks what a user wrote."""

from delta_sharing_spark.options.declared import IDENTITY, OPTIONS, Option, ReadOptions
from delta_sharing_spark.options.parsing import check_batch, parse_options, redacted_options

__all__ = ["IDENTITY", "OPTIONS", "Option", "ReadOptions", "check_batch", "parse_options", "redacted_options"]
