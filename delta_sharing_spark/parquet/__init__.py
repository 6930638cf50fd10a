"""Parquet files as bytes: Thrift, footers, statistics, schemas, and the layout of what Spark is shown."""
