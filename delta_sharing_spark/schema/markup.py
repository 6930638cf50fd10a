"""Writes small tables as aligned text and as HTML, for terminals and notebooks. Colours are the page's: light and dark alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from delta_sharing_spark.errors import printable

_NUMBER = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?")
#: A column of at least so many characters somewhere wraps, and is given room to.
_WIDE = 40
_LEFT, _RIGHT = "text-align:left", "text-align:right"
_ROOM = f"{_LEFT};white-space:normal;min-width:20em;max-width:48em"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells as aligned text; a column of numbers stands right. What would move a cursor or turn text is escaped."""
    header, *rows = [[printable(cell, one_line=True) for cell in row] for row in (header, *rows)]
    right = [_is_numeric(rows, i) for i in range(len(header))]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if is_right else cell.ljust(w) for cell, w, is_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", note: str = "") -> str:
    """Cells as HTML, every text escaped: numbers right, text left, long text wrapped in a wide column.

    Args:
        header: Names of the columns; none leaves the head out.
        note: Below it, over its whole width.
    """
    columns = range(len(header) or max((len(row) for row in rows), default=1))
    styles = [_style(rows, i) for i in columns]
    title = f'<caption style="{_LEFT}">{_html(caption)}</caption>' if caption else ""
    names = "".join(f'<th style="{style}">{_html(name)}</th>' for name, style in zip(header, styles, strict=False))
    head = f"<thead><tr>{names}</tr></thead>" if header else ""
    lines = [
        "".join(f'<td style="{style}">{_html(cell)}</td>' for cell, style in zip(row, styles, strict=True))
        for row in rows
    ]
    if note:
        lines.append(f'<td colspan="{len(columns)}" style="{_LEFT}">{_html(note)}</td>')
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{title}{head}<tbody>{body}</tbody></table>"


def _html(text: str) -> str:
    return escape(printable(text))


def _is_numeric(rows: Sequence[Sequence[str]], column: int) -> bool:
    cells = [row[column] for row in rows if row[column] not in ("", "NULL")]
    return bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def _style(rows: Sequence[Sequence[str]], column: int) -> str:
    if _is_numeric(rows, column):
        return _RIGHT
    return _ROOM if any(len(row[column]) >= _WIDE for row in rows) else _LEFT
