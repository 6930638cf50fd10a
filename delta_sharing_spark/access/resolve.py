"""Resolves a load's options: the table's schema at the version asked for, the columns of the load, its conditions.

The Spark data source, ``SharingClient`` and the command line resolve the same way; ``plan.py`` goes on from here.
"""

from __future__ import annotations

from delta_sharing_spark.access.change_range import last_version
from delta_sharing_spark.access.contract import AsOf, OpenTable, TableState
from delta_sharing_spark.access.open import TableOpener, negotiated_table
from delta_sharing_spark.access.resolved_scan import NegotiatedTable, ResolvedScan
from delta_sharing_spark.access.table_schema import with_change_columns
from delta_sharing_spark.options import ReadOptions
from delta_sharing_spark.schema.project import select
from delta_sharing_spark.sharing.profile import Profile


def resolve(options: ReadOptions, profile: Profile | None = None) -> ResolvedScan:
    """A load as plain data: one request for metadata, and the log's head where the table is read by its directory.

    Args:
        options: The load's options.
        profile: The server and recipient, instead of those in the options; ``path`` is then a bare table name.

    Raises:
        ConfigError: The address, the profile, an option or ``where`` is wrong.
        ServerError, NetworkError: The sharing server refuses or does not answer.
        AccessModeError: No access mode fits.
        TableError: The table cannot be read right; an unknown column.
    """
    return resolve_opened(TableOpener(negotiated_table(options, profile)))


def resolve_opened(opener: TableOpener) -> ResolvedScan:
    """The same over a table that this process goes on to plan with; raises as ``resolve``."""
    options = opener.negotiated.options
    state = opener.run(lambda table: _state_of(table, options))
    return _build(opener.negotiated, state)


def _state_of(table: OpenTable, options: ReadOptions) -> TableState:
    """The table at the version asked for.

    A change feed of mapped columns has the schema of its range's last version, one of other columns the newest, as in
    Delta Lake.
    """
    state = table.describe(AsOf(options.version_as_of, options.timestamp_as_of))
    if not options.read_change_feed or state.shape.mapping == "none":
        return state
    end = last_version(table, options, state.version)
    if end is None or end < 0 or end == state.version:
        return state
    return TableState(state.version, table.describe(AsOf(end)).shape)


def _build(negotiated: NegotiatedTable, state: TableState) -> ResolvedScan:
    options, shape = negotiated.options, state.shape
    columns = with_change_columns(shape.schema, options) if options.read_change_feed else shape.schema
    output = columns if options.columns is None else select(columns, options.columns, str(negotiated.table))
    predicate = None
    if options.where is not None:
        from delta_sharing_spark.predicates.sql import parse_where

        predicate = parse_where(options.where, columns, time_zone=options.zone, now=options.loaded_at)
    return ResolvedScan(
        options,
        negotiated.profile,
        negotiated.settings,
        negotiated.table,
        negotiated.head,
        negotiated.decision,
        shape,
        state.version,
        columns,
        output,
        predicate,
    )
