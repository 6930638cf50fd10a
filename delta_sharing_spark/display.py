"""How objects show themselves: listings as small tables, plans as an explanation, long reads as progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from delta_sharing_spark.access.load import Load
    from delta_sharing_spark.access.planning import ScanPlan
    from delta_sharing_spark.schema.types import Struct

_T = TypeVar("_T")
_SHOWN = 100
#: Reads of at least so many bytes show their progress on a terminal.
_PROGRESS_BYTES = 64 << 20


class Listing(list[_T], Generic[_T]):
    """A list that shows itself as a table, in a terminal and in a notebook."""

    def __init__(self, items: Iterable[_T]) -> None:
        super().__init__(items)

    def __repr__(self) -> str:
        return self.text(_SHOWN)

    def text(self, shown: int | None = None) -> str:
        """The items as an aligned table, at most ``shown`` of them and a word on the rest."""
        if not self:
            return "(none)"
        table = text_table(*_cells(self[:shown]))
        return table if shown is None or len(self) <= shown else f"{table}\n... and {len(self) - shown} more"

    def _repr_html_(self) -> str:
        return html_table(self)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as listings show it. ``null`` is ``""`` or ``"NOT NULL"``."""

    name: str
    type: str
    null: str = ""
    comment: str = ""


def columns_of(schema: Struct) -> list[Column]:
    """The columns of a schema, to be shown."""
    return [
        Column(f.name, str(f.type), "" if f.nullable else "NOT NULL", str(f.metadata.get("comment", "")))
        for f in schema.fields
    ]


def html_table(items: list[Any], caption: str | None = None) -> str:
    """Items as a table of HTML, every text escaped; at most a hundred of them and a word on the rest."""
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    if not items:
        return f"<table>{title}<tbody><tr><td>(none)</td></tr></tbody></table>"
    header, rows = _cells(items[:_SHOWN])
    if len(items) > _SHOWN:
        rows.append([f"... and {len(items) - _SHOWN} more", *[""] * (len(header) - 1)])
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(items: list[Any]) -> tuple[list[str], list[list[str]]]:
    """Column names and cells; columns that are empty in every row are left out."""
    if not items or not is_dataclass(items[0]):
        return ["value"], [[str(item)] for item in items]
    names = [f.name for f in fields(items[0]) if f.repr and any(getattr(item, f.name) for item in items)]
    return names, [[_cell(getattr(item, name)) for name in names] for item in items]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def text_table(header: list[str], rows: list[list[str]]) -> str:
    """Cells as aligned text."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [header, ["-" * w for w in widths], *rows]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def explanation(planned: ScanPlan, load: Load) -> str:
    """What a plan sent, reads and skips."""
    report = planned.report
    version = "newest" if report.version is None else report.version
    lines = [f"table      {load.table}, version {version}", f"access     {report.mode}: {report.reason}"]
    for name, value in report.sent.items():
        lines.append(f"sent       {name} = {value}")
    if not report.sent:
        lines.append("sent       no hints")
    lines.append(f"listed     {report.listed} files")
    for rule, count in report.skipped.items():
        lines.append(f"skipped    {count} files by {rule}")
    lines.append(f"to read    {report.files} files, {report.bytes:,} bytes, in {len(planned.splits)} splits")
    lines.append(f"columns    {', '.join(load.output.names)}")
    if load.predicate is not None:
        lines.append(f"where      {load.predicate}")
        for part in report.unhelpful:
            lines.append(f"           no file can be skipped by {part}; it filters rows")
    return "\n".join(lines)


@contextmanager
def progress_of(planned: ScanPlan) -> Iterator[Callable[[int], None] | None]:
    """A line of progress on stderr for a long read, where a person is looking; else None."""
    if planned.report.bytes < _PROGRESS_BYTES or not _is_watched():
        yield None
        return
    total, done = len(planned.splits), 0

    def show() -> None:
        share = done * 40 // total if total else 40
        sys.stderr.write(f"\r{planned.spec.table} [{'#' * share}{'.' * (40 - share)}] {done}/{total}")
        sys.stderr.flush()

    def step(_: int) -> None:
        nonlocal done
        done += 1
        show()

    show()
    try:
        yield step
    finally:
        sys.stderr.write("\n")


def _is_watched() -> bool:
    """Whether stderr is a terminal or a notebook's cell."""
    if sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
