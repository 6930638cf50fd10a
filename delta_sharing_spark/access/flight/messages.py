"""The two protobuf messages of Flight that pyarrow does not wrap: renewal and cancellation (Flight RPC, "Protocol Buffer Definitions").

Each request holds one message in its field 1; a message inside a message is its bytes, with tag and length before them.
"""

from __future__ import annotations

from enum import IntEnum

#: Field 1, length-delimited; field 1, varint.
_MESSAGE_FIELD, _ENUM_FIELD = b"\x0a", b"\x08"
#: The most bytes of a varint.
_LONGEST_VARINT = 10


class CancelStatus(IntEnum):
    """``CancelStatus`` of the specification."""

    UNSPECIFIED = 0
    CANCELLED = 1
    CANCELLING = 2
    NOT_CANCELLABLE = 3


def wrap(message: bytes) -> bytes:
    """A ``RenewFlightEndpointRequest`` around a ``FlightEndpoint``, or a ``CancelFlightInfoRequest`` around a ``FlightInfo``."""
    return _MESSAGE_FIELD + _varint(len(message)) + message


def unwrap(request: bytes) -> bytes:
    """The message of field 1. Other fields are skipped, and of several messages the last one counts, as protobuf has it.

    Raises:
        ValueError: The bytes are no such request.
    """
    message: bytes | None = None
    position = 0
    while position < len(request):
        tag, position = _read_varint(request, position)
        field, kind = tag >> 3, tag & 7
        if kind == 0:
            _, position = _read_varint(request, position)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        elif kind == 2:
            length, position = _read_varint(request, position)
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
    return _ENUM_FIELD + _varint(int(status)) if status else b""


def parse_cancel_result(result: bytes) -> CancelStatus:
    """The status of a ``CancelFlightInfoResult``; protobuf leaves out a field that is zero.

    Raises:
        ValueError: The bytes are no such result.
    """
    if not result:
        return CancelStatus.UNSPECIFIED
    tag, position = _read_varint(result, 0)
    if tag != _ENUM_FIELD[0]:
        raise ValueError("the message has no status")
    return CancelStatus(_read_varint(result, position)[0])


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    number = 0
    for index in range(_LONGEST_VARINT):
        if position + index >= len(data):
            raise ValueError("the message is cut")
        byte = data[position + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, position + index + 1
    raise ValueError("a number is too long")
