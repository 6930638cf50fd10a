"""Encodes what Flight carries beside rows: our errors as statuses, and protobuf messages (Flight RPC, "Protocol Buffer Definitions").

The messages are those that pyarrow does not wrap, or not always. Each request holds one message in its field 1: its bytes, with tag
and length before them. Five of pyarrow's statuses have extra info beside their text: JSON with ``error`` (the class in ``errors``)
and what the error knows (``file``, ``status``, ``reason``). NOT_FOUND, INVALID_ARGUMENT and UNIMPLEMENTED are Python's own
exceptions, which take no extra info: there the text ends with the class's name.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from delta_sharing_spark import errors
from delta_sharing_spark.errors import (
    CommandError,
    ConfigError,
    CredentialError,
    DeltaSharingError,
    FileGoneError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    RequestRefusedError,
    TicketError,
    UnauthenticatedError,
    UnavailableError,
    VersionError,
)
from delta_sharing_spark.network.http import json_object
from delta_sharing_spark.parquet.thrift import append_varint, read_varint

#: What an error may know that a client can use.
_DETAILS = ("file", "column", "status", "error_code", "reason")
_LAST_WORD = re.compile(r"\. Detail: (?:Python exception: (?P<name>\w+)|\w+)(?s:\. gRPC client debug context.*)?$")
#: Field 1, length-delimited; field 1, varint.
_MESSAGE_FIELD, _ENUM_FIELD = b"\x0a", b"\x08"
#: Field 2, varint; of ``PollInfo`` the fields 3 (double) and 4; of ``FlightInfo`` the field 7.
_SECOND_ENUM_FIELD, _PROGRESS_FIELD, _EXPIRATION_FIELD, _ABOUT_FIELD = b"\x10", b"\x19", b"\x22", b"\x3a"
#: Of ``FlightInfo``: the descriptor's field; ``total_records`` and ``total_bytes``, both -1 (unknown).
_DESCRIPTOR_FIELD, _TOTALS_UNKNOWN = b"\x12", b"\x20" + b"\xff" * 9 + b"\x01" + b"\x28" + b"\xff" * 9 + b"\x01"


def to_status(error: DeltaSharingError) -> Exception:
    """The exception that pyarrow's server turns into the status of ``error``."""
    if isinstance(error, CommandError) and error.unimplemented:
        return _plain_status(type(error).__name__, NotImplementedError, str(error))  # pyarrow sends UNIMPLEMENTED
    if isinstance(error, (NotFoundError, VersionError)):
        return _plain_status(type(error).__name__, KeyError, str(error))
    if isinstance(error, (ConfigError, errors.SchemaError)):
        return _plain_status(type(error).__name__, ValueError, str(error))
    details: dict[str, Any] = {"error": type(error).__name__}
    details |= {name: value for name in _DETAILS if (value := getattr(error, name, None)) is not None}
    return _flight_class(error)(str(error), extra_info=json.dumps(details).encode())


def internal(error: BaseException) -> Exception:
    """The status of a defect: its kind, and nothing that the exception says, which may be anything."""
    return flight.FlightInternalError(
        f"the gateway failed ({type(error).__name__}); its log has the cause", extra_info=b'{"error": "InternalError"}'
    )


#: What to do where gRPC came to no answer, by its words.
_ADVICE = (
    (
        "certificate has expired|not yet valid",
        "check the clock of this machine, and ask its operator for another certificate",
    ),
    (
        "certificate verify failed",
        "set the option caBundle to the authority of its certificate, or ask its operator whether it sends all of its chain",
    ),
    ("not in peer certificate", "check its address: the certificate is that of another host"),
    ("wrong version number", "it listens without TLS: write grpc+tcp://"),
    (
        "empty address list",
        "check that the files of the options caBundle, gatewayCertificate and gatewayKey are PEM, and that the key is the "
        "certificate's",
    ),
    (
        "Socket closed|Connection reset",
        "check its address (grpc+tls:// if it listens with TLS) and its log, and whether it wants a certificate of its callers "
        "(the options gatewayCertificate and gatewayKey)",
    ),
    ("", "check its address and log"),
)


def from_status(error: Exception, gateway: str, *, has_token: bool = False) -> DeltaSharingError:
    """What a gateway answered, as the error that it was there.

    Args:
        error: From pyarrow's Flight client.
        gateway: Its address, for errors that are of the way to it.
        has_token: Whether it was sent a token.
    """
    if isinstance(error, flight.FlightUnauthenticatedError):
        why = "does not know the token it was sent" if has_token else "asks for a token, and none was sent"
        return UnauthenticatedError(
            f"the Flight gateway {gateway} {why}; name a file with its token in the option gatewayTokenFile, set "
            "DELTA_SHARING_FLIGHT_TOKEN, or in Python pass token= to SharingClient.over"
        )
    text = str(error)
    word = _LAST_WORD.search(text)
    message = text[: word.start()] if word else text
    tree = json_object(getattr(error, "extra_info", None) or b"") or {}
    details = {name: tree[name] for name in ("error", *_DETAILS) if name in tree}
    name = details.pop("error", None) or (word["name"] if word else None)
    kind = getattr(errors, str(name), None)
    if isinstance(kind, type) and issubclass(kind, DeltaSharingError):
        return kind(message, **details)
    if isinstance(error, flight.FlightUnauthorizedError):
        return ForbiddenError(f"the Flight gateway {gateway} refuses: {message}")
    if isinstance(
        error, (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightInternalError, OSError)
    ):
        advice = next(advice for words, advice in _ADVICE if re.search(words, message))
        return NetworkError(f"the Flight gateway {gateway} does not answer as it should: {message}; {advice}")
    # What pyarrow makes of NOT_FOUND, INVALID_ARGUMENT and UNIMPLEMENTED.
    if isinstance(error, (pa.ArrowKeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError)):
        return RequestRefusedError(
            f"the Flight gateway {gateway} refuses: {message}; check that it is a gateway to a share"
        )
    return NetworkError(f"the Flight gateway {gateway} failed: {message}")


