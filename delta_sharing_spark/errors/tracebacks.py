"""Lets our errors leave a public function without the frames of this package, which bury the line that says what to do."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from delta_sharing_spark.errors import DeltaSharingError

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

#: Set to anything in the environment, it keeps the frames.
TRACEBACK = "DELTA_SHARING_TRACEBACK"
#: Methods with underscores that users call, by ``pa.table(scan)`` and the like.
_MARKED = frozenset({"__init__", "__arrow_c_schema__", "__arrow_c_stream__"})


def keeps_frames() -> bool:
    """Whether DEBUG logging of this package, or ``TRACEBACK``, asks for the frames."""
    return _log.isEnabledFor(logging.DEBUG) or bool(os.environ.get(TRACEBACK))


def short_traceback(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a public function: an error of ours or of PySpark's leaves it without the frames below, and without causes."""

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True  # pytest leaves this frame out
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if keeps_frames() or not isinstance(error, (DeltaSharingError, *_pyspark_errors())):
                raise
            raise error.with_traceback(None) from None

    return called


def short_tracebacks(kind: type[_T]) -> type[_T]:
    """Mark all public methods and properties that a class defines, its constructor and Arrow's interface."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name not in _MARKED:
            continue
        if inspect.isfunction(member):
            setattr(kind, name, short_traceback(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, member.getter(short_traceback(member.fget)))
        elif isinstance(member, classmethod):
            setattr(kind, name, classmethod(short_traceback(member.__func__)))
    return kind


def _pyspark_errors() -> tuple[type[Exception], ...]:
    """PySpark's root of errors, where it is loaded: a query's mistakes pass through this package."""
    errors: Any = sys.modules.get("pyspark.errors")
    return () if errors is None else (errors.PySparkException,)
