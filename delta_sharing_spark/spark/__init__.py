"""The only place that imports pyspark: the data source, its readers and offsets."""
