"""A shared table of several files and row groups, and the matrix of faults that the suite prints at its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support.buckets import BucketServer
from support.written_iceberg import catalog_at, metadata_file

#: (fault, mode, moment) -> what came of it.
_CELLS: dict[tuple[str, str, str], str] = {}
_NOTES: list[str] = []
ROWS = 12_000


@pytest.fixture(autouse=True)
def _several_requests_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are not fetched whole, so that there is something between two requests for one."""
    monkeypatch.setattr("delta_sharing_spark.scan.pace.WHOLE_FILE", 0)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    """Three files of four row groups, with page checksums, deletion vectors, and a column that nobody reads."""
    noise = random.Random(8)
    data = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "text": [noise.randbytes(24).hex() for _ in range(ROWS)],
            "unread": [noise.randbytes(8).hex() for _ in range(ROWS)],
        }
    )
    style = FileStyle(row_group_size=1000, parquet={"write_page_checksum": True, "compression": "none"})
    path = tmp_path_factory.mktemp("faults") / "t"
    made = DeltaTableBuilder(path, data.schema, properties={"delta.enableDeletionVectors": "true"}, style=style)
    made.append(data, files=3)
    return made.delete(pc.equal(pc.bit_wise_and(pc.field("id"), 511), 5), deletion_vectors=True)


@pytest.fixture(scope="session")
def expected(table: DeltaTableBuilder) -> pa.Table:
    return table.expected().select(["id", "text"]).sort_by("id")


@pytest.fixture(scope="session")
def lake(expected: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The metadata document of an Iceberg table of the same rows, at ``s3://lake``: files of as many row groups, in its directory's parent."""
    directory = tmp_path_factory.mktemp("lake")
    catalog = catalog_at("s3://lake", directory)
    files = []
    for number in range(3):
        part = expected.slice(number * 4000, 4000)
        pq.write_table(part, directory / f"f{number}.parquet", 1000, write_page_checksum=True, compression="none")
        files.append(f"s3://lake/f{number}.parquet")
    table = catalog.create_table("db.t", expected.schema)
    table.add_files(files)
    return metadata_file(table, catalog)


@pytest.fixture
def server(table: DeltaTableBuilder) -> Iterator[BucketServer]:
    """The table by url as ``s.d.t``, and by directory in a bucket as ``s.d.dir``."""
    with BucketServer({"s.d.t": table.path}) as running:
        running.add_bucket_table("s.d.dir", table.path)
        yield running
        assert not running.failures


def share_lake(server: BucketServer, metadata: Path) -> None:
    """Share the Iceberg table as ``s.d.iceberg``."""
    directory = metadata.parents[3]
    server.bucket("lake", directory)
    location = f"s3://lake/{metadata.relative_to(directory).as_posix()}"
    keys = partial(server.vended_properties, "s3://lake")
    vended = [{"prefix": "s3://lake", "config": keys}]
    server.add_iceberg_table("s.d.iceberg", metadata, location, storage_credentials=vended)


@pytest.fixture
def note() -> Callable[[str], None]:
    """A line to show at the end of the suite."""
    return _NOTES.append


@pytest.fixture
def cell() -> Callable[[str, str, str, str], None]:
    """Enter the outcome of a fault in the matrix."""

    def enter(fault: str, mode: str, moment: str, outcome: str) -> None:
        _CELLS[fault, mode, moment] = outcome

    return enter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    if _CELLS:
        columns = list(dict.fromkeys((mode, moment) for _, mode, moment in _CELLS))
        faults = list(dict.fromkeys(fault for fault, _, _ in _CELLS))
        wide = max(map(len, faults)) + 2
        write("")
        write("faults: exact rows, or the error".ljust(wide))
        write(" " * wide + "".join(f"{mode + ' ' + moment:<18}" for mode, moment in columns))
        for fault in faults:
            write(fault.ljust(wide) + "".join(f"{_CELLS.get((fault, *column), ''):<18}" for column in columns))
    for line in _NOTES:
        write(line)
