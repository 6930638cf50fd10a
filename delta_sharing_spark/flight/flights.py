"""Reads, renews and cancels the flights of a gateway by their tickets, within its bounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from delta_sharing_spark.errors import CancelledError, FileGoneError, TicketError, UnavailableError
from delta_sharing_spark.flight.commands import Command
from delta_sharing_spark.flight.planning import FlightPlanner, PlannedFlight
from delta_sharing_spark.flight.tickets import Ticket
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.scan.parallel import read_splits

if TYPE_CHECKING:
    import pyarrow as pa

    from delta_sharing_spark.flight.settings import GatewaySettings

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
        self._renewed: ProcessCache[str, PlannedFlight] = ProcessCache(_PLANS_KEPT)
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
        planned = self._renewed.get(ticket.flight)
        renewed = None if planned is None else _same_endpoint(planned, ticket)
        fresh_until = 0.0 if renewed is None else renewed.issued + _FRESH_SHARE * (renewed.expires - renewed.issued)
        if planned is None or renewed is None or time.time() >= fresh_until:
            planned = self._planner.plan(Command.from_json(ticket.command), ticket.identity, ticket.flight)
            renewed = _same_endpoint(planned, ticket)
            self._renewed.put(ticket.flight, planned)
        if renewed is None:
            raise FileGoneError(
                f"the share no longer gives the files of endpoint {ticket.endpoint} of {planned.command.table}: "
                f"the table has changed; ask for the flight's info again"
            )
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
            self._renewed.forget(flight)
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
            left = self._settings.memory_budget - sum(other.fetch_ahead for other in self._reads.values())
            read.fetch_ahead = max(_LEAST_FETCH_AHEAD, min(left // _SHARE_OF_THE_REST, splits[0].spec.fetch_ahead))
            self._reads[id(read)] = read
            ready_bytes = min(_READY_BYTES, _READY_BYTES_OF_ALL // len(self._reads))
        spec = replace(splits[0].spec, fetch_ahead=read.fetch_ahead)

        def check_cancelled() -> None:
            if read.cancelled.is_set():
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
            raise UnavailableError("the gateway is shutting down; connect to it again, or to another one")
        if flight in self._cancelled:
            raise TicketError(
                "the ticket's flight was cancelled; ask for its info again to read it", reason="cancelled"
            )


def _same_endpoint(planned: PlannedFlight, ticket: Ticket) -> Ticket | None:
    """The ticket of the same endpoint in another plan; None if that has other files there."""
    if ticket.endpoints > len(planned.splits):
        return None
    renewed = planned.ticket(ticket.endpoint, ticket.endpoints)
    return renewed if _contents(renewed) == _contents(ticket) else None


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
