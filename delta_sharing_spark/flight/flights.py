"""Plans flights by the planner of every other read, and reads, renews and cancels them by their tickets, within a gateway's bounds."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.access.contract import OpenTable, SplitAccess, last_version
from delta_sharing_spark.access.load import first_version_from
from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
from delta_sharing_spark.access.plan import plan, spec_of, splits_of
from delta_sharing_spark.access.planned_files import FileList, PlannedFiles
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.access.table_shape import TableShape
from delta_sharing_spark.errors import CancelledError, FileGoneError, TicketError, UnavailableError
from delta_sharing_spark.flight.commands import FIELDS, Command, StreamRange
from delta_sharing_spark.flight.tickets import Ticket
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.renewable import Renewable, Term, due_before
from delta_sharing_spark.options.declared import naming, parse_options
from delta_sharing_spark.scan.parallel import read_splits
from delta_sharing_spark.scan.plan import FileTask, Split
from delta_sharing_spark.schema.types import Struct, schema_to_json
from delta_sharing_spark.sharing.address import TableName

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.flight.settings import GatewaySettings


#: What a caller does whose gateway ends is to ask again.
_GOING = "the gateway is shutting down; connect to it again, or to another one"


@dataclass(frozen=True, slots=True)
class PlannedFlight:
    """A planned flight, for the answer of ``GetFlightInfo``.

    Attributes:
        flight: Its id.
        identity: The caller.
        command: The command, pinned to the version planned.
        schema: The rows' schema.
        splits: What is read, in order, each split with the metadata of its endpoint.
        version: The table's version, where one is known.
        access_mode: ``url`` or ``dir``.
        rows: The number of rows, if metadata tells it exactly.
        issued, expires: Seconds since the epoch; URLs or credentials that end earlier shorten a ticket's time.
        about: Further metadata of the flight: the versions of a stream's.
        files, access: The files of all splits, and how to read them; None of a stream.
    """

    flight: str
    identity: str
    command: Command
    schema: Struct
    splits: list[tuple[Split, Mapping[str, int]]] = field(repr=False)
    version: int | None
    access_mode: str
    rows: int | None
    issued: float
    expires: float
    about: Mapping[str, Any] = field(default_factory=dict)
    files: PlannedFiles | None = field(default=None, repr=False)
    access: SplitAccess | None = field(default=None, repr=False)

    @property
    def is_ordered(self) -> bool:
        """Whether the endpoints have an order: a change feed's are in the order of their versions."""
        return "readChangeFeed" in self.command.options

    @property
    def nbytes(self) -> int:
        """Bytes of the files, or parts of files, that the splits read."""
        return sum(split.nbytes for split, _ in self.splits)

    def ticket(self, endpoint: int, endpoints: int) -> Ticket:
        """The ticket of the endpoint ``endpoint`` of ``endpoints``. Neighbouring splits share a ticket where there are more splits.

        A load with a limit has one split, which counts its rows.
        """
        first, last = (number * len(self.splits) // endpoints for number in (endpoint, endpoint + 1))
        splits, about = tuple(split for split, _ in self.splits[first:last]), self.splits[first][1]
        ends = [split.access.ends(part.task) for split in splits for part in split.slices]
        expires = min([self.expires, *(due_before(end, self.issued) for end in ends if end is not None)])
        owner = (self.flight, self.identity, self.command)
        return Ticket(*owner, endpoint, endpoints, splits, self.issued, expires, about)


class FlightPlanner:
    """Plans commands as one recipient, whose profile no caller gets; tickets last for ``ticket_seconds`` at most."""

    def __init__(self, client: SharingClient, ticket_seconds: float) -> None:
        self._client = client
        self._ticket_seconds = ticket_seconds

    def tables(self, matches: Callable[[str], bool]) -> Iterator[TableName]:
        """The tables whose three-part name matches, share by share as the server pages them."""
        for share in self._client.rest.list_shares():
            for table in self._client.rest.list_all_tables(share.name):
                name = TableName(table.share, table.schema, table.name)
                if matches(str(name)):
                    yield name

    def schema(self, command: Command) -> Struct:
        """The schema of a command's rows."""
        return self._resolved(command)[1].output

    def version(self, command: Command) -> int:
        """The newest version of a command's table; with ``timestamp`` the first one at or after it."""
        options = dict(command.options)
        moment = options.pop("timestampAsOf", None)
        if moment is None:
            return self._client.rest.table_version(command.table)
        with naming({"startingTimestamp": "timestamp"}):
            return first_version_from(self._client, command.table, moment, options, is_in_spark=not command.is_in_utc)

    def describe(self, command: Command) -> dict[str, Any]:
        """A table's version, id and schema (Delta's JSON)."""
        scan = self._resolved(command)[1]
        return {"version": scan.version, **_described(scan.shape)}

    def plan(
        self,
        command: Command,
        identity: str,
        flight: str | None = None,
        listed: Callable[[int], None] | None = None,
    ) -> PlannedFlight:
        """List the files of a command, and plan its flight.

        Args:
            command: The command of a descriptor, or of a ticket that is renewed.
            flight: The id of the flight that is renewed; None for a new one.
            listed: Called with 0 once the table is described, then with the number of files listed since its last call.
        """
        command = replace(command, planned_at=command.planned_at or time.time_ns() // 1000)
        opener, scan = self._resolved(command)
        if listed is not None:
            listed(0)
        about: Mapping[str, Any] = {}
        rows: int | None = None
        files: PlannedFiles | None = None
        access: SplitAccess | None = None
        pinned = command
        if command.stream is None:
            options, newest = scan.options, scan.version
            is_feed = options.read_change_feed
            end = opener.run(lambda table: last_version(table, options, newest)) if is_feed else None
            if end is not None and end == newest:
                # Versions that come later are not the flight's, though the end of the command may lie after them.
                scan = replace(scan, options=replace(options, ending_version=end, ending_timestamp=None))
                pinned = command.pinned("endingVersion", end)
            planned = plan(scan, opener=opener, listed=listed)
            files, access = planned.files, planned.access
            splits: list[tuple[Split, Mapping[str, int]]] = [(split, {}) for split in planned.splits]
            rows, version = planned.exact_rows, planned.report.version
            moment = options.timestamp_as_of
            is_settled = options.version_as_of is not None or (moment is not None and moment.timestamp() < time.time())
            if version is not None and not is_feed and not is_settled:
                # In another format files have other ids, by which a ticket that is renewed finds its own.
                answered = opener.negotiated.head.response_format
                pinned = command.pinned("versionAsOf", version).pinned("responseFormat", answered)
        else:
            versions = command.stream
            splits, about = opener.run(lambda table: _stream(table, scan, versions))
            version = versions.last
        issued = time.time()
        return PlannedFlight(
            flight or uuid.uuid4().hex,
            identity,
            pinned,
            scan.output,
            splits,
            scan.version if version is None else version,
            opener.negotiated.decision.mode,
            rows,
            issued,
            issued + self._ticket_seconds,
            about,
            files,
            access,
        )

    def _resolved(self, command: Command) -> tuple[TableOpener, ResolvedScan]:
        with naming(FIELDS):
            options = parse_options(
                self._client.load_options(command.table, command.load_options()),
                loaded_at=command.planned_at,
                is_in_spark=not command.is_in_utc,
            )
        opener = TableOpener(negotiated_table(options, self._client.profile))
        return opener, resolve_opened(opener)


def _stream(
    table: OpenTable, scan: ResolvedScan, versions: StreamRange
) -> tuple[list[tuple[Split, Mapping[str, int]]], Mapping[str, Any]]:
    """The splits of a stream's versions, none of which spans two, and the metadata of each version.

    They are cut before files are left out, some to nothing: a stream counts them, and its condition may be another one at the next call.
    """
    if versions.snapshot:
        listing = table.all_files(scan, versions.first)
    else:
        listing = table.versions(scan, versions.first, versions.last)
    spec, pruner = spec_of(scan), FilePruner(scan)
    splits: list[tuple[Split, Mapping[str, int]]] = []
    answers: list[dict[str, Any]] = []
    for files in listing.versions:
        described = {} if files.shape is None else _described(files.shape)
        answers.append({"version": files.version, "removes": files.removes, **described})
        for split in splits_of(FileList(files.tasks), listing.access, scan, spec, len(splits)):
            slices = tuple(replace(piece, task=t) for piece in split.slices for t in pruner.remaining([piece.task]))
            splits.append((replace(split, slices=slices), {"version": files.version}))
    identity = listing.identity
    ids = identity.hash or f"the {identity.format} format"
    order = f"{ids}, accessMode={identity.mode} and maxSplitBytes={scan.options.max_split_bytes}"
    return splits, {"versions": answers, "order": order}


def _described(shape: TableShape) -> dict[str, Any]:
    return {"id": shape.id, "schema": schema_to_json(shape.schema)}


#: What gRPC takes in one message unless its client raises the limit (4 MiB; arrow-go leaves it in place), less its frame.
MESSAGE_BYTES = (4 << 20) - (64 << 10)
#: Plans that are kept to renew their endpoints, for clients renew one endpoint at a time; cancelled flights that are remembered.
_PLANS_KEPT, _CANCELLED_KEPT = 8, 10_000
#: A new plan renews the other endpoints of its flight as well, for this share of its time.
_FRESH_SHARE = 0.1
#: A read may prefetch an eighth of the budget that other reads do not use, and at least so many bytes.
_SHARE_OF_THE_REST, _LEAST_FETCH_AHEAD = 8, 4 << 20
#: Bytes of decoded batches that one read may hold, and that all reads may hold together; each may hold one batch more.
_READY_BYTES, _READY_BYTES_OF_ALL = 8 << 20, 64 << 20


@dataclass(eq=False, slots=True)
class _Read:
    """One read under way, and the bytes that it may fetch ahead."""

    ticket: Ticket
    fetch_ahead: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)


class Flights:
    """Reads, renews (by a new plan) and cancels; used by many threads."""

    def __init__(self, planner: FlightPlanner, settings: GatewaySettings) -> None:
        self._planner = planner
        self._settings = settings
        self._lock = threading.Lock()
        self._reads: dict[int, _Read] = {}
        self._cancelled: ProcessCache[str, bool] = ProcessCache(_CANCELLED_KEPT)
        self._plans: ProcessCache[str, Renewable[PlannedFlight]] = ProcessCache(_PLANS_KEPT)
        self._is_closed = False

    def read(self, ticket: Ticket, is_gone: Callable[[], bool]) -> Generator[pa.RecordBatch, None, None]:
        """The rows of an endpoint, decoded in a thread of their own while those before are sent.

        Args:
            is_gone: Whether the caller went away; called with each batch, and twice a second while there is none.

        Raises:
            TicketError: Its flight was cancelled before.
            CancelledError: Its flight was cancelled meanwhile, or the caller went away.
            UnavailableError: So many reads are under way that another would not fit, or the gateway ends.
        """
        with self._lock:
            self._refuse_ended(ticket.flight)
        return self._batches(_Read(ticket), is_gone)

    def renew(self, ticket: Ticket) -> Ticket:
        """The ticket of the same endpoint with a later end: the share is asked again for the files.

        Raises:
            TicketError: Its flight was cancelled.
            FileGoneError: The share no longer gives the files that the endpoint had.
        """
        with self._lock:
            self._refuse_ended(ticket.flight)

        def usable(planned: PlannedFlight | None) -> Term[tuple[PlannedFlight, Ticket]] | None:
            same = None if planned is None else _same_endpoint(planned, ticket)
            if planned is None or same is None:
                return None
            return Term((planned, same), ends_at=same.issued + _FRESH_SHARE * (same.expires - same.issued))

        def accept(planned: PlannedFlight) -> Term[tuple[PlannedFlight, Ticket]]:
            term = usable(planned)
            if term is None:
                raise FileGoneError(
                    f"the share no longer gives the files of endpoint {ticket.endpoint} of {planned.command.table}: "
                    f"the table has changed; ask for the flight's info again"
                )
            return term

        plans = self._plans.get_or_make(ticket.flight, lambda: Renewable(f"the plan of flight {ticket.flight}"))
        planned, renewed = plans.get(
            usable, lambda _: self._planner.plan(ticket.command, ticket.identity, ticket.flight), accept
        ).value
        if renewed.expires <= ticket.expires:
            # The share was asked, and its answer still held the credentials that this process had.
            accesses = {id(split.access): split.access for split in renewed.splits}
            fresh = {key: access.renewed() for key, access in accesses.items()}
            splits = [(replace(split, access=fresh[id(split.access)]), renewed.about) for split in renewed.splits]
            again = replace(planned, splits=splits, issued=time.time()).ticket(0, 1)
            renewed = replace(again, endpoint=ticket.endpoint, endpoints=ticket.endpoints)
        return renewed

    def cancel(self, flight: str) -> None:
        """End the reads of a flight, and refuse its tickets from now on."""
        with self._lock:
            self._cancelled.put(flight, True)
            self._plans.forget(flight)
            reads = [read for read in self._reads.values() if read.ticket.flight == flight]
        for read in reads:
            read.cancelled.set()

    def close(self) -> None:
        """End all reads."""
        with self._lock:
            self._is_closed = True
            reads = list(self._reads.values())
        for read in reads:
            read.cancelled.set()

    def _batches(self, read: _Read, is_gone: Callable[[], bool]) -> Generator[pa.RecordBatch, None, None]:
        splits = read.ticket.splits
        with self._lock:
            self._refuse_ended(read.ticket.flight)
            if len(self._reads) >= self._settings.max_streams:
                raise UnavailableError(
                    f"the gateway has {len(self._reads)} reads under way, which is its limit; try again in a few seconds"
                )
            spare = self._settings.memory_budget - sum(other.fetch_ahead for other in self._reads.values())
            read.fetch_ahead = max(_LEAST_FETCH_AHEAD, min(spare // _SHARE_OF_THE_REST, splits[0].spec.fetch_ahead))
            self._reads[id(read)] = read
            ready_bytes = min(_READY_BYTES, _READY_BYTES_OF_ALL // len(self._reads))
        spec = replace(splits[0].spec, fetch_ahead=read.fetch_ahead)

        def check_cancelled() -> None:
            if read.cancelled.is_set():
                if self._is_closed:
                    raise UnavailableError(_GOING)
                raise CancelledError("the flight was cancelled while it was read")
            if is_gone():
                raise CancelledError("the caller went away")

        try:
            whole = [replace(split, spec=spec) for split in splits]
            with closing(read_splits(whole, 1, check_cancelled=check_cancelled, ready_bytes=ready_bytes)) as batches:
                for batch in batches:
                    for message in _messages(batch):
                        check_cancelled()
                        yield message
        finally:
            with self._lock:
                self._reads.pop(id(read), None)

    def _refuse_ended(self, flight: str) -> None:
        if self._is_closed:
            raise UnavailableError(_GOING)
        if flight in self._cancelled:
            raise TicketError(
                "the ticket's flight was cancelled; ask for its info again to read it", reason="cancelled"
            )


def _same_endpoint(planned: PlannedFlight, ticket: Ticket) -> Ticket | None:
    """The ticket of the same endpoint in another plan, read as before; None if that has other files there."""
    if ticket.endpoints > len(planned.splits):
        return None
    renewed = planned.ticket(ticket.endpoint, ticket.endpoints)
    if _contents(renewed) != _contents(ticket):
        splits = _same_splits(planned, ticket)
        return None if splits is None else replace(renewed, splits=splits)
    # The table may have other columns by now; the client was told of those that the flight was planned with.
    spec = ticket.splits[0].spec
    return replace(renewed, splits=tuple(replace(split, spec=spec) for split in renewed.splits))


def _same_splits(planned: PlannedFlight, ticket: Ticket) -> tuple[Split, ...] | None:
    """A ticket's splits with the files of another plan, which a server may list in another order; None if it lacks one."""
    if planned.files is None or planned.access is None:
        return None
    wanted = {_name(piece.task) for split in ticket.splits for piece in split.slices}
    fresh = {name: task for task in planned.files if (name := _name(task)) in wanted}
    if len(fresh) < len(wanted):
        return None
    splits = []
    for split in ticket.splits:
        slices = tuple(replace(piece, task=fresh[_name(piece.task)]) for piece in split.slices)
        access = planned.access.restricted_to([piece.task for piece in slices])
        splits.append(replace(split, slices=slices, access=access))
    return tuple(splits)


def _name(task: FileTask) -> tuple[Any, ...]:
    vectors = tuple(None if v is None else (v.unique_id, v.offset) for v in (task.deletion_vector, task.excluded))
    return task.id, task.size, task.commit_version, task.change_type, vectors, task.deletes


def _contents(ticket: Ticket) -> list[tuple[str, int, int, int | None]]:
    return [(part.task.id, part.task.size, part.start, part.end) for split in ticket.splits for part in split.slices]


def _messages(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows of a batch in pieces that are sent in a message of ``MESSAGE_BYTES`` each; one row alone may be larger."""
    import pyarrow as pa

    size = pa.ipc.get_record_batch_size(batch)
    if size <= MESSAGE_BYTES or batch.num_rows <= 1:
        yield batch
        return
    rows = max(1, batch.num_rows * MESSAGE_BYTES // size)
    rows -= rows % 64 if rows > 64 else 0  # bits of a slice that begins within a byte would be shifted
    for start in range(0, batch.num_rows, rows):
        yield from _messages(batch.slice(start, rows))
