"""Faults of the storage under the native lane: rows that are exact, or an error with our cause; never fewer rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from faults.test_matrix import FAULTS, HASTE, IN_DIRECTORIES, SMALL, share
from support.buckets import BucketServer
from unit.native.reading import rows_of, served

pytestmark = pytest.mark.usefixtures("files_in_parts")

MODES = ("url", "dir")
COLUMNS = ["id", "text"]


@pytest.fixture
def server(table: DeltaTableBuilder) -> Iterator[BucketServer]:
    with BucketServer() as running:
        share(running, table.path)
        yield running
        assert not running.failures


def scan_of(running: BucketServer, mode: str, **options: str) -> Any:
    load_options = {**SMALL, "retryTimeout": "20s", "storageEndpoint": f"http://{running.address}", **options}
    return SharingClient(running.profile(), **load_options).table(f"s.d.{mode}").scan(columns=COLUMNS)


def outcome(plan: NativePlan, address: str, expected: pa.Table) -> str:
    try:
        rows = rows_of(plan, address)
    except OSError as error:
        return str(error)
    assert rows.select(COLUMNS).sort_by("id").equals(expected), "other rows than the table has"
    return "rows"


def location_of_second(plan: NativePlan) -> SplitResult:
    """Where the second of the table's files is."""
    return urlsplit([member.task.location for file in plan.files for member in file.members][1])


@pytest.fixture
def files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether small files are shown each alone, or as one."""
    if request.param == "alone":
        monkeypatch.setattr("delta_sharing_spark.native.plan.SMALL_FILE", 0)
    return str(request.param)


@pytest.mark.parametrize(
    ("mode", "moment", "files"),
    [
        ("url", "before", "alone"),
        ("url", "during", "alone"),
        ("dir", "during", "alone"),
        ("url", "during", "joined"),
        ("dir", "before", "joined"),
    ],
    indirect=["files"],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(
    fault: str,
    mode: str,
    moment: str,
    files: str,
    server: BucketServer,
    expected: pa.Table,
    cell: Callable[..., None],
) -> None:
    """At a file's footer, and at its rows."""
    what, expected_outcome = FAULTS[fault]
    expected_outcome = IN_DIRECTORIES.get((fault, mode), expected_outcome)
    with served(scan_of(server, mode, **HASTE.get(fault, {}))) as (_, plan, address):
        rule = server.faults.add(
            "data", location_of_second(plan).path.rpartition("/")[2], skip=2 if moment == "during" else 0, **what
        )
        came = outcome(plan, address, expected)
        assert rule.hits, "the fault was never met"
    cell(fault, f"{mode} native, {files}", moment, "rows" if came == "rows" else expected_outcome)
    if fault == "corrupt byte":
        # The page's checksum is the reader's to compare: Spark's does, see tests/spark/test_native.py.
        assert came != "rows"
    else:
        assert came.startswith(expected_outcome)


@pytest.mark.parametrize("mode", MODES)
def test_a_plan_is_read_after_all_its_urls_and_credentials_ended(
    mode: str,
    server: BucketServer,
    expected: pa.Table,
) -> None:
    with served(scan_of(server, mode, carryProfile="false")) as (_, plan, address):
        for _ in range(3):
            assert outcome(plan, address, expected) == "rows"
            server.expire_urls() if mode == "url" else server.expire_credentials()


@pytest.mark.parametrize("files", ["alone"], indirect=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", ["shorter", "longer", "replaced by another", "gone"])
def test_file_changes(
    change: str,
    mode: str,
    files: str,
    server: BucketServer,
    table: DeltaTableBuilder,
    expected: pa.Table,
    tmp_path: Path,
) -> None:
    copy = tmp_path / "t"
    shutil.copytree(table.path, copy)
    share(server, copy)
    with served(scan_of(server, mode)) as (_, plan, address):
        assert outcome(plan, address, expected) == "rows"
        url = location_of_second(plan)
        _, local = server.kind_of(url.path if mode == "url" else f"/{url.netloc}{url.path}")
        victim = Path(local)
        data = victim.read_bytes()
        if change == "gone":
            victim.unlink()
        else:
            other = {"shorter": data[:-100], "longer": data + bytes(100)}.get(change, data[::-1])
            victim.with_suffix(".new").write_bytes(other)
            os.replace(victim.with_suffix(".new"), victim)
        assert outcome(plan, address, expected).startswith("FileGoneError" if change == "gone" else "CorruptFileError")
