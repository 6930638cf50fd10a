"""Reads a split through a gateway: endpoints one after the other, renewed when they expire, resumed where they broke off."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

import pyarrow as pa

from delta_sharing_spark.access.flight.connection import Endpoint, GatewayAddress, GatewayConnection
from delta_sharing_spark.errors import (
    DeltaSharingError,
    NetworkError,
    ResponseError,
    TableChangedError,
    TicketError,
    UnavailableError,
)
from delta_sharing_spark.network.retry import backoff
from delta_sharing_spark.scan.plan import Access, FileTask, Split
from delta_sharing_spark.schema.types import Struct, without_mapping

_log = logging.getLogger(__name__)
_FIRST_WAIT, _LONGEST_WAIT = 0.2, 10.0
#: An endpoint is renewed so many seconds before its end, and so often without a row in between.
_MARGIN, _RENEWALS = 1.0, 3


@dataclass(frozen=True, slots=True)
class FlightAccess:
    """The access of splits that a gateway reads (``scan.plan.RowAccess``). A task's location is its ticket; the gateway has filtered its rows and chosen its columns.

    Attributes:
        gateway: The gateway that planned.
        locations: Other gateways that serve its tickets.
    """

    gateway: GatewayAddress
    locations: tuple[str, ...] = ()

    def restricted_to(self, tasks: Iterable[FileTask]) -> Access:
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
        target, schema = without_mapping(spec.schema), arrow_schema(spec.schema)
        for part in split.slices:
            context, sent = Context(spec.table, part.task.id, "none"), None
            columns: Columns = ()
            for batch in self._endpoint(part.task, split.index):
                if batch.schema != sent:  # another try may have come to another gateway
                    _require_columns(batch.schema, target, spec.table)
                    sent, columns = batch.schema, plan_columns(batch.schema, target, {}, context)
                require_sound(batch, spec.table, self.gateway.uri)
                yield conform(batch, columns, target, schema, context)

    def _endpoint(self, task: FileTask, number: int) -> Generator[pa.RecordBatch, None, None]:
        """The batches of one endpoint; a retry skips the rows that had arrived before the connection broke off."""
        endpoint = Endpoint(task.location, self.locations, task.expires_at)
        gateways = [
            self.gateway,
            *(replace(self.gateway, uri=uri) for uri in self.locations if uri != self.gateway.uri),
        ]
        arrived = failures = renewals = 0
        deadline = time.monotonic() + self.gateway.retry_seconds
        while True:
            connection = GatewayConnection(gateways[(number + failures) % len(gateways)])
            before = arrived
            try:
                if endpoint.expires is not None and endpoint.expires - _MARGIN <= time.time() and renewals < _RENEWALS:
                    renewals += 1
                    endpoint = connection.renewed(endpoint)
                for batch in connection.stream(endpoint.ticket, skip=arrived):
                    yield batch
                    arrived += batch.num_rows
                return
            except DeltaSharingError as error:
                cause = error
            if arrived > before:
                failures = renewals = 0
            if isinstance(cause, TicketError) and cause.reason == "expired" and renewals < _RENEWALS:
                endpoint = replace(endpoint, expires=0.0)
                continue
            failures += 1
            pause = backoff(failures, _FIRST_WAIT, _LONGEST_WAIT)
            if not isinstance(cause, (NetworkError, UnavailableError)) or time.monotonic() + pause > deadline:
                raise cause from None
            _log.info("endpoint %s broke off after %d rows, trying again in %.1f s: %s", task.id, arrived, pause, cause)
            connection.forget()
            time.sleep(pause)


def _require_columns(schema: pa.Schema, expected: Struct, table: str) -> None:
    missing = [name for name in expected.names if name not in schema.names]
    if missing:
        raise TableChangedError(f"the gateway's rows of {table} have no column {missing[0]!r}; load the table again")


def require_sound(batch: pa.RecordBatch, table: str, gateway: str) -> None:
    """Raise ResponseError for a batch whose offsets, lengths or indices point elsewhere than into its own buffers.

    Text is looked at as bytes: whether it is UTF-8 costs eight times as much, and does not matter to Arrow.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.view(_without_text(column.type)).validate(full=True)
        except pa.ArrowException as error:
            raise ResponseError(
                f"the Flight gateway {gateway} sent damaged rows of {table} (column {name!r}: {error}); check its version, "
                f"and what lies between"
            ) from None


def _without_text(kind: pa.DataType) -> pa.DataType:
    """The type of the same layout with binary values for text."""
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    return kind


def _field(field: pa.Field) -> pa.Field:
    return field.with_type(_without_text(field.type))
