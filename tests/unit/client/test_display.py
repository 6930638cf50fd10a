"""Progress is shown where a person looks, and nowhere else; listings are narrow until more is asked for."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient, display
from delta_sharing_spark.display import Listing, Progress
from delta_sharing_spark.scan.plan import FileAccess, FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.schema.markup import html_table, text_table
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.sharing.wire_records import Table
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder


class _Stream(io.StringIO):
    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize("tty", [True, False])
def test_progress(monkeypatch: pytest.MonkeyPatch, tty: bool) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(display, "_PROGRESS_DELAY", 0.0)
    stream = _Stream(tty)
    monkeypatch.setattr(sys, "stderr", stream)
    task = FileTask("f", "", 3_000_000)
    spec, access = ReadSpec("s.d.t", Struct(()), Struct(())), MagicMock(FileAccess)
    parts = (FileSlice(task, 0, 1_000_000), FileSlice(task, 1_000_000, None))
    planned: Any = SimpleNamespace(splits=[Split(n, spec, (part,), access) for n, part in enumerate(parts)], spec=spec)
    with Progress(planned) as progress:
        progress.add_rows(41_000)
        progress.finish_split(0)
        progress.add_rows(1_000)
        progress.finish_split(1)
    assert ("s.d.t" in stream.getvalue()) == tty
    assert ("3.00M" in stream.getvalue()) == tty


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize("tty", [True, False])
def test_files_are_counted_while_they_are_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tty: bool, mode: str
) -> None:
    tqdm = pytest.importorskip("tqdm.auto").tqdm
    monkeypatch.setattr(display, "_PROGRESS_DELAY", 0.0)
    monkeypatch.setattr("tqdm.auto.tqdm", partial(tqdm, mininterval=0, miniters=1))
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.append([{"id": i} for i in range(7)], files=7)
    with SharingServer() as server:
        server.add_table("s.d.t", table.path, access_modes=("url", "dir"))
        scan = SharingClient(server.profile(), accessMode=mode).table("s.d.t").scan()
        monkeypatch.setattr(sys, "stderr", _Stream(tty))
        assert scan.plan().report.files == 7
        assert ("s.d.t: planning: 7 files" in sys.stderr.getvalue()) == tty  # type: ignore[attr-defined]


def test_without_tqdm_nothing_is_shown_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "stderr", _Stream(True))
    with Progress(SimpleNamespace(splits=[], spec=SimpleNamespace(table="t"))) as progress:  # type: ignore[arg-type]
        progress.add_rows(1)


TABLE = Table("t", "sh", "s", "share id", "id", "a comment", "s3://b/t", (), ("url", "dir"))


@pytest.mark.parametrize(
    ("face", "expected"),
    [
        (lambda listing: listing, ["name", "share", "schema", "comment", "access_modes"]),
        (lambda listing: listing.brief, ["name", "comment"]),
        (lambda listing: listing.verbose, ["name", "share", "schema", "share_id", "id", "comment", "location", "access_modes"]),
    ],
    ids=["whole", "brief", "verbose"],
)  # fmt: skip
def test_ids_and_locations_are_shown_on_demand(
    face: Callable[[Listing[Any]], Listing[Any]], expected: list[str]
) -> None:
    listing = face(Listing([TABLE]))
    assert repr(listing).splitlines()[0].split() == expected
    html = listing._repr_html_()
    assert [name for name in expected if f">{name}</th>" not in html] == []
    assert html.count("<th ") == len(expected)
    assert list(listing) == [TABLE]


def test_numbers_stand_right_text_left_and_long_text_has_room() -> None:
    header, rows = ["n", "name", "comment"], [["1", "a", "x" * 60], ["-20", "東京", ""], ["NULL", "b", ""]]
    lines = text_table(header, rows).splitlines()
    assert [line[:4] for line in lines] == ["   n", "----", "   1", " -20", "NULL"]
    assert lines[3] == " -20  東京"
    assert lines[2].index("x") == lines[0].index("comment")
    html = html_table(header, rows, caption="<c>", note="more")
    assert html.count("text-align:right") == 4
    assert "min-width" in html
    assert "&lt;c&gt;" in html
    assert 'colspan="3"' in html
