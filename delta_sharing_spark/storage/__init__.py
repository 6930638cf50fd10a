"""Reads bytes: objects and ranges of them, over HTTP and through fsspec."""
