"""delta-sharing-spark: read Delta Sharing tables from PySpark with nothing but ``pip install``."""
