"""Makes temporary views of shared tables, so that plain ``spark.sql`` reads them, pruned by Spark itself."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from delta_sharing_spark.access.load import Load, Recipient, checked_engine
from delta_sharing_spark.display import Listing
from delta_sharing_spark.errors import AddressError, DeltaSharingError, OptionError, displayable
from delta_sharing_spark.network.parallel_calls import in_parallel
from delta_sharing_spark.schema.types import backquoted
from delta_sharing_spark.sharing.address import TableName, parse_table_name
from delta_sharing_spark.sharing.wire_records import Table
from delta_sharing_spark.spark.lanes import frame_of
from delta_sharing_spark.spark.session_settings import checked_session, in_session
from delta_sharing_spark.spark.table_frames import completed, of_readable

_log = logging.getLogger(__name__)

#: Makes the load of a table that a view is of.
LoadOf = Callable[[TableName], Load]


@dataclass(frozen=True, slots=True)
class RegisteredView:
    """A temporary view of a shared table; ``problem`` says why there is none: the table cannot be loaded, or the name is not free."""

    view: str
    table: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Source:
    """What a view is of, the engine that reads it, how SQL names it, and the digest of its plan, which tells it from others' views."""

    load: Load
    engine: str
    name: str
    digest: int | None = None


#: The views of each session, by name as the session compares names: as many as were registered.
_views: weakref.WeakKeyDictionary[Any, dict[str, _Source]] = weakref.WeakKeyDictionary()
_views_lock = threading.Lock()


def register_views(
    client: Recipient,
    spark: SparkSession,
    tables: str | Sequence[str] | Mapping[str, str] | None,
    engine: str | None,
    load_of: LoadOf,
    listed: Callable[[str | None], Sequence[Table]],
) -> Sequence[RegisteredView]:
    """Create temporary views of shared tables (``SharingClient.register``).

    Args:
        load_of: Makes the load of a table that a view is of.
        listed: Lists the tables of a share, or of all shares.
    """
    checked_session(spark)
    engine = checked_engine(engine or client.engine)
    folded = _folding(spark)
    if isinstance(tables, Mapping):
        chosen = _chosen(tables, folded)
        return _create(
            spark, {view: _Source(load_of(table), engine, view) for view, table in chosen.items()}, True, set(chosen)
        )
    strict = tables is not None and not _is_share(tables)
    named, odd = _named(tables, listed, folded)
    if strict and odd:
        raise AddressError(odd[0].problem)
    sources: dict[str, _Source] = {}
    for view, table in named.items():
        try:
            sources[view] = _Source(load_of(table), engine, backquoted(view))
        except AddressError as error:
            if strict:
                raise
            odd.append(_problem(view, str(table), str(error)))
    return Listing([*_create(spark, sources, strict), *odd])


def refresh_views(
    client: Recipient, spark: SparkSession, views: Sequence[str] | None = None
) -> Sequence[RegisteredView]:
    """Plan registered views anew (``SharingClient.refresh``)."""
    checked_session(spark)
    folded = _folding(spark)
    with _views_lock:
        ours = {view: source for view, source in _views.get(spark, {}).items() if source.load.table.client is client}
    names = list(ours) if views is None else [views] if isinstance(views, str) else list(views)
    unknown = [name for name in names if folded(name) not in ours]
    if unknown:
        raise OptionError(
            f"{', '.join(map(repr, unknown))} was not registered by this client in this session; registered are: {', '.join(ours) or 'none'}"
        )
    return _create(spark, {name: ours[folded(name)] for name in names}, strict=True)


def _create(
    spark: SparkSession, views: Mapping[str, _Source], strict: bool, chosen: Set[str] = frozenset()
) -> Sequence[RegisteredView]:
    """Create views; a name that exists and is not ours is left alone, unless the user has ``chosen`` it."""
    folded = _folding(spark)
    taken = {
        view: why
        for view in views
        if view not in chosen and (why := _taken(spark, view, views[view], folded)) is not None
    }
    scans = {  # each resolved anew
        view: Load(source.load.table, source.load.options).as_read_by(in_session(source.load.table.client, spark))
        for view, source in views.items()
        if view not in taken
    }
    failures = dict(zip(scans, in_parallel([partial(_failure, scan) for scan in scans.values()]), strict=True))
    done = []
    for view, source in views.items():
        table = str(source.load.table)
        if view in taken:
            done.append(
                _problem(view, table, f"{taken[view]}; register(spark, {{'{view}': '{table}'}}) replaces or hides it")
            )
            continue
        try:
            if (failure := failures[view]) is not None:
                raise failure
            readable = of_readable(scans[view])
            frame = frame_of(readable, spark, source.engine)
            frame = frame if readable is scans[view] else completed(frame, readable)
            frame.createOrReplaceTempView(source.name)
        except DeltaSharingError as error:
            if strict:
                raise
            done.append(_problem(view, table, str(error)))
            continue
        with _views_lock:
            _views.setdefault(spark, {})[folded(view)] = replace(source, digest=spark.table(source.name).semanticHash())
        done.append(RegisteredView(view, table))
    return Listing(done)


