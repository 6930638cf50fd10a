"""Converts a stream of Arrow batches to a pandas DataFrame, batch by batch as they arrive, decimals to Python's objects among them."""

from __future__ import annotations

import decimal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.types as pt

from delta_sharing_spark.errors import ConfigError, ConversionError
from delta_sharing_spark.frames.unfit_values import refuse_bad_text, refuse_far_moments
from delta_sharing_spark.network.parallel_calls import DaemonPool, result_of
from delta_sharing_spark.schema.arrow import with_other_values

#: Rows whose values are counted to see whether a column repeats them.
_SAMPLE = 20_000
#: Strings that are converted at once: so many of them, or so many bytes.
_TEXT_ROWS = 1 << 19
_TEXT_BYTES = 32 << 20
_FAR = "to_polars() and to_arrow() hold it, and of a column that is not nested to_pandas(date_as_object=False) does"
#: What pyarrow and pandas raise for values that they cannot convert.
_UNFIT = (ValueError, OverflowError, pa.ArrowException)
#: Batches whose values may wait for the thread that copies them.
_MOST_WAITING = 4


def to_pandas(
    rows: pa.RecordBatchReader,
    count: int | None = None,
    *,
    table: str = "",
    types_mapper: Callable[[pa.DataType], Any] | None = None,
    dtype_backend: str | None = None,
    decimals: str = "objects",
    **options: Any,
) -> pd.DataFrame:
    """A stream of record batches as a pandas DataFrame, with the types that ``pyarrow.Table.to_pandas`` gives.

    Values are converted as their batch arrives, while the next ones are being read. They go into the frame's own memory
    where they need not stay in Arrow's: new memory costs more than decoding.

    Args:
        count: How many rows there are expected to be, for which room is made at once; None if unknown.
        types_mapper, dtype_backend, decimals, **options: As for ``RowSource.to_pandas``.

    Raises:
        ConfigError: An argument is unknown.
        ConversionError: A value that pandas cannot hold so.
    """

    if decimals == "floats":
        rows = _with_floats(rows)
    elif decimals not in ("objects", "arrow"):
        raise ConfigError(f"decimals={decimals!r} is unknown; it is 'objects', 'floats' or 'arrow'")
    usual = not options and types_mapper is None and dtype_backend is None
    mapper = types_mapper or _mapper_of(dtype_backend)
    if decimals == "arrow":
        mapper = _with_arrow_decimals(mapper)
    options = {"types_mapper": mapper, **options}
    try:
        empty = rows.schema.empty_table().to_pandas(**options)
    except TypeError as refused:
        if "keyword argument" not in str(refused):
            raise
        raise ConfigError(f"to_pandas(): {refused}; it takes what pyarrow.Table.to_pandas takes") from None
    except pa.ArrowException as refused:
        raise ConfigError(
            f"to_pandas() of table {table}: {refused}; change its arguments, or take to_arrow()"
        ) from None
    columns = [
        _column(field, dtype, options, usual, count or 0)
        for field, dtype in zip(rows.schema, empty.dtypes, strict=True)
    ]
    read = _add_all(rows, columns, table)
    values = {name: _series(name, column, table) for name, column in zip(empty.columns, columns, strict=True)}
    return pd.DataFrame(values, index=pd.RangeIndex(read), columns=empty.columns, copy=False)


def _with_arrow_decimals(mapper: Callable[[pa.DataType], Any] | None) -> Callable[[pa.DataType], Any]:

    def mapped(data_type: pa.DataType) -> Any:
        chosen = None if mapper is None else mapper(data_type)
        return pd.ArrowDtype(data_type) if chosen is None and pt.is_decimal(data_type) else chosen

    return mapped


