"""Opens a table in access mode flight: a gateway describes it, plans its files and reads them.

A split is read endpoint by endpoint; one that expires is renewed, and one that broke off is resumed there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

from delta_sharing_spark.access.asking import REFUSALS, iso
from delta_sharing_spark.access.contract import (
    AsOf,
    FileListing,
    OpenTable,
    StreamIdentity,
    TableState,
    VersionFiles,
    VersionListing,
    as_loaded,
)
from delta_sharing_spark.access.flight.connection import (
    DESCRIBE,
    Endpoint,
    Flight,
    GatewayAddress,
    GatewayConnection,
    gateway_address,
)
from delta_sharing_spark.access.planned_files import FileList
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import NegotiatedTable, ResolvedScan
from delta_sharing_spark.access.table_shape import TableShape, check_same
from delta_sharing_spark.errors import (
    DeltaSharingError,
    NetworkError,
    ResponseError,
    TableChangedError,
    TicketError,
    UnavailableError,
    VersionError,
)
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.retry import RetryableError, retry
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.scan.plan import MAX_FILE_BYTES, Access, FileTask, Split
from delta_sharing_spark.schema.arrow import with_other_values
from delta_sharing_spark.schema.types import backquoted, logical_schema, parse_schema

#: Seconds before the first retry, and at most before any.
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
#: An endpoint is renewed this many seconds before its end, and this often without a row in between.
_MARGIN, _RENEWALS = 1.0, 3


class _RetrySettings(NetworkSettings):
    """How reads of a gateway are retried, and counted."""

    server: ClassVar[str] = "gateway"


@dataclass(frozen=True, slots=True)
class FlightAccess:
    """The access of splits that a gateway reads (``scan.plan.RowAccess``). A task's location is its ticket; the gateway has filtered its rows and chosen its columns.

    Attributes:
        gateway: The gateway that planned.
        locations: Other gateways that serve its tickets.
    """

    gateway: GatewayAddress
    locations: tuple[str, ...] = ()

    def restricted_to(self, tasks: Sequence[FileTask]) -> Access:
        """See ``SplitAccess.restricted_to``: a ticket holds all that its endpoint needs."""
        return self

    def outlasts_planning(self, task: FileTask) -> bool:
        """See ``SplitAccess.outlasts_planning``: tickets can be renewed."""
        return True

    def ends(self, task: FileTask) -> float | None:
        """See ``FileAccess.ends``: with the ticket."""
        return task.expires_at

    def renewed(self) -> FlightAccess:
        """See ``FileAccess.renewed``; tickets come with their endpoints."""
        return self

    def rows(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        from delta_sharing_spark.scan.filter_rows import first_rows

        return first_rows(self._conformed(split), split.spec.limit)

    def _conformed(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        """The rows of all endpoints in the scan's schema, whatever the limit."""
        from delta_sharing_spark.scan.column_resolution import Context
        from delta_sharing_spark.scan.transform import Columns, conform, plan_columns
        from delta_sharing_spark.schema.arrow import arrow_schema

        spec = split.spec
        target, schema = logical_schema(spec.schema), arrow_schema(spec.schema)
        for part in split.slices:
            context, sent = Context(spec.table, part.task.id, "none"), None
            columns: Columns = ()
            for batch in self._endpoint(part.task, split.index, spec.table):
                if batch.schema != sent:  # another try may have come to another gateway
                    missing = next((name for name in target.names if name not in batch.schema.names), None)
                    if missing is not None:
                        why = f"the gateway's rows of {spec.table} have no column {missing!r}; load the table again"
                        raise TableChangedError(why)
                    sent, columns = batch.schema, plan_columns(batch.schema, target, {}, context)
                require_sound(batch, spec.table, self.gateway.uri)
                yield conform(batch, columns, target, schema, context)

    def _endpoint(self, task: FileTask, number: int, table: str) -> Generator[pa.RecordBatch, None, None]:
        """The batches of one endpoint. Each is waited for as patiently as one request, and a retry skips the rows that had arrived."""
        from delta_sharing_spark.scan.split_reader import closed_with_consumer

        endpoint = Endpoint(task.location, self.locations, task.expires_at)
        gateways = [
            self.gateway,
            *(replace(self.gateway, uri=uri) for uri in self.locations if uri != self.gateway.uri),
        ]
        canceller = closed_with_consumer(Canceller(f"the rows of {task.id}"))
        arrived = failures = renewals = 0
        batches: Generator[pa.RecordBatch, None, None] | None = None

        def next_batch() -> pa.RecordBatch | None:
            nonlocal endpoint, arrived, failures, renewals, batches
            while True:
                connection = GatewayConnection(gateways[(number + failures) % len(gateways)])
                try:
                    if batches is None:
                        is_due = endpoint.expires is not None and endpoint.expires - _MARGIN <= time.time()
                        if is_due and renewals < _RENEWALS:
                            renewals += 1
                            endpoint = connection.renewed(endpoint)
                        batches = connection.stream(endpoint.ticket, arrived, canceller)
                    batch = next(batches, None)
                except DeltaSharingError as error:
                    batches = None
                    canceller.check()
                    if isinstance(error, TicketError) and error.reason == "expired" and renewals < _RENEWALS:
                        endpoint = replace(endpoint, expires=0.0)
                        continue
                    if not isinstance(error, (NetworkError, UnavailableError)):
                        raise
                    failures += 1
                    connection.forget()
                    raise RetryableError(error) from None
                arrived += 0 if batch is None else batch.num_rows
                failures = renewals = 0
                return batch

        settings = _RetrySettings(
            retry_seconds=self.gateway.retry_seconds, first_wait=_FIRST_WAIT, longest_wait=_LONGEST_WAIT, table=table
        )
        what = f"endpoint {task.id}"
        try:
            while (batch := retry(next_batch, settings, sleep=canceller.wait, what=what)) is not None:
                yield batch
        except RetryableError as failure:
            raise failure.error or NetworkError(str(failure)) from None
        finally:
            if batches is not None:
                batches.close()


