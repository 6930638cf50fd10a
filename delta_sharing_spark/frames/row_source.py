"""Gives rows to other libraries: to what reads Arrow's C stream, and as their data frames."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import ConfigError, short_tracebacks

if TYPE_CHECKING:
    import geopandas
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from delta_sharing_spark.sharing.address import TableName


#: Rows of a chunk, on average, below which a Polars frame's chunks are made one: each operation looks at each of them.
_FEW_ROWS = 4096


@short_tracebacks
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
        """The rows, for Arrow's C interface; each call reads anew. A string that is no UTF-8 is an error there."""
        import pyarrow as pa

        from delta_sharing_spark.frames.unfit_values import fit_for_others

        reader = self.to_record_batch_reader()
        fit = pa.RecordBatchReader.from_batches(reader.schema, fit_for_others(reader, str(self._table_name())))
        return fit.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table, whose strings have the bytes that the files have."""
        return self.to_record_batch_reader().read_all()

    def to_record_batches(self) -> Iterator[pa.RecordBatch]:
        """The batches of ``to_record_batch_reader``, one after the other."""
        with self.to_record_batch_reader() as reader:
            yield from reader

    def to_pandas(
        self,
        convert_in_batches: bool = False,
        *,
        types_mapper: Callable[[pa.DataType], Any] | None = None,
        dtype_backend: Literal["pyarrow", "numpy_nullable"] | None = None,
        decimals: Literal["objects", "floats", "arrow"] = "objects",
        **options: Any,
    ) -> pd.DataFrame:
        """All rows as a pandas DataFrame, with the types that ``pyarrow.Table.to_pandas`` gives.

        Args:
            convert_in_batches: Changes nothing; rows are always read in batches.
            decimals: ``"objects"``: Python's ``Decimal``, exact and slow; ``"floats"``: the nearest float64, nested ones
                too; ``"arrow"``: columns of Arrow's decimals, exact and quick.
            types_mapper: From an Arrow type to a pandas extension type, or None for the usual one.
            dtype_backend: ``"pyarrow"`` or ``"numpy_nullable"``, as in ``pandas.read_parquet``; either keeps integers
                with nulls exact, which the default makes floats.
            **options: Further ones of ``pyarrow.Table.to_pandas``.

        Raises:
            ConfigError: pandas is missing, or an argument is unknown.
            ConversionError: A value that pandas cannot hold so.
        """
        asked = [name for name in ("limit", "columns", "where", "version", "timestamp") if name in options]
        if asked:
            raise ConfigError(
                f"to_pandas() takes no {asked[0]}, it gives all rows of a table or scan; choose before it: "
                f"{self._table_name().table}.scan({asked[0]}=...).to_pandas()"
            )
        library("pandas", "to_pandas()")
        import pyarrow as pa

        from delta_sharing_spark.frames.pandas_frames import to_pandas

        schema, batches, count = self._sized_batches()
        chosen = {"types_mapper": types_mapper, "dtype_backend": dtype_backend, "decimals": decimals, **options}
        with closing(batches):  # threads and memory of the reading would live as long as an error that someone keeps
            rows = pa.RecordBatchReader.from_batches(schema, batches)
            return to_pandas(rows, count, table=str(self._table_name()), **chosen)

    def to_polars(self) -> pl.DataFrame:
        """All rows as a Polars DataFrame.

        Raises:
            ConfigError: Polars is missing.
            ConversionError: A string is not UTF-8.
        """
        polars = library("polars", "to_polars()")
        import pyarrow as pa

        from delta_sharing_spark.frames.polars_decoder import may_decode
        from delta_sharing_spark.frames.unfit_values import fit_for_others
        from delta_sharing_spark.schema.arrow_bridge import empty_table

        if may_decode(self.arrow_schema()):
            with closing(self._frames()) as read:
                frames = list(read) or [polars.from_arrow(empty_table(self.arrow_schema()))]
            chunks = len(frames)
        else:
            with self.to_record_batch_reader() as reader:
                rows = pa.Table.from_batches(fit_for_others(reader, str(self._table_name())), reader.schema)
            frames = [polars.from_arrow(rows, rechunk=False)]
            chunks = max((column.num_chunks for column in rows.columns), default=0)
        # One chunk of each column would be a second copy; Polars' own reader leaves one for each row group as well.
        frame: pl.DataFrame = polars.concat(frames, rechunk=sum(map(len, frames)) < _FEW_ROWS * chunks)
        return frame

    def to_duckdb(self, connection: DuckDBPyConnection | None = None, name: str | None = None) -> DuckDBPyRelation:
        """The rows as a DuckDB relation, registered as a view; every query over it reads them anew.

        DuckDB's own conditions filter what was read: ``where`` and ``columns`` of a scan make it read less. Geometries are DuckDB's
        own; it has no geographies, which are well-known binary in BLOBs.

        Args:
            connection: The connection; None means DuckDB's default one.
            name: The view's name; None means the table's own name.

        Raises:
            ConfigError: DuckDB is missing.
        """
        connection = connection or library("duckdb", "to_duckdb()").default_connection()
        name = name or self._table_name().table
        from delta_sharing_spark.frames.planar import PlanarSource

        connection.register(name, PlanarSource(self.arrow_schema(), self))
        return connection.view(name)

    def to_geopandas(self) -> geopandas.GeoDataFrame:
        """All rows as a GeoPandas frame: geometries and geographies as shapes, with their coordinate reference systems.

        Raises:
            ConfigError: GeoPandas is missing, or no column is a geometry or a geography.
        """
        library("geopandas", "to_geopandas()")
        import geopandas

        schema = self.arrow_schema()
        if not any(b"geoarrow.wkb" in (field.metadata or {}).values() for field in schema):
            raise ConfigError(
                f"to_geopandas() needs a column that is a geometry or a geography, and {self._table_name()} is read with "
                f"{', '.join(schema.names[:20])}; use to_pandas()"
            )
        frame: geopandas.GeoDataFrame = geopandas.GeoDataFrame.from_arrow(self.to_arrow())
        return frame

    @abstractmethod
    def _sized_batches(self) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None], int | None]:
        """The columns, the rows as they arrive, and how many of them the table's metadata promises; None if it does not tell."""

    def _frames(self) -> Generator[pl.DataFrame, None, None]:
        """The rows as they arrive, as Polars' frames; raises as ``to_polars``."""
        from delta_sharing_spark.frames.polars_decoder import frame_of

        with self.to_record_batch_reader() as reader:
            for batch in reader:
                yield frame_of(batch, str(self._table_name()))

    @abstractmethod
    def _table_name(self) -> TableName:
        """The table that the rows are of."""


def library(name: str, method: str) -> ModuleType:
    """Import ``pandas``, ``polars``, ``duckdb``, ``geopandas`` or ``pyspark``.

    Args:
        name: The library, which is also the name of the extra that installs it, but for GeoPandas and PySpark.
        method: The method that needs it, for the error.

    Raises:
        ConfigError: The library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        if missing.name != name:
            raise  # it is installed, and broken
        line = "pip install geopandas" if name == "geopandas" else install_line({"pyspark": "spark"}.get(name, name))
        raise ConfigError(f"{method} needs {name}, which is not installed: {line}") from None
