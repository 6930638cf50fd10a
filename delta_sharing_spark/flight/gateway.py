"""Answers each method of Arrow Flight (Flight RPC, "RPC Methods and Request Patterns"), for callers who prove themselves."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import logging
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.access.flight.connection import CANCEL, DESCRIBE, RENEW, VERSION
from delta_sharing_spark.access.load import Recipient
from delta_sharing_spark.errors import CommandError, ConfigError, DeltaSharingError
from delta_sharing_spark.flight.commands import Command, parse_command, parse_path, table_names_matching
from delta_sharing_spark.flight.connections import FlightConnections
from delta_sharing_spark.flight.flights import MESSAGE_BYTES, FlightPlanner, Flights, PlannedFlight
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.flight.tickets import Seal, Ticket, shared_part
from delta_sharing_spark.schema.arrow import arrow_schema

if TYPE_CHECKING:
    from delta_sharing_spark.client import SharingClient


#: The identity of a caller that needs no token: the gateway was told to ask for none.
ANYONE = "anyone"
_MIDDLEWARE = "identity"


class Tokens(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow is untyped
    """Checks the ``authorization`` header of every call.

    ``Bearer <token>`` is a token itself; ``Basic`` is for the handshake of clients that know nothing else: the password is the
    token, the user's name is not looked at, and the answer's header has the bearer token.

    Args:
        tokens: The tokens that callers may have. A caller's identity is a digest of its token, which admits nobody.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tuple(tokens)

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[str]]) -> _Caller:
        """Identify the caller (``flight.ServerMiddlewareFactory``)."""
        values = next((v for k, v in headers.items() if k.lower() == "authorization"), ())
        kind, _, value = str(values[0] if len(values) == 1 else "").partition(" ")
        token = value.strip()
        if kind.lower() == "basic":
            token = _password(token)
        elif kind.lower() != "bearer":
            token = ""
        for known in self._tokens:
            if hmac.compare_digest(known.encode(), token.encode(errors="replace")):
                return _Caller(known, is_handshake=kind.lower() == "basic")
        raise flight.FlightUnauthenticatedError(
            "the call has no token that this gateway knows; send the header 'authorization: Bearer <token>'",
            extra_info=b'{"error": "UnauthenticatedError"}',
        )


