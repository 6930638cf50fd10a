"""Defines how an answer stops where its reader may have read all that it needs, for a request never says how far it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Doubt:
    """Yielded between bytes where the reader may have read all that it needs.

    Wait so many ``seconds`` for it to leave after it has read what was sent; ``blindly`` where the system does not tell
    whether it has. Then send what it did.
    """

    seconds: float
    blindly: float


class Reaction(NamedTuple):
    """What a reader did in a doubt: whether it has left, and whether it has read all that it was sent."""

    has_left: bool
    has_read_all: bool


WAITS = Reaction(has_left=False, has_read_all=True)

#: Where nobody told what the reader wants; at a row group's end, where it may want another one; after a taste of more.
UNKNOWN, ENOUGH, TASTED = Doubt(0.02, 0.05), Doubt(0.05, 0.3), Doubt(0.0, 0.3)
#: Where it is known to have enough: it leaves once it has decoded what it has, mostly soon.
LEAVES = Doubt(2.0, 2.0)
