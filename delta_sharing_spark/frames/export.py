"""Writes record batches to files and terminals: Parquet, CSV, one JSON object a line, aligned text.

JSON and CSV hold what their types cannot: decimals and timestamps as text, binary as base64, and in CSV nested values
as JSON.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.types as pt

from delta_sharing_spark.errors import ConfigError, ConversionError, DeltaSharingError, escaped_json
from delta_sharing_spark.frames.unfit_values import refuse_bad_text, refuse_far_moments
from delta_sharing_spark.storage.own_files import followed, written

FORMATS = ("parquet", "csv", "json")
_SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
}
#: Rows, or bytes in memory, after which a row group of a Parquet file ends.
_GROUP_ROWS, _GROUP_BYTES = 1 << 20, 64 << 20
#: How text begins that spreadsheets take for a formula, whoever wrote it.
_FORMULA = r"\A([=+\-@\t\r\n＝＋－＠])"
_Encoder = Callable[[Any], Any]


def format_of(path: str | None, format: str | None) -> str:
    """The format of a file: ``format``, else the one of its suffix, else Parquet.

    Raises:
        ConfigError: The suffix is another format's, or unknown while ``format`` is None.
    """
    if path is None:
        return format or "parquet"
    suffix = Path(path).suffix.lower()
    by_suffix = _SUFFIXES.get(suffix)
    if by_suffix is None and format is None:
        raise ConfigError(
            f"the format of {path} is not known from its suffix; end it in {', '.join(_SUFFIXES)}, or give --format; to download a "
            f"volume, a model or a skill instead of a table, end its name in /"
        )
    if format is not None and by_suffix not in (None, format):
        raise ConfigError(f"{path} ends like {by_suffix} and --format says {format}; change one of them")
    return format or str(by_suffix)


def write_batches(
    reader: pa.RecordBatchReader, out: BinaryIO, format: str, table: str = "", *, formulas_as_text: bool = False
) -> int:
    """Write batches as they arrive; returns the number of rows.

    Args:
        out: The output, which is left open.
        format: ``"parquet"``, ``"csv"`` or ``"json"``.
        table: How errors name the table.
        formulas_as_text: Whether an apostrophe goes before text in CSV that a spreadsheet would take for a formula.

    Raises:
        ConversionError: A value that text cannot hold, or a struct without fields, which Parquet cannot.
    """
    rows = 0
    with _writer(reader.schema, out, format, table, formulas_as_text) as write:
        for part in _row_groups(reader) if format == "parquet" else as_text(reader, table):
            if part.num_rows:
                write(part)
                rows += part.num_rows
    return rows


def _row_groups(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The batches of a reader in tables that each become a row group: small files come as batches of a few rows."""
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(batches)
            batches, rows, size = [], 0, 0
    yield pa.Table.from_batches(batches, reader.schema)


def as_text(batches: Iterable[pa.RecordBatch], table: str) -> Iterator[pa.RecordBatch]:
    """The batches, to be written as text; raises ConversionError for a value that text cannot hold."""
    for batch in batches:
        refuse_bad_text(batch, table)
        refuse_far_moments(batch, table, "--columns leaves the column out, and a download as Parquet holds it")
        yield batch


@contextmanager
def _writer(
    schema: pa.Schema, out: BinaryIO, format: str, table: str, formulas_as_text: bool
) -> Iterator[Callable[[Any], None]]:
    if format == "parquet":
        import pyarrow.parquet as pq

        try:
            writer = pq.ParquetWriter(out, schema)
        except pa.ArrowNotImplementedError as refused:  # a struct without fields
            why = str(refused).partition(".")[0]
            raise ConversionError(f"table {table}: {why}; --columns leaves it out, and csv and json hold it") from None
        with writer:
            yield writer.write_table
    elif format == "csv":
        import pyarrow.csv as pc

        names = _without_formulas(pa.array(schema.names, pa.string())).to_pylist() if formulas_as_text else schema.names
        types = [pa.string() if _needs_text(f.type) else f.type for f in schema]
        flat = pa.schema(list(zip(names, types, strict=True)))
        with pc.CSVWriter(out, flat) as csv:
            yield lambda batch: csv.write_batch(_flattened(batch, flat, formulas_as_text))
    else:
        yield lambda batch: out.writelines(f"{line}\n".encode() for line in json_lines(batch))