class _Caller(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow is untyped
    """The caller of one call."""

    def __init__(self, token: str, *, is_handshake: bool) -> None:
        self.identity = "token " + hashlib.sha256(token.encode()).hexdigest()[:16]
        self._answer = {"authorization": f"Bearer {token}"} if is_handshake else {}

    def sending_headers(self) -> dict[str, str]:
        """The bearer token, in answer to a basic handshake."""
        return self._answer


class HandshakeByHeader(flight.ServerAuthHandler):  # type: ignore[misc]  # pyarrow is untyped
    """Lets a handshake succeed whose header the middleware has checked; without a handler pyarrow refuses every handshake."""

    def authenticate(self, outgoing: object, incoming: object) -> None:
        """Accept: the middleware has checked the header."""

    def is_valid(self, token: bytes) -> bytes:
        """Return no identity: the middleware holds it."""
        return b""


def middleware(tokens: Sequence[str]) -> dict[str, flight.ServerMiddlewareFactory]:
    """The server's middleware; none where no token is asked for."""
    return {_MIDDLEWARE: Tokens(tokens)} if tokens else {}


def identity_of(context: flight.ServerCallContext) -> str:
    """The caller: by its token, else by its certificate's name, else ``ANYONE``."""
    caller = context.get_middleware(_MIDDLEWARE)
    if isinstance(caller, _Caller):
        return caller.identity
    certificate = context.peer_identity()
    return f"certificate {certificate.decode(errors='replace')}" if certificate else ANYONE


def _password(encoded: str) -> str:
    try:
        # arrow-go and ADBC leave the padding out.
        padded = encoded.rstrip("=") + "=" * (-len(encoded.rstrip("=")) % 4)
        return base64.b64decode(padded, validate=True).decode().partition(":")[2]
    except (binascii.Error, ValueError):
        return ""


_log = logging.getLogger(__name__)

#: Tells a client to fetch over the connection it has (Flight RPC, "Connection Reuse").
REUSE_CONNECTION = "arrow-flight-reuse-connection://?"
#: Bytes of a flight's info beside schema, descriptor and endpoints; bytes around each endpoint.
_ABOUT_BYTES, _ENDPOINT_BYTES = 8 << 10, 8
#: A client reads so many endpoints at the same time: a flight is not cut into fewer.
_LEAST_ENDPOINTS = 8
_ACTIONS = {
    RENEW: "Extend the time of an endpoint: the share is asked again. RenewFlightEndpointRequest -> FlightEndpoint.",
    CANCEL: "End a flight's reads and refuse its tickets. CancelFlightInfoRequest -> CancelFlightInfoResult.",
    VERSION: "A table's newest version, or its first one at or after a timestamp. A command -> a number; JSON.",
    DESCRIBE: "A table's version, id and schema. A command -> an object; JSON.",
}
_READ_ONLY = "Delta Sharing is read-only: this gateway takes no data, and speaks no Flight SQL; use DoGet"


@contextmanager
def _reported() -> Iterator[None]:
    """Turns errors into statuses of Flight, with our message and without a traceback."""
    try:
        yield
    except DeltaSharingError as error:
        _log.info("refused: %s", error)
        raise messages.to_status(error) from None
    except (flight.FlightError, GeneratorExit):
        raise
    except Exception as error:  # a defect of ours: the log has its traceback, the caller a status
        _log.exception("a call failed")
        raise messages.internal(error) from None


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
        self._planner = FlightPlanner(client, settings.ticket_seconds)
        self._flights = Flights(self._planner, settings)
        self._seal = Seal(settings.key)
        locations = settings.advertised or (REUSE_CONNECTION,)
        self._locations = [flight.Location(uri) for uri in locations]
        super().__init__(
            settings.listen,
            auth_handler=HandshakeByHeader() if tokens else None,
            middleware=middleware(tokens),
            **settings.tls_arguments(),
        )
        self._connections = FlightConnections(self.port)
        weakref.finalize(self, self._connections.close)

    def __repr__(self) -> str:
        return f"FlightGateway({self.uri!r})"

    @property
    def uri(self) -> str:
        """The address it listens on, with the actual port."""
        scheme, _, rest = self.settings.listen.partition("://")
        host, _, _ = rest.rpartition(":")
        return f"{scheme}://{host}:{self.port}"

    @property
    def share(self) -> str:
        """The endpoint of the sharing server whose tables are served."""
        return self._client.profile.endpoint

    def shutdown(self) -> None:
        """End all reads, then the server."""
        self._connections.close()
        self._flights.close()
        super().shutdown()

    @contextmanager
    def _called(self, context: flight.ServerCallContext) -> Iterator[None]:
        """A call, whose token was right: its connection is one that may last."""
        self._connections.admit(context.peer())
        with _reported():
            yield

    # --- what there is ------------------------------------------------------------------------------------------------

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """One flight for each table that the criteria let through, with neither schema nor endpoints.

        The criteria are a prefix (``share.schema.``) or a glob (``*.trips``) of three-part names; empty means all.
        """
        with self._called(context):
            for table in self._planner.tables(table_names_matching(criteria)):
                descriptor = flight.FlightDescriptor.for_path(table.share, table.schema, table.table)
                yield flight.FlightInfo.deserialize(messages.listed_info(descriptor.serialize()))

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The schema of the rows of a descriptor."""
        with self._called(context):
            return flight.SchemaResult(arrow_schema(self._planner.schema(_command(descriptor))))

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Plan: an endpoint for each split, its ticket sealed for the caller."""
        with self._called(context):
            planned = self._planner.plan(_command(descriptor), identity_of(context))
            schema = arrow_schema(planned.schema)
            about = {
                "flight": planned.flight,
                "table": str(planned.command.table),
                "version": planned.version,
                "accessMode": planned.access_mode,
                **planned.about,
            }
            return flight.FlightInfo(
                schema,
                descriptor,
                self._endpoints(planned, MESSAGE_BYTES - len(schema.serialize()) - len(descriptor.serialize())),
                -1 if planned.rows is None else planned.rows,
                planned.nbytes,
                planned.is_ordered,
                json.dumps(about).encode(),
            )

    def _endpoints(self, planned: PlannedFlight, room: int) -> list[flight.FlightEndpoint]:
        """An endpoint for each split; fewer where a long condition stands in each, or the message has no room for so many.

        Where even a few endpoints have no room, the names and URLs of files fill the message, and each split has an endpoint. So it is in
        a stream, whose endpoints are of one version each: only our own client reads streams, and it takes messages of any size.
        """
        count = len(planned.splits)
        shared = shared_part(planned.command, planned.splits[0][0].spec) if count else None
        is_bound = planned.command.stream is None
        while True:
            endpoints, left = [], room - _ABOUT_BYTES
            for number in range(count):
                endpoints.append(self._endpoint(planned.ticket(number, count), shared))
                left -= len(endpoints[-1].serialize()) + _ENDPOINT_BYTES
                if left < 0 and is_bound:
                    break
            else:
                return endpoints
            count = min(count // 2, len(endpoints) - 1)
            if count < _LEAST_ENDPOINTS:
                count, is_bound = len(planned.splits), False

    def _endpoint(self, ticket: Ticket, shared: bytes | None = None) -> flight.FlightEndpoint:
        expires = pa.scalar(int(ticket.expires * 1_000_000_000), pa.timestamp("ns", "UTC"))
        about = json.dumps({"bytes": ticket.nbytes, **ticket.about}).encode()
        return flight.FlightEndpoint(self._seal.close(ticket, shared), self._locations, expires, about)

    # --- rows ---------------------------------------------------------------------------------------------------------

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """The rows of one endpoint, read no faster than the client takes them."""
        with self._called(context):
            opened = self._seal.open(ticket.ticket, identity_of(context))
            batches = self._flights.read(opened, context.is_cancelled)
            return flight.GeneratorStream(arrow_schema(opened.splits[0].spec.schema), _with_statuses(batches))

    # --- actions ------------------------------------------------------------------------------------------------------

    def list_actions(self, context: flight.ServerCallContext) -> list[flight.ActionType]:
        """The actions: renewal, cancellation, a table's newest version and its description."""
        self._connections.admit(context.peer())
        return [flight.ActionType(name, about) for name, about in _ACTIONS.items()]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """One of ``list_actions``."""
        plans = self._planner
        known: dict[str, Callable[[bytes, str], bytes]] = {
            RENEW: self._renew,
            CANCEL: self._cancel,
            VERSION: lambda request, _: json.dumps(plans.version(parse_command(request))).encode(),
            DESCRIBE: lambda request, _: json.dumps(plans.describe(parse_command(request))).encode(),
        }
        with self._called(context):
            answer = known.get(action.type)
            if answer is None:
                raise CommandError(
                    f"there is no action {action.type!r}; there are {', '.join(known)} (and no Flight SQL)",
                    unimplemented=True,
                )
            return [answer(action.body.to_pybytes(), identity_of(context))]

    def _renew(self, request: bytes, identity: str) -> bytes:
        endpoint = _message(request, flight.FlightEndpoint, RENEW)
        ticket = self._seal.open(endpoint.ticket.ticket, identity, may_be_expired=True)
        return bytes(self._endpoint(self._flights.renew(ticket)).serialize())

    def _cancel(self, request: bytes, identity: str) -> bytes:
        info = _message(request, flight.FlightInfo, CANCEL)
        sealed = (endpoint.ticket.ticket for endpoint in info.endpoints)
        tickets = [self._seal.open(ticket, identity, may_be_expired=True) for ticket in sealed]
        status = messages.CANCELLED if tickets else messages.NOT_CANCELLABLE
        for name in {ticket.flight for ticket in tickets}:
            self._flights.cancel(name)
        return messages.cancel_result(status)

    # --- what a read-only gateway refuses ------------------------------------------------------------------------------

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Refuse: the gateway is read-only."""
        with self._called(context):
            raise CommandError(_READ_ONLY, unimplemented=True)

    do_exchange = do_put


def _command(descriptor: flight.FlightDescriptor) -> Command:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return parse_path(descriptor.path)
    return parse_command(descriptor.command)


def _message(request: bytes, kind: Any, action: str) -> Any:
    try:
        return kind.deserialize(messages.unwrap(request))
    except (ValueError, pa.ArrowException):
        raise CommandError(f"the body of {action} is not the protobuf message {action}Request") from None


def _with_statuses(batches: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch, None, None]:
    with _reported(), closing(batches):
        yield from batches
