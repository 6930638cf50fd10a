"""The suite itself: pytest imports test modules by their bare names, so no two may share one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path


def test_modules_have_names_of_their_own() -> None:
    modules = Counter(path.name for path in Path(__file__).parents[1].rglob("*.py") if path.name.startswith("test_"))
    assert [name for name, count in modules.items() if count > 1] == []
