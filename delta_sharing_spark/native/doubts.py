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

#: Where nothing tells what the reader wants; where what it read before says that it has enough; after a taste of more;
#: where more is held, so that to send it costs little, but would teach that it was read.
UNKNOWN, ENOUGH, TASTED, HELD = Doubt(0.02, 0.05), Doubt(0.05, 0.3), Doubt(0.0, 0.3), Doubt(0.002, 0.02)
#: Where Spark's plan says that it has enough, or where Spark reads nothing: it leaves once it has decoded what it has, mostly soon.
SOON, LEAVES = Doubt(0.25, 0.25), Doubt(2.0, 2.0)
