"""Iceberg tables of others' writers: pyiceberg in Nessie's catalog, and Spark's Iceberg runtime by drawn histories (``nox -s iceberg``)."""