def _problem(view: str, table: str, why: str) -> RegisteredView:
    _log.warning("no view %s of %s: %s", view, table, why)
    return RegisteredView(view, table, displayable(why))


def _taken(spark: SparkSession, view: str, source: _Source, folded: Callable[[str], str]) -> str | None:
    """Why a name is not ours to give; None where it is free, or the view is ours and of the same table."""
    from pyspark.errors import PySparkException

    try:
        if not spark.catalog.tableExists(source.name):
            return None
        with _views_lock:
            ours = _views.get(spark, {}).get(folded(view))
        if ours is None or spark.table(source.name).semanticHash() != ours.digest:
            return f"a table or view {view} of the session exists that was not registered here, and is left alone"
    except PySparkException as error:
        return f"the session does not tell whether it has a table or view {view} ({type(error).__name__})"
    if (str(ours.load.table), _server(ours)) != (str(source.load.table), _server(source)):
        return f"the view {view} is registered already, of {ours.load.table} of {_server(ours)}, and is left alone"
    return None


def _server(source: _Source) -> str:
    return source.load.table.client.profile.endpoint


def _folding(spark: SparkSession) -> Callable[[str], str]:
    """How a session compares names."""
    return str if spark.conf.get("spark.sql.caseSensitive", "false") == "true" else str.lower


def _failure(scan: Load) -> DeltaSharingError | None:
    """Resolve a scan; returns why that failed, if it did."""
    try:
        of_readable(scan)
    except DeltaSharingError as error:
        return error
    return None


def _is_share(tables: object) -> bool:
    """Whether a text names a share, whose name may hold a period, and no table, whose name has three parts."""
    return isinstance(tables, str) and tables.count(".") < 2


def _chosen(tables: Mapping[str, str], folded: Callable[[str], str]) -> dict[str, TableName]:
    """The names of views that a user gives to tables.

    Raises:
        AddressError: A name is no table's, a view's is empty, or two are one in the session.
    """
    names: dict[str, str] = {}
    for view in tables:
        if not view.strip("` "):
            raise AddressError(f"the view of {tables[view]} has an empty name; name it")
        other = names.setdefault(folded(view), view)
        if other != view:
            raise AddressError(
                f"the views {other} and {view} are one in Spark, which compares names without case; rename one"
            )
    return {view: parse_table_name(table) for view, table in tables.items()}


def _named(
    tables: str | Sequence[str] | None, listed: Callable[[str | None], Sequence[Table]], folded: Callable[[str], str]
) -> tuple[dict[str, TableName], list[RegisteredView]]:
    """The views' names of tables, and those tables that get none, for two would have one view.

    Raises:
        AddressError: A name is no table's.
    """
    if tables is None or _is_share(tables):
        names = [TableName(t.share, t.schema, t.name) for t in listed(tables if isinstance(tables, str) else None)]
    else:
        several = tables if isinstance(tables, Iterable) and not isinstance(tables, str) else [tables]
        names = [parse_table_name(table) for table in several]
    groups: dict[str, dict[TableName, str]] = {}
    for table in names:
        view = re.sub(r"\W", "_", f"{table.schema}_{table.table}")
        groups.setdefault(folded(view), {})[table] = view
    named, odd = {}, []
    for group in groups.values():
        if len(group) == 1:
            ((table, view),) = group.items()
            named[view] = table
            continue
        both, (view, *_) = " and ".join(map(str, group)), group.values()
        chosen = ", ".join(f"'{letter}': '{table}'" for letter, table in zip("abcdefgh", group, strict=False))
        why = f"{both} would both be the view {view}; name the views yourself: register(spark, {{{chosen}}})"
        odd += [_problem(view, str(table), why) for table, view in group.items()]
    return named, odd