def require_sound(batch: pa.RecordBatch, table: str, gateway: str) -> None:
    """Raise ResponseError for a batch whose offsets, lengths or indices point elsewhere than into its own buffers.

    Text is looked at as bytes: whether it is UTF-8 costs eight times as much, and does not matter to Arrow.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.view(with_other_values(column.type, _without_text)).validate(full=True)
        except pa.ArrowException as error:
            raise ResponseError(
                f"the Flight gateway {gateway} sent damaged rows of {table} (column {name!r}: {error}); check its version, "
                f"and what lies between"
            ) from None


def _without_text(kind: pa.DataType) -> pa.DataType:
    return {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(kind, kind)


class FlightTable(OpenTable):
    """A table in access mode flight (``OpenTable``). Columns, ``where`` and ``limit`` are applied by the gateway, whose rows are final."""

    mode = "flight"

    def __init__(self, negotiated: NegotiatedTable) -> None:
        self._table, self._options = str(negotiated.table), negotiated.options
        self._gateway = gateway_address(self._options)
        self._connection = GatewayConnection(self._gateway)

    def describe(self, as_of: AsOf) -> TableState:
        """See ``OpenTable.describe``; one call. The gateway has passed the gate and resolved mapped columns."""
        options = self._options
        command: dict[str, Any] = {"table": self._table, **_as_of(as_of.version, as_of.moment)}
        starts = isinstance(options.starting_version, int) or options.starting_timestamp is not None
        if options.read_change_feed and starts and as_of == AsOf():
            command["changes"] = _changes(options)  # a feed can have the schema of its range's end
        tree = self._connection.ask(DESCRIBE, command)
        if not isinstance(tree, dict):
            raise self._malformed("the description is not an object")
        return TableState(self._connection.version_in(self._table, tree), self._shape(tree))

    def newest_version(self) -> int:
        """See ``OpenTable.newest_version``; one call."""
        return self._connection.version(self._table)

    def version_at_or_after(self, moment: datetime) -> int:
        """See ``OpenTable.version_at_or_after``; one call."""
        return self._connection.version(self._table, iso(moment))

    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        """See ``OpenTable.snapshot``; an endpoint is a file of the listing."""
        options = scan.options
        as_of = AsOf(options.version_as_of, options.timestamp_as_of)
        command = {**self._rows_of(scan), "limit": options.limit}
        planned = self._connection.flight({**command, **_as_of(as_of.version, as_of.moment)})
        version = self._connection.version_in(self._table, planned.about)
        if as_of == AsOf():
            again = partial(self._connection.flight, {**command, **_as_of(scan.version, None)})
            if (pinned := as_loaded(scan, version, again, (VersionError, *REFUSALS))) is not None:
                planned, version = pinned, scan.version
        files = FileList(_task(e, f"endpoint {n}") for n, e in enumerate(planned.endpoints))
        if version != scan.version:  # the gateway's rows go by names, which may be those of other columns by now
            check_same(scan.shape, self.describe(as_of).shape, self._table)
        return FileListing(files, self._access(planned), version=version, listed=len(files), rows=planned.rows)

    def changes(self, scan: ResolvedScan) -> VersionListing:
        """See ``OpenTable.changes``; the gateway puts the versions into one order of endpoints."""
        planned = self._connection.flight({**self._rows_of(scan), "changes": self._range(scan)})
        tasks = [_task(e, f"endpoint {n:06d}") for n, e in enumerate(planned.endpoints)]
        version = self._connection.version_in(self._table, planned.about) or 0
        return VersionListing([VersionFiles(version, tasks)], self._access(planned), self.stream_identity(scan))

    def versions(
        self, scan: ResolvedScan, first: int, last: int, identity: StreamIdentity | None = None
    ) -> VersionListing:
        """See ``OpenTable.versions``; one call."""
        return self._versions(scan, {"first": first, "last": last})

    def all_files(self, scan: ResolvedScan, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        """See ``OpenTable.all_files``; one call."""
        return self._versions(scan, {"snapshot": version})

    def _versions(self, scan: ResolvedScan, versions: Mapping[str, int]) -> VersionListing:
        stream = {**versions, "feed": scan.options.read_change_feed}
        planned = self._connection.flight({**self._rows_of(scan), "stream": stream})
        listed: dict[int, VersionFiles] = {}
        tasks: dict[int, list[FileTask]] = {}
        for tree in self._list(planned.about.get("versions")):
            number = self._integer(tree.get("version"))
            shape = self._shape(tree) if tree.get("schema") is not None else None
            tasks[number] = []
            listed[number] = VersionFiles(number, tasks[number], self._integer(tree.get("removes")), shape)
        for endpoint in planned.endpoints:
            number = self._integer(endpoint.about.get("version"))
            if number not in tasks:
                raise self._malformed("an endpoint is of a version that the flight does not have")
            tasks[number].append(_task(endpoint, f"version {number} endpoint {len(tasks[number]):06d}"))
        order = StreamIdentity(scan.shape.id, self.mode, self.mode, str(planned.about.get("order") or "") or None)
        return VersionListing([listed[number] for number in sorted(listed)], self._access(planned), order)

    def _range(self, scan: ResolvedScan) -> dict[str, Any]:
        """The range of a feed, which ends with the newest version of the load where later ones would be in it as well."""
        options, newest, asked = scan.options, scan.version, _changes(scan.options)
        start, end = options.starting_version, options.ending_timestamp
        if newest is None or (isinstance(start, int) and start > newest):
            return asked
        if end is not None:
            with suppress(VersionError, *REFUSALS):  # no version is as late
                if self.version_at_or_after(end) <= newest:
                    return asked
        asked.pop("endingTimestamp", None)
        return {**asked, "endingVersion": min(asked.get("endingVersion", newest), newest)}

    def _rows_of(self, scan: ResolvedScan) -> dict[str, Any]:
        """The part of a command that says which columns and rows; a column is asked for whole, and cut here."""
        options = scan.options
        names = [field.name for field in scan.output.fields]
        columns = None if len(names) == len(scan.columns.fields) else names
        settings = {
            "commitTimestampType": options.commit_timestamp_type,
            "maxSplitBytes": str(options.max_split_bytes),
            "timeZone": options.time_zone,  # null is told as well: the gateway would take UTC
        }
        return {
            "table": self._table,
            "columns": None if columns is None else [backquoted(name) for name in columns],
            "where": None if scan.predicate is None else str(scan.predicate),
            "options": settings,
        }

    def _access(self, planned: Flight) -> FlightAccess:
        return FlightAccess(self._gateway, planned.endpoints[0].locations if planned.endpoints else ())

    def _shape(self, tree: Mapping[str, Any]) -> TableShape:
        schema = parse_schema(json.dumps(tree.get("schema")), self._table)
        return TableShape(str(tree.get("id") or ""), schema, (), "none")

    def _list(self, value: object) -> list[dict[str, Any]]:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._malformed("it names no versions")
        return value

    def _integer(self, value: object) -> int:
        return self._connection.number(self._table, value)

    def _malformed(self, why: str) -> ResponseError:
        return self._connection.malformed(self._table, why)


def _changes(options: ReadOptions) -> dict[str, Any]:
    """The range of a change feed, as a command has it."""
    moments = {
        "startingVersion": options.starting_version,
        "endingVersion": options.ending_version,
        "startingTimestamp": iso(options.starting_timestamp),
        "endingTimestamp": iso(options.ending_timestamp),
    }
    return {name: value for name, value in moments.items() if value is not None}


def _as_of(version: int | None, moment: datetime | None) -> dict[str, Any]:
    if version is not None:
        return {"version": version}
    return {} if moment is None else {"timestamp": iso(moment)}


def _task(endpoint: Endpoint, name: str) -> FileTask:
    nbytes = endpoint.about.get("bytes")  # only balances splits
    size = nbytes if isinstance(nbytes, int) and 0 <= nbytes <= MAX_FILE_BYTES else 0
    return FileTask(name, endpoint.ticket, size, expires_at=endpoint.expires)
