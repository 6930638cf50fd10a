"""Bytes: filesystems by scheme, and coalesced byte ranges over HTTP or fsspec."""