def json_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a batch as values that JSON has."""
    encoders = {f.name: _encoder(f.type) for f in batch.schema}
    for row in batch.to_pylist():
        yield {name: _encoded(value, encoders[name]) for name, value in row.items()}


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """The rows of a batch, each as a line of JSON; NaN and infinities as text."""
    for row in json_rows(batch):
        yield escaped_json(json.dumps(row, ensure_ascii=False, allow_nan=False))


def cells(batches: Iterable[pa.RecordBatch]) -> Iterator[list[str]]:
    """The rows as cells of a text table: ``NULL`` for null, nested values as JSON."""
    for batch in batches:
        for row in json_rows(batch):
            yield [_text_of(value) for value in row.values()]


@contextmanager
def whole_file(path: Path, *, replace: bool) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name only when it is complete.

    Raises:
        ConfigError: The file exists and ``replace`` is false, it is no regular file, or it cannot be written, or not to its end.
    """
    target = followed(path)  # of a link it is the file that is replaced
    try:
        mode = os.lstat(target).st_mode if os.path.lexists(target) else None
        if mode is not None and stat.S_ISDIR(mode):
            raise ConfigError(f"{path} is a directory; name a file in it with --output")
        if mode is not None and not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):
            raise ConfigError(f"{path} is a device or a pipe; write to it by standard output: --output - > {path}")
        if mode is not None and not replace:
            raise ConfigError(f"{path} exists; name another file, or give --force to replace it")
        with written(target) as out:
            yield out
    except OSError as failed:
        if isinstance(failed, DeltaSharingError) or failed.errno is None:
            raise  # of what is read
        raise ConfigError(f"{path} cannot be written: {failed.strerror}; name another file with --output") from None


def _flattened(batch: pa.RecordBatch, flat: pa.Schema, formulas_as_text: bool) -> pa.RecordBatch:
    columns = []
    for source, target in zip(batch.schema, flat, strict=True):
        column = batch.column(source.name)
        if source.type != target.type:
            encoder = _encoder(source.type)
            values = (_encoded(value, encoder) for value in column.to_pylist())
            column = pa.array(
                [v if v is None or isinstance(v, str) else json.dumps(v, ensure_ascii=False) for v in values],
                pa.string(),
            )
        columns.append(_without_formulas(column) if formulas_as_text and pt.is_string(target.type) else column)
    return pa.RecordBatch.from_arrays(columns, schema=flat)


def _without_formulas(column: pa.Array) -> pa.Array:
    import pyarrow.compute as compute

    return compute.replace_substring_regex(column, _FORMULA, r"'\1")


def _needs_text(data_type: pa.DataType) -> bool:
    return bool(pt.is_nested(data_type) or pt.is_binary(data_type) or pt.is_large_binary(data_type))


def _encoded(value: Any, encoder: _Encoder | None) -> Any:
    return value if value is None or encoder is None else encoder(value)


def _encoder(data_type: pa.DataType) -> _Encoder | None:
    """The function that converts values of a type for JSON; None where none is needed."""
    if pt.is_struct(data_type):
        fields = {f.name: _encoder(f.type) for f in data_type}
        return lambda value: {name: _encoded(value[name], encoder) for name, encoder in fields.items()}
    if pt.is_map(data_type):
        keys, items = _encoder(data_type.key_type), _encoder(data_type.item_type)
        return lambda value: {_text_of(_encoded(k, keys)): _encoded(v, items) for k, v in value}
    if pt.is_nested(data_type):
        element = _encoder(data_type.value_type)
        return lambda value: [_encoded(v, element) for v in value]
    if pt.is_binary(data_type) or pt.is_large_binary(data_type):
        return lambda value: base64.b64encode(value).decode()
    if pt.is_decimal(data_type):
        return lambda value: f"{value:f}"
    if pt.is_temporal(data_type):
        return lambda value: value.isoformat().replace("+00:00", "Z")
    if pt.is_floating(data_type):
        return lambda value: value if abs(value) < float("inf") else str(value)
    return None


def _text_of(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
