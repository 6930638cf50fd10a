"""Presents a place as a read-only file system of fsspec, for pandas, pyarrow, Polars, DuckDB and whatever else takes one."""

from __future__ import annotations

import errno
from datetime import datetime
from typing import Any, NoReturn

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from delta_sharing_spark.errors import FileError
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.storage.locations import StoredObject
from delta_sharing_spark.storage.place import Place


class PlaceFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A place's files by paths below it; ``opensharing://`` may stand before them. Raises as ``Place``."""

    protocol = "opensharing"
    cachable = False

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return _described(self.place.info(self._strip_protocol(path)))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        entries = [_described(entry) for entry in self.place.entries(path)]
        if not entries:
            itself = self.info(path)
            entries = [itself] if itself["type"] == "file" else []
        return entries if detail else [one["name"] for one in entries]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        path = self._strip_protocol(path)
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth, withdirs, detail, **options)
        entries = {one["name"]: one for one in map(_described, self.place.entries(path, deep=True))}
        if not entries and (itself := self.info(path))["type"] == "file":
            entries = {itself["name"]: itself}
        return entries if detail else sorted(entries)

    # fsspec takes any failure for absence.

    def exists(self, path: str, **_: Any) -> bool:
        return self._type(path) is not None

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def _type(self, path: str) -> Any:
        try:
            return self.info(path)["type"]
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> datetime | None:
        moment: datetime | None = self.info(path)["mtime"]
        return moment

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        with self._open(path) as file:
            begin, stop, _step = slice(start, end).indices(file.size)
            return bytes(file._fetch_range(begin, stop)) if stop > begin else b""

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **options: Any) -> PlaceFile:
        if mode != "rb":
            self._refused()
        path = self._strip_protocol(path)
        return PlaceFile(self, self.place.info(path), block_size or "default", options.get("cache_type", "readahead"))

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EROFS, f"{self.place.name} is shared read-only")

    mkdir = makedirs = rmdir = rm = rm_file = _rm = cp_file = mv = put_file = pipe_file = touch = _refused


class PlaceFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of a place, read from the version that it had when it was first read."""

    def __init__(self, fs: PlaceFileSystem, file: StoredObject, block_size: Any, cache_type: str) -> None:
        if file.name.endswith("/"):
            raise FileError(
                f"{file.name.rstrip('/')} of {fs.place.name} is a directory; name a file in it", file=file.name
            )
        self._place, self._version = fs.place, fs.place.version(file)
        self._canceller = Canceller(file.name)
        super().__init__(fs, file.name, "rb", block_size, cache_type=cache_type, size=file.size)

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self.size)
        return bytes(self._place.read(self.path, self._version, start, max(0, end - start), self._canceller))


def _described(entry: StoredObject) -> dict[str, Any]:
    kind = "directory" if entry.name.endswith("/") else "file"
    return {"name": entry.name.rstrip("/"), "size": entry.size, "type": kind, "mtime": entry.modified}
