"""Puts the cache on local disk before an access to files.

Files are kept by server, recipient, table and file id, deletion vectors by their own id.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from delta_sharing_spark.scan.plan import Access, DeletionVector, FileAccess, FileTask
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.storage.block_cache import CachedSource, CacheSettings, cache_of
from delta_sharing_spark.storage.ranges import ByteSource

if TYPE_CHECKING:
    from delta_sharing_spark.access.resolved_scan import ResolvedScan


def cached(access: Access, scan: ResolvedScan) -> FileAccess:
    """The access of a split, behind the cache of its executor (``cacheDir``)."""
    options = scan.options
    assert isinstance(access, FileAccess), "options refuse a cache of files where a gateway reads them"
    assert options.cache_dir is not None
    namespace = table_namespace(scan.profile, scan.table, scan.shape.id)
    return CachedAccess(access, CacheSettings(options.cache_dir, options.cache_max_bytes, namespace))


@dataclass(frozen=True, slots=True)
class CachedAccess(FileAccess):
    """Another access behind a cache (``scan.plan.FileAccess``). Picklable; what is cached needs no URL and no credential."""

    inner: FileAccess
    settings: CacheSettings

    def open(self, task: FileTask) -> ByteSource:
        key = f"file\0{self.settings.namespace}\0{task.id}"
        return CachedSource(self.inner.open(task), cache_of(self.settings), key)

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``FileAccess.open_vector``. A vector without an id of its own could be taken for another: it is not kept."""
        source = self.inner.open_vector(task, vector)
        if vector.storage == "p" and vector.file_id is None and "?" in vector.path:
            return source
        return CachedSource(source, cache_of(self.settings), f"vector\0{self.settings.namespace}\0{vector.unique_id}")

    def ends(self, task: FileTask) -> float | None:
        return self.inner.ends(task)

    def renewed(self) -> CachedAccess:
        return replace(self, inner=self.inner.renewed())


def table_namespace(profile: Profile, table: TableName, table_id: str | None) -> str:
    """A digest that no two tables share, nor two recipients: ids alone are what a server states, and another may state them too."""
    parts = (profile.endpoint, profile.recipient, str(table).lower(), table_id or "")
    return hashlib.sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()
