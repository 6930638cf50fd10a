"""An access whose bytes are kept on local disk: files by table and file id, deletion vectors by their own id."""

from __future__ import annotations

from dataclasses import dataclass

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

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``Access.open_vector``. A vector without an id of its own could be taken for another: it is not kept."""
        source = self.inner.open_vector(task, vector)
        if vector.storage == "p" and vector.file_id is None and "?" in vector.path:
            return source
        return CachedSource(source, cache_of(self.settings), f"vector\0{self.settings.table_id}\0{vector.unique_id}")
