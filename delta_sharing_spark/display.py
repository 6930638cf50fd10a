"""Shows objects to people: listings as small tables, plans as an explanation, long reads as progress."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from delta_sharing_spark.errors import printable
from delta_sharing_spark.schema.markup import counted, html_table, plain_sql, seconds_text, size_text, text_table

if TYPE_CHECKING:
    from delta_sharing_spark.access.plan import PlanReport, ScanPlan
    from delta_sharing_spark.access.resolved_scan import ResolvedScan
    from delta_sharing_spark.schema.types import Struct
    from delta_sharing_spark.sharing.wire_records import TableSnapshotHead

_T = TypeVar("_T")
_SHOWN = 100
#: Seconds that a read may take before its progress is shown.
_PROGRESS_DELAY = 1.0
#: Of an explanation: the width of the column of labels, and the labels.
_LABEL = 11
_LABELS = frozenset({"", "table", "access", "sent", "not sent", "asked", "listed", "skipped", "to read", "columns", "where", "engine",
                     "scan"})  # fmt: skip
#: What listings show on demand only.
_ON_DEMAND = frozenset(
    {"id", "share_id", "location", "storage_location", "auxiliary_locations", "properties", "display_name"}
)


class Listing(list[_T], Generic[_T]):
    """A list that prints as a table, in a terminal and in a notebook.

    Ids, locations and properties are shown by ``listing.verbose`` only.
    """

    def __init__(self, items: Iterable[_T], *, hidden: frozenset[str] = _ON_DEMAND) -> None:
        super().__init__(items)
        self._hidden = hidden

    @property
    def brief(self) -> Listing[_T]:
        """The same items, shown by their names and comments."""
        return Listing(self, hidden=_ON_DEMAND | {"share", "schema", "access_modes"})

    @property
    def verbose(self) -> Listing[_T]:
        """The same items, shown with all they have."""
        return Listing(self, hidden=frozenset())

    def __repr__(self) -> str:
        return self.text(_SHOWN)

    def text(self, most: int | None = None) -> str:
        """The items as an aligned table, at most ``most`` of them, with the number of the others."""
        if not self:
            return "(none)"
        table = text_table(*_cells(self[:most], self._hidden))
        return table if most is None or len(self) <= most else f"{table}\n{self._rest(most)}"

    def _repr_html_(self) -> str:
        if not self:
            return html_table([], [["(none)"]])
        cells = _cells(self[:_SHOWN], self._hidden)
        return html_table(*cells, note=self._rest(_SHOWN) if len(self) > _SHOWN else "")

    def _rest(self, count: int) -> str:
        return f"... and {len(self) - count} more"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table in a listing. ``null`` is ``""`` or ``"NOT NULL"``."""

    name: str
    type: str
    null: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table in a listing, and when it was committed, in UTC; None where the server does not tell."""

    version: int
    committed: datetime | None


class Explanation(str):
    """A text of several lines that a notebook shows as a table; lines that are no label and text stand below it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        rows, rest = [], []
        for line in self.split("\n"):
            label = line[:_LABEL].strip()
            if label in _LABELS and line[_LABEL - 1 : _LABEL] in (" ", ""):
                rows.append([label, line[_LABEL:]])
            else:
                rest.append(line)
        table = html_table([], rows) if rows else ""
        return table + (f"<pre>{escape(chr(10).join(rest))}</pre>" if rest else "")


def table_html(table: str, head: TableSnapshotHead) -> str:
    """A table as HTML: its version, size, files and description, as far as the server tells them, and its columns."""
    from delta_sharing_spark.access.table_shape import shape_of

    metadata = head.metadata
    facts = [
        table if head.version is None else f"{table}, version {head.version}",
        *([] if metadata.size is None else [size_text(metadata.size)]),
        *([] if metadata.num_files is None else [counted(metadata.num_files, "file")]),
    ]
    schema = shape_of(head.protocol, metadata, table).schema
    return schema_html(schema, ", ".join(facts) + (f". {metadata.description}" if metadata.description else ""))


def schema_html(schema: Struct, caption: str) -> str:
    """A schema as HTML: a row for each column."""
    return html_table(*_cells([Column(*row) for row in schema.rows()], frozenset()), caption)


def scan_html(table: str, options: Mapping[str, str], schema: Struct) -> str:
    """A scan as HTML: its options, which must hold no secret, and its columns."""
    asked = ", ".join(f"{name} = {value}" for name, value in options.items()) or "all rows of the newest version"
    return schema_html(schema, f"Scan of {table}: {asked}")


