"""Runs cases of one surface, a line of JSON for each; see ``harness``."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys
import time
import traceback
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError
from fuzz.harness import BYTES, SECONDS, limit_memory, peak
from fuzz.surfaces import SURFACES, Surface


def outcome_of(surface: Surface, number: int, seed: int) -> str:
    """Run one case: ``same``, ``refused``, ``other``, or what is wrong."""
    draw = random.Random(f"{seed}/{surface.name}/{number}")
    begun, before = time.monotonic(), peak()
    case = surface.draw(draw)
    try:
        rows, strict = case()
        expected = surface.expected()
        outcome = "same" if rows == expected else "other"
        if outcome == "other" and strict:
            outcome = f"other rows: {str(rows)[:300]} instead of {str(expected)[:300]}"
    except DeltaSharingError:
        outcome = "refused"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome = f"{type(error).__name__}: {str(error)[:200]} @ {_where(error)}"
    if time.monotonic() - begun > SECONDS:
        outcome = f"took {time.monotonic() - begun:.1f} s ({outcome})"
    if peak() - before > BYTES:
        outcome = f"took {(peak() - before) >> 20} MiB ({outcome})"
    return outcome


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "delta_sharing_spark" in f.filename] or frames[-1:]
    return " < ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in reversed(ours[-4:]))


def main(name: str, first: int, seed: int, step: int) -> None:
    faulthandler.enable()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else is to stand among the messages

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    surface = SURFACES[name]()
    surface.expected()
    limit_memory()
    say({"ready": True})
    number = first
    while True:
        say({"outcome": outcome_of(surface, number, seed)})
        number += step


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
