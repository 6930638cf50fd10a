"""Run pytest on a machine that is busy with other things: ``nox -s busy``; Linux.

    python tests/busy.py loops tests/spark     beside two busy loops for each core, at normal priority
    python tests/busy.py half tests/unit       on half a core: by a control group, else on one core beside one busy loop

A test that fails here and passes elsewhere depends on pace: it waits for a time instead of a condition.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Where control groups of processor time are, of the first version and of the second; the file and text for half a core.
_GROUPS = (
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "50000"),
    (Path("/sys/fs/cgroup"), "cpu.max", "50000 100000"),
)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextmanager
def half_a_core() -> Iterator[None]:
    """For this process and all that it starts from now on; one core beside a busy loop where no control group may be made."""
    group = next(filter(None, (_joined(*kind) for kind in _GROUPS)), None)
    if group is None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        with busy_loops(1):
            yield
        return
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        with suppress(OSError):  # something still ends there
            group.rmdir()


def _joined(parent: Path, limit: str, text: str) -> Path | None:
    """A new control group with a limit, which this process has entered."""
    group = parent / f"half-a-core-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(text)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        return None
    return group


def main(how: str, *arguments: str) -> int:
    loads = {"loops": lambda: busy_loops(2 * len(os.sched_getaffinity(0))), "half": half_a_core}
    if how not in loads:
        sys.exit(__doc__)
    with loads[how]():
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments], check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
