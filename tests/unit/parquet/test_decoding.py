"""Columns that Spark's reader cannot decode are rewritten for it: these alone, and where a scan reads them."""

from __future__ import annotations

import logging
import random
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance.canonical import row_texts
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.parquet.decoding import OLDEST, release_of, undecoded
from delta_sharing_spark.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, ThriftList, read_struct, write_struct
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from unit.native.reading import RemoteError, RemoteFile, files_of, read_by, rows_of, served

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "part": pa.string(),
        "split": pa.float64(),
        "text": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "s": pa.struct({"x": pa.int32(), "y": pa.list_(pa.float32())}),
    }
)
#: Brotli for one column, BYTE_STREAM_SPLIT for others, one of them within a struct; ``id`` as every reader takes it.
STYLE = FileStyle(
    row_group_size=37,
    parquet={
        "use_dictionary": False,
        "compression": {
            "text": "brotli",
            "id": "snappy",
            "split": "zstd",
            "at": "gzip",
            "s.x": "none",
            "s.y": "snappy",
        },
        "column_encoding": {"split": "BYTE_STREAM_SPLIT", "s.y.list.element": "BYTE_STREAM_SPLIT"},
        "write_page_index": True,
    },
)
VECTORS = {"delta.enableDeletionVectors": "true"}


def data(count: int = 200) -> list[dict[str, Any]]:
    return [
        {
            "id": i,
            "part": "ab"[i % 2],
            "split": None if i % 5 == 0 else float("nan") if i % 7 == 0 else i / 3,
            "text": None if i % 3 == 0 else f"text {i}",
            "s": None if i % 11 == 0 else {"x": i, "y": [i / 2, None][: i % 3]},
        }
        for i in range(count)
    ]


def every(n: int) -> Any:
    return lambda rows: pa.array([value % n == 0 for value in rows["id"].to_pylist()])


def shared_table(server: SharingServer, built: DeltaTableBuilder, **settings: Any) -> Any:
    server.add_table("s.d.t", built.path, access_modes=("url",), **settings)
    return SharingClient(server.profile()).table("s.d.t")


def stored(address: str) -> dict[str, set[tuple[str, str]]]:
    """Codec and encodings of each column as Spark is shown them."""
    metadata = pq.read_metadata(RemoteFile(address))
    found: dict[str, set[tuple[str, str]]] = {}
    for group in range(metadata.num_row_groups):
        for leaf in range(metadata.num_columns):
            column = metadata.row_group(group).column(leaf)
            found.setdefault(column.path_in_schema, set()).update((column.compression, e) for e in column.encodings)
    return found


@pytest.mark.parametrize("is_mapped", [False, True])
def test_rows(tmp_path: Path, how: str, is_mapped: bool) -> None:
    properties = {**VECTORS, **({"delta.columnMapping.mode": "name"} if is_mapped else {})}
    style = FileStyle(row_group_size=37, parquet={"compression": "brotli"}) if is_mapped else STYLE
    built = DeltaTableBuilder(tmp_path / "t", SCHEMA, ["part"], properties, style=style).append(data(), files=2)
    built.append(data(), files=1, style=FileStyle(row_group_size=50))  # which Spark decodes
    built.delete(every(7), deletion_vectors=True)
    with SharingServer() as server:
        scan = shared_table(server, built).scan()
        with served(scan) as (_, plan, address):
            assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow())
            shown = [stored(file) for file in files_of(plan, address)]
    found = {how for columns in shown for ways in columns.values() for way in ways for how in way}
    assert "SNAPPY" in found
    assert not found & {"BROTLI", "BYTE_STREAM_SPLIT"}
    if how == "alone" and not is_mapped:
        assert any({c for c, _ in columns["at"]} == {"GZIP"} for columns in shown), "others keep their bytes"


def test_a_scan_has_no_column_rewritten_that_it_does_not_read(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    built = DeltaTableBuilder(tmp_path / "t", SCHEMA, style=STYLE).append(data(), files=2)
    with SharingServer() as server:
        scan = shared_table(server, built).scan()
        with served(scan) as (_, plan, address), caplog.at_level(logging.INFO, "delta_sharing_spark.native"):

            def rewritten_by(*paths: str) -> set[str]:
                caplog.clear()
                files = [
                    pq.ParquetFile(RemoteFile(file), pre_buffer=False)
                    for file in files_of(plan, read_by(plan, address, *paths))
                ]
                assert all(file.read(list(paths)).num_rows for file in files)
                names = {name for name in SCHEMA.names if f"'{name}' (" in caplog.text}
                assert bool(names) == ("are rewritten for Spark's reader" in caplog.text)
                return names

            assert rewritten_by("id", "at", "s.x") == set()
            assert rewritten_by("id", "text") == {"text"}
            assert rewritten_by("s.y") == {"s"}
            assert rewritten_by("text", "split") == {"split", "text"}
            # Each scan goes on to be answered by its own layout, whatever others had rewritten meanwhile.
            assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow())


def test_change_feed(tmp_path: Path, how: str) -> None:
    properties = {"delta.enableChangeDataFeed": "true"}
    built = DeltaTableBuilder(tmp_path / "t", SCHEMA, properties=properties, style=STYLE).append(data(), files=2)
    built.update(every(9), lambda rows: [{**row, "text": "new"} for row in rows.to_pylist()])
    with SharingServer() as server:
        scan = shared_table(server, built, history=True).changes(0)
        with served(scan) as (_, plan, address):
            assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow())


