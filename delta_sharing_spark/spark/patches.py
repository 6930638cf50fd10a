"""What is done to PySpark: each patch with why, for which versions, and how it ends. This package changes PySpark nowhere else.

A patch names what it changes. Whoever needs it applies it with a function that stands there and calls PySpark's own.
``docs/stability.md`` lists the patches, and a test looks for what each of them names.
"""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_log = logging.getLogger(__name__)

#: Where a function that stands for one of PySpark's holds it.
_OWN = "pyspark_own"
#: The part of a module's name that Connect sessions alone have.
_CONNECT = "[connect.]"
_STAYS = "not at all: it hands on what is not ours"

#: Makes the function that stands for one of PySpark's, of that one.
Replacement = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Patch:
    """Something of PySpark's that is replaced, or used against its rules.

    Attributes:
        owner: Its module, and its class after a colon; ``[connect.]`` stands in the names of modules for both kinds of sessions.
        name: Its name there.
        why: What PySpark does not offer.
        end: How it is undone.
        since: The first minor version of PySpark that has it.
    """

    owner: str
    name: str
    why: str
    end: str
    since: str = "4.0"

    def holder(self, *, is_connect: bool = False) -> Any:
        """The module or class that has it; that of Connect where there are two."""
        module, _, kind = self.owner.replace(_CONNECT, "connect." if is_connect else "").partition(":")
        return getattr(import_module(module), kind) if kind else import_module(module)

    def current(self, *, is_connect: bool = False) -> Any:
        """What stands there now; None where this PySpark has no such thing."""
        return getattr(self.holder(is_connect=is_connect), self.name, None)

    def apply(self, replacement: Replacement, *, is_connect: bool = False) -> None:
        """Have a function stand for PySpark's own; where one stands already, nothing changes."""
        before = self.current(is_connect=is_connect)
        if before is None:
            if self.since <= _pyspark_version():
                _log.warning("this PySpark has no %s.%s; without it: %s", self.owner, self.name, self.why)
        elif callable(before) and not hasattr(before, _OWN):
            stands = functools.wraps(before)(replacement(before))
            setattr(stands, _OWN, before)
            self._put(stands, is_connect)

    def undo(self, *, is_connect: bool = False) -> None:
        """Put PySpark's own back; where that stands already, nothing changes."""
        if self.is_applied(is_connect=is_connect):
            self._put(own(self.current(is_connect=is_connect)), is_connect)

    def is_applied(self, *, is_connect: bool = False) -> bool:
        """Whether a function of ours stands there."""
        return hasattr(self.current(is_connect=is_connect), _OWN)

    def _put(self, function: Callable[..., Any], is_connect: bool) -> None:
        setattr(self.holder(is_connect=is_connect), self.name, function)


class _SignalHandler(Patch):
    """A handler of a signal; the main thread alone sets one."""

    __slots__ = ()

    def current(self, *, is_connect: bool = False) -> Any:
        return signal.getsignal(getattr(signal, self.name)) or signal.SIG_DFL

    def _put(self, function: Callable[..., Any], is_connect: bool) -> None:
        if threading.current_thread() is threading.main_thread():
            with suppress(ValueError):  # another interpreter's main thread is none to Python
                signal.signal(getattr(signal, self.name), function)


def _pyspark_version() -> str:
    """The minor version, whose text compares as it does up to 4.9."""
    from pyspark import __version__

    return __version__[:3]


def own(function: Callable[..., Any]) -> Callable[..., Any]:
    """PySpark's own function where one of ours stands for it; else the function."""
    stood_for: Callable[..., Any] = getattr(function, _OWN, function)
    return stood_for


_LOADS = "a load knows nothing of its session: its settings, its engine, the profiles that only Spark reads"
_WRITES = "a write of a read-only format would fail when its rows are there, and not where it is named"
_ACTIONS = "an action on Spark Connect asks a Python data source for every column and row"
_CAUSES = "a failed read of the native lane would be a hundred lines of Java"
_UNSEEN = "a classic reader of streams shows neither its format nor its options"
_ENGINE = 'by `register(spark, engine="python")` in the last session that asks for another engine'

