"""Defines the options of a read; :mod:`values` parses and writes the text of each."""

from delta_sharing_spark.options.declared import (
    CERTIFICATE,
    IDENTITY,
    INLINE,
    KEYS,
    OPTIONS,
    Option,
    ReadOptions,
    check_batch,
    parse_options,
    redacted_options,
)

__all__ = [
    "CERTIFICATE",
    "IDENTITY",
    "INLINE",
    "KEYS",
    "OPTIONS",
    "Option",
    "ReadOptions",
    "check_batch",
    "parse_options",
    "redacted_options",
]
