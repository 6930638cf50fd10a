"""What both clients made of each case: one line a case, and whether ours did what it should."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError
from peers.reference_client import row_digest

_WIDTH = 46


@dataclass(frozen=True)
class Rows:
    """Rows, as a count and a text that equal rows share."""

    count: int
    digest: str

    def __str__(self) -> str:
        return f"{self.count} rows"


def rows_of(frame: Any) -> Rows:
    """The rows of a pandas frame."""
    return Rows(len(frame), row_digest(frame))


@dataclass
class ReferenceClient:
    """The reference Python client in its own process."""

    process: subprocess.Popen[str]

    def ask(self, call: str, address: str, **arguments: Any) -> Rows | int | str:
        """Rows, a number, or the error's text."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(
            json.dumps({"call": call, "address": address, "arguments": arguments}), file=self.process.stdin, flush=True
        )
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            return str(answer["error"])
        return int(answer["value"]) if "value" in answer else Rows(answer["rows"], answer["digest"])


@contextmanager
def reference_client(python: str) -> Iterator[ReferenceClient]:
    """The client run by another environment's Python."""
    script = str(Path(__file__).with_name("reference_client.py"))
    process = subprocess.Popen([python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield ReferenceClient(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)


@dataclass
class Report:
    """The lines so far."""

    failures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def heading(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def case(
        self,
        name: str,
        ours: Callable[[], object],
        theirs: Callable[[], object] | None = None,
        *,
        expected: object = None,
        refused: str | None = None,
    ) -> object:
        """Run and print one case.

        Args:
            name: What is tried.
            ours, theirs: The result of each client; an error counts as one.
            expected: What ours must be: a value, or a predicate of it. Without it, anything but an error.
            refused: Words of the error that is right here.
        """
        start = time.monotonic()
        result: object
        try:
            result = ours()
            right = refused is None and (expected(result) if callable(expected) else expected in (None, result))
        except DeltaSharingError as error:
            result = f"{type(error).__name__}: {' '.join(str(error).split())}"
            right = refused is not None and refused.lower() in result.lower()
        seconds = time.monotonic() - start
        other = theirs() if theirs is not None else "-"
        if isinstance(result, Rows) and isinstance(other, Rows):
            told = "the same rows" if other == result else f"{other}, others"
        else:
            told = str(other)
        verdict = "ok  " if right else "FAIL"
        print(
            f"{verdict} {name:{_WIDTH}} ours {str(result)[:150]} ({seconds:.1f} s) | reference: {told[:110]}",
            flush=True,
        )
        if not right:
            self.failures.append(name)
        self._count(right, other)
        return result

    def _count(self, right: bool, other: object) -> None:
        theirs = "does not say" if other == "-" else "fails" if isinstance(other, str) else "answers"
        key = f"ours {'as it should' if right else 'WRONG'}, the reference client {theirs}"
        self.counts[key] = self.counts.get(key, 0) + 1

    def close(self) -> int:
        """Print the sums; the exit status."""
        print()
        for key, count in sorted(self.counts.items()):
            print(f"{count:4} cases: {key}")
        for name in self.failures:
            print(f"FAILED: {name}")
        return 1 if self.failures else 0


def query(text: Mapping[str, Any]) -> str:
    """A JSON hint as its text."""
    return json.dumps(text)
