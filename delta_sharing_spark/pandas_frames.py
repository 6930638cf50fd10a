"""Converts a stream of Arrow batches to a pandas DataFrame, batch by batch as they arrive."""

from __future__ import annotations

import decimal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import pyarrow as pa

#: Rows whose values are counted to see whether a column repeats them.
_SAMPLE = 20_000
#: Decimals with so many digits are integers of 64 bits.
_MOST_DIGITS = 18


def to_pandas(
    rows: pa.RecordBatchReader,
    count: int | None = None,
    *,
    types_mapper: Callable[[pa.DataType], Any] | None = None,
    dtype_backend: str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """A stream of record batches as a pandas DataFrame, with the types that ``pyarrow.Table.to_pandas`` gives.

    Values are converted as their batch arrives, while what follows is still being read, and into the frame's own
    memory where they need not stay in Arrow's: new memory costs more than decoding.

    Args:
        rows: The batches.
        count: How many rows there are expected to be, for which room is made at once; None if unknown.
        types_mapper: From an Arrow type to a pandas extension type, or None for the usual one.
        dtype_backend: ``"pyarrow"`` or ``"numpy_nullable"``, as in ``pandas.read_parquet``.
        **options: Further ones of ``pyarrow.Table.to_pandas``.

    Raises:
        ConfigError: An argument is unknown.
    """
    import pandas

    usual = not options and types_mapper is None and dtype_backend is None
    options = {"types_mapper": types_mapper or _mapper_of(dtype_backend, pandas), **options}
    try:
        empty = rows.schema.empty_table().to_pandas(**options)
    except TypeError as refused:
        if "keyword argument" not in str(refused):
            raise
        raise ConfigError(f"to_pandas(): {refused}; it takes what pyarrow.Table.to_pandas takes") from None
    columns = [
        _column(field, dtype, options, usual, count or 0)
        for field, dtype in zip(rows.schema, empty.dtypes, strict=True)
    ]
    read = 0
    for batch in rows:
        read += batch.num_rows
        for column, values in zip(columns, batch.columns, strict=True):
            column.add(values)
    values = {name: column.series() for name, column in zip(empty.columns, columns, strict=True)}
    return pandas.DataFrame(values, index=pandas.RangeIndex(read), columns=empty.columns, copy=False)


def _mapper_of(backend: str | None, pandas: Any) -> Callable[[pa.DataType], Any] | None:
    if backend is None:
        return None
    if backend == "pyarrow":
        return pandas.ArrowDtype
    if backend == "numpy_nullable":
        import pyarrow as pa

        names = ("Int8", "Int16", "Int32", "Int64", "Float32", "Float64")
        types = {getattr(pa, name.lower())(): getattr(pandas, f"{name}Dtype")() for name in names}
        types |= {pa.bool_(): pandas.BooleanDtype(), pa.string(): pandas.StringDtype()}
        return types.get
    raise ConfigError(f"dtype_backend {backend!r} is unknown; it is 'pyarrow' or 'numpy_nullable'")


class _Column(ABC):
    """One column of the data frame, to which the batches' values are added as they arrive."""

    @abstractmethod
    def add(self, values: pa.Array) -> None:
        """Add the values of the next batch."""

    @abstractmethod
    def series(self) -> pd.Series | npt.NDArray[Any]:
        """All values; called once, at the end."""


def _column(field: pa.Field, dtype: Any, options: Mapping[str, Any], usual: bool, count: int) -> _Column:
    """What collects a column whose pandas type is ``dtype`` where it has no rows; ``usual`` without the user's options."""
    import numpy as np
    import pyarrow.types as pt

    if dtype == np.dtype(object):
        return _Objects(field, options, count)
    is_number = pt.is_integer(field.type) or pt.is_floating(field.type) or pt.is_boolean(field.type)
    if usual and (is_number or pt.is_timestamp(field.type)):
        return _Numbers(dtype, count)
    if hasattr(dtype, "__from_arrow__"):
        return _ExtensionArrays(dtype)
    return _ArrowChunks(field, options)


class _ArrowChunks(_Column):
    """Values that stay in Arrow's memory, and are converted at the end as pyarrow does it."""

    def __init__(self, field: pa.Field, options: Mapping[str, Any]) -> None:
        self._field, self._options = field, options
        self._chunks: list[pa.Array] = []

    def add(self, values: pa.Array) -> None:
        self._chunks.append(values)

    def series(self) -> pd.Series | npt.NDArray[Any]:
        import pyarrow as pa

        column = pa.chunked_array(self._chunks, self._field.type)
        self._chunks.clear()  # the table alone holds the memory, which it gives back as it goes
        table = pa.Table.from_arrays([column], schema=pa.schema([self._field]))
        del column
        series: pd.Series = table.to_pandas(**{**self._options, "self_destruct": True}).iloc[:, 0]
        return series


class _ExtensionArrays(_Column):
    """Values of a type of pandas' own, such as its strings, which may keep Arrow's memory."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._parts: list[pd.Series] = []

    def add(self, values: pa.Array) -> None:
        import pandas

        self._parts.append(pandas.Series(self._dtype.__from_arrow__(values), copy=False))

    def series(self) -> pd.Series | npt.NDArray[Any]:
        import pandas

        if not self._parts:
            return pandas.Series([], dtype=self._dtype)
        return pandas.concat(self._parts, ignore_index=True)


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
    import numpy as np

    try:
        return np.empty(max(count, at_least), dtype)
    except (MemoryError, ValueError):
        return np.empty(at_least, dtype)


class _Numbers(_ArrayColumn):
    """Integers, floats, booleans and timestamps."""

    def __init__(self, dtype: Any, count: int) -> None:
        import numpy as np

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
        import numpy as np

        if isinstance(self._dtype, np.dtype):
            return self._whole()
        import pandas

        if pandas.__version__.startswith("2.0."):  # it takes integers for nanoseconds
            return pandas.Series(pandas.DatetimeIndex(self._whole()).tz_localize("UTC").tz_convert(self._dtype.tz))
        return pandas.Series(pandas.array(self._whole().view(np.int64), self._dtype, copy=False), copy=False)


class _Objects(_ArrayColumn):
    """The values of one column as Python objects.

    Objects (decimals, dates, lists) cost more than all the rest, on one core: they are made while what follows is still
    being read on the others.
    """

    def __init__(self, field: pa.Field, options: Mapping[str, Any], count: int) -> None:
        import pyarrow.types as pt

        super().__init__(object, count)
        self._field, self._options = field, options
        #: One object for equal values; None where a column's first rows show that it seldom repeats them.
        self._known: dict[Any, Any] | None = {} if pt.is_decimal(field.type) or pt.is_date32(field.type) else None

    def add(self, values: pa.Array) -> None:
        if (
            not self._count
            and self._known is not None
            and len(values.slice(0, _SAMPLE).unique()) * 2 > min(len(values), _SAMPLE)
        ):
            self._known = None
        self._append(self._converted(values) if self._known is None else self._looked_up(values, self._known))

    def series(self) -> pd.Series | npt.NDArray[Any]:
        import pandas

        return pandas.Series(self._whole(), dtype=object, copy=False)

    def _converted(self, values: pa.Array) -> npt.NDArray[np.object_]:
        import pyarrow as pa
        import pyarrow.types as pt

        if pt.is_decimal128(values.type) and values.type.precision <= _MOST_DIGITS and values.type.scale >= 0:
            return _decimals(values)
        table = pa.Table.from_arrays([values], schema=pa.schema([self._field]))
        objects: npt.NDArray[np.object_] = table.to_pandas(**self._options).iloc[:, 0].to_numpy()
        return objects

    def _looked_up(self, values: pa.Array, known: dict[Any, Any]) -> npt.NDArray[np.object_]:
        import numpy as np

        encoded = values.dictionary_encode()
        objects = np.empty(len(encoded.dictionary) + 1, dtype=object)
        objects[:-1] = [known.setdefault(value, value) for value in encoded.dictionary.to_pylist()]
        objects[-1] = None
        return objects[encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)]


def _decimals(values: pa.Array) -> npt.NDArray[np.object_]:
    """Decimals of up to 18 digits, each an integer times its unit: half the time of Arrow, which goes by text."""
    import numpy as np
    import pyarrow as pa

    # The same bytes read as integers of 128 bits.
    whole = pa.decimal128(_MOST_DIGITS, 0)
    integers = pa.Array.from_buffers(whole, len(values), values.buffers(), values.null_count, values.offset)
    numbers = integers.cast(pa.int64()).fill_null(0).to_numpy().tolist()
    # A user's own context, which may round, is not asked.
    with decimal.localcontext(decimal.Context(prec=_MOST_DIGITS)):
        times_unit = decimal.Decimal((0, (1,), -values.type.scale)).__mul__
        objects = np.fromiter(map(times_unit, numbers), dtype=object, count=len(numbers))
    if values.null_count:
        objects[values.is_null().to_numpy(zero_copy_only=False)] = None
    return objects
