"""An access whose bytes are kept on local disk: files by table and file id, deletion vectors by their own id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delta_sharing_spark.scan.plan import Access, DeletionVector, FileTask
from delta_sharing_spark.storage.cache import CachedSource, CacheSettings, cache_of
from delta_sharing_spark.storage.ranges import ByteSource


@dataclass(frozen=True, slots=True)
class CachedAccess:
    """Another access behind a cache (``scan.plan.Access``). Picklable; what is cached needs no URL and no credential."""

    inner: Access
    settings: CacheSettings

    def open(self, task: FileTask) -> ByteSource:
        """See ``Access.open``."""
        key = f"file\0{self.settings.table_id}\0{task.id}"
        return CachedSource(self.inner.open(task), cache_of(self.settings), key)

    def read_vector(self, task: FileTask, vector: DeletionVector) -> bytes:
        """See ``Access.read_vector``. A vector without an id of its own could be taken for another: it is not kept."""
        if vector.storage == "p" and vector.file_id is None and "?" in vector.path:
            return self.inner.read_vector(task, vector)
        name = f"vector\0{self.settings.table_id}\0{vector.unique_id}"
        source = CachedSource(_Vector(self.inner, task, vector), cache_of(self.settings), name)
        return bytes(source.read(0, source.size))

    def close(self) -> None:
        """See ``Access.close``."""
        self.inner.close()


class _Vector:
    """The framed bytes of a vector as a source."""

    def __init__(self, access: Access, task: FileTask, vector: DeletionVector) -> None:
        self.name = f"deletion vector {vector.unique_id}"
        self.size = vector.size + 8
        self._access, self._task, self._vector = access, task, vector

    def read(self, start: int, length: int) -> memoryview:
        data = np.frombuffer(self._access.read_vector(self._task, self._vector), dtype=np.uint8).data
        return data[start : start + length]

    def close(self) -> None:
        """Nothing of its own."""
