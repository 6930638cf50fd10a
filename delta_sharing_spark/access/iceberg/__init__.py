"""Reads a table by the Iceberg catalog of a share."""
