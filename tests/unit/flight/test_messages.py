"""The messages of renewal, cancellation and polls against protobuf itself, by the specification's field numbers."""

from __future__ import annotations

import pyarrow.flight as flight
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark import errors
from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.errors import CommandError, DeltaSharingError

_BYTES, _ENUM = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES, descriptor_pb2.FieldDescriptorProto.TYPE_ENUM
_DOUBLE, _STRING = descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE, descriptor_pb2.FieldDescriptorProto.TYPE_STRING


def _messages() -> dict[str, type]:
    """Requests, results, ``PollInfo`` and ``ActionType``; a message in a message has the form of bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="arrow.flight.protocol", syntax="proto3")
    status = file.enum_type.add(name="CancelStatus")
    for number, name in enumerate(("UNSPECIFIED", "CANCELLED", "CANCELLING", "NOT_CANCELLABLE")):
        status.value.add(name=f"CANCEL_STATUS_{name}", number=number)
    for name, field in (("RenewFlightEndpointRequest", "endpoint"), ("CancelFlightInfoRequest", "info")):
        file.message_type.add(name=name).field.add(name=field, number=1, type=_BYTES, label=1)
    file.message_type.add(name="CancelFlightInfoResult").field.add(
        name="status", number=1, type=_ENUM, label=1, type_name=".arrow.flight.protocol.CancelStatus"
    )
    poll = file.message_type.add(name="PollInfo")
    poll.oneof_decl.add(name="_progress")
    for number, (name, kind) in enumerate(
        (("info", _BYTES), ("flight_descriptor", _BYTES), ("progress", _DOUBLE), ("expiration_time", _BYTES)), 1
    ):
        poll.field.add(name=name, number=number, type=kind, label=1)
    poll.field[2].proto3_optional, poll.field[2].oneof_index = True, 0
    kind = file.message_type.add(name="ActionType")
    for number, name in enumerate(("type", "description"), 1):
        kind.field.add(name=name, number=number, type=_STRING, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [f"arrow.flight.protocol.{message.name}" for message in file.message_type]
    return {n.rpartition(".")[2]: message_factory.GetMessageClass(pool.FindMessageTypeByName(n)) for n in names}


_OF = _messages()


@given(st.binary(max_size=400))
def test_requests_are_protobufs_own_bytes(inner: bytes) -> None:
    theirs = _OF["RenewFlightEndpointRequest"](endpoint=inner).SerializeToString()
    if inner:  # protobuf leaves an empty field out, and a message in a field is there however empty
        assert messages.wrap(inner) == theirs
    assert _OF["CancelFlightInfoRequest"].FromString(messages.wrap(inner)).info == inner
    assert messages.unwrap(messages.wrap(inner)) == inner


@given(st.binary(max_size=64))
def test_any_bytes_are_a_request_or_an_error(data: bytes) -> None:
    try:
        inner = messages.unwrap(data)
    except ValueError:
        return
    assert inner in data


@pytest.mark.parametrize("status", [messages.CANCELLED, messages.NOT_CANCELLABLE])
def test_results_are_protobufs_own_bytes(status: int) -> None:
    theirs = _OF["CancelFlightInfoResult"](status=status).SerializeToString()
    assert messages.cancel_result(status) == theirs


@given(
    st.binary(min_size=1, max_size=400),
    st.floats(0, 1),
    st.none() | st.binary(min_size=1, max_size=400),
    st.integers(1_000_000_001, 1 << 62),
)
def test_poll_infos_are_protobufs_own_bytes(info: bytes, progress: float, descriptor: bytes | None, ends: int) -> None:
    theirs = _OF["PollInfo"](info=info, progress=progress)
    if descriptor is not None:
        instant = timestamp_pb2.Timestamp()
        instant.FromNanoseconds(ends)
        theirs.flight_descriptor, theirs.expiration_time = descriptor, instant.SerializeToString()
    ours = _OF["PollInfo"].FromString(messages.poll_info(info, progress, descriptor, ends))
    if descriptor is not None:
        assert timestamp_pb2.Timestamp.FromString(ours.expiration_time).ToNanoseconds() == ends
        ours.expiration_time = theirs.expiration_time  # protobuf leaves out nanos of 0
    assert ours == theirs


def test_action_types_are_protobufs_own_bytes() -> None:
    theirs = _OF["ActionType"](type="Renew", description="it renews").SerializeToString()
    assert messages.action_type("Renew", "it renews") == theirs


_ERRORS: list[DeltaSharingError | None] = [
    CommandError("no JSON \u00e9"),
    CommandError("no", unimplemented=True),
    errors.NotFoundError("none"),
    errors.VersionError("none"),
    errors.SchemaError("odd"),
    errors.TicketError("late", reason="expired"),
    errors.TicketError("forged", reason="forged"),
    errors.UnauthenticatedError("who"),
    errors.ForbiddenError("no"),
    errors.CancelledError("over"),
    errors.UnavailableError("busy"),
    errors.FileError("damaged", file="a.parquet"),
    None,
]


class _Raising(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow is untyped
    def get_flight_info(self, context: object, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        raise _exception(int(descriptor.command))


def _exception(number: int) -> Exception:
    error = _ERRORS[number]
    return messages.internal(OSError("secret")) if error is None else messages.to_status(error)


@pytest.mark.parametrize("number", range(len(_ERRORS)))
def test_a_status_is_the_one_that_pyarrows_server_sends(number: int) -> None:
    grpc = pytest.importorskip("grpc")
    with _Raising("grpc+tcp://127.0.0.1:0") as server, grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        ask = channel.unary_unary("/arrow.flight.protocol.FlightService/GetFlightInfo")
        with pytest.raises(grpc.RpcError) as refused:
            ask(flight.FlightDescriptor.for_command(str(number)).serialize())
    status = messages.wire_status(_exception(number))
    assert refused.value.code() == getattr(grpc.StatusCode, status.code)
    assert refused.value.details() == status.details
    assert dict(refused.value.trailing_metadata()) == dict(status.trailers)


def test_a_listed_info_is_its_descriptor() -> None:
    descriptor = flight.FlightDescriptor.for_path("share", "schema", "table" * 40)
    info = flight.FlightInfo.deserialize(messages.listed_info(descriptor.serialize()))
    assert (info.descriptor, info.endpoints, info.total_records, info.total_bytes) == (descriptor, [], -1, -1)
    assert info.serialize() == messages.listed_info(descriptor.serialize())


def test_fields_of_later_versions_are_skipped() -> None:
    later = b"\x18\x96\x01" + b"\x25\x00\x00\x00\x00" + b"\x29" + b"\x00" * 8 + b"\x12\x02hi"
    assert messages.unwrap(later + messages.wrap(b"x") + later) == b"x"
