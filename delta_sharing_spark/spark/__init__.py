"""Holds the Spark data source, its readers, offsets and SQL; no other package imports pyspark."""
