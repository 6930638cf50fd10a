"""Shares Iceberg tables that a test writes, in a bucket whose keys the catalog vends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from delta_sharing_spark import SharingClient
from support.buckets import BucketServer
from support.drawn_iceberg import Column, IcebergWriter

COLUMNS = [Column(1, "id", "int"), Column(2, "kind", "string")]


class SharedIceberg(BucketServer):
    """The table ``s.db.t`` of a bucket ``lake``; ``writer`` changes it.

    Args:
        directory: Receives its files.
    """

    def __init__(self, directory: Path, columns: list[Column] = COLUMNS, version: int = 2) -> None:
        super().__init__()
        self.writer = IcebergWriter(directory / "t", list(columns), version, location="s3://lake/t")
        self.bucket("lake", directory)
        location = "s3://lake/t/metadata/v.metadata.json"
        self.shared = self.add_iceberg_table("s.db.t", self.writer.metadata_path, location, config=self.vended)

    def vended(self) -> dict[str, str]:
        """New keys of the bucket."""
        return self.vended_properties("s3://lake", say_end=False)

    def client(self, **options: Any) -> SharingClient:
        """A client of the server."""
        return SharingClient(self.profile(), retryTimeout="1ms", **options)
