"""Hooks of the site's build: files beside ``docs/`` that its pages link to become part of the site."""

from __future__ import annotations

import re
from importlib.metadata import version
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


def on_config(config: Any) -> Any:
    """The version that the pages are of, at their foot."""
    config.copyright = f"delta-sharing-spark {version('delta-sharing-spark')}"
    return config


def on_post_build(config: Any) -> None:
    """Columns of navigation from 1,000 pixels on, where the theme has them from 1,220 on."""
    assets = Path(config.site_dir) / "assets"
    for file in (*assets.glob("stylesheets/*.css"), *assets.glob("javascripts/bundle*.js")):
        text = file.read_text(encoding="utf-8")
        narrower = text.replace("76.25em", "62.5em").replace("76.234375em", "62.484375em").replace("1220px", "1000px")
        file.write_text(narrower, encoding="utf-8")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they stand in the repository, as they are in the site."""
    if page.file.src_uri in _PAGES:
        return re.sub(r"\]\(docs/", "](", markdown).replace("](README.md", "](index.md")
    if page.file.src_uri == "options.md":
        markdown = f'<div class="stacked" markdown>\n\n{markdown}\n\n</div>'
    return _OUTSIDE.sub(r"](\1", markdown).replace("](README.md", "](index.md")
