"""Progress is shown where a person looks, and nowhere else."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from delta_sharing_spark.display import progress_of


class _Stream(io.StringIO):
    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize(
    ("tty", "notebook", "size", "shown"),
    [
        (True, False, 1 << 30, True),
        (False, True, 1 << 30, True),
        (False, False, 1 << 30, False),
        (True, True, 1 << 20, False),
    ],
)
def test_progress(monkeypatch: pytest.MonkeyPatch, tty: bool, notebook: bool, size: int, shown: bool) -> None:
    stream = _Stream(tty)
    monkeypatch.setattr(sys, "stderr", stream)
    shell = SimpleNamespace(kernel=1) if notebook else None
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    planned: Any = SimpleNamespace(
        report=SimpleNamespace(bytes=size), splits=[0, 1], spec=SimpleNamespace(table="s.d.t")
    )
    with progress_of(planned) as step:
        assert (step is not None) == shown
        if step is not None:
            step(0)
            step(1)
    lines = stream.getvalue().split("\r")
    assert [line.rsplit(" ", 1)[-1].strip() for line in lines if line] == (["0/2", "1/2", "2/2"] if shown else [])
