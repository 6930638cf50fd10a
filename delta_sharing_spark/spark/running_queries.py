"""Finds out what the queries that Spark runs read of the native lane's plans, which would have to be guessed from requests.

Spark's own plan of each query says it. Nothing is planned for this, and nothing is asked while no file is read.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from delta_sharing_spark.spark.plan_reading import elements

_log = logging.getLogger(__name__)

#: Of Spark's executions, the latest that are looked at.
_LATEST = 32
#: Seconds for which a query that ran is taken to run: the next one's tasks do not begin earlier.
_VERIFIED = 0.01
#: Seconds after which a session that did not answer is asked again.
_REST = 5.0
#: Seconds that a reader waits for the session's answer. To look at a plan, the JVM may have to wait for a task that this
#: reader serves: nodes of plans compute what they hold under their lock, by jobs of their own at times.
_PATIENCE = 0.5
#: Seconds after which the thread that asks ends.
_IDLE = 5.0

#: What a JVM that has ended, is another one, or forbids the question answers.
_FAILURES = (Py4JError, PySparkException, OSError, TypeError)

#: Of each plan, by its token, what the scans of a query read.
_Scans = dict[str, list[frozenset[bytes]]]


class _HiddenScansError(Exception):
    """A plan has scans that it does not show."""


class RunningQueries:
    """The queries that a Spark application runs now, and what their scans read.

    Args:
        context: Its context, in whose JVM it has a session; a Connect server in this process has one as well.
    """

    def __init__(self, context: SparkContext) -> None:
        sql = context._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        self._store = sql.classic.SparkSession.getDefaultSession().get().sharedState().statusStore()
        self._executions = sql.execution.SQLExecution
        #: One thread looks, so that none that serves a task waits in the JVM; it ends when it is not needed for a while.
        self._lock = threading.Lock()
        self._asked: queue.SimpleQueue[tuple[Future[None], str, float | None]] = queue.SimpleQueue()
        self._has_thread = False
        self._late: Future[None] | None = None
        #: By execution; None where its query is not planned yet.
        self._known: dict[int, _Scans | None] = {}
        self._newest = -1
        self._looked = self._verified = self._rests_until = 0.0

    def scans(self, token: str, since: float | None = None) -> Sequence[frozenset[bytes]]:
        """See ``Queries.scans``. What a JVM that is late would tell is missing."""
        if self._late is None or self._late.done():
            look = self._begin(token, since)
            wait([look], _PATIENCE)
            if not look.done() and not look.cancel():
                self._late = look
        known = list(self._known.values())
        return [columns for scans in known for columns in (scans or {}).get(token, ())]

    def _begin(self, token: str, since: float | None) -> Future[None]:
        look: Future[None] = Future()
        with self._lock:
            self._asked.put((look, token, since))
            if not self._has_thread:
                threading.Thread(target=self._work, name="delta-sharing-queries", daemon=True).start()
                self._has_thread = True
        return look

    def _work(self) -> None:
        while True:
            try:
                look, token, since = self._asked.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    if self._asked.empty():
                        self._has_thread = False
                        return
                continue
            if look.set_running_or_notify_cancel():
                try:
                    self._look(token, since)
                finally:
                    look.set_result(None)

    def _look(self, token: str, since: float | None) -> None:
        if time.monotonic() < self._rests_until:
            return
        try:
            self._update(token, since)
        except _FAILURES as error:
            _log.debug("Spark does not tell what its queries read (%s)", type(error).__name__)
            self._known.clear()
            self._rests_until = time.monotonic() + _REST

    def _update(self, token: str, since: float | None) -> None:
        if since is not None and self._looked < since:
            self._look_for_new()
            self._looked = self._verified = time.monotonic()
        elif self._verified < time.monotonic() - _VERIFIED:
            for number in [number for number, scans in self._known.items() if scans and token in scans]:
                if self._execution(number) is None:
                    del self._known[number]
            self._verified = time.monotonic()

    def _look_for_new(self) -> None:
        """Look for queries that began, were planned or ended since the last look."""
        for number in self._new():
            self._known[number] = None
        for number, scans in list(self._known.items()):
            execution = self._execution(number)
            if execution is None:
                del self._known[number]
            elif scans is None and execution.tracker().phases().contains("planning"):
                self._known[number] = _scans_of(execution.executedPlan())

    def _new(self) -> list[int]:
        """The executions that began since the last look."""
        first = max(0, self._store.executionsCount() - _LATEST)
        listed = self._store.executionsList(first, _LATEST)
        new: list[int] = []
        for place in reversed(range(listed.size())):
            number = listed.apply(place).executionId()
            if number <= self._newest:
                break
            new.append(number)
        self._newest = max(new, default=self._newest)
        return new[::-1]

    def _execution(self, number: int) -> Any:
        """An execution's query; None once it has ended."""
        return self._executions.getQueryExecution(number)


_of_contexts: weakref.WeakKeyDictionary[SparkContext, RunningQueries] = weakref.WeakKeyDictionary()
_of_contexts_lock = threading.Lock()


def running_queries() -> RunningQueries | None:
    """What the Spark application of this process runs; None where it does not tell."""
    context = SparkContext._active_spark_context
    if context is None:
        return None
    with _of_contexts_lock:
        known = _of_contexts.get(context)
        if known is None:
            try:
                known = _of_contexts[context] = RunningQueries(context)
            except _FAILURES as error:
                _log.debug("Spark does not tell what its queries read (%s)", type(error).__name__)
        return known


def _scans_of(plan: Any) -> _Scans:
    """What the scans of a physical plan read of the gateway's plans; nothing where some scans cannot be seen."""
    known: _Scans = {}
    try:
        for scan in _file_scans(plan):
            path = str(scan.relation().location().rootPaths().head().toString())
            if path.startswith("webhdfs:"):
                columns = frozenset(_paths(json.loads(scan.requiredSchema().json()), b""))
                known.setdefault(path.rpartition("/")[2], []).append(columns)
    except _HiddenScansError:
        return {}
    return known


def _file_scans(plan: Any) -> Iterator[Any]:
    """The scans of files of a physical plan, those of its subqueries and of what is cached included."""
    pending = [plan]
    while pending:
        plan = pending.pop()
        pending += elements(plan.subqueriesAll())
        for leaf in elements(plan.collectLeaves()):
            name = str(leaf.nodeName())
            if name == "AdaptiveSparkPlan":
                pending.append(leaf.initialPlan())
            elif name.startswith("InMemoryTableScan"):
                pending.append(leaf.relation().cachedPlan())
            elif name.startswith("Scan parquet"):
                yield leaf
            elif name == "Scan ExistingRDD":
                raise _HiddenScansError


def _paths(struct: dict[str, Any], above: bytes) -> Iterator[bytes]:
    """The paths of the columns of a struct; an array or a map is one column, and so is a variant of which parts are read."""
    for field in struct["fields"]:
        path = above + str(field["name"]).encode()
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct" and not _is_variant(field["type"]):
            yield from _paths(field["type"], path + b".")
        else:
            yield path


def _is_variant(struct: dict[str, Any]) -> bool:
    """Whether Spark asks for parts of a variant, each a field of this struct; a file has the variant's own fields."""
    return any("__VARIANT_METADATA_KEY" in field.get("metadata", {}) for field in struct["fields"])