def _with_floats(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The batches with the nearest float64 in the place of decimals, at any depth.

    By way of text: Arrow's own cast misses the nearest one by a bit in every seventh of prices.
    """
    texts, floats = (
        pa.schema(list(with_other_values(pa.struct(list(rows.schema)), partial(_instead_of_decimal, other))))
        for other in (pa.string(), pa.float64())
    )
    return pa.RecordBatchReader.from_batches(floats, (batch.cast(texts).cast(floats) for batch in rows))


def _instead_of_decimal(other: pa.DataType, data_type: pa.DataType) -> pa.DataType:
    return other if pt.is_decimal(data_type) else data_type


def _add_all(rows: pa.RecordBatchReader, columns: Sequence[_Column], table: str) -> int:
    """Add every batch to the columns; returns the number of rows.

    The columns that cost most are converted here, in order, and the others by a thread beside. Of two threads that want
    Python's lock only one gets on, but most of the others' work is Arrow's, which does without it.
    """
    most = max((column.cost for column in columns), default=0)
    here = [(i, column) for i, column in enumerate(columns) if column.cost == most]
    beside = [(i, column) for i, column in enumerate(columns) if column.cost < most]
    read = 0
    waiting: deque[Future[None]] = deque()
    with DaemonPool(1) as thread:
        for batch in rows:
            read += batch.num_rows
            if beside:
                waiting.append(thread.submit(partial(_add, batch, beside, table)))
            refuse_bad_text(batch, table)
            _add(batch, here, table)
            if len(waiting) > _MOST_WAITING:
                result_of(waiting.popleft())
        for added in waiting:
            result_of(added)
    return read


def _add(batch: pa.RecordBatch, columns: Sequence[tuple[int, _Column]], table: str) -> None:
    for i, column in columns:
        try:
            column.add(batch.column(i))
        except MemoryError:  # Arrow's own is one of Arrow's exceptions
            raise
        except _UNFIT as refused:
            refuse_far_moments(batch.select([i]), table, _FAR)
            raise _refused(batch.schema.names[i], table, refused) from None


def _series(name: str, column: _Column, table: str) -> pd.Series | npt.NDArray[Any]:
    try:
        return column.series()
    except MemoryError:
        raise
    except _UNFIT as refused:
        raise _refused(name, table, refused) from None


def _refused(name: str, table: str, refused: Exception) -> ConversionError:
    """Arrow's own error names neither table nor column."""
    why = f"pandas cannot hold its values so: {refused}; change the arguments of to_pandas(), or take to_arrow()"
    return ConversionError(f"table {table}, column {name}: {why}", column=name)


def _mapper_of(backend: str | None) -> Callable[[pa.DataType], Any] | None:
    if backend is None:
        return None
    if backend == "pyarrow":
        return pd.ArrowDtype
    if backend == "numpy_nullable":
        names = ("Int8", "Int16", "Int32", "Int64", "Float32", "Float64")
        types = {getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")() for name in names}
        types |= {pa.bool_(): pd.BooleanDtype(), pa.string(): pd.StringDtype()}
        return types.get
    raise ConfigError(f"dtype_backend {backend!r} is unknown; it is 'pyarrow' or 'numpy_nullable'")


class _Column(ABC):
    """One column of the data frame, to which the batches' values are added as they arrive."""

    #: What a value costs: 0 where memory is copied or kept, 1 where an object is looked up, 2 where one is made.
    cost = 0

    @abstractmethod
    def add(self, values: pa.Array) -> None:
        """Add the values of the next batch."""

    @abstractmethod
    def series(self) -> pd.Series | npt.NDArray[Any]:
        """All values; called once, at the end."""


def _column(field: pa.Field, dtype: Any, options: Mapping[str, Any], usual: bool, count: int) -> _Column:
    """What collects a column whose pandas type is ``dtype`` where it has no rows; ``usual`` without the user's options."""
    if dtype == np.dtype(object):
        return _Objects(field, options, count)
    is_number = pt.is_integer(field.type) or pt.is_floating(field.type) or pt.is_boolean(field.type)
    if usual and (is_number or pt.is_timestamp(field.type)):
        return _Numbers(dtype, count)
    return _ArrowChunks(field, options)


class _ArrowChunks(_Column):
    """Values that stay in Arrow's memory, and are converted at the end as pyarrow does it."""

    def __init__(self, field: pa.Field, options: Mapping[str, Any]) -> None:
        self._field, self._options = field, options
        self._chunks: list[pa.Array] = []

    def add(self, values: pa.Array) -> None:
        self._chunks.append(values)

    def series(self) -> pd.Series | npt.NDArray[Any]:
        column = pa.chunked_array(self._chunks, self._field.type)
        self._chunks.clear()  # the table alone holds the memory, which it gives back as it goes
        table = pa.Table.from_arrays([column], schema=pa.schema([self._field]))
        del column
        series: pd.Series = table.to_pandas(**{**self._options, "self_destruct": True}).iloc[:, 0]
        return series


class _ArrayColumn(_Column):
    """Values in one array of numpy, so that a batch's memory is free for the next one; it grows beyond ``count`` rows."""

    def __init__(self, dtype: npt.DTypeLike, count: int) -> None:
        self._array = _room_for(count, dtype)
        self._count = 0

    def _append(self, part: npt.NDArray[Any]) -> None:
        end = self._count + len(part)
        if end > len(self._array):
            # In place: the system moves the pages, and nothing is copied; but what is added is touched.
            self._array.resize(max(end, len(self._array) + (len(self._array) >> 3)), refcheck=False)
        self._array[self._count : end] = part
        self._count = end

    def _whole(self) -> npt.NDArray[Any]:
        self._array.resize(self._count, refcheck=False)
        return self._array


def _room_for(count: int, dtype: npt.DTypeLike, at_least: int = 0) -> npt.NDArray[Any]:
    """Memory for ``count`` values, of which the system clears none before it is used; for fewer if there is not so much.

    The metadata that promised so many rows may be wrong.
    """
    try:
        return np.empty(max(count, at_least), dtype)
    except (MemoryError, ValueError):
        return np.empty(at_least, dtype)


class _Numbers(_ArrayColumn):
    """Integers, floats, booleans and timestamps."""

    def __init__(self, dtype: Any, count: int) -> None:
        #: The pandas type; timestamps with a time zone have one that numpy does not know.
        self._dtype = dtype
        super().__init__(dtype if isinstance(dtype, np.dtype) else np.dtype(f"M8[{dtype.unit}]"), count)

    def add(self, values: pa.Array) -> None:
        part = values.to_numpy(zero_copy_only=False)
        if values.null_count and part.dtype != self._array.dtype:
            # As in pyarrow: with a null, integers are floats and booleans are objects.
            wider = _room_for(len(self._array), part.dtype, at_least=self._count)
            wider[: self._count] = self._array[: self._count]
            self._array = wider
        self._append(part)

    def series(self) -> pd.Series | npt.NDArray[Any]:
        if isinstance(self._dtype, np.dtype):
            return self._whole()

        return pd.Series(pd.array(self._whole().view(np.int64), self._dtype, copy=False), copy=False)


class _Objects(_ArrayColumn):
    """Values as Python objects: decimals, dates, lists, and strings, as pandas had them before its version 3.

    Objects cost more than all the rest, on one core: they are made while what follows is still being read on the others.
    Equal strings, decimals and dates share one object where they are mostly repeated. Strings of many batches are converted
    at once, so that more of them are equal; Arrow finds them, without Python's lock.
    """

    def __init__(self, field: pa.Field, options: Mapping[str, Any], count: int) -> None:
        super().__init__(object, count)
        self._field, self._options, kind = field, options, field.type
        self._is_text = pt.is_string(kind) or pt.is_large_string(kind)
        self.cost = 1 if self._is_text or pt.is_date32(kind) else 2
        #: One object for equal values; None where a column seldom repeats them.
        self._objects: dict[Any, Any] | None = {} if self.cost == 1 or pt.is_decimal(kind) else None
        short = pt.is_decimal128(kind) and kind.precision <= MOST_DIGITS and kind.scale >= 0
        self._decimals = DecimalObjects(kind.scale) if short else None
        self._waiting: list[pa.Array] = []
        self._rows = self._bytes = 0

    def add(self, values: pa.Array) -> None:
        if not self._count and self._objects is not None and not self._is_text:
            first = values.slice(0, _SAMPLE)
            if len(first.unique()) * 2 > len(first):
                self._objects = None
        self._waiting.append(values)
        self._rows += len(values)
        self._bytes += values.nbytes
        waits = self._is_text and self._objects is not None
        if not waits or self._rows >= _TEXT_ROWS or self._bytes >= _TEXT_BYTES:
            self._convert()

    def series(self) -> pd.Series | npt.NDArray[Any]:
        self._convert()
        return pd.Series(self._whole(), dtype=object, copy=False)

    def _convert(self) -> None:
        """Append the values that wait."""
        values = pa.chunked_array(self._waiting, self._field.type)
        self._waiting.clear()
        self._rows = self._bytes = 0
        if self._objects is not None and len(values):
            encoded = values.dictionary_encode()
            distinct = encoded.chunk(0).dictionary
            if not self._is_text or len(distinct) * 2 <= len(values):
                self._append_chosen(distinct, [chunk.indices for chunk in encoded.chunks])
                return
            self._objects = None
        for chunk in values.chunks:
            self._append(self._converted(chunk))

    def _append_chosen(self, distinct: pa.Array, chosen: Sequence[pa.Array]) -> None:
        """Append those of ``distinct`` that indices choose; a null chooses None."""
        assert self._objects is not None
        objects = np.empty(len(distinct) + 1, dtype=object)
        values = self._converted(distinct)
        objects[:-1] = values if self._is_text else [self._objects.setdefault(value, value) for value in values]
        objects[-1] = None
        for indices in chosen:
            self._append(objects[indices.fill_null(len(distinct)).to_numpy(zero_copy_only=False)])

    def _converted(self, values: pa.Array) -> npt.NDArray[np.object_]:
        """The objects that pyarrow makes for pandas."""
        if self._decimals is not None:
            return self._decimals.of(values)
        table = pa.Table.from_arrays([values], schema=pa.schema([self._field]))
        objects: npt.NDArray[np.object_] = table.to_pandas(**self._options).iloc[:, 0].to_numpy()
        return objects


#: Decimals with so many digits are integers of 64 bits.
MOST_DIGITS = 18
#: The low bits of a number, whose decimals are kept once: 100 bytes each, as are the multiples of what is above them.
_LOW_BITS = 14
_LOW = 1 << _LOW_BITS
#: Multiples that are kept at once.
_MOST_HIGH = 1 << 16


class DecimalObjects:
    """Makes the decimals of one column, each an integer times the unit of the column's scale.

    A product costs half of what Arrow pays, which goes by text. A sum of two decimals that are kept, of a number's high
    bits and of its low ones, costs two thirds of a product. Either holds Python's lock all the while.
    """

    def __init__(self, scale: int) -> None:
        self._times_unit = decimal.Decimal((0, (1,), -scale)).__mul__
        #: The decimals of the numbers below ``_LOW``; none until a batch is worth them.
        self._low: npt.NDArray[np.object_] = np.empty(0, object)
        #: The decimals of ``_LOW`` times the numbers from ``_first`` on.
        self._high: npt.NDArray[np.object_] = np.empty(0, object)
        self._first = 0

    def of(self, values: pa.Array) -> npt.NDArray[np.object_]:
        """The decimals of a batch.

        Args:
            values: Of ``decimal128`` with at most ``MOST_DIGITS`` digits, and of the column's scale.

        Returns:
            As many objects, with None for NULL.
        """
        # The same bytes read as integers of 128 bits.
        whole = pa.decimal128(MOST_DIGITS, 0)
        integers = pa.Array.from_buffers(whole, len(values), values.buffers(), values.null_count, values.offset)
        numbers = integers.cast(pa.int64()).fill_null(0).to_numpy()
        # A user's own context, which may round, is not asked. A multiple may have a digit more than its number.
        with decimal.localcontext(decimal.Context(prec=MOST_DIGITS + 1)):
            objects = self._sums(numbers) if self._keep(numbers) else self._products(numbers)
        if values.null_count:
            objects[values.is_null().to_numpy(zero_copy_only=False)] = None
        return objects

    def _products(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        return np.fromiter(map(self._times_unit, numbers.tolist()), dtype=object, count=len(numbers))

    def _sums(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        sums: npt.NDArray[np.object_] = (
            self._high[(numbers >> _LOW_BITS) - self._first] + self._low[numbers & (_LOW - 1)]
        )
        return sums

    def _keep(self, numbers: npt.NDArray[np.int64]) -> bool:
        """Keep all that the sums of these numbers need; False where making it costs more than they save."""
        if len(numbers) < _LOW:
            return False
        least, most = int(numbers.min()) >> _LOW_BITS, int(numbers.max()) >> _LOW_BITS
        high, first = self._high, self._first
        if not len(high) or max(first + len(high), most + 1) - min(first, least) > _MOST_HIGH:
            high, first = high[:0], least  # the column begins, or has moved on
        end = first + len(high)
        missing = max(first - least, 0) + max(most + 1 - end, 0)
        if missing > len(numbers) // 4:
            return False
        if missing:
            below, above = (self._products(np.arange(*ends) * _LOW) for ends in ((least, first), (end, most + 1)))
            self._high, self._first = np.concatenate([below, high, above]), min(first, least)
        if not len(self._low):
            self._low = self._products(np.arange(_LOW))
        return True
