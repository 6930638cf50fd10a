"""Hooks of the site's build: files beside ``docs/`` that its pages link to become part of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)")
#: Pages that stand at the top of the repository.
_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's top, and what pages link to outside ``docs/``."""
    linked = {
        target
        for page in (ROOT / "docs").glob("*.md")
        for target in _OUTSIDE.findall(page.read_text(encoding="utf-8"))
        if (ROOT / target).is_file()
    }
    for name in sorted(linked | set(_PAGES)):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they stand in the repository, as they are in the site."""
    if page.file.src_uri in _PAGES:
        return re.sub(r"\]\(docs/", "](", markdown).replace("](README.md", "](index.md")
    return _OUTSIDE.sub(r"](\1", markdown).replace("](README.md", "](index.md")
