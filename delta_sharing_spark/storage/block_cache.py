"""Keeps file bytes on local disk between reads, in blocks of one megabyte, each in a file of its own.

Several processes may share a directory. A block appears under its name only once it is complete, and is checked by
length and checksum when it is read. It may vanish at any time. What fails here costs time, never rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import threading
import time
import uuid
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.storage.own_files import followed, read_own
from delta_sharing_spark.storage.ranges import ByteSource, Range

_log = logging.getLogger(__name__)

BLOCK = 1 << 20
_CHECKSUM = 4
#: Eviction goes down to this share of the bound, so that it is not needed at every write.
_KEEP = 0.9
#: A temporary file of a process that died is removed after so many seconds.
_ABANDONED = 3600.0
#: The names that a cache gives; whatever else lies in its directory is not its own.
_FOLDER, _BLOCK, _PARTIAL = (
    re.compile(form) for form in (r"[0-9a-f]{2}", r"[0-9a-f]{62}", r"\.[0-9a-f]{62}\.[0-9a-f]{32}")
)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The cache's directory, its bound in bytes, and a name that no other table's blocks have."""

    directory: str
    max_bytes: int
    namespace: str


class BlockCache:
    """Blocks by name in a directory of the cache's own, readable by this user only.

    Raises:
        OptionError: The directory belongs to another user, or others can write in it.
    """

    def __init__(self, directory: str, max_bytes: int) -> None:
        self._root = Path(directory)
        self._max = max_bytes
        self._lock = threading.Lock()
        self._size: int | None = None
        self._has_warned = False
        try:
            _make_private(self._root)
            self._check_owner()
        except OSError as error:
            self._warn(error)

    def get(self, name: str, length: int) -> memoryview | None:
        """A block of ``length`` bytes, marked as used; None if it is not there, or is not whole."""
        path = self._path(name)
        try:
            data = read_own(path)
            if data is None or len(data) != length + _CHECKSUM or _checksum(name, data[:length]) != data[length:]:
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
        except OSError:
            return None
        return memoryview(data)[:length]

    def put(self, name: str, data: memoryview) -> None:
        """Keep a block, and let go of those that were not used for longest if there are too many."""
        if len(data) + _CHECKSUM > self._max * _KEEP:
            return
        path = self._path(name)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            _make_private(path.parent)
            try:
                with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                    out.write(data)
                    out.write(_checksum(name, data))
                coming = len(data) + _CHECKSUM
                with self._lock:
                    if self._size is None or self._size + coming > self._max:
                        self._size = self._evict(coming)
                    self._size += coming
                os.replace(partial, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    partial.unlink()
        except OSError as error:
            self._warn(error)

    def _warn(self, error: OSError) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("nothing is cached in %s: %s; check the option cacheDir", self._root, error.strerror)

    def _check_owner(self) -> None:
        """Refuse a directory in which another user can write, for they could change the rows of later reads."""
        status = os.lstat(followed(self._root))
        if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
            raise OptionError(
                f"the directory {self._root} of the option cacheDir can be written by other users, who could change what "
                f"is read from it; name a directory of your own, and run chmod 700 on it"
            )

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / name[2:]

    def _evict(self, coming: int) -> int:
        """Remove the blocks, of all processes, that were not used for longest beyond the bound; returns the bytes left."""
        blocks: list[tuple[float, int, str]] = []
        for folder in os.scandir(self._root):
            if not _FOLDER.fullmatch(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            for entry in os.scandir(folder.path):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if _BLOCK.fullmatch(entry.name):
                        blocks.append((status.st_mtime, status.st_size, entry.path))
                    elif _PARTIAL.fullmatch(entry.name) and status.st_mtime < time.time() - _ABANDONED:
                        os.unlink(entry.path)
        size = sum(bytes_ for _, bytes_, _ in blocks)
        if size + coming <= self._max:
            return size
        for _, bytes_, path in sorted(blocks):
            if size + coming <= self._max * _KEEP:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            size -= bytes_
        return size


def _checksum(name: str, data: bytes | memoryview) -> bytes:
    """Of a block and its name, for a block that is moved to another's name is another's bytes."""
    return zlib.crc32(data, zlib.crc32(name.encode())).to_bytes(_CHECKSUM, "little")


def _make_private(directory: Path) -> None:
    """Make a directory and its missing parents, each for its owner only."""
    for path in (*reversed(directory.parents), directory):
        if not path.is_dir():
            path.mkdir(mode=0o700, exist_ok=True)


class CachedSource:
    """A ``ByteSource`` that asks another one only for blocks that the cache lacks.

    Args:
        source: Gives the bytes that the cache lacks.
        cache: Keeps the blocks.
        key: Names the file over all tables and servers; its size is part of the blocks' names.

    Attributes:
        requests_made: How often the other source was asked: what the cache has tells nothing of the storage.
    """

    def __init__(self, source: ByteSource, cache: BlockCache, key: str) -> None:
        self.name, self.size, self.requests_made = source.name, source.size, 0
        self._source, self._cache = source, cache
        self._key = f"{key}\0{source.size}"

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``. Neighbouring blocks that are missing are one request."""
        if length <= 0 or start < 0 or start + length > self.size:
            return self._source.read(start, length)
        out = np.empty(length, dtype=np.uint8).data
        missing: list[int] = []
        for number in range(start // BLOCK, -(-(start + length) // BLOCK)):
            block = self._block(number)
            data = self._cache.get(self._name(number), block.length)
            if data is None:
                missing.append(number)
                continue
            self._fetch(missing, start, out)
            missing.clear()
            _copy(data, block.start, out, start)
        self._fetch(missing, start, out)
        return out

    def close(self) -> None:
        self._source.close()

    def _fetch(self, numbers: list[int], start: int, out: memoryview) -> None:
        if not numbers:
            return
        first, last = self._block(numbers[0]), self._block(numbers[-1])
        self.requests_made += 1
        data = self._source.read(first.start, last.end - first.start)
        _copy(data, first.start, out, start)
        for number in numbers:
            block = self._block(number)
            self._cache.put(self._name(number), data[block.start - first.start : block.end - first.start])

    def _block(self, number: int) -> Range:
        return Range(number * BLOCK, min((number + 1) * BLOCK, self.size))

    def _name(self, number: int) -> str:
        return hashlib.sha256(f"{self._key}\0{number}".encode()).hexdigest()


def _copy(data: memoryview, data_start: int, out: memoryview, start: int) -> None:
    """Copy what ``data``, which begins at ``data_start``, and ``out``, which begins at ``start``, have in common."""
    begin, end = max(data_start, start), min(data_start + len(data), start + len(out))
    out[begin - start : end - start] = data[begin - data_start : end - data_start]


#: Directory and bound to the cache there; its blocks lie on disk, so that forgetting one loses none of them.
_block_caches: ProcessCache[tuple[str, int], BlockCache] = ProcessCache(16)


def cache_of(settings: CacheSettings) -> BlockCache:
    """This process's cache of a directory."""
    key = (settings.directory, settings.max_bytes)
    return _block_caches.get_or_make(key, lambda: BlockCache(*key))