def _cells(items: Sequence[Any], hidden: frozenset[str]) -> tuple[list[str], list[list[str]]]:
    """Column names and cells; columns that are empty in every row are left out."""
    if not items or not is_dataclass(items[0]):
        return ["value"], [[str(item)] for item in items]
    names = [f.name for f in fields(items[0]) if f.repr and f.name not in hidden]
    names = names[:1] + [name for name in names[1:] if any(getattr(item, name) for item in items)]
    return names, [[_cell(name, getattr(item, name)) for name in names] for item in items]


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name in ("bytes", "size"):
        return size_text(value)
    if name == "seconds":
        return seconds_text(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def explanation(planned: ScanPlan, scan: ResolvedScan) -> str:
    """The text of ``Scan.explain``: what a plan sent, reads and skips."""
    report = planned.report
    version = "newest" if report.version is None else report.version
    lines = [f"table      {scan.table}, version {version}", f"access     {report.mode}: {report.reason}"]
    for name, value in (report.sent or {}).items():
        lines.append(f"sent       {name} = {value}")
    if report.sent == {}:
        lines.append("sent       no hints" + (": there is no where" if scan.predicate is None else ""))
    for part in _unsent(report, scan):
        lines.append(f"not sent   {plain_sql(part)}: the protocol's hints have no words for it; files are skipped here")
    if report.fallback is not None:
        lines.append(f"asked      {report.fallback}")
    whose = (
        "from an earlier query's listing, which takes"
        if report.is_repeated
        else "whose listing stays for other queries, in"
    )
    memory = f", {whose} {size_text(report.listing_bytes)} of memory" if report.listing_bytes else ""
    lines.append(f"listed     {counted(report.listed, 'file')}{memory}")
    for rule, count in report.skipped.items():
        lines.append(f"skipped    {counted(count, 'file')} by {rule}")
    files, splits = counted(report.files, "file"), counted(len(planned.splits), "split")
    lines.append(f"to read    {files}, {size_text(report.bytes)}, in {splits}")
    lines.append(f"columns    {', '.join(scan.output.names)}")
    if scan.predicate is not None:
        lines.append(f"where      {plain_sql(str(scan.predicate))}")
        for part in report.unhelpful:
            lines.append(f"           no file can be skipped by {plain_sql(part)}; it filters rows")
    return "\n".join(printable(line, one_line=True) for line in lines)


def _unsent(report: PlanReport, scan: ResolvedScan) -> list[str]:
    """The parts of ``where`` that no hint to the sharing server holds, where it takes hints."""
    if scan.predicate is None or report.sent is None or report.fallback is not None:
        return []
    if "predicateHints" in report.sent:
        return []
    from delta_sharing_spark.predicates.hints import json_hints
    from delta_sharing_spark.predicates.tree import conjuncts

    shape = scan.shape
    return [
        str(part)
        for part in conjuncts(scan.predicate)
        if json_hints(part, shape.schema, shape.partition_columns) is None
    ]


class Progress:
    """A bar of bytes and rows with rate and time left: a widget in a notebook, a line on a terminal, else nothing."""

    def __init__(self, planned: ScanPlan) -> None:
        self._bytes = {split.index: split.nbytes for split in planned.splits}
        self._rows = 0
        self._bar = _bar(planned.spec.table, "B", sum(self._bytes.values()))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def add_rows(self, rows: int) -> None:
        """Count rows that were read."""
        if self._bar is not None:
            self._rows += rows
            self._bar.set_postfix_str(f"{self._rows:,} rows", refresh=False)

    def finish_split(self, index: int) -> None:
        """Count the bytes of a split that is done."""
        if self._bar is not None:
            self._bar.update(self._bytes[index])


@contextmanager
def counting(
    caption: str, unit: str, total: int | None = None, *, is_visible: bool = True
) -> Iterator[Callable[[int], None] | None]:
    """A count of files or bytes, shown as ``Progress`` is; yields what adds to it, None where nobody watches."""
    bar = _bar(caption, unit, total) if is_visible else None
    with nullcontext() if bar is None else bar:
        yield None if bar is None else bar.update


def _bar(caption: str, unit: str, total: int | None) -> Any:
    """A bar of ``tqdm.auto``; None where nobody watches, or it is not installed, as on servers that were sent this package alone."""
    if not _is_watched():
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tqdm warns of a notebook without ipywidgets, and shows text there
            from tqdm.auto import tqdm
    except ImportError:
        return None
    caption = printable(caption, one_line=True)
    return tqdm(total=total, desc=caption, unit=unit, unit_scale=unit == "B", delay=_PROGRESS_DELAY, leave=False)


def _is_watched() -> bool:
    """Whether stderr is a terminal or a notebook's cell."""
    if sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")
