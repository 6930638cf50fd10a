"""Converts a stream of Arrow batches to the data frames of other libraries."""

from __future__ import annotations

import decimal
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

#: Rows whose values are counted to see whether a column repeats them.
_SAMPLE = 20_000
#: Decimals with so many digits are integers of 64 bits.
_MOST_DIGITS = 18


class RowSource(ABC):
    """A source of rows as a stream of Arrow batches, which are read anew each time.

    It speaks Arrow's C stream interface, so that ``pa.table(source)``, ``pl.DataFrame(source)`` and
    ``duckdb.sql("FROM source")`` read it.
    """

    @abstractmethod
    def arrow_schema(self) -> pa.Schema:
        """The columns of the rows."""

    @abstractmethod
    def to_record_batch_reader(self, workers: int | None = None) -> pa.RecordBatchReader:
        """Record batches as they arrive, read in parallel and bounded in memory; reading begins with the first.

        Args:
            workers: Splits under way at once; the number of cores (at most 8) by default.
        """

    def __arrow_c_schema__(self) -> object:
        """The columns, for Arrow's C interface."""
        return self.arrow_schema().__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows, for Arrow's C interface; each call reads anew."""
        return self.to_record_batch_reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return self.to_record_batch_reader().read_all()

    def to_pandas(
        self,
        *,
        types_mapper: Callable[[pa.DataType], Any] | None = None,
        dtype_backend: str | None = None,
        **options: Any,
    ) -> pd.DataFrame:
        """All rows as a pandas DataFrame, with the types that ``pyarrow.Table.to_pandas`` gives.

        Args:
            types_mapper: From an Arrow type to a pandas extension type, or None for the usual one.
            dtype_backend: ``"pyarrow"`` or ``"numpy_nullable"``, as in ``pandas.read_parquet``; either keeps integers
                with nulls exact, which the default makes floats.
            **options: Further ones of ``pyarrow.Table.to_pandas``.

        Raises:
            ConfigError: pandas is missing, or an argument is unknown.
        """
        library("pandas", "to_pandas()")
        rows = self.to_record_batch_reader()
        return to_pandas(rows, types_mapper=types_mapper, dtype_backend=dtype_backend, **options)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars DataFrame.

        Raises:
            ConfigError: Polars is missing.
        """
        frame: pl.DataFrame = library("polars", "to_polars()").from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, connection: DuckDBPyConnection | None = None, name: str | None = None) -> DuckDBPyRelation:
        """The rows as a DuckDB relation, registered as a view; every query over it reads them anew.

        DuckDB's own conditions filter what was read: ``where`` and ``columns`` of a scan make it read less.

        Args:
            connection: The connection; None means DuckDB's default one.
            name: The view's name; None means the table's own name.

        Raises:
            ConfigError: DuckDB is missing.
        """
        connection = connection or library("duckdb", "to_duckdb()").default_connection()
        name = name or self._view_name()
        connection.register(name, self)
        return connection.view(name)

    @abstractmethod
    def _view_name(self) -> str:
        """The default name of a database's view of the rows."""


def library(name: str, method: str) -> ModuleType:
    """Import ``pandas``, ``polars`` or ``duckdb``.

    Args:
        name: The library, which is also the name of the extra that installs it.
        method: The method that needs it, for the error.

    Raises:
        ConfigError: The library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        if missing.name != name:
            raise  # it is installed, and broken
        raise ConfigError(
            f"{method} needs {name}, which is not installed: pip install 'delta-sharing-spark[{name}]'"
        ) from None


def to_pandas(
    rows: pa.RecordBatchReader,
    *,
    types_mapper: Callable[[pa.DataType], Any] | None = None,
    dtype_backend: str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """A stream of record batches as a pandas DataFrame, with the types that ``pyarrow.Table.to_pandas`` gives.

    Columns that become Python objects (decimals, dates, lists) cost more than all the rest, on one core: they are made
    batch by batch while what follows is still being read on the others.

    Args:
        rows: The batches.
        types_mapper: From an Arrow type to a pandas extension type, or None for the usual one.
        dtype_backend: ``"pyarrow"`` or ``"numpy_nullable"``, as in ``pandas.read_parquet``.
        **options: Further ones of ``pyarrow.Table.to_pandas``.

    Raises:
        ConfigError: pandas is missing, or an argument is unknown.
    """
    pandas = library("pandas", "to_pandas()")
    options = {"types_mapper": types_mapper or _mapper_of(dtype_backend, pandas), "self_destruct": True, **options}
    try:
        empty = rows.schema.empty_table().to_pandas(**options)
    except TypeError as refused:
        if "keyword argument" not in str(refused):
            raise
        raise ConfigError(f"to_pandas(): {refused}; it takes what pyarrow.Table.to_pandas takes") from None
    as_objects = {
        position: _Objects(field, options)
        for position, field in enumerate(rows.schema)
        if pandas.api.types.is_object_dtype(empty.dtypes.iloc[position])
    }
    others = [position for position in range(len(rows.schema)) if position not in as_objects]
    kept: list[pa.RecordBatch] = []
    for batch in rows:
        for position, column in as_objects.items():
            column.add(batch.column(position))
        kept.append(batch.select(others))
    frame = _table(kept, rows.schema, others).to_pandas(**options)
    for position, column in as_objects.items():
        values = pandas.Series(column.values(), index=frame.index, dtype=object, copy=False)
        frame.insert(position, rows.schema.field(position).name, values)
    result: pd.DataFrame = frame
    return result


def _table(batches: list[pa.RecordBatch], schema: pa.Schema, positions: list[int]) -> pa.Table:
    """The columns at ``positions`` as one table; the list is emptied, so that the table alone holds the memory."""
    import pyarrow as pa

    table = pa.Table.from_batches(batches, pa.schema([schema.field(i) for i in positions]))
    batches.clear()
    return table


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


class _Objects:
    """The values of one column as Python objects, added batch by batch."""

    def __init__(self, field: pa.Field, options: Mapping[str, Any]) -> None:
        import numpy as np
        import pyarrow.types as pt

        self._field, self._options = field, options
        #: One object for equal values; None where a column's first rows show that it seldom repeats them.
        self._known: dict[Any, Any] | None = {} if pt.is_decimal(field.type) or pt.is_date32(field.type) else None
        self._values: npt.NDArray[np.object_] = np.empty(0, dtype=object)
        self._count = 0

    def add(self, values: pa.Array) -> None:
        """Convert the values of the next batch."""
        if (
            not self._count
            and self._known is not None
            and len(values.slice(0, _SAMPLE).unique()) * 2 > min(len(values), _SAMPLE)
        ):
            self._known = None
        objects = self._converted(values) if self._known is None else self._looked_up(values, self._known)
        end = self._count + len(objects)
        if end > len(self._values):
            # In place: to copy pointers would touch every object once more.
            self._values.resize(max(end, 2 * len(self._values)), refcheck=False)
        self._values[self._count : end] = objects
        self._count = end

    def values(self) -> npt.NDArray[np.object_]:
        """All values."""
        self._values.resize(self._count, refcheck=False)
        return self._values

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
