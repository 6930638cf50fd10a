"""Defines the options of a read: :mod:`declared` declares them (each an :mod:`option`), :mod:`parsing` checks what a user wrote, :mod:`page` documents them."""

from delta_sharing_spark.options.declared import IDENTITY, OPTIONS, ReadOptions
from delta_sharing_spark.options.option import Option
from delta_sharing_spark.options.page import options_page
from delta_sharing_spark.options.parsing import check_batch, parse_options, redacted_options

__all__ = [
    "IDENTITY",
    "OPTIONS",
    "Option",
    "ReadOptions",
    "check_batch",
    "options_page",
    "parse_options",
    "redacted_options",
]
