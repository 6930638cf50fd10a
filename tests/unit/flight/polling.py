"""A caller of the port that answers polls, by grpcio's own client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.flight as flight

from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.access.flight.connection import CANCEL
from unit.flight.calling import TOKEN

SERVICE = "/arrow.flight.protocol.FlightService/"


@dataclass(frozen=True)
class Polled:
    """A ``PollInfo``; ``descriptor`` is None where the plan is complete."""

    info: flight.FlightInfo
    sent: bytes = field(repr=False)
    descriptor: bytes | None
    fields: frozenset[int]


class Poller:
    """Calls over one channel, with a token in each call."""

    def __init__(self, channel: Any, token: str | None = TOKEN) -> None:
        self.channel = channel
        self.metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    def unary(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        answer: bytes = self.channel.unary_unary(SERVICE + method)(request, metadata=self.metadata, timeout=timeout)
        return answer

    def stream(self, method: str, request: bytes) -> list[bytes]:
        return list(self.channel.unary_stream(SERVICE + method)(request, metadata=self.metadata))

    def poll(self, descriptor: bytes, timeout: float | None = None) -> Polled:
        """One poll."""
        answer = self.unary("PollFlightInfo", descriptor, timeout)
        fields = dict(_fields(answer))
        return Polled(flight.FlightInfo.deserialize(fields[1]), fields[1], fields.get(2), frozenset(fields))

    def whole(self, descriptor: bytes) -> Polled:
        """Polls until the plan is complete."""
        polled = self.poll(descriptor)
        while polled.descriptor is not None:
            polled = self.poll(polled.descriptor)
        return polled

    def cancel(self, info: bytes) -> bytes:
        (result,) = self.stream("DoAction", flight.Action(CANCEL, messages.wrap(info)).serialize())
        return bytes(flight.Result.deserialize(result).body)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a ``PollInfo``: messages, and a double."""
    position = 0
    while position < len(message):
        number, kind = message[position] >> 3, message[position] & 7
        position += 1
        length, shift = (8, 0) if kind == 1 else (0, 0)
        while kind == 2:
            length |= (message[position] & 0x7F) << shift
            shift, position = shift + 7, position + 1
            if message[position - 1] < 0x80:
                break
        yield number, message[position : position + length]
        position += length
