"""Reads profile files from any storage that fsspec knows, with the identity of the user's environment."""

from __future__ import annotations


def read_bytes(url: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file. A profile is the user's own file, so the user's own identity reads it.

    Raises:
        FileNotFoundError, OSError: The file is not there, or cannot be read.
        ImportError, ValueError: The scheme's package is not installed, or the scheme is unknown.
    """
    import fsspec

    with fsspec.open(url, "rb") as file:
        data: bytes = file.read(limit)
        return data
