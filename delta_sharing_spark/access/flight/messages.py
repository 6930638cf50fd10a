"""Encodes the protobuf messages of Flight that pyarrow does not wrap, or not always (Flight RPC, "Protocol Buffer Definitions").

Each request holds one message in its field 1; a message inside a message is its bytes, with tag and length before them.
"""

from __future__ import annotations

from enum import IntEnum

from delta_sharing_spark.scan.varint import append_varint, read_varint

#: Field 1, length-delimited; field 1, varint.
_MESSAGE_FIELD, _ENUM_FIELD = b"\x0a", b"\x08"
#: Of ``FlightInfo``: the descriptor's field; ``total_records`` and ``total_bytes``, both -1 (unknown).
_DESCRIPTOR_FIELD, _TOTALS_UNKNOWN = b"\x12", b"\x20" + b"\xff" * 9 + b"\x01" + b"\x28" + b"\xff" * 9 + b"\x01"


class CancelStatus(IntEnum):
    """``CancelStatus`` of the specification."""

    UNSPECIFIED = 0
    CANCELLED = 1
    CANCELLING = 2
    NOT_CANCELLABLE = 3


def wrap(message: bytes, tag: bytes = _MESSAGE_FIELD) -> bytes:
    """A ``RenewFlightEndpointRequest`` around a ``FlightEndpoint``, or a ``CancelFlightInfoRequest`` around a ``FlightInfo``."""
    request = bytearray(tag)
    append_varint(request, len(message))
    return bytes(request) + message


def listed_info(descriptor: bytes) -> bytes:
    """A ``FlightInfo`` of a ``FlightDescriptor`` alone; pyarrow before 21 ends the process where one without a schema is made."""
    return wrap(descriptor, _DESCRIPTOR_FIELD) + _TOTALS_UNKNOWN


def unwrap(request: bytes) -> bytes:
    """The message of field 1. Other fields are skipped, and of several messages the last one counts, as protobuf has it.

    Raises:
        ValueError: The bytes are no such request.
    """
    message: bytes | None = None
    position = 0
    while position < len(request):
        tag, position = _read_number(request, position)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            _, position = _read_number(request, position)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        elif kind == 2:
            length, position = _read_number(request, position)
            if field == 1:
                message = request[position : position + length]
            position += length
        else:
            raise ValueError(f"wire type {kind} is none of protobuf's")
        if position > len(request):
            raise ValueError("the message is cut")
    if message is None:
        raise ValueError("the message is empty")
    return message


def cancel_result(status: CancelStatus) -> bytes:
    """A ``CancelFlightInfoResult``."""
    return _ENUM_FIELD + bytes([status]) if status else b""


def _read_number(data: bytes, position: int) -> tuple[int, int]:
    try:
        return read_varint(data, position)
    except IndexError:
        raise ValueError("the message is cut") from None
