"""Finds out what the scans of a query read, for the native lane, which would have to guess it from what it is asked for.

Spark's plan of the query says it. Nothing is planned for this: where the query's DataFrame was not executed itself, but
another made of it, nothing is known.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.spark.plan_reading import elements

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)


def tell_scans(frame: DataFrame, plans: Sequence[NativePlan]) -> None:
    """Let plans know what the scans of their query read, as soon as Spark has planned it.

    Args:
        frame: The query, of a classic session.
        plans: The plans that it reads.
    """
    query = _Query(frame)
    for plan in set(plans):
        plan.add_query(query)


class _Query:
    """What the scans of a query read; its DataFrame is not kept alive for it."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = weakref.ref(frame)
        self._lock = threading.Lock()
        self._known: dict[str, list[frozenset[bytes]]] | None = None

    @property
    def is_gone(self) -> bool:
        """See ``Query.is_gone``; the DataFrames that others made of this one are not counted."""
        return self._frame() is None

    def scans(self, token: str) -> Sequence[frozenset[bytes]] | None:
        """See ``Query.scans``; not known until Spark has planned the query."""
        with self._lock:
            if self._known is None:
                frame = self._frame()
                try:
                    self._known = {} if frame is None else _read(frame)
                except (Py4JError, PySparkException) as error:
                    _log.debug("Spark does not tell what a query reads (%s)", type(error).__name__)
                    self._known = {}
            return None if self._known is None else self._known.get(token, [])


def _read(frame: DataFrame) -> dict[str, list[frozenset[bytes]]] | None:
    execution = frame._jdf.queryExecution()
    if not execution.tracker().phases().contains("planning"):
        return None
    known: dict[str, list[frozenset[bytes]]] = {}
    for scan in _file_scans(execution.executedPlan()):
        token = str(scan.relation().location().rootPaths().head().toString()).rpartition("/")[2]
        columns = frozenset(_paths(json.loads(scan.requiredSchema().json()), b""))
        known.setdefault(token, []).append(columns)
    return known


def _file_scans(plan: Any) -> Iterator[Any]:
    """The scans of files of a physical plan, those of its subqueries included."""
    pending = [plan]
    while pending:
        plan = pending.pop()
        pending += elements(plan.subqueriesAll())
        for leaf in elements(plan.collectLeaves()):
            name = str(leaf.nodeName())
            if name == "AdaptiveSparkPlan":
                pending.append(leaf.initialPlan())
            elif name.startswith("Scan parquet"):
                yield leaf


def _paths(struct: dict[str, Any], above: bytes) -> Iterator[bytes]:
    """The paths of the columns of a struct; an array or a map is one column."""
    for field in struct["fields"]:
        path = above + str(field["name"]).encode()
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from _paths(field["type"], path + b".")
        else:
            yield path
