"""Cases in processes of their own: what ends one, hangs or takes too much memory is found as surely as an exception.

A case is a surface and a number; everything drawn follows from them, so that ``--case answers:17`` repeats it.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

#: What a case may take.
SECONDS, BYTES = 10.0, 1 << 30
_STARTUP_SECONDS = 120.0
HERE = Path(__file__).resolve().parent


@dataclass
class Counts:
    """Outcomes of one surface: the same rows, an error of ours, other rows where those may be right, and findings."""

    same: int = 0
    refused: int = 0
    other: int = 0
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0

    @property
    def cases(self) -> int:
        return self.same + self.refused + self.other + len(self.findings)


class _Worker:
    """A process that runs the cases of a surface from a number on, and says before and after each what it is about."""

    def __init__(self, surface: str, first: int, seed: int, step: int) -> None:
        command = [sys.executable, "-m", "fuzz.worker", surface, str(first), str(seed), str(step)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent), *sys.path]), "NO_PROXY": "*"}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # a pipe that nobody reads would fill and hold it up
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, env=env, cwd=HERE.parent)
        self._buffer = b""
        self._waiting = selectors.DefaultSelector()
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self._waiting.register(self.process.stdout, selectors.EVENT_READ)

    def line(self, seconds: float) -> dict[str, object] | None:
        """The next message; None if the process has ended. Raises TimeoutError."""
        assert self.process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if self._waiting.select(left):
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                if not data:
                    return None
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, object] = json.loads(line)
        return answer

    def close(self) -> str:
        """End the process; what it wrote to its standard error."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._waiting.close()
        with self._errors:
            self._errors.seek(0)
            return self._errors.read().decode(errors="replace")


def run(surface: str, seed: int, until: float, *, first: int = 0, most: int | None = None, step: int = 1) -> Counts:
    """Run cases ``first``, ``first + step``... of a surface until a monotonic time, or ``most`` of them."""
    counts = Counts()
    number = first
    while time.monotonic() < until and (most is None or counts.cases < most):
        worker = _Worker(surface, number, seed, step)
        ended = None
        try:
            if worker.line(_STARTUP_SECONDS) is None:
                ended = "does not start"
            while ended is None and time.monotonic() < until and (most is None or counts.cases < most):
                begun = time.monotonic()
                try:
                    message = worker.line(SECONDS + 2)
                except TimeoutError:
                    ended = f"took over {SECONDS:.0f} s"
                    break
                if message is None:
                    ended = "ended the process"
                    break
                counts.slowest = max(counts.slowest, time.monotonic() - begun)
                outcome = str(message["outcome"])
                if outcome in ("same", "refused", "other"):
                    setattr(counts, outcome, getattr(counts, outcome) + 1)
                else:
                    counts.findings.append(f"{surface}:{number}: {outcome}")
                number += step
        finally:
            errors = worker.close()
        if ended is not None:
            tail = " | ".join(errors.strip().splitlines()[-6:])
            counts.findings.append(f"{surface}:{number}: {ended} ({worker.process.returncode}): {tail}")
            number += step
            if ended == "does not start":
                break
    return counts


def limit_memory() -> int:
    """Let allocations far beyond the bound fail; the bytes that are resident now."""
    with open("/proc/self/statm") as statm:
        virtual = int(statm.read().split()[0]) * resource.getpagesize()
    # Threads and pools reserve what they never touch: residency is what is measured, this is the backstop.
    resource.setrlimit(resource.RLIMIT_AS, (virtual + 8 * BYTES, virtual + 8 * BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return peak()


def peak() -> int:
    """The most bytes that were resident so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
