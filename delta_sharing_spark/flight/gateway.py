"""Answers each method of Arrow Flight (Flight RPC, "RPC Methods and Request Patterns"), for callers who prove themselves."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from delta_sharing_spark.access.load import Recipient
from delta_sharing_spark.errors import CommandError, ConfigError
from delta_sharing_spark.flight.answers import ACTIONS, READ_ONLY, FlightAnswers, reported
from delta_sharing_spark.flight.callers import HandshakeByHeader, identity_of, middleware
from delta_sharing_spark.flight.connections import FlightConnections
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.schema.arrow import arrow_schema

if TYPE_CHECKING:
    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.flight.planning_server import PlanningServer

#: Tells a client to fetch over the connection it has (Flight RPC, "Connection Reuse").
REUSE_CONNECTION = "arrow-flight-reuse-connection://?"


class FlightGateway(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow is untyped
    """Serves the tables of a share to Flight clients, as one recipient.

    It listens as soon as it is made, and must be shut down (``with`` does it).

    Args:
        client: The client whose tables are served; no caller gets its profile.
        settings: The address to listen on, and the callers that are admitted.

    Raises:
        ConfigError: It would listen beyond loopback without TLS or without a token; a certificate cannot be read.

    Examples:
        >>> with FlightGateway(SharingClient("config.share"), GatewaySettings()) as gateway:     # doctest: +SKIP
        ...     gateway.serve()
    """

    def __init__(self, client: SharingClient, settings: GatewaySettings | None = None) -> None:
        if not isinstance(client, Recipient):
            raise ConfigError(
                f"{str(client)[:100]!r} is no client; write FlightGateway(SharingClient('profile.share'))"
            )
        self.settings = settings = (settings or GatewaySettings()).checked()
        tokens = settings.tokens or ()
        self._client = client
        self._answers = FlightAnswers(client, settings)
        self._locations = [flight.Location(uri) for uri in settings.advertised or (REUSE_CONNECTION,)]
        super().__init__(
            settings.listen,
            auth_handler=HandshakeByHeader() if tokens else None,
            middleware=middleware(tokens),
            **settings.tls_arguments(),
        )
        self._connections = FlightConnections(self.port)
        weakref.finalize(self, self._connections.close)
        self._planning: PlanningServer | None = None
        if settings.poll_port is not None:
            from delta_sharing_spark.flight.planning_server import PlanningServer

            try:
                self._planning = PlanningServer(self._answers, settings, settings.advertised or (self.uri,))
            except BaseException:
                self.shutdown()
                raise

    def __repr__(self) -> str:
        return f"FlightGateway({self.uri!r})"

    @property
    def uri(self) -> str:
        """The address it listens on, with the actual port."""
        return self.settings.address(self.port)

    @property
    def poll_uri(self) -> str | None:
        """The address that answers ``PollFlightInfo``; None where none was asked for."""
        return None if self._planning is None else self.settings.address(self._planning.port)

    @property
    def share(self) -> str:
        """The endpoint of the sharing server whose tables are served."""
        return self._client.profile.endpoint

    def shutdown(self) -> None:
        """End all reads and plans, then the servers."""
        self._connections.close()
        self._answers.close()
        if self._planning is not None:
            self._planning.close()
        super().shutdown()

    def __exit__(self, *error: object) -> None:
        """As ``shutdown``: pyarrow's own way out ends its server alone."""
        self.shutdown()

    @contextmanager
    def _called(self, context: flight.ServerCallContext) -> Iterator[None]:
        """A call, whose token was right: its connection is one that may last."""
        self._connections.admit(context.peer())
        with reported():
            yield

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """One flight for each table that the criteria let through."""
        with self._called(context):
            for info in self._answers.listed(criteria):
                yield flight.FlightInfo.deserialize(info)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The schema of the rows of a descriptor."""
        with self._called(context):
            return self._answers.schema(descriptor)

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Plan: an endpoint for each split, its ticket sealed for the caller."""
        with self._called(context):
            return self._answers.info(descriptor, identity_of(context), self._locations)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """The rows of one endpoint, read no faster than the client takes them."""
        with self._called(context):
            opened = self._answers.seal.open(ticket.ticket, identity_of(context))
            batches = self._answers.flights.read(opened, context.is_cancelled)
            return flight.GeneratorStream(arrow_schema(opened.splits[0].spec.schema), _with_statuses(batches))

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        """The actions: renewal, cancellation, a table's newest version and its description."""
        self._connections.admit(context.peer())
        return [flight.ActionType(name, about) for name, about in ACTIONS.items()]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """One of ``list_actions``."""
        with self._called(context):
            request = action.body.to_pybytes()
            return [self._answers.act(action.type, request, identity_of(context), self._locations)]

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Refuse: the gateway is read-only."""
        with self._called(context):
            raise CommandError(READ_ONLY, unimplemented=True)

    do_exchange = do_put


def _with_statuses(batches: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch, None, None]:
    with reported(), closing(batches):
        yield from batches
