"""Reads the Delta transaction log on pyarrow."""
