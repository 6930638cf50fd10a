"""Footers that lie: whatever a byte of them says, a file is read or refused, and the process lives."""

from __future__ import annotations

import datetime
import decimal
import os
import struct
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.parquet.footer import check_column_chunks, read_footer
from support import HANGS
from unit.scan.local_access import Bytes, parquet


def every_type(rows: int = 60) -> pa.Table:
    return pa.table(
        {
            "i32": pa.array(range(rows), pa.int32()),
            "i64": pa.array([None if i % 7 == 0 else -i for i in range(rows)], pa.int64()),
            "s": [None if i % 5 == 0 else f"x{i}" for i in range(rows)],
            "f": pa.array(np.arange(rows), pa.float32()),
            "b": [i % 2 == 0 for i in range(rows)],
            "d": [datetime.date(2020, 1, 1)] * rows,
            "dec": pa.array([decimal.Decimal("-1.23")] * rows, pa.decimal128(30, 2)),
            "nothing": pa.array([None] * rows, pa.int64()),
            "list": [[1, 2], None] * (rows // 2),
            "struct": [{"q": 1.5, "w": True}] * rows,
        }
    )


def written(name: str) -> bytes:
    table = every_type()
    if name == "pyarrow":
        return parquet(table, row_group_size=20)
    if name == "pages":
        return parquet(table, row_group_size=20, write_page_index=True, data_page_version="2.0", use_dictionary=False)
    if name == "none":
        return parquet(table, row_group_size=20, write_statistics=False)
    import io

    out = io.BytesIO()
    if name == "polars":
        import polars

        polars.from_arrow(table).write_parquet(out, row_group_size=20, statistics="full")
        return out.getvalue()
    import duckdb

    path = Path(name)
    duckdb.from_arrow(table).write_parquet(str(path), row_group_size=20)
    return path.read_bytes()


@pytest.mark.parametrize("writer", ["pyarrow", "pages", "none", "polars", "duckdb"])
def test_statistics_are_those_that_pyarrow_reads(writer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    footer = read_footer(Bytes("f", written(writer)), "t", 1 << 20)
    metadata = footer.metadata
    for group in range(metadata.num_row_groups):
        for leaf in range(metadata.num_columns):
            expected, ours = metadata.row_group(group).column(leaf).statistics, footer.statistics(group, leaf)
            if expected is None or ours is None:
                assert expected is ours is None
                continue
            assert ours.has_null_count == expected.has_null_count
            assert not ours.has_null_count or ours.null_count == expected.null_count
            assert not expected.has_min_max or (ours.min_raw, ours.max_raw) == (expected.min_raw, expected.max_raw)


_EVERY_BYTE = """
import struct, sys
from unit.parquet.test_footers import Bytes, CorruptFileError, every_type, parquet, read_footer
table = every_type().select(["i32", "s", "list"])
data = parquet(table, row_group_size=30, write_page_index=True, data_page_version="2.0")
size = struct.unpack("<I", data[-8:-4])[0] + 8
read = refused = 0
for place in range(len(data) - size, len(data)):
    for change in (lambda b: b + 1, lambda b: 255):
        damaged = bytearray(data)
        damaged[place] = change(data[place]) % 256
        try:
            footer = read_footer(Bytes("f", bytes(damaged)), "t")
        except CorruptFileError:
            refused += 1
            continue
        for group in range(footer.metadata.num_row_groups):
            footer.chunks(group, list(range(footer.metadata.num_columns)))
            for leaf in range(footer.metadata.num_columns):
                footer.statistics(group, leaf)
        read += 1
print(read, refused)
"""


def run(script: str, *args: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, which may be ended by what it reads."""
    return subprocess.run(
        [sys.executable, "-c", script, *args],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=HANGS,
    )


def test_no_byte_of_a_footer_ends_the_process() -> None:
    ended = run(_EVERY_BYTE)
    assert ended.returncode == 0, ended.stderr[-2000:]
    read, refused = map(int, ended.stdout.split())
    assert read > 300
    assert refused > 300


@pytest.mark.parametrize("claim", [1 << 20, 1 << 31, (1 << 32) - 1])
def test_a_footer_longer_than_its_file_is_not_fetched(claim: int) -> None:
    data = parquet(every_type())
    source = Bytes("f", data[:-8] + struct.pack("<I", claim) + b"PAR1")
    with pytest.raises(CorruptFileError, match="claims"):
        read_footer(source, "t")
    assert max(end - start for start, end in source.log) <= len(data)


class _Huge:
    """A file of four exbibytes, in which every byte reads as the end of a footer of 4 GiB."""

    name, size = "f", 1 << 62

    def read(self, start: int, length: int) -> memoryview:
        assert length <= 1 << 20
        return memoryview(bytes(length - 8) + struct.pack("<I", (1 << 32) - 9) + b"PAR1")

    def close(self) -> None: ...


def test_a_footer_of_four_gigabytes_is_not_fetched_from_a_file_that_claims_to_be_large() -> None:
    source: Any = _Huge()
    with pytest.raises(CorruptFileError, match="claims 4294967295 bytes"):
        read_footer(source, "t")


def test_statistics_of_a_wrong_length_tell_nothing() -> None:
    data = parquet(pa.table({"a": pa.array([7, 8], pa.int32())}), use_dictionary=False)
    metadata = pq.read_metadata(pa.BufferReader(data))
    assert metadata.row_group(0).column(0).statistics.min_raw == 7
    bound = b"\x04" + struct.pack("<i", 7)
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - size : -8]
    assert bound in footer
    shorter = footer.replace(bound, b"\x03" + struct.pack("<i", 7)[:3])  # pyarrow ends the process here
    damaged = data[: -8 - size] + shorter + struct.pack("<I", len(shorter)) + b"PAR1"
    assert read_footer(Bytes("f", data), "t", 1 << 20).statistics(0, 0) is not None
    assert read_footer(Bytes("f", damaged), "t", 1 << 20).statistics(0, 0) is None


def test_a_check_keeps_nothing_of_its_caller() -> None:
    """Arrow keeps the exceptions of reads as long as the reader; they must not keep frames, and a file's bytes in them."""

    class Content(bytearray):
        pass

    def checked() -> weakref.ref[Content]:
        content = Content(written("pyarrow"))
        check_column_chunks(pq.read_metadata(pa.BufferReader(bytes(content))), len(content))
        return weakref.ref(content)

    assert checked()() is None
