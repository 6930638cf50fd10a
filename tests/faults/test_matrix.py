"""Every fault, in both modes, before, during and between files: exact rows or the documented error, never others."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import FileError
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from faults.conftest import share_lake
from support.buckets import BucketServer

MOMENTS = ("before", "during", "between")
MODES = ("url", "dir")
#: Directory mode is on S3 at every moment, and so are Iceberg tables; on the other clouds, whose libraries differ, within a file.
PLACES = [(mode, moment) for mode in (*MODES, "iceberg") for moment in MOMENTS] + [
    ("gs", "during"),
    ("abfss", "during"),
]
#: A small budget, so that a file takes several requests.
SMALL = {"memoryBudget": "1m"}

#: A fault of the storage, and the error it ends in; "rows": the table's, exactly.
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "reset": ({"reset": True, "times": 2}, "rows"),
    "reset in the body": ({"reset": True, "truncate": 700, "times": 2}, "rows"),
    "body cut short": ({"truncate": -1, "times": 2}, "rows"),
    "429 with Retry-After": ({"status": 429, "retry_after": "0", "times": 2}, "rows"),
    "503 with Retry-After": ({"status": 503, "retry_after": "0", "times": 2}, "rows"),
    "503": ({"status": 503, "times": 2}, "rows"),
    "silence in the body": ({"stall": 0.8, "stall_at": 100, "times": 1}, "rows"),
    "200 for a range": ({"ignore_range": True, "times": None}, "rows"),
    "another range": ({"shift_range": 3, "times": 2}, "rows"),
    "no Content-Range": ({"headers": {"Content-Range": None}, "times": 1}, "rows"),
    "403 once": ({"status": 403, "times": 1}, "rows"),
    "reset for good": ({"reset": True, "times": None}, "NetworkError"),
    "503 for good": ({"status": 503, "times": None}, "NetworkError"),
    "another range for good": ({"shift_range": 3, "times": None}, "FileError"),
    "403 for good": ({"status": 403, "times": None}, "FileError"),
    "404": ({"status": 404, "times": None}, "FileGoneError"),
    "410": ({"status": 410, "times": None}, "FileGoneError"),
    "file grew": ({"ignore_range": True, "grow": 4, "times": None}, "CorruptFileError"),
    "corrupt byte": ({"corrupt": 500, "times": None}, "CorruptFileError"),
}
#: Options of the faults that would be waited for.
HASTE = {
    "silence in the body": {"readTimeout": "500ms"},
    "reset for good": {"retryTimeout": "300ms"},
    "503 for good": {"retryTimeout": "300ms"},
}
#: Directory mode tells a file that is there and may not be read (it is listed, Azure would say 404) from one that is gone.
#: Where a credential may not list: test_clouds.py.
IN_DIRECTORIES = {("403 for good", mode): "CredentialError" for mode in ("dir", "gs", "abfss", "iceberg")}


@pytest.fixture
def server(table: DeltaTableBuilder, lake: Path) -> Iterator[BucketServer]:
    with BucketServer() as running:
        running.lists = ("s3", "gs", "abfss")
        share(running, table.path)
        share_lake(running, lake)
        yield running
        assert not running.failures


def share(server: BucketServer, path: Path) -> None:
    server.add_table("s.d.url", path)
    for name, scheme in (("dir", "s3"), ("gs", "gs"), ("abfss", "abfss")):
        server.add_bucket_table(f"s.d.{name}", path, scheme=scheme)


def planned(server: SharingServer, mode: str, **options: str) -> Split:
    """One split over all files, as it arrives on an executor."""
    endpoint = {"storageEndpoint": f"http://{server.address}"}
    load_options = {**SMALL, "retryTimeout": "20s", **endpoint, **options}
    (split,) = (
        SharingClient(server.profile(), **load_options).table(f"s.d.{mode}").scan(columns=["id", "text"]).plan().splits
    )
    assert len(split.slices) == 3
    arrived: Split = pickle.loads(pickle.dumps(split))
    return replace(arrived, access=_impatient(arrived.access))


def _impatient(access: Any) -> Any:
    """The same access, with short waits between tries."""
    return replace(access, settings=replace(access.settings, first_wait=0.01))


def outcome(split: Split, expected: pa.Table) -> str:
    """``rows`` if they are exact, or the error's class."""
    try:
        batches = list(read_split(split))
    except FileError as error:
        if not re.search(r"reload|load it again|ask the provider|look for", str(error)):
            return f"no next step: {error}"
        return type(error).__name__
    except Exception as error:
        return type(error).__name__
    assert pa.Table.from_batches(batches).sort_by("id").equals(expected), "other rows than the table has"
    return "rows"


def name_of(split: Split, number: int) -> str:
    return urlsplit(split.slices[number].task.location).path.rpartition("/")[2]


def place(split: Split, moment: str) -> tuple[str | None, int]:
    """Which requests a moment means: the first of all, a row group of the second file, the footer of the third."""
    if moment == "before":
        return None, 0
    return re.escape(name_of(split, 1 if moment == "during" else 2)), 2 if moment == "during" else 0


