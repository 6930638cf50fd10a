"""The Delta transaction log, replayed on pyarrow."""
