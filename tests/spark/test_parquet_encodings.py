"""Every codec and encoding that pyarrow, delta-rs and parquet-java write, by type, page version and nesting, on the Spark that runs.

Each is a column of a table, or a table of its own; the lane reads what the Python client reads. ``nox -s spark-4.0`` (4.1, 4.2, 4.3)
``-- tests/spark/test_parquet_encodings.py`` is the proof for the table in docs/native-reading.md.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.parquet.decoding import release_of
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from support.refusals import not_refused

ROWS = 60
CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
INTEGERS, BYTES = ("DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"), ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
FIXED = ("DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT")
DAY = datetime.datetime(2021, 3, 4, 5, 6, 7, 8)


def number(scale: int) -> Any:
    return lambda i: decimal.Decimal(i * 37).scaleb(-scale)


#: Arrow's type, what makes a value of a row's number, and the encodings that pyarrow writes beside PLAIN and a dictionary's.
TYPES: dict[str, tuple[pa.DataType, Any, tuple[str, ...]]] = {
    "byte": (pa.int8(), lambda i: i - 30, INTEGERS),
    "short": (pa.int16(), lambda i: i * 7, INTEGERS),
    "integer": (pa.int32(), lambda i: i * 1000 - 7, INTEGERS),
    "long": (pa.int64(), lambda i: i * 10**12 - 7, INTEGERS),
    "float": (pa.float32(), lambda i: i / 4, ("BYTE_STREAM_SPLIT",)),
    "double": (pa.float64(), lambda i: float("nan") if i == 9 else i / 3, ("BYTE_STREAM_SPLIT",)),
    "boolean": (pa.bool_(), lambda i: i % 3 == 0, ("RLE",)),
    "string": (pa.string(), lambda i: f"text {i // 3}", BYTES),
    "binary": (pa.binary(), lambda i: b"\x00\xff%d" % i, BYTES),
    "date": (pa.date32(), lambda i: DAY.date() + datetime.timedelta(i), INTEGERS),
    "timestamp": (pa.timestamp("us", "UTC"), lambda i: DAY + datetime.timedelta(i), INTEGERS),
    "timestamp_ntz": (pa.timestamp("us"), lambda i: DAY + datetime.timedelta(i), INTEGERS),
    "decimal9": (pa.decimal128(9, 2), number(2), FIXED),
    "decimal18": (pa.decimal128(18, 4), number(4), FIXED),
    "decimal38": (pa.decimal128(38, 10), number(10), FIXED),
}
#: Decimals as numbers, and timestamps of 96 bits, which have no encoding but PLAIN and a dictionary's.
OTHERWISE = {"decimal9": INTEGERS, "decimal18": INTEGERS, "timestamp": ()}
#: What a column of a type is, what its value is, and the path of its values.
NESTING: dict[str, tuple[Any, Any, str]] = {
    "flat": (lambda t: t, lambda v: v, ""),
    "struct": (lambda t: pa.struct({"x": t}), lambda v: {"x": v}, ".x"),
    "list": (lambda t: pa.list_(t), lambda v: [v, None, v], ".list.element"),
    "map": (lambda t: pa.map_(pa.string(), t), lambda v: [("k", v)], ".key_value.value"),
}


def cells(is_otherwise: bool) -> tuple[pa.Table, dict[str, Any]]:
    """A column for each type, encoding and nesting, and the arguments by which pyarrow writes it so; codecs take turns."""
    columns: dict[str, pa.Array] = {"id": pa.array(range(ROWS), pa.int64())}
    codecs, taking_turns = {"id": "snappy"}, itertools.cycle(CODECS)
    encodings: dict[str, str] = {}
    dictionaries = []
    for name, (kind, value, usual) in TYPES.items():
        if is_otherwise and name not in OTHERWISE:
            continue
        for encoding in ("PLAIN", "DICTIONARY", *(OTHERWISE[name] if is_otherwise else usual)):
            for how, (nested, whole, path) in NESTING.items():
                column = f"{name}_{encoding}_{how}"
                values = [None if i % 7 == 3 else whole(None if i % 11 == 4 else value(i)) for i in range(ROWS)]
                columns[column] = pa.array(values, nested(kind))
                codecs[f"{column}.key_value.key"] = "snappy"
                codecs[column + path] = next(taking_turns)
                if encoding == "DICTIONARY":
                    dictionaries.append(column + path)
                elif encoding != "PLAIN":
                    encodings[column + path] = encoding
    leaves = {leaf for leaf in codecs if not leaf.endswith(".key") or leaf.partition(".")[0].endswith("_map")}
    how_written = {
        "compression": {leaf: codecs[leaf] for leaf in leaves},
        "column_encoding": encodings,
        "use_dictionary": dictionaries,
        "use_deprecated_int96_timestamps": is_otherwise,
        "store_decimal_as_integer": is_otherwise,
        "store_schema": False,
        "write_page_index": True,
    }
    return pa.table(columns), how_written


def texts(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def check(client: SharingClient, spark: Any, name: str, columns: list[str] | None = None) -> None:
    """The lane's rows are those of the Python client; over a failure each column is named that fails by itself."""
    scan = client.table(name).scan(columns=columns)
    expected = scan.to_arrow()
    try:
        frame = scan.to_spark(spark, engine="native")
        got = frame.toPandas() if not hasattr(frame, "toArrow") else frame.toArrow()
        assert texts(got.select(expected.column_names).cast(expected.schema)) == texts(expected)
        few = [row.id for row in frame.where("id > 40 AND id < 44").collect()]
        assert sorted(few) == sorted(i for i in expected["id"].to_pylist() if 40 < i < 44)
    except Exception as error:
        if columns is not None:
            raise
        failing = {}
        for column in expected.column_names[1:]:
            try:
                check(client, spark, name, ["id", column])
            except Exception as cause:
                failing[column] = str(cause).strip().partition("\n")[0][:200]
        raise AssertionError(f"{len(failing)} columns fail on Spark {spark.version}: {failing}") from error


