"""Makes temporary views of shared tables, so that plain ``spark.sql`` reads them, pruned by Spark itself."""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from delta_sharing_spark.access.load import Load, Recipient, checked_engine
from delta_sharing_spark.display import Listing
from delta_sharing_spark.errors import AddressError, DeltaSharingError, OptionError
from delta_sharing_spark.network.parallel_calls import in_parallel
from delta_sharing_spark.sharing.address import TableName, parse_table_name
from delta_sharing_spark.sharing.wire_records import Table
from delta_sharing_spark.spark.lanes import frame_of
from delta_sharing_spark.spark.narrowed_loads import completed, of_readable
from delta_sharing_spark.spark.session_settings import checked_session, in_session

_log = logging.getLogger(__name__)

#: Makes the load of a table that a view is of.
LoadOf = Callable[[TableName], Load]


@dataclass(frozen=True, slots=True)
class RegisteredView:
    """A temporary view of a shared table; ``problem`` says why there is none, where a share's table cannot be loaded."""

    view: str
    table: str
    problem: str = ""


#: What a view is of, and the engine that reads it.
_Source = tuple[Load, str]
#: The views of each session, by name: as many as were registered.
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
    named = _named(tables, listed)
    known = {view: (load_of(table), engine) for view, table in named.items()}
    strict = isinstance(tables, Mapping) or (tables is not None and not _is_share(tables))
    return _create(spark, known, strict)


def refresh_views(
    client: Recipient, spark: SparkSession, views: Sequence[str] | None = None
) -> Sequence[RegisteredView]:
    """Plan registered views anew (``SharingClient.refresh``)."""
    checked_session(spark)
    with _views_lock:
        ours = {view: source for view, source in _views.get(spark, {}).items() if source[0].table.client is client}
    names = list(ours) if views is None else [views] if isinstance(views, str) else list(views)
    unknown = [name for name in names if name not in ours]
    if unknown:
        raise OptionError(
            f"{', '.join(map(repr, unknown))} was not registered by this client in this session; registered are: {', '.join(ours) or 'none'}"
        )
    return _create(spark, {name: ours[name] for name in names}, strict=True)


def _create(spark: SparkSession, views: Mapping[str, _Source], strict: bool) -> Sequence[RegisteredView]:
    scans = {  # each resolved anew
        view: Load(load.table, load.options).as_read_by(in_session(load.table.client, spark))
        for view, (load, _) in views.items()
    }
    failures = in_parallel([partial(_failure, scan) for scan in scans.values()])
    done = []
    for (view, scan), failure in zip(scans.items(), failures, strict=True):
        problem = ""
        try:
            if failure is not None:
                raise failure
            readable = of_readable(scan)
            frame = frame_of(readable, spark, views[view][1])
            (frame if readable is scan else completed(frame, readable)).createOrReplaceTempView(view)
        except DeltaSharingError as error:
            if strict:
                raise
            problem = str(error)
            _log.warning("no view %s: %s", view, error)
        else:
            with _views_lock:
                _views.setdefault(spark, {})[view] = views[view]
        done.append(RegisteredView(view, str(scan.table), problem))
    return Listing(done)


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


def _named(
    tables: str | Sequence[str] | Mapping[str, str] | None, listed: Callable[[str | None], Sequence[Table]]
) -> dict[str, TableName]:
    """Map the names of views to tables.

    Raises:
        AddressError: A name is no table's, or two tables would have one view.
    """
    if isinstance(tables, Mapping):
        return {view: parse_table_name(table) for view, table in tables.items()}
    if tables is None or _is_share(tables):
        names = [TableName(t.share, t.schema, t.name) for t in listed(tables if isinstance(tables, str) else None)]
    else:
        several = tables if isinstance(tables, Iterable) and not isinstance(tables, str) else [tables]
        names = [parse_table_name(table) for table in several]
    named: dict[str, TableName] = {}
    taken: dict[str, TableName] = {}
    for table in names:
        view = re.sub(r"\W", "_", f"{table.schema}_{table.table}")
        other = taken.setdefault(view.lower(), table)
        if other != table:
            raise AddressError(
                f"{other} and {table} would both be the view {view}; name the views yourself: "
                f"register(spark, {{'a': '{other}', 'b': '{table}'}})"
            )
        named[view] = table
    return named
