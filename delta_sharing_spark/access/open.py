"""Negotiates an access mode (protocol, "Access Modes"), opens a table by it, falls back to another one, and resolves a load over it;
nothing else does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

from delta_sharing_spark.access.asking import (
    REFUSALS,
    Refusal,
    check_formats,
    iceberg_advice,
    is_of_iceberg,
    iso,
    profile_and_table,
    refused_travel,
    response_formats,
    transport_of,
    words_of,
)
from delta_sharing_spark.access.contract import AsOf, OpenTable, TableState, last_version
from delta_sharing_spark.access.resolved_scan import Decision, Mode, NegotiatedTable, ResolvedScan
from delta_sharing_spark.access.table_shape import with_change_columns
from delta_sharing_spark.errors import (
    AccessModeError,
    CredentialError,
    DeltaSharingError,
    NetworkError,
    NotFoundError,
    OptionError,
    RequestRefusedError,
    ServerError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.predicates.tree import Expression, all_of, referenced_columns
from delta_sharing_spark.schema.projections import check_types, select, select_paths
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.sharing.address import TableName, parse_table_name
from delta_sharing_spark.sharing.identity import identity_of
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.wire_records import Table, TableSnapshotHead

#: With both modes on offer, tables of more files than this are read by directory.
MANY_FILES = 1000


def negotiate(metadata: Metadata, requested: str, table: str, url_refusal: str | None = None) -> Decision:
    """Choose a mode.

    Args:
        metadata: What the server states: ``accessModes``, of which none means url only, as the protocol says; how many files the
            table has, if it says; the table's root.
        requested: The option ``accessMode``: ``"auto"``, ``"url"`` or ``"dir"``.
        url_refusal: Why the server would not answer for this table in url mode (its features), if it was asked.

    Raises:
        AccessModeError: No mode fits; names what the server offers and what can be done.
    """
    offered, num_files = metadata.access_modes, metadata.num_files
    named = {mode.strip().lower() for mode in offered or ("url",)}
    no_location = None if metadata.location else "the server names no location for it, which the protocol requires"
    possible: Mapping[Mode, str | None] = {"url": url_refusal, "dir": no_location}
    refusals = {mode: refusal for mode, refusal in possible.items() if mode in named}
    if not refusals:
        raise AccessModeError(
            f"the sharing server offers table {table} by {_listed(offered)} only, and this client knows url and dir; "
            f"upgrade delta-sharing-spark, or ask the provider to offer one of them"
        )
    if requested in ("url", "dir"):
        return _only("url" if requested == "url" else "dir", offered, table, refusals)
    usable = [mode for mode, refusal in refusals.items() if refusal is None]
    if len(usable) == 2:
        if num_files is not None and num_files > MANY_FILES:
            return Decision("dir", f"both modes are offered and the table has {num_files} files", fallback="url")
        return Decision("url", f"both modes are offered, and url is preferred up to {MANY_FILES} files")
    words = {"url": "url was refused", "dir": "dir cannot be used"}
    causes = [f"{words[mode]}: {refusal}" for mode, refusal in refusals.items() if refusal is not None]
    if usable:
        why = f"the server offers {usable[0]} only" if offered else "the server names no access modes, which means url"
        return Decision(usable[0], causes[0] if causes else why)
    raise AccessModeError(
        f"table {table} cannot be read by what the sharing server offers ({_listed(offered)}): {'; '.join(causes)}; "
        f"{', or '.join(_remedies(refusals))}"
    )


def _only(mode: Mode, offered: Sequence[str] | None, table: str, refusals: Mapping[Mode, str | None]) -> Decision:
    """The mode that the user asked for; raises AccessModeError where it does not fit.

    Args:
        refusals: Why each of the modes on offer cannot be used, None where it can.
    """
    if mode in refusals and refusals[mode] is None:
        return Decision(mode, f"accessMode={mode}")
    other: Mode = "dir" if mode == "url" else "url"
    if mode in refusals:
        cause = f"table {table} cannot be read with accessMode={mode}: {refusals[mode]}"
    else:
        offer = f"offers table {table} by {_listed(offered)} only"
        if not offered:
            offer = f"names no access modes for {table}, which means url"
        cause = f"accessMode={mode} was asked for, but the sharing server {offer}"
    ways = _remedies(refusals)
    if other in refusals and refusals[other] is None:
        # What a server refuses for a table's features may be refused by directory as well.
        condition = ", which read it if this client knows its features" if mode == "url" and mode in refusals else ""
        ways = [f"set accessMode to auto or {other}{condition}", *ways]
    raise AccessModeError(f"{cause}; {', or '.join(ways)}")


def _remedies(refusals: Mapping[Mode, str | None]) -> list[str]:
    """What a provider can do about a table that cannot be read as it was asked for; ``refusals`` as in ``_only``."""
    ways = [f"ask the provider to offer {mode} as well" for mode in ("dir", "url") if mode not in refusals]
    return [*ways, "ask the provider to name its location"] if refusals.get("dir") is not None else ways


def _listed(offered: Sequence[str] | None) -> str:
    return ", ".join(repr(mode) for mode in offered) if offered else "'url' (it names none)"


_log = logging.getLogger(__name__)
T = TypeVar("T")

#: What makes a table unreadable by one access mode, so that another one is tried if it is on offer. A broken log is not
#: among them: it is the table that is broken then, not the way to it.
UNREADABLE = (AccessModeError, CredentialError, NetworkError, ServerError)


#: What opens a table by each access mode: a module beside this one, which is imported when the mode is chosen, and its function or class.
MODES: Mapping[str, str] = {
    "url": "url.table:UrlTable",
    "dir": "directory.table:open_directory",
    "flight": "flight.table:FlightTable",
    "iceberg": "iceberg.table:open_iceberg",
}


def _open_by_mode(negotiated: NegotiatedTable) -> OpenTable:
    module, _, name = MODES[negotiated.decision.mode].partition(":")
    table: OpenTable = getattr(import_module(f"{__package__}.{module}"), name)(negotiated)
    return table


def as_asked_for(mode: str) -> str:
    """What a user does for a load to be opened by a mode."""
    return "load through the gateway" if mode == "flight" else f"set accessMode={mode}"


class TableOpener:
    """Opens a negotiated table once per process, and by the other access mode where the chosen one cannot read it.

    Pickled, it is the negotiated table alone.

    Args:
        open_by: Opens a table by the mode that was chosen.
    """

    def __init__(
        self, negotiated: NegotiatedTable, open_by: Callable[[NegotiatedTable], OpenTable] = _open_by_mode
    ) -> None:
        self.negotiated, self._open_by = negotiated, open_by
        self._opened: OpenTable | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return TableOpener, (self.negotiated,)

    def run(self, action: Callable[[OpenTable], T]) -> T:
        """An action's result over the open table: by the mode chosen, else by the one to fall back to.

        A storage that cannot be reached, refuses or falls silent at any point of the action ends it, and it is begun anew
        by the other mode. A mode that can be replaced is expected to bound its own time. Both are logged.

        Raises:
            DeltaSharingError: From whichever mode was tried last.
        """
        opened = None
        try:
            try:
                opened = self.table()
                return action(opened)
            except UNREADABLE as error:
                if not self._fall_back(opened, error):
                    raise
            return action(self.table())
        except DeltaSharingError as error:
            error.name_table(str(self.negotiated.table))  # a storage knows only the file
            raise

    def answers(self, negotiated: NegotiatedTable) -> bool:
        """Whether a load of the table, as the server describes it now, is of the version that is open here, whose listing may be kept.

        Of a directory the log tells the version, not the server.
        """
        ours, theirs = self.negotiated, negotiated
        if theirs.decision.mode != "url" or theirs.head.version is None or ours.head != theirs.head:
            return False
        own, others = (replace(n.options, columns=None, where=None, limit=None) for n in (ours, theirs))
        return (ours.decision, own) == (theirs.decision, others)

    def table(self) -> OpenTable:
        """The table, opened by the mode chosen, the first time."""
        with self._lock:
            if self._opened is None:
                decision = self.negotiated.decision
                _log.info("table %s: access mode %s (%s)", self.negotiated.table, decision.mode, decision.reason)
                self._opened = self._open_by(self.negotiated)
            return self._opened

    def _fall_back(self, failed: OpenTable | None, error: Exception) -> bool:
        """Choose the mode to fall back to; tells whether there is one."""
        with self._lock:
            if self._opened is not failed:
                return True  # another thread of this process has fallen back meanwhile
            decision = self.negotiated.decision
            if decision.fallback is None:
                return False
            why = str(error).partition("\n")[0]
            _log.warning(
                "table %s: falling back from access mode %s to %s: %s",
                self.negotiated.table,
                decision.mode,
                decision.fallback,
                why,
            )
            reason = f"{decision.reason}, but {decision.mode} failed: {why}"
            self.negotiated = replace(self.negotiated, decision=Decision(decision.fallback, reason))
            self._opened = None
            return True


def negotiated_table(options: ReadOptions, profile: Profile | None = None) -> NegotiatedTable:
    """Ask for a table's metadata and choose an access mode: one request, where the server does not refuse it.

    Args:
        profile: The server and recipient, instead of those in the options; ``path`` is then a bare table name.

    Raises:
        ConfigError: The address, the profile or an option is wrong.
        ServerError, NetworkError: The sharing server refuses or does not answer.
        AccessModeError: No access mode fits.
        VersionError: The version or moment asked for cannot be read in any mode.
    """
    if options.gateway is not None:
        # The gateway negotiates: there is nothing to ask the sharing server, which this process may not even reach.
        behind = Profile(options.gateway)
        decision = Decision("flight", f"gateway={options.gateway}")
        return NegotiatedTable(
            options, behind, transport_of(options), parse_table_name(options.path), _UNDESCRIBED, decision
        )
    if profile is None:
        profile, table = profile_and_table(options)
    else:
        table = parse_table_name(options.path)
        if (identity := identity_of(options)) is not None and identity != profile.identity:
            raise OptionError(f"{identity} is asked for at one scan; give the options of an identity to SharingClient")
    settings = transport_of(options, table)
    head, decision = _head_and_mode(SharingRest(profile, settings), table, options)
    return NegotiatedTable(options, profile, settings, table, head, decision)


def with_all_times(negotiated: NegotiatedTable) -> NegotiatedTable:
    """The same by the mode that tells the times of most versions, unless the user asks for another."""
    is_both = negotiated.decision.mode == "url" and "dir" in negotiated.head.metadata.access_modes
    if negotiated.options.access_mode != "auto" or not is_both:
        return negotiated
    return replace(negotiated, decision=Decision("dir", "the log tells the times of all versions", fallback="url"))


#: What the sharing server describes of a table that is read by its Iceberg catalog, or behind a gateway: nothing.
_UNDESCRIBED = TableSnapshotHead(None, "delta", Protocol(1), Metadata("", "", ()))


def _head_and_mode(rest: SharingRest, table: TableName, options: ReadOptions) -> tuple[TableSnapshotHead, Decision]:
    head, decision = _described(rest, table, options)
    if options.ref is not None and decision.mode != "iceberg":
        raise OptionError(
            f"'ref' names a branch or tag of an Iceberg table, and {table} is read by {decision.mode}; leave it out, or set "
            f"accessMode=iceberg where the provider offers the table by an Iceberg catalog",
            option="ref",
        )
    return head, decision


def _described(rest: SharingRest, table: TableName, options: ReadOptions) -> tuple[TableSnapshotHead, Decision]:
    if options.access_mode == "iceberg":
        return _UNDESCRIBED, Decision("iceberg", "accessMode=iceberg")
    travels = options.version_as_of is not None or options.timestamp_as_of is not None
    try:
        head = rest.metadata(
            table,
            version=options.version_as_of,
            timestamp=iso(options.timestamp_as_of),
            formats=response_formats(options),
        )
        return head, negotiate(head.metadata, options.access_mode, str(table))
    except REFUSALS as refusal:
        newest = None
        if travels:
            with suppress(*REFUSALS):  # the server refuses the table whatever its version
                newest = rest.metadata(table, formats=response_formats(options))
        if newest is not None:
            cause = refused_travel(table, options, newest.version, refusal)
            if options.access_mode == "url" or "dir" not in (newest.metadata.access_modes or ()):
                raise cause from refusal
            return newest, negotiate(newest.metadata, options.access_mode, str(table), str(cause))
        if _is_iceberg_alone(rest, table, refusal, options):
            return _UNDESCRIBED, Decision("iceberg", "the share offers it as an Iceberg table alone")
        if isinstance(refusal, NotFoundError):
            raise
        head = _head_from_catalog(rest, table, refusal)
        return head, negotiate(head.metadata, options.access_mode, str(table), words_of(refusal))


def _is_iceberg_alone(rest: SharingRest, table: TableName, refusal: Refusal, options: ReadOptions) -> bool:
    """Whether Get Table, or the refusal of a table's metadata, says that it is an Iceberg table, which may be read by its catalog.

    Raises:
        UnsupportedFeatureError: It is of another format than Delta, and not to be read by an Iceberg catalog; names the format.
    """
    if isinstance(refusal, NotFoundError) and refusal.is_unlisted:
        return False
    reads_catalog = rest.profile.iceberg_endpoint is not None and options.access_mode == "auto"
    try:
        described = rest.table(table)
    except NotFoundError:
        described = None
        if not isinstance(refusal, NotFoundError):
            rest.note_no_get_table()  # the table is there, or its metadata would not be refused otherwise
    except DeltaSharingError as error:
        _log.info("the format of %s could not be asked for: %s", table, error)
        described = None
    if described is not None:
        if reads_catalog and "iceberg" in described.formats and "delta" not in described.formats:
            return True
        check_formats(table, described.formats, rest.profile)
    elif is_of_iceberg(refusal):
        if reads_catalog:
            return True
        raise UnsupportedFeatureError(
            f"{table} is no Delta table; {words_of(refusal)}; {iceberg_advice(rest.profile)}",
            features=("iceberg",),
        ) from refusal
    return False


def _head_from_catalog(rest: SharingRest, table: TableName, refusal: RequestRefusedError) -> TableSnapshotHead:
    """What the list of tables says of one whose metadata the server refuses: enough to read its directory. Else raises the refusal."""
    entry: Table | None = None
    with suppress(NotFoundError):
        listed = rest.list_tables(table.share, table.schema)
        entry = next((t for t in listed if t.name.lower() == table.table.lower()), None)
    if entry is not None:
        check_formats(table, entry.formats, rest.profile)
    if entry is None or "dir" not in entry.access_modes or not entry.location:
        raise refusal
    metadata = Metadata(
        "",
        "",
        (),
        location=entry.location,
        auxiliary_locations=entry.auxiliary_locations,
        access_modes=entry.access_modes,
    )
    return TableSnapshotHead(None, "delta", Protocol(1), metadata)


def resolve(options: ReadOptions, profile: Profile | None = None) -> ResolvedScan:
    """A load as plain data: one request for metadata, and the log's head where the table is read by its directory.

    Raises:
        TableError: The table cannot be read right; an unknown column.
        DeltaSharingError: As ``negotiated_table``, whose arguments these are.
    """
    return resolve_opened(TableOpener(negotiated_table(options, profile)))


def resolve_opened(opener: TableOpener) -> ResolvedScan:
    """The same over a table that this process goes on to plan with; raises as ``resolve``."""
    options = opener.negotiated.options
    state = opener.run(lambda table: _state_of(table, options))
    return _build(opener.negotiated, state)


def resolved_anew(scan: ResolvedScan, options: ReadOptions, condition: Expression | None = None) -> ResolvedScan:
    """The table as it was resolved, at the same version, with the columns and the condition of other options, and one more condition."""
    again = _build(replace(scan, options=options), TableState(scan.version, scan.shape))
    return replace(again, predicate=all_of(again.predicate, condition), pushed=scan.pushed)


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

        predicate = parse_where(options.where, columns, time_zone=options.time_zone, now=options.loaded_at)
        check_types(select_paths(columns, referenced_columns(predicate)), columns, str(negotiated.table))
    check_types(output, columns, str(negotiated.table))
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
