"""Writes counts, sizes, times and small tables for people: as text, and as HTML in the page's own colours, light and dark alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from delta_sharing_spark.errors import printable

_NUMBER = re.compile(r"-?[0-9][0-9,]*(\.[0-9]+)?( ([kMGTPE]?B|s))?")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
#: What is quoted, which stays as it is; or a number, with the letters that tell its type.
_QUOTED_OR_NUMBER = re.compile(r"""'(?:[^'\\]|\\.)*'|`[^`]*`|\b(\d[\d.]*)(?:BD|[LSYDF])\b""", re.DOTALL)
#: A column of at least so many characters somewhere wraps, and is given room to.
_WIDE = 40
_LEFT, _RIGHT = "text-align:left", "text-align:right"
_ROOM = f"{_LEFT};white-space:normal;min-width:20em;max-width:48em"


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "file"), counted(1200, "file")
    ('1 file', '1,200 files')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(nbytes: int) -> str:
    """A number of bytes in the unit that fits, of powers of a thousand.

    >>> size_text(950), size_text(10_537_590), size_text(999_999)
    ('950 B', '10.5 MB', '1.0 MB')
    """
    size, unit = float(nbytes), 0
    while unit + 1 < len(_UNITS) and size >= (1000 if unit == 0 else 999.95):
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{nbytes} B"


def seconds_text(seconds: float) -> str:
    """A time, to the millisecond below a second.

    >>> seconds_text(0.004340253999544075), seconds_text(83.21)
    ('0.004 s', '83.2 s')
    """
    return f"{seconds:.3f} s" if seconds < 0.9995 else f"{seconds:,.1f} s"


def plain_sql(condition: str) -> str:
    """A condition without the letters by which literals tell their types.

    >>> plain_sql("`fare` > 100.00BD AND `trip` = 7L AND `note` = '5L'")
    "`fare` > 100.00 AND `trip` = 7 AND `note` = '5L'"
    """
    return _QUOTED_OR_NUMBER.sub(lambda match: match[1] or match[0], condition)


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
