"""Rows as the data frames of other libraries: what can be read as a stream of Arrow batches can become each of them."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
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


class RowSource(ABC):
    """Whatever gives rows as a stream of Arrow batches, anew each time it is asked.

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
        return to_pandas(self.to_arrow(), types_mapper=types_mapper, dtype_backend=dtype_backend, **options)

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
            connection: Where to; DuckDB's default connection if it is left out.
            name: The view's name; the table's own name if it is left out.

        Raises:
            ConfigError: DuckDB is missing.
        """
        connection = connection or library("duckdb", "to_duckdb()").default_connection()
        name = name or self._view_name()
        connection.register(name, self)
        return connection.view(name)

    @abstractmethod
    def _view_name(self) -> str:
        """What a database calls the rows where nobody names them."""


def library(name: str, method: str) -> ModuleType:
    """Import ``pandas``, ``polars`` or ``duckdb``.

    Args:
        name: The library, which is also the name of the extra that installs it.
        method: What needs it, as the error says it.

    Raises:
        ConfigError: It is not installed.
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
    table: pa.Table,
    *,
    types_mapper: Callable[[pa.DataType], Any] | None = None,
    dtype_backend: str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """An Arrow table as a pandas DataFrame, with the types that ``pyarrow.Table.to_pandas`` gives.

    Decimals and dates become Python objects, which cost more than all the rest of a table; equal values of a column
    become one object.

    Args:
        table: The rows; their memory is freed column by column unless the caller holds on to them.
        types_mapper: From an Arrow type to a pandas extension type, or None for the usual one.
        dtype_backend: ``"pyarrow"`` or ``"numpy_nullable"``, as in ``pandas.read_parquet``.
        **options: Further ones of ``pyarrow.Table.to_pandas``.

    Raises:
        ConfigError: pandas is missing, or an argument is unknown.
    """
    pandas = library("pandas", "to_pandas()")
    types_mapper = types_mapper or _mapper_of(dtype_backend, pandas)
    as_objects = {
        position: _objects(table.column(position))
        for position, field in enumerate(table.schema)
        if (types_mapper is None or types_mapper(field.type) is None)
        and _becomes_objects(field.type, options)
        and _repeats(table.column(position))
    }
    # What is destroyed while it is converted is this selection; a table that the caller still holds stays whole.
    rest = table.select([i for i in range(table.num_columns) if i not in as_objects])
    names = table.column_names
    del table
    try:
        frame: pd.DataFrame = rest.to_pandas(types_mapper=types_mapper, self_destruct=True, **options)
    except TypeError as refused:
        if "keyword argument" not in str(refused):
            raise
        raise ConfigError(f"to_pandas(): {refused}; it takes what pyarrow.Table.to_pandas takes") from None
    for position, values in as_objects.items():
        frame.insert(position, names[position], pandas.Series(values, index=frame.index, dtype=object))
    return frame


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


def _becomes_objects(data_type: pa.DataType, options: dict[str, Any]) -> bool:
    import pyarrow.types as pt

    return bool(pt.is_decimal(data_type) or (pt.is_date32(data_type) and options.get("date_as_object", True)))


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether the values of a column are worth being looked up, judged by its first rows."""
    first = column.slice(0, _SAMPLE)
    return len(first) > 0 and len(first.unique()) * 2 <= len(first)


def _objects(column: pa.ChunkedArray) -> npt.NDArray[np.object_]:
    """The column's values as Python objects, one object for equal values."""
    import numpy as np

    encoded = column.dictionary_encode().unify_dictionaries()
    dictionary = encoded.chunk(0).dictionary
    known = np.empty(len(dictionary) + 1, dtype=object)
    known[:-1] = dictionary.to_pylist()
    known[-1] = None
    indices = [chunk.indices.fill_null(len(dictionary)).to_numpy(zero_copy_only=False) for chunk in encoded.chunks]
    return known[np.concatenate(indices)]
