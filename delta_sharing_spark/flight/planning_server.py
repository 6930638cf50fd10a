"""Answers the calls of Arrow Flight that plan by grpcio, ``PollFlightInfo`` among them, for which pyarrow's server has no hook."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from delta_sharing_spark._version import install_line
from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.errors import CommandError, ConfigError
from delta_sharing_spark.flight.answers import ACTIONS, READ_ONLY, FlightAnswers, reported
from delta_sharing_spark.flight.callers import ANYONE, Tokens, certificate_identity
from delta_sharing_spark.flight.connections import FlightConnections
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.network.parallel_calls import DaemonPool

_SERVICE = "/arrow.flight.protocol.FlightService/"
#: Calls that are answered at one time; as many more wait, and those beyond are told RESOURCE_EXHAUSTED.
_CALLS = 64
#: Seconds that a poll waits for the end of its plan; the share of its caller's deadline that it uses.
_LONG_POLL, _SHARE_OF_DEADLINE = 20.0, 0.8
#: Messages are bounded as pyarrow's server has them: by ``FlightConnections``. A port is not shared with another process.
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)
#: A call of one caller: its messages, who it is and grpcio's context; the messages of the answer.
_Answer = Callable[[Iterator[bytes], str, Any], Iterator[bytes]]


class PlanningServer:
    """A server beside pyarrow's, with the same callers, whose endpoints name pyarrow's as the place of the rows.

    Args:
        answers: What it answers.
        settings: The host and TLS of the gateway, its tokens and ``poll_port``.
        locations: Where rows are fetched.

    Raises:
        ConfigError: grpcio is missing, or the port cannot be listened on.
    """

    def __init__(self, answers: FlightAnswers, settings: GatewaySettings, locations: Sequence[str]) -> None:
        try:
            import grpc
        except ImportError:
            raise ConfigError(
                "polls are answered with the package grpcio, which is not installed; "
                f"run: {install_line('flight-poll')}"
            ) from None
        self._answers = answers
        self._locations = [flight.Location(uri) for uri in locations]
        self._tokens = Tokens(settings.tokens) if settings.tokens else None
        self._threads = DaemonPool(_CALLS, "delta-sharing-flight-poll")
        self._server = grpc.server(
            self._threads, options=_OPTIONS, maximum_concurrent_rpcs=_CALLS * 2, handlers=(_Methods(self._methods()),)
        )
        address = settings.address(settings.poll_port or 0).partition("://")[2]
        try:
            self.port = self._listen(address, settings.tls_arguments())
        except RuntimeError as error:
            raise ConfigError(
                f"polls cannot be answered on {address} ({error}); give another port, or 0 for a free one"
            ) from None
        self._connections = FlightConnections(self.port)
        self._server.start()

    def close(self) -> None:
        """End all calls and the server."""
        self._connections.close()
        self._server.stop(None).wait()
        self._threads.close()

    def _listen(self, address: str, tls: dict[str, Any]) -> int:
        import grpc

        if not tls:
            return int(self._server.add_insecure_port(address))
        pairs = [(key, certificate) for certificate, key in tls["tls_certificates"]]
        credentials = grpc.ssl_server_credentials(pairs, tls.get("root_certificates"), tls["verify_client"])
        return int(self._server.add_secure_port(address, credentials))

    def _methods(self) -> dict[str, Any]:
        """The handler of each method.

        All are of the kind that streams both ways, which is the same on the wire. Such a handler runs before a message has come, so
        that whoever shows no token waits for nothing and holds no thread.
        """
        import grpc

        answers: dict[str, _Answer] = {
            "Handshake": self._handshake,
            "ListFlights": lambda requests, *_: self._answers.listed(_expression(_message(requests))),
            "GetFlightInfo": self._get_flight_info,
            "PollFlightInfo": self._poll_flight_info,
            "GetSchema": lambda requests, *_: iter([self._answers.schema(_descriptor(_message(requests))).serialize()]),
            "DoAction": self._do_action,
            "ListActions": lambda *_: (messages.action_type(*action) for action in ACTIONS.items()),
            "DoGet": self._refuse_rows,
            "DoPut": self._refuse_data,
            "DoExchange": self._refuse_data,
        }

        def handler(answer: _Answer) -> Any:
            return grpc.stream_stream_rpc_method_handler(lambda requests, call: self._call(answer, requests, call))

        return {_SERVICE + name: handler(answer) for name, answer in answers.items()}

    def _call(self, answer: _Answer, requests: Iterator[bytes], call: Any) -> Iterator[bytes]:
        """Answer a caller that may call; end the call with the status that pyarrow's server has for an error."""
        import grpc

        try:
            with reported():
                identity = self._admitted(call)
                yield from answer(requests, identity, call)
        except (flight.FlightError, LookupError, ValueError, NotImplementedError) as error:
            status = messages.wire_status(error)
            call.set_trailing_metadata(status.trailers)
            call.set_code(getattr(grpc.StatusCode, status.code))
            call.set_details(status.details)

    def _admitted(self, call: Any) -> str:
        """The identity of a caller, by the rules of pyarrow's server."""
        identity = certificate_identity(next(iter(call.peer_identities() or ()), b"")) or ANYONE
        if self._tokens is not None:
            headers: dict[str, list[str]] = defaultdict(list)
            for name, value in call.invocation_metadata():
                headers[name].append(value)
            caller = self._tokens.start_call(None, headers)
            identity = caller.identity
            answer = tuple(caller.sending_headers().items())
            if answer:
                call.send_initial_metadata(answer)
        self._connections.admit(call.peer())
        return identity

    def _handshake(self, requests: Iterator[bytes], identity: str, call: Any) -> Iterator[bytes]:
        if self._tokens is None:
            raise CommandError("the gateway asks for no token, and has no handshake", unimplemented=True)
        return iter(())

    def _get_flight_info(self, requests: Iterator[bytes], identity: str, call: Any) -> Iterator[bytes]:
        yield self._answers.info(_descriptor(_message(requests)), identity, self._locations).serialize()

    def _poll_flight_info(self, requests: Iterator[bytes], identity: str, call: Any) -> Iterator[bytes]:
        seconds = min(_LONG_POLL, _SHARE_OF_DEADLINE * (call.time_remaining() or _LONG_POLL))
        yield self._answers.poll(_descriptor(_message(requests)), identity, self._locations, seconds)

    def _do_action(self, requests: Iterator[bytes], identity: str, call: Any) -> Iterator[bytes]:
        action = _parsed(flight.Action, _message(requests))
        result = self._answers.act(action.type, action.body.to_pybytes(), identity, self._locations)
        yield flight.Result(result).serialize()

    def _refuse_rows(self, requests: Iterator[bytes], identity: str, call: Any) -> Iterator[bytes]:
        places = " or ".join(location.uri.decode() for location in self._locations)
        raise CommandError(
            f"this port plans and sends no rows; fetch them from the endpoint's location, {places}", unimplemented=True
        )

    def _refuse_data(self, requests: Iterator[bytes], identity: str, call: Any) -> Iterator[bytes]:
        raise CommandError(READ_ONLY, unimplemented=True)


class _Methods:
    """Finds the handler of a method (``grpc.GenericRpcHandler``)."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers

    def service(self, call: Any) -> Any:
        """The handler of a method; None where there is none, which grpcio answers with UNIMPLEMENTED."""
        return self._handlers.get(call.method)


def _message(requests: Iterator[bytes]) -> bytes:
    """The one message of a call."""
    for request in requests:
        return request
    raise CommandError("the call ended before its message came")


def _descriptor(request: bytes) -> flight.FlightDescriptor:
    return _parsed(flight.FlightDescriptor, request)


def _parsed(kind: Any, request: bytes) -> Any:
    try:
        return kind.deserialize(request)
    except (ValueError, pa.ArrowException) as error:
        raise CommandError(f"the message is no {kind.__name__} ({error}); send one of Arrow Flight's") from None


def _expression(request: bytes) -> bytes:
    """The expression of a ``Criteria``, which is empty where it is not there."""
    try:
        return messages.unwrap(request) if request else b""
    except ValueError as error:
        raise CommandError(f"the message is no Criteria ({error}); send one of Arrow Flight's") from None
