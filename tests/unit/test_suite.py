"""The suite itself."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_catalogue_names_every_stored_table_and_every_module_that_builds_one() -> None:
    """``python tests/catalogue.py`` writes it."""
    tests = Path(__file__).parents[1]
    named = set(re.findall(r"^\| `([^`]+)`", (tests / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    stored = {path.name for path in (tests / "data" / "delta_spark").iterdir() if path.is_dir()}
    building = {
        str(path.relative_to(tests))
        for path in tests.rglob("test_*.py")
        if " DeltaTableBuilder(" in path.read_text(encoding="utf-8")
    }
    assert (stored | building) - named == set()
