"""The log of a table on the local file system (``deltalog.paths.LogStore``)."""

from __future__ import annotations

import os
from pathlib import Path

from delta_sharing_spark.deltalog.paths import LogEntry, join, local_path
from delta_sharing_spark.storage.local_files import LocalSource


class LocalLogStore:
    """A table on the local file system: ``file:`` URIs and plain paths."""

    known_version: int | None = None

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        directory = local_path(text) if text.startswith("file:") else os.path.abspath(text)
        self.root = "file:///" + directory.replace(os.sep, "/").strip("/")

    def _path(self, path: str) -> Path:
        return Path(local_path(join(self.root, path)))

    def read(self, path: str) -> bytes:
        return self._path(path).read_bytes()

    def open(self, path: str, size: int | None = None) -> LocalSource:
        return LocalSource(open(self._path(path), "rb"), path)

    def list_from(self, relative_dir: str, start_name: str) -> list[LogEntry] | None:
        entries = []
        try:
            with os.scandir(self._path(relative_dir)) as directory:
                for entry in directory:
                    if entry.name >= start_name and entry.is_file():
                        stat = entry.stat()
                        entries.append(LogEntry(entry.name, stat.st_size, stat.st_mtime_ns // 1_000_000))
        except FileNotFoundError:
            return []
        except PermissionError:
            return None
        return sorted(entries, key=lambda e: e.name)

    def size(self, path: str) -> int | None:
        return self._path(path).stat().st_size

    def modified(self, path: str) -> int | None:
        return self._path(path).stat().st_mtime_ns // 1_000_000
