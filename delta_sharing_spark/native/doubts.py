"""Defines how long an answer waits before it sends more: a WebHDFS OPEN names no length, so its reader may need no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Doubt:
    """Yielded between bytes, where the reader may need no more.

    The gateway waits ``seconds`` for the reader to close its connection once it has read what was sent, or ``blindly`` seconds where
    the system does not tell what it has read. The gateway answers with a ``Reaction``.
    """

    seconds: float
    blindly: float


class Reaction(NamedTuple):
    """What a reader did meanwhile: whether it closed its connection, and whether it has read all that was sent."""

    has_left: bool
    has_read_all: bool


WAITS = Reaction(has_left=False, has_read_all=True)

#: Where nobody told which columns the reader wants; at the end of a row group, after which it may want another; after a few bytes more.
UNKNOWN, ENOUGH, TASTED = Doubt(0.02, 0.05), Doubt(0.05, 0.3), Doubt(0.0, 0.3)
#: Where the reader needs no more: Spark usually closes the connection once it has decoded the columns that were sent.
LEAVES = Doubt(2.0, 2.0)
