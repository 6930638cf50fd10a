"""Text that is no UTF-8 and moments beyond Python's years: each face names table, column and the way on, or holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.cli import main as cli
from delta_sharing_spark.errors import ConversionError
from delta_sharing_spark.frames.unfit_values import refuse_bad_text, refuse_far_moments
from delta_sharing_spark.table import Scan, SharedTable
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from delta_sharing_spark.testing.tables.data_files import FileStyle

_DAYS = pa.array([0, 10_000_000, None, -2_000_000], pa.int32()).cast(pa.date32())
_MOMENTS = pa.array([0, 10**18, None, -(10**17)], pa.int64()).cast(pa.timestamp("us", "UTC"))
_TEXT = pa.array(["good", "é BAD!", None, "é last"])
_NESTED = {
    "flat": lambda values: values,
    "field": lambda values: pa.StructArray.from_arrays([values], ["f"]),
    "element": lambda values: pa.ListArray.from_arrays(pa.array([0, 1, 2, 3, 4], pa.int32()), values),
    "value": lambda values: pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3, 4], pa.int32()), pa.array(["a", "b", "c", "d"]), values
    ),
}
_COLUMNS = {
    f"{name}_{kind}": nest(values)
    for kind, values in (("day", _DAYS), ("moment", _MOMENTS), ("text", _TEXT))
    for name, nest in _NESTED.items()
}
_TEXTS = [name for name in _COLUMNS if name.endswith("text")]
_DATES = [name for name in _COLUMNS if name.endswith("day")]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a table whose file had bytes changed, as storage without checksums lets happen."""
    directory = tmp_path_factory.mktemp("unfit")
    data = pa.table(_COLUMNS)
    style = FileStyle(stats=False, keep_rows=False, parquet={"compression": "none", "write_page_checksum": False})
    builder = DeltaTableBuilder(directory / "table", data.schema)
    builder.append(data, style=style)
    for file in (directory / "table").glob("*.parquet"):
        file.write_bytes(file.read_bytes().replace(b"BAD!", b"BA\xff\xfe"))
    with SharingServer() as server:
        server.add_table("sh.sc.t", builder.path)
        yield server.write_profile(directory / "profile.share")


@pytest.fixture(scope="module")
def table(profile: str) -> SharedTable:
    return SharingClient(profile).table("sh.sc.t")


#: By face: other libraries raise errors of their own, with our line.
_READS: dict[str, tuple[Callable[[Scan], Any], type[Exception]]] = {
    "pandas": (Scan.to_pandas, ConversionError),
    "pandas with Arrow's types": (lambda scan: scan.to_pandas(dtype_backend="pyarrow"), ConversionError),
    "pandas with objects": (lambda scan: scan.to_pandas(types_mapper=lambda _: None), ConversionError),
    "Polars": (Scan.to_polars, ConversionError),
    "lazy Polars": (lambda scan: scan.lazy().collect(), Exception),
    "Polars over Arrow": (lambda scan: pl.DataFrame(scan), Exception),
    "DuckDB": (lambda scan: scan.to_duckdb(duckdb.connect(), "v").fetchall(), Exception),
}


@pytest.mark.parametrize("face", _READS)
@pytest.mark.parametrize("column", _TEXTS)
def test_text_that_is_no_utf_8(column: str, face: str, table: SharedTable) -> None:
    read, kind = _READS[face]
    way_on = " .*to_arrow" if kind is ConversionError else ""
    with pytest.raises(kind, match=rf"sh\.sc\.t, column {column}: a string is not UTF-8{way_on}") as bad:
        read(table.scan(columns=[column]))
    assert getattr(bad.value, "column", column) == column


@pytest.mark.parametrize("column", _TEXTS)
def test_text_that_is_no_utf_8_is_counted_and_handed_out_by_arrow(column: str, table: SharedTable) -> None:
    scan = table.scan(columns=[column])
    assert scan.count() == 4
    raw = scan.to_arrow()[column]
    if column == "flat_text":
        assert raw.cast(pa.binary())[1].as_py() == "é BA".encode() + b"\xff\xfe"


@pytest.mark.parametrize("column", _DATES)
def test_days_beyond_python_s_years(column: str, table: SharedTable) -> None:
    scan = table.scan(columns=[column])
    with pytest.raises(ConversionError, match=rf"column {column}: a date of -3506-03-09 lies beyond .*date_as_object"):
        scan.to_pandas()
    assert scan.to_arrow()[column].null_count == (column == "flat_day")
    assert scan.to_polars().height == 4


def test_what_holds_far_days(table: SharedTable) -> None:
    scan = table.scan(columns=["flat_day"])
    assert list(scan.to_pandas(date_as_object=False)["flat_day"].dt.year[[0, 1]]) == [1970, 29349]
    assert isinstance(scan.to_pandas(dtype_backend="pyarrow")["flat_day"].dtype, pd.ArrowDtype)
    moments = table.scan(columns=["flat_moment"]).to_pandas()["flat_moment"]
    assert list(moments.dt.tz_localize(None).dt.year[[0, 1]]) == [1970, 33658]


@pytest.mark.parametrize("column", [f"{name}_moment" for name in _NESTED])
def test_timestamps_beyond_python_s_years(table: SharedTable, column: str) -> None:
    scan = table.scan(columns=[column])
    if column in ("flat_moment", "element_moment"):
        assert len(scan.to_pandas()) == 4
    else:  # objects of Python
        with pytest.raises(ConversionError, match=rf"column {column}: a timestamp of -1199-02-15 lies beyond"):
            scan.to_pandas()
        assert scan.to_polars().height == 4


@pytest.mark.parametrize("column", list(_COLUMNS))
@pytest.mark.parametrize("command", [["head"], ["head", "--json"], ["download", "-O", "-", "--format", "csv"]])
def test_the_command_line(command: list[str], column: str, profile: str, capsysbinary: Any) -> None:
    assert cli.main([*command, "--columns", column, f"{profile}#sh.sc.t"]) == cli.REFUSED
    told = capsysbinary.readouterr().err.decode()
    assert f"sh.sc.t, column {column}: a" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize("nest", _NESTED.values(), ids=_NESTED)
def test_moments_that_a_slice_or_a_null_hides_are_no_error(nest: Callable[[pa.Array], pa.Array]) -> None:
    batch = pa.record_batch({"c": nest(_DAYS)})
    refuse_far_moments(batch.slice(0, 1), "t", "")
    refuse_far_moments(batch.slice(2, 1), "t", "")
    with pytest.raises(ConversionError):
        refuse_far_moments(batch.slice(1, 2), "t", "")


def test_text_that_a_slice_or_a_null_hides_is_no_error() -> None:
    bad = _TEXT.cast(pa.binary())
    text = pa.array([b"a", b"\xff", b"\xc3", b"\xa9"], pa.binary())
    split = pa.Array.from_buffers(pa.string(), 4, text.buffers())
    refuse_bad_text(pa.record_batch({"c": split}).slice(0, 1), "t")
    with pytest.raises(ConversionError, match=r"xc3"):  # together they are UTF-8, and alone neither is
        refuse_bad_text(pa.record_batch({"c": split}).slice(2, 2), "t")
    refuse_bad_text(pa.record_batch({"c": bad.cast(pa.string())}), "t")
