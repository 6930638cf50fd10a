"""Run pytest on a machine that is busy with other things: ``nox -s busy``; Linux.

    python tests/busy.py loops tests/spark     beside two busy loops for each core, at normal priority
    python tests/busy.py half tests/unit       on one core, beside one busy loop there: half a core

A test that fails here and passes elsewhere depends on pace: it waits for a time instead of a condition.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def load(how: str) -> Iterator[None]:
    """Busy loops; with ``half`` this process and all that it starts stay on the first core."""
    cores = sorted(os.sched_getaffinity(0))
    if how == "half":
        os.sched_setaffinity(0, cores[:1])
    count = 1 if how == "half" else 2 * len(cores)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main(how: str, *arguments: str) -> int:
    if how not in ("loops", "half"):
        sys.exit(__doc__)
    with load(how):
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