@pytest.mark.parametrize(("mode", "moment"), PLACES)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(
    fault: str, mode: str, moment: str, server: BucketServer, expected: pa.Table, cell: Callable[..., None]
) -> None:
    what, expected_outcome = FAULTS[fault]
    expected_outcome = IN_DIRECTORIES.get((fault, mode), expected_outcome)
    split = planned(server, mode, **HASTE.get(fault, {}))
    path, skip = place(split, moment)
    rule = server.faults.add("data", path, skip=skip, **what)
    came = outcome(split, expected)
    cell(fault, mode, moment, came)
    assert came == expected_outcome
    assert rule.hits, "the fault was never met"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("mode", "style"),
    [("url", "s3"), ("url", "s3-400"), ("url", "azure"), ("url", "gcs"), ("dir", "s3-400"), ("iceberg", "s3-400")],
)
def test_expiry(
    mode: str, style: str, moment: str, server: BucketServer, expected: pa.Table, cell: Callable[..., None]
) -> None:
    server.settings.expired_style = style  # type: ignore[assignment]
    split = planned(server, mode)
    path, skip = place(split, moment)
    server.reset_metrics()
    server.faults.add("data", path, skip=skip, call=server.expire_urls if mode == "url" else server.expire_credentials)
    came = outcome(split, expected)
    cell(f"expiry ({style})", mode, moment, came)
    assert came == "rows"
    kind = {"url": "query", "dir": "credentials", "iceberg": "iceberg"}[mode]
    assert server.count(kind) == 1, "one renewal serves the whole process"


@pytest.mark.parametrize(("mode", "moment"), PLACES)
def test_etag_changes(
    mode: str, moment: str, server: BucketServer, expected: pa.Table, cell: Callable[..., None]
) -> None:
    split = planned(server, mode)
    path, skip = place(split, moment)
    # The first answer for a file tells its ETag: a change shows with the next one.
    server.faults.add("data", path, skip=skip, times=1, headers={"ETag": '"other"'})
    came = outcome(split, expected)
    cell("ETag changes", mode, moment, came)
    assert came == "CorruptFileError"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", ["shorter", "longer", "replaced by another"])
def test_file_changes(
    change: str,
    mode: str,
    moment: str,
    server: BucketServer,
    table: DeltaTableBuilder,
    expected: pa.Table,
    cell: Callable[..., None],
    tmp_path: Path,
) -> None:
    """A file is overwritten while the split is read; without a change of size only its ETag tells."""
    copy = tmp_path / "t"
    shutil.copytree(table.path, copy)
    share(server, copy)
    split = planned(server, mode)
    number = MOMENTS.index(moment)
    url = urlsplit(split.slices[number].task.location)
    _, local = server.kind_of(url.path if mode == "url" else f"/{url.netloc}{url.path}")
    victim = Path(local)

    def overwrite() -> None:
        data = victim.read_bytes()
        other = data[:-100] if change == "shorter" else data + bytes(100) if change == "longer" else data[::-1]
        victim.with_suffix(".new").write_bytes(other)
        os.replace(victim.with_suffix(".new"), victim)

    server.faults.add("data", re.escape(name_of(split, number)), skip=2 if moment == "during" else 0, call=overwrite)
    came = outcome(split, expected)
    cell(f"file gets {change}", mode, moment, came)
    assert came == "CorruptFileError"


@pytest.mark.parametrize("moment", MOMENTS)
def test_file_gone_at_renewal(moment: str, server: BucketServer, expected: pa.Table, cell: Callable[..., None]) -> None:
    split = planned(server, "url")
    path, skip = place(split, moment)
    server.faults.drop_file(split.slices[1].task.id)
    server.faults.add("data", path, skip=skip, call=server.expire_urls)
    came = outcome(split, expected)
    cell("expired, and no longer listed", "url", moment, came)
    # Of a file that was read to its end already no URL is needed.
    assert came == "FileGoneError" or (moment == "between" and came == "rows")


@pytest.mark.parametrize("fault", ["404", "corrupt byte", "file grew", "body cut short"])
def test_local_files(
    fault: str, server: BucketServer, table: DeltaTableBuilder, expected: pa.Table, tmp_path: Path
) -> None:
    """The files of a table change under a plan: what a local directory can do."""
    copy = tmp_path / "t"
    shutil.copytree(table.path, copy)
    server.add_table("s.d.local", copy, access_modes=("dir",))
    split = planned(server, "local")
    assert outcome(split, expected) == "rows"
    victim = copy / urlsplit(split.slices[1].task.location).path.rpartition("/")[2]
    data = victim.read_bytes()
    victim.unlink()
    if fault == "corrupt byte":
        victim.write_bytes(data[:500] + bytes([data[500] ^ 255]) + data[501:])
    elif fault == "file grew":
        victim.write_bytes(data + bytes(8))
    elif fault == "body cut short":
        victim.write_bytes(data[:-100])
    came = outcome(split, expected)
    # Bytes after the planned end are never asked for: the rows are still those that were planned.
    assert came == {"404": "FileGoneError", "file grew": "rows"}.get(fault, "CorruptFileError")


def test_task_repeats_exactly(server: BucketServer) -> None:
    split = planned(server, "url")
    first = [batch.to_pylist() for batch in read_split(split)]
    server.faults.add("data", times=3, reset=True, truncate=900)
    server.faults.add("data", skip=5, call=server.expire_urls)
    assert [batch.to_pylist() for batch in read_split(replace(split))] == first
