"""Reads the splits of a plan as Arrow batches; nothing here knows the access mode."""
