"""Draw the site's pictures, each for light and for dark pages: the bars of ``figures/native.txt``, and how things work.

    python benchmarks/draw.py        writes docs/figures/*.svg; `nox -s docs` does so, too

The bars are what ``python benchmarks/figures.py native --network`` measured last. Text is text, in the reader's own fonts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FIGURES = HERE.parent / "docs" / "figures"


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a picture; ``bars`` and ``fills`` from what matters most to what matters least."""

    text: str
    quiet: str
    line: str
    fill: str
    bars: tuple[str, ...]


PALETTES = {
    "light": Palette("#1f2328", "#59636e", "#8c959f", "#f3f5fb", ("#8c959f", "#3f51b5", "#e08e45", "#f2c299")),
    "dark": Palette("#e6edf3", "#9aa4af", "#6e7681", "#262b3a", ("#7d8590", "#8c9eff", "#e08e45", "#8a5a30")),
}
#: Columns of the benchmark, and how the figure calls them.
CONTENDERS = {
    "file": "Spark over local files",
    "lane+load": "delta-sharing-spark, native lane",
    "tuned": "JVM connector, tuned",
    "jvm": "JVM connector, its defaults",
}
QUERIES = ("full scan", "three columns", "selective filter", "two of 200 columns", "count")


def measured(text: str) -> dict[str, dict[str, float]]:
    """Seconds by query and contender, of the first table in a kept figure of ``native.py``."""
    lines = text.split("\n\n")[1].splitlines()
    header = lines[1].split()
    table = {}
    for line in lines[2:]:
        cells = re.findall(r"(\d+\.\d+) \(\d", line)
        name = re.split(r"\s{2,}", line)[0]
        if name in QUERIES:
            # The columns that a query lacks are those of contenders that are told nothing by it.
            present = [c for c in header if c != "python+" or len(cells) == len(header)]
            table[name] = dict(zip(present, map(float, cells), strict=True))
    return table


def bars(palette: Palette) -> str:
    """Seconds of each query, a bar for each contender; long bars are cut, with their number."""
    kept = (HERE / "figures" / "native.txt").read_text(encoding="utf-8")
    table, shown, left, width = measured(kept), 2.0, 140, 184
    day = kept.splitlines()[1].split(",")[0]
    drawn, y = [], 98
    for number, name in enumerate(CONTENDERS.values()):
        row = 14 + 20 * number
        drawn.append(f'<rect x="{left}" y="{row - 10}" width="12" height="12" rx="2" fill="{palette.bars[number]}"/>')
        drawn.append(_text(left + 18, row, name, palette.text))
    for query in QUERIES:
        drawn.append(_text(left - 10, y + 28, query, palette.text, anchor="end"))
        for number, contender in enumerate(CONTENDERS):
            seconds = table[query][contender]
            long = min(seconds, shown) / shown * width
            top = y + 13 * number
            drawn.append(
                f'<rect x="{left}" y="{top}" width="{long:.1f}" height="10" rx="2" fill="{palette.bars[number]}"/>'
            )
            cut = " …" if seconds > shown else ""
            drawn.append(_text(left + long + 6, top + 9, f"{seconds:.2f} s{cut}", palette.quiet, size=11))
        y += 66
    for row, line in enumerate(("Less is better. 4,000,000 rows over loopback, 2 cores,", f"Spark 4.3, {day}.")):
        drawn.append(_text(8, y + 6 + 15 * row, line, palette.quiet, 11))
    return _picture(388, y + 30, "Seconds of five queries, beside local files and the JVM connector", drawn)


def flow(palette: Palette) -> str:
    """How bytes flow in both lanes."""
    drawn = [
        _box(palette, 16, 60, 150, "Sharing server", "which files, which URLs"),
        _box(palette, 16, 190, 150, "Storage", "S3, Azure, Google"),
        _text(240, 24, "Native lane: one machine, or a cluster", palette.text, 13, weight="600"),
        _box(palette, 240, 40, 190, "Gateway in your Python", "column chunks on loopback"),
        _box(palette, 488, 40, 184, "Spark's Parquet reader", "columns, row groups"),
        _text(240, 164, "Python data source: anywhere", palette.text, 13, weight="600"),
        _box(palette, 240, 180, 190, "Spark's Python workers", "decode, filter exactly"),
        _box(palette, 488, 180, 184, "Spark", "Arrow batches"),
        _arrow(palette, 166, 74, 236, 62, "files"),
        _arrow(palette, 166, 204, 236, 84, ""),
        _arrow(palette, 166, 96, 236, 200, ""),
        _arrow(palette, 166, 222, 236, 214, "bytes"),
        _arrow(palette, 430, 68, 484, 68, "Parquet"),
        _arrow(palette, 430, 208, 484, 208, "rows"),
        _text(488, 114, "asks for each query's files", palette.quiet, 11),
        _text(
            16,
            268,
            "Storage never sees your sharing token. URLs and credentials are renewed on the way.",
            palette.quiet,
            11,
        ),
    ]
    return _picture(680, 280, "How bytes flow from a share into Spark, by either lane", drawn)


