"""What a run of pytest costs in processor seconds, whole and by test; Linux.

``pytest --processor-seconds=100`` prints the total and the hundred dearest tests, each with all its cases. A process that Java
or a test started counts for as long as it lives, and with its parent once that has waited for it.
"""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

#: Of prctl(2): whom the processes of a process that has ended are handed to.
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _seconds(pid: int) -> tuple[float, float]:
    """Processor seconds of a process with those it has waited for, and of its other descendants."""
    own, children = 0.0, list[int]()
    with suppress(OSError):  # it has ended, or this is no Linux
        # Behind the name in brackets: utime, stime, cutime and cstime are fields 14 to 17 of proc(5).
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:15]
        own = sum(map(int, fields)) / _TICKS
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return own, sum(sum(_seconds(child)) for child in children)


class ProcessorSeconds:
    """A plugin that measures each test with what the fixtures that it is the first to use cost.

    Args:
        dearest: How many tests to print, the dearest first.
    """

    def __init__(self, dearest: int) -> None:
        self._dearest = dearest
        self._of_tests: defaultdict[str, list[float]] = defaultdict(list)
        self._before = 0.0
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def pytest_collection_finish(self) -> None:
        self._before = sum(_seconds(os.getpid()))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        until = sum(_seconds(os.getpid()))
        self._of_tests[nodeid.partition("[")[0]].append(until - self._before)
        self._before = until

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        own, living = _seconds(os.getpid())
        dearest = sorted(self._of_tests.items(), key=lambda of_test: -sum(of_test[1]))[: self._dearest]
        terminalreporter.section("processor seconds")
        terminalreporter.line(
            f"{own + living:8.1f} in all, {living:.1f} of them of processes that nobody has waited for"
        )
        terminalreporter.line(f"{sum(sum(cases) for _, cases in dearest):8.1f} in these {len(dearest)} tests:")
        for name, cases in dearest:
            terminalreporter.line(f"{sum(cases):8.2f} {name}{f' ({len(cases)} cases)' if len(cases) > 1 else ''}")