def test_limit(tmp_path: Path, how: str) -> None:
    built = DeltaTableBuilder(tmp_path / "t", SCHEMA, style=STYLE).append(data(), files=2)
    with SharingServer() as server:
        scan = shared_table(server, built).scan(limit=130)
        with served(scan) as (_, plan, address):
            assert row_texts(rows_of(plan, address)) == row_texts(scan.to_arrow())


def test_a_null_in_a_rewritten_not_null_column_is_an_error_where_it_is_read(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", pa.string(), False)])
    style = FileStyle(required=False, parquet={"compression": "brotli"})
    built = DeltaTableBuilder(tmp_path / "t", schema, style=style)
    far = random.Random(1).randbytes(200_000).hex()  # the footer is not read with it
    built.append([{"id": 1, "text": None}, {"id": 2, "text": far}])
    with SharingServer() as server, served(shared_table(server, built).scan()) as (_, plan, address):
        (file,) = files_of(plan, read_by(plan, address, "id"))
        assert pq.ParquetFile(RemoteFile(file), pre_buffer=False).read(["id"])["id"].to_pylist() == [1, 2]
        with pytest.raises(RemoteError, match="has a NULL in column 'text', which the table declares NOT NULL"):
            rows_of(plan, address)


@pytest.mark.parametrize("codec", [3, 12], ids=["LZO", "unknown"])
def test_a_codec_that_nobody_here_reads_is_refused_as_the_python_source_refuses_it(tmp_path: Path, codec: int) -> None:
    rows = pa.table({"id": pa.array(range(5), pa.int32())})
    built = DeltaTableBuilder(tmp_path / "t", rows.schema, style=FileStyle(parquet={"compression": "snappy"})).append(
        rows
    )
    (file,) = built.path.glob("*.parquet")
    data = file.read_bytes()
    # ColumnMetaData: path_in_schema ["id"], then the codec.
    place = data.rindex(b"\x02id\x15\x02", 0)
    file.write_bytes(data[: place + 4] + bytes([codec << 1]) + data[place + 5 :])
    with SharingServer() as server:
        scan = shared_table(server, built).scan()
        with pytest.raises(DeltaSharingError) as refused:
            scan.to_arrow()
        with served(scan) as (_, plan, address), pytest.raises(RemoteError) as native:
            rows_of(plan, address)
    name = "LZO" if codec == 3 else "codec"
    assert name.lower() in str(refused.value).lower()
    assert name.lower() in str(native.value).lower()


def column(physical: int, *encodings: int) -> bytes:
    return write_struct({1: (I32, physical), 2: (LIST, ThriftList(I32, list(encodings)))})[:-1]


def test_the_release_of_spark_decides() -> None:
    assert release_of("4.3.0") == (4, 3)
    assert release_of("4.2.0-databricks") == (4, 2)
    assert release_of("vendor") == OLDEST
    assert undecoded(column(5, 0, 3), 1, OLDEST) is None
    assert undecoded(column(5, 9, 3), 1, (4, 3)) is None
    assert undecoded(column(5, 9, 3), 1, (4, 2)) == "the encoding BYTE_STREAM_SPLIT of DOUBLE"
    assert undecoded(column(5, 0, 3), 4, (4, 3)) == "the codec BROTLI"
    assert undecoded(column(5, 0, 99), 1, (9, 9)) == "the encoding 99 of DOUBLE"


@pytest.mark.parametrize("order", [3, 99])
def test_bounds_of_timestamps_of_96_bits_skip_nothing(tmp_path: Path, how: str, order: int) -> None:
    """Whatever order a file names for them (parquet-format 584 is the third): neither here nor by Spark, who is not shown them."""
    rows = pa.table({"at": pa.array([0, 10**15], pa.timestamp("us", "UTC")), "id": [1, 2]})
    style = FileStyle(parquet={"use_deprecated_int96_timestamps": True})
    built = DeltaTableBuilder(tmp_path / "t", rows.schema, style=style).append(rows).append(rows)
    for file in built.path.glob("*.parquet"):
        data = file.read_bytes()
        length = int.from_bytes(data[-8:-4], "little")
        fields, _ = read_struct(data[-8 - length : -8])
        lie = (BINARY, bytes(12))
        fields[4][1].items[0][1][1].items[0][3][1][12] = (STRUCT, {3: (I64, 0), 5: lie, 6: lie})
        fields[7] = (LIST, ThriftList(STRUCT, [{order: (STRUCT, {})}, {1: (STRUCT, {})}]))
        footer = write_struct(fields)
        file.write_bytes(data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
        for log in (built.path / "_delta_log").glob("*.json"):
            if file.name in log.read_text():
                log.write_text(re.sub(r'"size":\d+', f'"size":{file.stat().st_size}', log.read_text()))
    with SharingServer() as server:
        table = shared_table(server, built)
        assert table.scan(where="at > '2000-01-01'").to_arrow()["id"].to_pylist() == [2, 2]
        with served(table.scan()) as (_, plan, address):
            assert sorted(rows_of(plan, address)["id"].to_pylist()) == [1, 1, 2, 2]
            for shown in files_of(plan, address):
                metadata = pq.read_metadata(RemoteFile(shown))
                for group in range(metadata.num_row_groups):
                    column = metadata.row_group(group).column(0)
                    assert column.physical_type == "INT96"
                    assert column.statistics is None or not column.statistics.has_min_max
