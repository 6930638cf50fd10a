"""Hooks of the site's build: files beside ``docs/`` that its pages link to become part of the site."""

from __future__ import annotations

import re
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_OUTSIDE = re.compile(r"\]\(\.\./([\w./-]+)")
#: Pages whose tables are wider than a phone, and have more words than figures: their rows are stacked there.
_STACKED = (
    "options.md",
    "migrating.md",
    "platforms.md",
    "jvm-connector.md",
    "faults-inside.md",
    "native-reading.md",
    "comparison.md",
)
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


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The header's link to the repository, of which the theme would fetch the stars: nothing is fetched from elsewhere."""
    return output.replace(' data-md-component="source"', "")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Of tables that are stacked on a phone, each cell says which column it is of."""
    return _TABLE.sub(_labelled, html) if 'class="stacked"' in html else html


def _labelled(table: re.Match[str]) -> str:
    labels = [re.sub("<.*?>", "", name) for name in re.findall(r"<th[^>]*>(.*?)</th>", table[0], re.DOTALL)]

    def row(cells: re.Match[str]) -> str:
        names = iter(labels)
        return re.sub("<td", lambda _: f'<td data-label="{escape(next(names, ""))}"', cells[0])

    return re.sub(r"<tr>.*?</tr>", row, table[0], flags=re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they stand in the repository, as they are in the site."""
    if page.file.src_uri in _PAGES:
        return re.sub(r"\]\(docs/", "](", markdown).replace("](README.md", "](index.md")
    if page.file.src_uri in _STACKED:
        markdown = f'<div class="stacked" markdown>\n\n{markdown}\n\n</div>'
    return _OUTSIDE.sub(r"](\1", markdown).replace("](README.md", "](index.md")