@pytest.fixture
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        monkeypatch.setattr("delta_sharing_spark.native.plan.SMALL_FILE", 0)
    return bool(request.param)


@pytest.mark.parametrize("is_otherwise", [False, True], ids=["usual", "int96 and decimals as numbers"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "joined"], indirect=True)
@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_encodings_of_pyarrow(spark: Any, tmp_path: Path, is_otherwise: bool, alone: bool, vectorized: str) -> None:
    if alone and vectorized == "false":
        pytest.skip("the other reader has no more ways to fail over files that are shown alone")
    rows, how = cells(is_otherwise)
    built = DeltaTableBuilder(tmp_path / "t", rows.schema)
    for pages in ("1.0", "2.0"):
        built.append(rows, style=FileStyle(row_group_size=25, parquet={**how, "data_page_version": pages}))
    before = spark.conf.get("spark.sql.parquet.enableVectorizedReader")
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    try:
        with SharingServer() as server:
            server.add_table("s.d.t", built.path, access_modes=("url",))
            check(SharingClient(server.profile()), spark, "s.d.t")
    finally:
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", before)


@pytest.mark.parametrize("codec", ["uncompressed", "snappy", "gzip", "lz4", "lz4_raw", "zstd"])
@pytest.mark.parametrize("pages", ["v1", "v2"])
def test_codecs_and_pages_of_parquet_java(spark: Any, tmp_path: Path, codec: str, pages: str) -> None:
    rows = pa.table({"id": range(50), "text": [f"text {i}" for i in range(50)], "x": [i / 3 for i in range(50)]})
    frame = spark.createDataFrame(rows.to_pylist(), "id long, text string, x double").coalesce(1)
    writer = frame.write.option("compression", codec).option("parquet.writer.version", pages)
    writer.option("parquet.enable.dictionary", str(pages == "v1").lower()).parquet(str(tmp_path / "written"))
    (written,) = (tmp_path / "written").glob("*.parquet")
    built = DeltaTableBuilder(tmp_path / "t", rows.schema).append(rows)
    (file,) = built.path.glob("*.parquet")
    file.write_bytes(written.read_bytes())
    (log,) = (built.path / "_delta_log").glob(f"{built.version:020}.json")
    log.write_text(re.sub(r'"size":\d+', f'"size":{file.stat().st_size}', log.read_text()))
    with SharingServer() as server:
        server.add_table("s.d.t", built.path, access_modes=("url",))
        check(SharingClient(server.profile()), spark, "s.d.t")


@pytest.mark.parametrize("compression", ["UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"])
def test_codecs_and_encodings_of_delta_rs(spark: Any, tmp_path: Path, compression: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    rows = pa.table({"id": range(50), "text": [f"text {i}" for i in range(50)], "x": [i / 3 for i in range(50)]})
    split = deltalake.ColumnProperties(encoding="BYTE_STREAM_SPLIT", dictionary_enabled=False)
    properties = deltalake.WriterProperties(compression=compression, column_properties={"x": split, "id": split})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, writer_properties=properties)
    with SharingServer() as server:
        server.add_table("s.d.t", tmp_path / "t", access_modes=("url",))
        check(SharingClient(server.profile()), spark, "s.d.t")


def test_what_is_rewritten_spark_cannot_decode(spark: Any, tmp_path: Path) -> None:
    """Nothing is rewritten that this Spark reads as it is."""
    rows = pa.table({"x": [i / 3 for i in range(50)], "n": range(50)})
    unread: dict[str, dict[str, Any]] = {"brotli": {"compression": "brotli"}}
    if release_of(spark.version) < (4, 3):
        for column in rows.column_names:
            unread[column] = {"use_dictionary": False, "column_encoding": {column: "BYTE_STREAM_SPLIT"}}
    for name, how in unread.items():
        pq.write_table(rows, tmp_path / f"{name}.parquet", **how)
    reads = [lambda name=name: spark.read.parquet(str(tmp_path / f"{name}.parquet")).collect() for name in unread]
    assert not_refused(Exception, r"(?i)BYTE_STREAM_SPLIT|brotli|unsupported.?encoding", *reads) == []