LOAD = Patch("pyspark.sql.[connect.]readwriter:DataFrameReader", "load", _LOADS, _STAYS)
STREAM_LOAD = Patch("pyspark.sql.[connect.]streaming.readwriter:DataStreamReader", "load", _LOADS, _STAYS)
WRITERS = (
    Patch("pyspark.sql.[connect.]readwriter:DataFrameWriter", "format", _WRITES, _STAYS),
    Patch("pyspark.sql.[connect.]readwriter:DataFrameWriterV2", "using", _WRITES, _STAYS),
    Patch("pyspark.sql.[connect.]streaming.readwriter:DataStreamWriter", "format", _WRITES, _STAYS),
)
SQL = Patch("pyspark.sql.[connect.]session:SparkSession", "sql", "SQL takes addresses of files alone", _STAYS)
#: PySpark replaces this one with each new session.
JAVA_ANSWER = Patch("py4j.java_gateway", "get_return_value", _CAUSES, _STAYS)
CONNECT_ERROR = Patch("pyspark.sql.connect.client.core", "convert_exception", _CAUSES, _STAYS)
WRITTEN_PLAN = Patch("pyspark.sql.connect.plan:LogicalPlan", "to_proto", _ACTIONS, _ENGINE)
#: The methods through which a DataFrame's rows are fetched.
FETCHES = tuple(
    Patch("pyspark.sql.connect.dataframe:DataFrame", name, _ACTIONS, _ENGINE, since)
    for name, since in (("_to_table", "4.0"), ("toPandas", "4.0"), ("_to_pandas", "4.2"))
)
#: A notebook sets a handler of its own for each cell.
INTERRUPT = _SignalHandler(
    "signal", "SIGINT", "Ctrl-C would not end the listings that other threads make for Spark", _STAYS
)
PUSHED_FILTERS = Patch(
    "pyspark.sql.datasource:DataSourceReader",
    "pushFilters",
    "Spark fails each query of a reader that takes filters while its setting is off",
    "it is a mark on our own reader's method, and lasts as long as that",
    since="4.1",
)
#: Private fields of Java's.
STREAM_SOURCE, STREAM_OPTIONS = (
    Patch(
        "org.apache.spark.sql.classic.DataStreamReader", name, _UNSEEN, "it is read, by reflection, and stays as it is"
    )
    for name in ("source", "extraOptions")
)
WORKER_PYTHON = Patch(
    "pyspark.core.context:SparkContext",
    "pythonExec",
    "workers would run another Python than the driver's, where PYSPARK_PYTHON is not set",
    "set PYSPARK_PYTHON, and the attribute is left alone",
)

PATCHES: tuple[Patch, ...] = (
    *(LOAD, STREAM_LOAD, *WRITERS, SQL, JAVA_ANSWER, CONNECT_ERROR, WRITTEN_PLAN, *FETCHES, INTERRUPT),
    *(PUSHED_FILTERS, STREAM_SOURCE, STREAM_OPTIONS, WORKER_PYTHON),
)


def look_like_own(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a reader's ``pushFilters`` so that Spark, which compares ``__func__``, takes it for the base class's; it is called all the same."""
    method.__func__ = PUSHED_FILTERS.current()  # type: ignore[attr-defined]
    return method


def private_field(java: Any, patch: Patch) -> Any:
    """The value of a private field of an object of the JVM's.

    Raises:
        py4j.protocol.Py4JError: The object has no such field, or Java does not let it be read.
    """
    field = java.getClass().getDeclaredField(patch.name)
    field.setAccessible(True)
    return field.get(java)


def run_workers_by(context: Any, python: str) -> None:
    """Have a context's workers run an interpreter, by its path."""
    setattr(context, WORKER_PYTHON.name, python)
