"""Rows as the frames and files of other libraries: pandas, Polars, DuckDB, Arrow, CSV and JSON."""
