"""Narrows loads of the format on Spark Connect sessions that ask for it, where an action's plan is written for the server.

PySpark's client keeps a DataFrame as a tree of plans, of which it writes a message for each action. A load is a node of our own
in that tree: for an action that reads, it writes the load of what that action provably needs, as ``connect_plans`` finds
out. Whatever has it written in another way (a cache, a view, a checkpoint, a write) may read it again with other needs: from
then on it is the whole load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.plan import DataSource, HtmlString, LogicalPlan, ShowString

from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.schema.types import Struct, parse_schema
from delta_sharing_spark.spark.connect_plans import MarkerRelations, TableNeed, described, filled, first_line
from delta_sharing_spark.spark.connect_plans import narrowing as narrowing_options
from delta_sharing_spark.spark.patches import FETCHES, WRITTEN_PLAN

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = logging.getLogger(__name__)

#: Options of a load that stays whole: its rows, or its columns, follow from more than its columns and conditions.
_WHOLE = {"columns", "limit", "pushdown", "readchangefeed", "readchangedata"}


@dataclass(slots=True)
class _Writing:
    """A tree that is being written once.

    Attributes:
        replaced: What is written in the place of loads.
        met: The loads that the tree holds.
        root: The plan whose rows are fetched; None where none are.
    """

    replaced: Mapping[SharedLoad, LogicalPlan] = field(default_factory=dict)
    met: list[SharedLoad] = field(default_factory=list)
    root: LogicalPlan | None = None


_writing: ContextVar[_Writing | None] = ContextVar("writing", default=None)


@contextmanager
def _written(writing: _Writing) -> Iterator[_Writing]:
    before = _writing.set(writing)
    try:
        yield writing
    finally:
        _writing.reset(before)


class SharedLoad(DataSource):
    """A load of the format in the client's tree.

    Attributes:
        is_cached: Whether something keeps it that may read it again.
    """

    is_cached = False

    def __init__(self, own: DataSource) -> None:
        super().__init__(format=own._format, options=own._options, paths=own._paths)

    def plan(self, session: Any) -> Any:
        writing = _writing.get()
        if writing is None:
            self.is_cached = True
            return super().plan(session)
        writing.met.append(self)
        other = writing.replaced.get(self)
        if other is None:
            return super().plan(session)
        message = other.plan(session)
        message.common.plan_id = self._plan_id  # columns name it
        return message

    def narrowed(self, spark: SparkSession, table: Struct, need: TableNeed) -> LogicalPlan | None:
        """The load of what is needed of its columns, which are ``table``; None where that is all."""
        options = dict(self._options or {})
        if need.columns is None or (need.columns == table and need.where is None):
            return None
        others = {name: value for name, value in options.items() if name.lower() != "where"}
        load = DataSource(
            self._format, options={**others, **narrowing_options(options, table, need)}, paths=self._paths
        )
        frame: Any = filled(DataFrame(load, spark), table, need.columns)
        return frame._plan


@dataclass(frozen=True, slots=True)
class _Replaced:
    """A DataFrame with other plans for its loads, to be explained."""

    frame: Any
    plans: Mapping[SharedLoad, LogicalPlan]

    def _explain_string(self, **how: Any) -> str:
        with _written(_Writing(self.plans)):
            return str(self.frame._explain_string(**how))


def narrowing(frame: Any) -> Any:
    """A load of which each action reads what it needs; the same where it stays whole."""
    own = frame._plan
    if not isinstance(own, DataSource) or own._schema or _WHOLE.intersection(map(str.lower, own._options or {})):
        return frame
    return DataFrame(SharedLoad(own), frame._session)


def look_at_actions() -> None:
    """Have the client's actions narrow loads; called again, nothing changes."""
    WRITTEN_PLAN.apply(_harmless)
    for fetch in FETCHES:
        fetch.apply(_reading)


def leave_actions() -> None:
    """Put PySpark's own methods back: loads that were made are whole from now on."""
    for patch in (WRITTEN_PLAN, *FETCHES):
        patch.undo()


def _harmless(to_proto: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``to_proto`` where what it writes is asked for once and kept by nothing: a schema, an explanation, rows."""

    def write(self: LogicalPlan, *arguments: Any, **named: Any) -> Any:
        with _written(_writing.get() or _Writing()):
            return to_proto(self, *arguments, **named)

    return write


def _reading(fetch: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Any, *arguments: Any, **named: Any) -> Any:
        writing = _writing.get()
        if writing is not None and writing.root is self._plan:  # one such method calls another
            return fetch(self, *arguments, **named)
        with _written(_Writing(_narrowed(self), root=self._plan)):
            return fetch(self, *arguments, **named)

    return read


def _narrowed(frame: Any) -> dict[SharedLoad, LogicalPlan]:
    """The loads of a DataFrame that are not needed whole, and what is needed of them."""
    spark = frame._session
    if isinstance(frame._plan, (ShowString, HtmlString)):  # the server executes them to describe them
        frame = DataFrame(frame._plan._child, spark)  # type: ignore[arg-type]
    with _written(_Writing()) as writing:
        frame._plan.plan(spark.client)
    loads = [load for load in dict.fromkeys(writing.met) if not load.is_cached]
    if not loads:
        return {}
    try:
        # Asked for at each action, for a table's columns may change: what drops duplicates depends on all that there are.
        tables = [parse_schema(DataFrame(load, spark).schema.json()) for load in loads]
        relations = MarkerRelations(spark)
        stand_ins = [relations.add(table) for table in tables]

        def over(frame_of: Callable[[int], Any]) -> Any:
            return _Replaced(frame, {load: frame_of(place)._plan for place, load in enumerate(loads)})

        needs = relations.needs(over(stand_ins.__getitem__), over)
        plans = [load.narrowed(spark, table, need) for load, table, need in zip(loads, tables, needs, strict=True)]
        replaced = {load: plan for load, plan in zip(loads, plans, strict=True) if plan is not None}
        if replaced:
            with _written(_Writing(replaced)):
                columns = described(DataFrame(frame._plan, spark))
            if columns != described(DataFrame(frame._plan, spark)):  # this frame may know columns of long ago
                _log.warning("an action's narrowed plan has other columns than its own; its tables are read whole")
                return {}
    except (PySparkException, DeltaSharingError) as error:
        _log.info("the needs of an action are not known (%s); its tables are read whole", first_line(error))
        return {}
    for load, need in zip(loads, needs, strict=True):
        if load in replaced and need.columns is not None:
            _log.info("an action reads %s, where %s", ", ".join(need.columns.names) or "no column", need.where or "all")
    return replaced