def renewal(palette: Palette) -> str:
    """How a read outlives its URLs."""
    drawn = [
        _box(palette, 16, 20, 190, "Planned on the driver", "files, URLs, the version"),
        _box(palette, 256, 20, 190, "Read on an executor", "byte ranges"),
        _box(palette, 486, 20, 180, "The rest of the rows", "the same version"),
        _arrow(palette, 206, 48, 252, 48, ""),
        _arrow(palette, 446, 48, 482, 48, ""),
        _box(palette, 236, 140, 230, "The server is asked again", "before the end, or once refused"),
        _arrow(palette, 320, 76, 320, 136, ""),
        _arrow(palette, 382, 136, 382, 80, ""),
        _text(312, 112, "URLs end", palette.quiet, 11, "end"),
        _text(390, 112, "new URLs of the same files", palette.quiet, 11),
        _text(486, 172, "a file that is gone: an error", palette.quiet, 11),
    ]
    return _picture(680, 206, "How URLs and credentials are renewed while a job reads", drawn)


def modes(palette: Palette) -> str:
    """Who lists files and who gives bytes, by access mode."""
    rows = [
        (
            "url: the server lists",
            "Sharing server",
            "files, each with its URL",
            "files",
            "Storage",
            "one file for each URL",
        ),
        (
            "dir: the table's log lists",
            "Sharing server",
            "a short-lived credential",
            "credential",
            "Storage",
            "Delta log, files",
        ),
    ]
    drawn, y = [], 24
    for heading, server, gives, label, storage, has in rows:
        drawn += [
            _text(16, y, heading, palette.text, 13, weight="600"),
            _box(palette, 16, y + 14, 190, server, gives),
            _box(palette, 278, y + 14, 150, "Your Python", "reads, checks, filters"),
            _box(palette, 500, y + 14, 170, storage, has),
            _arrow(palette, 206, y + 42, 274, y + 42, label),
            _arrow(palette, 500, y + 42, 432, y + 42, "bytes"),
        ]
        y += 108
    drawn += [
        _text(16, y, "flight: a gateway of yours reads", palette.text, 13, weight="600"),
        _box(palette, 278, y + 14, 150, "Your Python", "or Go, Java, ADBC"),
        _box(palette, 500, y + 14, 170, "Flight gateway", "has the token, url or dir"),
        _arrow(palette, 500, y + 42, 432, y + 42, "rows"),
        _text(16, y + 40, "No way to the sharing server", palette.quiet, 11),
        _text(16, y + 56, "or to storage is needed here.", palette.quiet, 11),
    ]
    return _picture(680, y + 84, "Who lists files and who gives bytes, by access mode", drawn)


def streams(palette: Palette) -> str:
    """How versions become batches."""
    versions = [("7", "the first one"), ("8", "adds files"), ("9", "adds files"), ("10", "removes a file")]
    drawn = [
        _box(palette, 16 + 168 * place, 16, 144, f"Version {number}", what)
        for place, (number, what) in enumerate(versions)
    ]
    drawn += [_arrow(palette, 88 + 168 * place, 72, 88 + 168 * place, 132, "") for place in range(4)]
    drawn += [
        _box(palette, 16, 136, 144, "Batch 0", "all rows of version 7"),
        _box(palette, 184, 136, 312, "Batch 1", "the rows that 8 and 9 added"),
        _box(palette, 520, 136, 144, "Stops", "or skipChangeCommits"),
        _text(
            16,
            222,
            "The end of each batch is an offset in your checkpoint: a restart goes on behind it.",
            palette.quiet,
            11,
        ),
    ]
    return _picture(680, 236, "How the versions of a table become the batches of a stream", drawn)


def _text(
    x: float, y: float, text: str, colour: str, size: int = 12, anchor: str = "start", weight: str = "400"
) -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{colour}">'
        f"{escaped}</text>"
    )


def _box(palette: Palette, x: int, y: int, width: int, title: str, below: str) -> str:
    frame = f'<rect x="{x}" y="{y}" width="{width}" height="56" rx="8" fill="{palette.fill}" stroke="{palette.line}"/>'
    middle = x + width / 2
    return (
        frame
        + _text(middle, y + 24, title, palette.text, 13, "middle", "600")
        + _text(middle, y + 42, below, palette.quiet, 11, "middle")
    )


def _arrow(palette: Palette, x1: int, y1: int, x2: int, y2: int, label: str) -> str:
    line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{palette.line}" stroke-width="1.5" marker-end="url(#end)"/>'
    return line + (_text((x1 + x2) / 2, (y1 + y2) / 2 - 8, label, palette.quiet, 11, "middle") if label else "")


def _picture(width: int, height: int, title: str, drawn: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, -apple-system, Segoe UI, Roboto, sans-serif"><title>{title}</title>'
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#8c959f"/></marker></defs>'
    )
    return "\n".join([head, *drawn, "</svg>", ""])


PICTURES: Mapping[str, Callable[[Palette], str]] = {
    "bars": bars,
    "flow": flow,
    "modes": modes,
    "renewal": renewal,
    "streams": streams,
}


def pictures() -> dict[str, str]:
    """The text of each picture by its file's name."""
    return {
        f"{name}-{shade}.svg": draw(palette) for name, draw in PICTURES.items() for shade, palette in PALETTES.items()
    }


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FIGURES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
