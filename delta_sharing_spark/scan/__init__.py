"""Plans, splits and the one way from files to Arrow batches."""
