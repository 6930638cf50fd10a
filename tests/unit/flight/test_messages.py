"""The messages of renewal and cancellation against protobuf itself, by the specification's field numbers."""

from __future__ import annotations

import pyarrow.flight as flight
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.access.flight import messages

_BYTES, _ENUM = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES, descriptor_pb2.FieldDescriptorProto.TYPE_ENUM


def _messages() -> dict[str, type]:
    """``RenewFlightEndpointRequest``, ``CancelFlightInfoRequest`` and its result; a message in a message has the form of bytes."""
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="arrow.flight.protocol", syntax="proto3")
    status = file.enum_type.add(name="CancelStatus")
    for number, name in enumerate(("UNSPECIFIED", "CANCELLED", "CANCELLING", "NOT_CANCELLABLE")):
        status.value.add(name=f"CANCEL_STATUS_{name}", number=number)
    for name, field in (("RenewFlightEndpointRequest", "endpoint"), ("CancelFlightInfoRequest", "info")):
        file.message_type.add(name=name).field.add(name=field, number=1, type=_BYTES, label=1)
    file.message_type.add(name="CancelFlightInfoResult").field.add(
        name="status", number=1, type=_ENUM, label=1, type_name=".arrow.flight.protocol.CancelStatus"
    )
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


def test_a_listed_info_is_its_descriptor() -> None:
    descriptor = flight.FlightDescriptor.for_path("share", "schema", "table" * 40)
    info = flight.FlightInfo.deserialize(messages.listed_info(descriptor.serialize()))
    assert (info.descriptor, info.endpoints, info.total_records, info.total_bytes) == (descriptor, [], -1, -1)
    assert info.serialize() == messages.listed_info(descriptor.serialize())


def test_fields_of_later_versions_are_skipped() -> None:
    later = b"\x18\x96\x01" + b"\x25\x00\x00\x00\x00" + b"\x29" + b"\x00" * 8 + b"\x12\x02hi"
    assert messages.unwrap(later + messages.wrap(b"x") + later) == b"x"
