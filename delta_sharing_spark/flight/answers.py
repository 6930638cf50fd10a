"""Answers the calls of Arrow Flight that plan, the same for each server of a gateway (Flight RPC, "RPC Methods and Request Patterns")."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.access.flight.connection import CANCEL, DESCRIBE, RENEW, VERSION
from delta_sharing_spark.errors import CommandError, DeltaSharingError
from delta_sharing_spark.flight.commands import Command, parse_command, parse_path, table_names_matching
from delta_sharing_spark.flight.flights import MESSAGE_BYTES, FlightPlanner, Flights, PlannedFlight
from delta_sharing_spark.flight.polls import Poll, Polls
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.flight.tickets import Seal, Ticket, shared_part
from delta_sharing_spark.network.http import json_object
from delta_sharing_spark.schema.arrow import arrow_schema

if TYPE_CHECKING:
    from delta_sharing_spark.client import SharingClient

_log = logging.getLogger(__name__)

#: Bytes of a flight's info beside schema, descriptor and endpoints; bytes around each endpoint.
_ABOUT_BYTES, _ENDPOINT_BYTES = 8 << 10, 8
#: A client reads so many endpoints at the same time: a flight is not cut into fewer.
_LEAST_ENDPOINTS = 8
#: The actions, by name, with their descriptions.
ACTIONS = {
    RENEW: "Extend the time of an endpoint: the share is asked again. RenewFlightEndpointRequest -> FlightEndpoint.",
    CANCEL: "End a flight's reads and refuse its tickets. CancelFlightInfoRequest -> CancelFlightInfoResult.",
    VERSION: "A table's newest version, or its first one at or after a timestamp. A command -> a number; JSON.",
    DESCRIBE: "A table's version, id and schema. A command -> an object; JSON.",
}
#: Why there is neither DoPut nor DoExchange.
READ_ONLY = "Delta Sharing is read-only: this gateway takes no data, and speaks no Flight SQL; use DoGet"
#: Begins the descriptor of a later poll.
_POLL = b"delta-sharing-poll:"
#: Seconds that a first poll waits for a plan: a quick one is answered whole.
_FIRST_POLL = 0.1


@contextmanager
def reported() -> Iterator[None]:
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


class FlightAnswers:
    """Plans, describes, renews and cancels for callers whose identity a server has checked.

    Args:
        client: The client whose tables are served.
        settings: The bounds, and the key of the tickets.

    Attributes:
        planner, flights, polls: What plans, what reads, and the plans that are under way under polls.
        seal: What seals tickets and opens them.
    """

    def __init__(self, client: SharingClient, settings: GatewaySettings) -> None:
        self.planner = FlightPlanner(client, settings.ticket_seconds)
        self.flights = Flights(self.planner, settings)
        self.polls = Polls()
        self.seal = Seal(settings.key)

    def close(self) -> None:
        """End all reads and plans."""
        self.polls.close()
        self.flights.close()

    def listed(self, criteria: bytes) -> Iterator[bytes]:
        """The ``FlightInfo`` of each table that the criteria let through, with neither schema nor endpoints.

        The criteria are a prefix (``share.schema.``) or a glob (``*.trips``) of three-part names; empty means all.
        """
        for table in self.planner.tables(table_names_matching(criteria)):
            descriptor = flight.FlightDescriptor.for_path(table.share, table.schema, table.table)
            yield messages.listed_info(descriptor.serialize())

    def schema(self, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The schema of the rows of a descriptor."""
        return flight.SchemaResult(arrow_schema(self.planner.schema(_command(descriptor))))

    def info(
        self,
        descriptor: flight.FlightDescriptor,
        identity: str,
        locations: Sequence[flight.Location],
        poll: Poll | None = None,
    ) -> flight.FlightInfo:
        """Plan: an endpoint for each split, its ticket sealed for the caller.

        Args:
            descriptor: From the caller.
            identity: The caller, for whom tickets are sealed.
            locations: Where the rows are fetched.
            poll: Under which the flight is planned; it gets the flight's id and the plan's progress.
        """
        name, listed = (None, None) if poll is None else (poll.flight, poll.note)
        planned = self.planner.plan(_command(descriptor), identity, name, listed)
        schema = arrow_schema(planned.schema)
        about = {
            "flight": planned.flight,
            "table": str(planned.command.table),
            "version": planned.version,
            "accessMode": planned.access_mode,
            **planned.about,
        }
        room = MESSAGE_BYTES - len(schema.serialize()) - len(descriptor.serialize())
        return flight.FlightInfo(
            schema,
            descriptor,
            self._endpoints(planned, room, locations),
            -1 if planned.rows is None else planned.rows,
            planned.nbytes,
            planned.is_ordered,
            json.dumps(about).encode(),
        )

    def poll(
        self, descriptor: flight.FlightDescriptor, identity: str, locations: Sequence[flight.Location], seconds: float
    ) -> bytes:
        """The ``PollInfo`` of a plan: of a new one for a descriptor of rows, of the same one for a descriptor of ``PollInfo``.

        Args:
            descriptor, identity, locations: As of ``info``.
            seconds: For which a later poll waits for the plan's end.

        Raises:
            NotFoundError: A descriptor of ``PollInfo`` has expired, or is not of this gateway or another caller's.
            CancelledError: The flight was cancelled.
            UnavailableError: Too many plans are under way.
        """
        is_first = not _is_poll(descriptor)
        if not is_first:
            poll = self.polls.find(descriptor.command[len(_POLL) :].decode(errors="replace"), identity)
        else:
            _command(descriptor)  # what is wrong with it is told at once
            poll = self.polls.begin(
                identity,
                descriptor.serialize(),
                lambda poll: bytes(self.info(descriptor, identity, locations, poll).serialize()),
            )
            seconds = _FIRST_POLL
        info = self.polls.wait(poll, seconds)
        if info is not None:
            if is_first:  # it was given no descriptor to come again with
                self.polls.forget(poll)
            return messages.poll_info(info, 1.0)
        about = json.dumps({"flight": poll.flight, "listed": poll.listed}).encode()
        again = flight.FlightDescriptor.for_command(_POLL + poll.flight.encode()).serialize()
        return messages.poll_info(
            messages.listed_info(poll.descriptor, about), poll.progress, again, int(poll.expires * 1_000_000_000)
        )

    def act(self, action: str, request: bytes, identity: str, locations: Sequence[flight.Location]) -> bytes:
        """The result of one of ``ACTIONS``; raises CommandError where it is none of them."""
        plans = self.planner
        answers: dict[str, Callable[[], bytes]] = {
            RENEW: lambda: self._renew(request, identity, locations),
            CANCEL: lambda: self._cancel(request, identity),
            VERSION: lambda: json.dumps(plans.version(parse_command(request))).encode(),
            DESCRIBE: lambda: json.dumps(plans.describe(parse_command(request))).encode(),
        }
        answer = answers.get(action)
        if answer is None:
            raise CommandError(
                f"there is no action {action!r}; there are {', '.join(answers)} (and no Flight SQL)",
                unimplemented=True,
            )
        return answer()

    def _endpoints(
        self, planned: PlannedFlight, room: int, locations: Sequence[flight.Location]
    ) -> list[flight.FlightEndpoint]:
        """An endpoint for each split; fewer where a long condition stands in each, or the message has no room for so many.

        Where even a few endpoints have no room, the names and URLs of files fill the message, and each split has an endpoint. So it is in
        a stream, whose endpoints are of one version each: only our own client reads streams, and it takes messages of any size.
        """
        count = len(planned.splits)
        shared = shared_part(planned.command, planned.splits[0][0].spec) if count else None
        is_bound = planned.command.stream is None
        while True:
            endpoints, room_for_more = [], room - _ABOUT_BYTES
            for number in range(count):
                endpoints.append(self._endpoint(planned.ticket(number, count), locations, shared))
                room_for_more -= len(endpoints[-1].serialize()) + _ENDPOINT_BYTES
                if room_for_more < 0 and is_bound:
                    break
            else:
                return endpoints
            count = min(count // 2, len(endpoints) - 1)
            if count < _LEAST_ENDPOINTS:
                count, is_bound = len(planned.splits), False

    def _endpoint(
        self, ticket: Ticket, locations: Sequence[flight.Location], shared: bytes | None = None
    ) -> flight.FlightEndpoint:
        expires = pa.scalar(int(ticket.expires * 1_000_000_000), pa.timestamp("ns", "UTC"))
        about = json.dumps({"bytes": ticket.nbytes, **ticket.about}).encode()
        return flight.FlightEndpoint(self.seal.close(ticket, shared), list(locations), expires, about)

    def _renew(self, request: bytes, identity: str, locations: Sequence[flight.Location]) -> bytes:
        endpoint = _message(request, flight.FlightEndpoint, RENEW)
        ticket = self.seal.open(endpoint.ticket.ticket, identity, may_be_expired=True)
        return bytes(self._endpoint(self.flights.renew(ticket), locations).serialize())

    def _cancel(self, request: bytes, identity: str) -> bytes:
        info = _message(request, flight.FlightInfo, CANCEL)
        sealed = (endpoint.ticket.ticket for endpoint in info.endpoints)
        names = {self.seal.open(ticket, identity, may_be_expired=True).flight for ticket in sealed}
        planned = _flight_of(info)
        if planned is not None and self.polls.cancel(planned, identity):
            names.add(planned)
        for name in names:
            self.flights.cancel(name)
        return messages.cancel_result(messages.CANCELLED if names else messages.NOT_CANCELLABLE)


def _is_poll(descriptor: flight.FlightDescriptor) -> bool:
    return descriptor.descriptor_type == flight.DescriptorType.CMD and descriptor.command.startswith(_POLL)


def _flight_of(info: flight.FlightInfo) -> str | None:
    """The id of the flight of an info that a poll answered; None where the info names none."""
    name = (json_object(info.app_metadata) or {}).get("flight")
    return name if isinstance(name, str) else None


def _command(descriptor: flight.FlightDescriptor) -> Command:
    if descriptor.descriptor_type == flight.DescriptorType.PATH:
        return parse_path(descriptor.path)
    return parse_command(descriptor.command)


def _message(request: bytes, kind: Any, action: str) -> Any:
    try:
        return kind.deserialize(messages.unwrap(request))
    except (ValueError, pa.ArrowException):
        raise CommandError(f"the body of {action} is not the protobuf message {action}Request") from None
