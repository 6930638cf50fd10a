"""The documentation's pages, and the blocks of Python in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?ms)^(<!-- not executed: [^\n]+ -->\n)?```python\n(.*?)^```$")


def blocks(page: Path) -> list[tuple[int, str, bool]]:
    """Line, source and whether it is executed, of each block of Python of a page."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start(2)].count("\n"), m[2], m[1] is None) for m in _BLOCK.finditer(text)]
