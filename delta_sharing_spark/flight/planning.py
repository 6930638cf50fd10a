"""Plans the flight of a command by the same planner as every other read, with an endpoint for each split."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.access.contract import FileList, FilePruner, OpenTable, ResolvedScan, TableShape
from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened
from delta_sharing_spark.access.plan import plan, spec_of, splits_of
from delta_sharing_spark.flight.commands import Command, StreamRange
from delta_sharing_spark.flight.tickets import Ticket, split_bytes
from delta_sharing_spark.options import parse_options
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.schema.instants import due_before
from delta_sharing_spark.schema.types import Struct, schema_to_json
from delta_sharing_spark.sharing.address import TableName

if TYPE_CHECKING:
    from delta_sharing_spark.client import SharingClient


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

    @property
    def is_ordered(self) -> bool:
        """Whether the endpoints have an order: a change feed's are in the order of their versions."""
        return "readChangeFeed" in self.command.options

    @property
    def nbytes(self) -> int:
        """Bytes of the files, or parts of files, that the splits read."""
        return sum(split_bytes(split) for split, _ in self.splits)

    def ticket(self, endpoint: int, endpoints: int) -> Ticket:
        """The ticket of the endpoint ``endpoint`` of ``endpoints``. Neighbouring splits share a ticket where there are more splits.

        A load with a limit has one split, which counts its rows.
        """
        first, last = (number * len(self.splits) // endpoints for number in (endpoint, endpoint + 1))
        splits, about = tuple(split for split, _ in self.splits[first:last]), self.splits[first][1]
        ends = [split.access.ends(part.task) for split in splits for part in split.slices]
        expires = min([self.expires, *(due_before(end, self.issued) for end in ends if end is not None)])
        owner = (self.flight, self.identity, self.command.to_json())
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
        table = self._client.table(str(command.table))
        return table.version(command.options.get("timestampAsOf"))

    def describe(self, command: Command) -> dict[str, Any]:
        """A table's version, id and schema (Delta's JSON)."""
        scan = self._resolved(command)[1]
        return {"version": scan.version, **_described(scan.shape)}

    def plan(self, command: Command, identity: str, flight: str | None = None) -> PlannedFlight:
        """List the files of a command, and plan its flight.

        Args:
            command: The command of a descriptor, or of a ticket that is renewed.
            flight: The id of the flight that is renewed; None for a new one.
        """
        command = replace(command, planned_at=command.planned_at or time.time_ns() // 1000)
        opener, scan = self._resolved(command)
        about: Mapping[str, Any] = {}
        rows: int | None = None
        if command.stream is None:
            planned = plan(scan, opener=opener)
            splits: list[tuple[Split, Mapping[str, int]]] = [(split, {}) for split in planned.splits]
            rows, version = planned.exact_rows, planned.report.version
        else:
            versions = command.stream
            splits, about = opener.run(lambda table: _stream(table, scan, versions))
            version = versions.last
        issued = time.time()
        version = scan.version if version is None else version
        return PlannedFlight(
            flight or uuid.uuid4().hex,
            identity,
            command.pinned(version),
            scan.output,
            splits,
            version,
            opener.negotiated.decision.mode,
            rows,
            issued,
            issued + self._ticket_seconds,
            about,
        )

    def _resolved(self, command: Command) -> tuple[TableOpener, ResolvedScan]:
        options = parse_options(
            self._client.load_options(command.table, command.load_options()), loaded_at=command.planned_at
        )
        opener = TableOpener(negotiated_table(options, self._client.profile))
        return opener, resolve_opened(opener)


def _stream(
    table: OpenTable, scan: ResolvedScan, versions: StreamRange
) -> tuple[list[tuple[Split, Mapping[str, int]]], Mapping[str, Any]]:
    """The splits of a stream's versions, none of which spans two, and the metadata of each version."""
    if versions.snapshot:
        listing = table.all_files(scan, versions.first)
    else:
        listing = table.versions(scan, versions.first, versions.last)
    spec, pruner = spec_of(scan), FilePruner(scan)
    splits: list[tuple[Split, Mapping[str, int]]] = []
    told: list[dict[str, Any]] = []
    for files in listing.versions:
        described = {} if files.shape is None else _described(files.shape)
        told.append({"version": files.version, "removes": files.removes, **described})
        remaining = FileList(pruner.remaining(files.tasks))
        for split in splits_of(remaining, listing.access, scan, spec, len(splits)):
            splits.append((split, {"version": files.version}))
    identity = listing.identity
    order = "/".join((identity.mode, identity.hash or identity.format, str(scan.options.max_split_bytes)))
    return splits, {"versions": told, "order": order}


def _described(shape: TableShape) -> dict[str, Any]:
    return {"id": shape.id, "schema": schema_to_json(shape.schema)}
