"""The native lane: a planned snapshot served on loopback to Spark's own Parquet reader, as a WebHDFS directory."""
