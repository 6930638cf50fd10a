"""Lets our errors leave a Spark worker as their message, without the frames of the worker and of this package.

Spark sends the driver a worker's whole traceback as the message of its own exception. Fifty lines of frames bury the
one line that says what to do, so the methods that Spark calls are marked with :func:`entrance`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from delta_sharing_spark.errors import (
    AddressError,
    ConfigError,
    DeltaSharingError,
    OptionError,
    PredicateError,
    ProfileError,
    keeps_frames,
)

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Spark's own switch (4.0 and later), which it reads where it formats an exception.
_SPARKS_SWITCH = "SPARK_HIDE_TRACEBACK"

#: What Spark adds to the options where it creates a table of its catalogue, and no load has.
_CATALOG_OPTIONS = frozenset({"owner", "location", "provider", "external", "is_managed_location", "comment"})

READ_ONLY = (
    "Delta Sharing is read-only: nothing can be written to a shared table; write to a table of your own, "
    'such as df.write.saveAsTable("..."), or ask the provider to change the data'
)


def entrance(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a method that Spark calls, so that a ``DeltaSharingError`` leaves it, or the iterator it returns, without frames."""

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with _without_frames():
            result = function(*args, **kwargs)
        return guarded(result) if isinstance(result, Iterator) else result  # type: ignore[return-value]

    def guarded(items: Iterator[Any]) -> Generator[Any, None, None]:
        with _without_frames():
            yield from items

    return called


@contextmanager
def _without_frames() -> Iterator[None]:
    """Let a ``DeltaSharingError`` pass without its frames and causes, unless they are asked for."""
    try:
        yield
    except DeltaSharingError as error:
        if keeps_frames():
            raise
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            # A worker that raised sends the error and exits, so this hides no other query's traceback.
            os.environ[_SPARKS_SWITCH] = "1"
        raise error.with_traceback(None) from None


@contextmanager
def table_named(path: str) -> Iterator[None]:
    """Name the table of an address in errors about its options, which Spark may raise far from the load that was given them.

    Errors about its profile name the machine: a client of Spark Connect may have such a profile as well.
    """
    try:
        yield
    except (OptionError, PredicateError) as error:
        from delta_sharing_spark.sharing.address import parse_address

        with suppress(AddressError):
            error.name_table(str(parse_address(path).table))
        raise
    except ProfileError as error:
        from delta_sharing_spark.spark.session_settings import serves_connect

        if serves_connect():
            error.args = (f"on the Spark Connect server, {error}",)
        raise


def refuse_catalog_table(options: Mapping[str, str]) -> None:
    """Refuse the options of a table of Spark's catalogue: Spark would create it and forget its options.

    Raises:
        ConfigError: They are those of CREATE TABLE, ``saveAsTable`` or ``spark.catalog.createTable``.
    """
    if not _CATALOG_OPTIONS.intersection(name.lower() for name in options):
        return
    path = options.get("path") or options.get("location") or "<profile>#<share>.<schema>.<table>"
    raise ConfigError(
        "Spark's catalogue keeps no options of a table of a Python data source, so a shared table cannot be one of its "
        "tables, and Delta Sharing is read-only; make a view: "
        f"CREATE TEMPORARY VIEW name USING deltaSharing OPTIONS (path '{path}')"
    )