def _flight_class(error: DeltaSharingError) -> type[flight.FlightError]:
    if isinstance(error, TicketError):
        return flight.FlightUnavailableError if error.reason == "expired" else flight.FlightUnauthorizedError
    if isinstance(error, UnauthenticatedError):
        # Of the gateway at the share: the caller's own token is in order.
        return flight.FlightUnavailableError
    if isinstance(error, (ForbiddenError, CredentialError)):
        return flight.FlightUnauthorizedError
    if isinstance(error, errors.CancelledError):
        return flight.FlightCancelledError
    if isinstance(error, (UnavailableError, NetworkError, FileGoneError, errors.TableChangedError)):
        return flight.FlightUnavailableError
    return flight.FlightInternalError


class _TracebackBlocker:
    """Keeps Arrow from putting the Python traceback, with paths of the gateway, into the status it sends.

    Arrow formats the traceback for the message and, where that fails, names the class alone.
    """

    @property
    def __cause__(self) -> None:
        raise RuntimeError("this exception is not to be formatted")

    def __str__(self) -> str:
        return str(self.args[0])  # type: ignore[attr-defined]  # KeyError would quote it


def _plain_status(name: str, kind: type[Exception], message: str) -> Exception:
    status: Exception = type(name, (_TracebackBlocker, kind), {})(message)
    return status


#: By pyarrow's exception: the status of gRPC, Arrow's number of it, and Arrow's word for it. The first that fits counts.
_STATUSES: tuple[tuple[type[BaseException], str, int, str], ...] = (
    (flight.FlightUnauthenticatedError, "UNAUTHENTICATED", 5, "Unauthenticated"),
    (flight.FlightUnauthorizedError, "PERMISSION_DENIED", 5, "Unauthorized"),
    (flight.FlightUnavailableError, "UNAVAILABLE", 5, "Unavailable"),
    (flight.FlightCancelledError, "CANCELLED", 5, "Cancelled"),
    (flight.FlightError, "INTERNAL", 5, "Internal"),
    (KeyError, "NOT_FOUND", 2, ""),
    (ValueError, "INVALID_ARGUMENT", 4, ""),
    (NotImplementedError, "UNIMPLEMENTED", 10, ""),
)


@dataclass(frozen=True, slots=True)
class WireStatus:
    """What pyarrow's server sends for an exception: the name of gRPC's code, the text, and the trailers of the answer."""

    code: str
    details: str
    trailers: tuple[tuple[str, str | bytes], ...]


def wire_status(error: BaseException) -> WireStatus:
    """The status that pyarrow's server would send for an exception of ``to_status`` or ``internal``."""
    code, number, word = next(row[1:] for row in _STATUSES if isinstance(error, row[0]))
    detail = word or f"Python exception: {type(error).__name__}"
    message = str(error)
    extra = getattr(error, "extra_info", None)
    trailers: tuple[tuple[str, str | bytes], ...] = (
        ("x-arrow-status", str(number)),
        ("x-arrow-status-message-bin", message.encode()),
        ("x-arrow-status-detail-bin", detail.encode()),
        *((("grpc-status-details-bin", extra),) if extra else ()),
    )
    return WireStatus(code, f"{message}. Detail: {detail}", trailers)


#: Of ``CancelStatus`` in the specification.
CANCELLED, NOT_CANCELLABLE = 1, 3


def wrap(message: bytes, tag: bytes = _MESSAGE_FIELD) -> bytes:
    """A ``RenewFlightEndpointRequest`` around a ``FlightEndpoint``, or a ``CancelFlightInfoRequest`` around a ``FlightInfo``."""
    request = bytearray(tag)
    append_varint(request, len(message))
    return bytes(request) + message


def listed_info(descriptor: bytes, about: bytes = b"") -> bytes:
    """A ``FlightInfo`` of a ``FlightDescriptor``, with ``about`` as its metadata and without a schema.

    pyarrow before 21 ends the process where one without a schema is made.
    """
    return wrap(descriptor, _DESCRIPTOR_FIELD) + _TOTALS_UNKNOWN + (wrap(about, _ABOUT_FIELD) if about else b"")


def poll_info(info: bytes, progress: float, descriptor: bytes | None = None, expires: int = 0) -> bytes:
    """A ``PollInfo``.

    Args:
        info: The ``FlightInfo``.
        progress: From 0 to 1.
        descriptor: The ``FlightDescriptor`` of the next poll; None where the plan is complete.
        expires: When ``descriptor`` ends, in nanoseconds since the epoch.
    """
    answer = wrap(info) + _PROGRESS_FIELD + struct.pack("<d", progress)
    if descriptor is None:
        return answer
    instant = bytearray()
    for tag, number in zip((_ENUM_FIELD, _SECOND_ENUM_FIELD), divmod(expires, 1_000_000_000), strict=True):
        instant += tag
        append_varint(instant, number)
    return answer + wrap(descriptor, _DESCRIPTOR_FIELD) + wrap(bytes(instant), _EXPIRATION_FIELD)


def action_type(name: str, description: str) -> bytes:
    """An ``ActionType``."""
    return wrap(name.encode()) + wrap(description.encode(), _DESCRIPTOR_FIELD)


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


def cancel_result(status: int) -> bytes:
    """A ``CancelFlightInfoResult``."""
    return _ENUM_FIELD + bytes([status])


def _read_number(data: bytes, position: int) -> tuple[int, int]:
    try:
        return read_varint(data, position)
    except IndexError:
        raise ValueError("the message is cut") from None
