"""Serves the stored Iceberg tables as a provider does: a catalog that vends keys, and a bucket ``lake`` that asks for them."""

from __future__ import annotations

import re
from pathlib import Path

from delta_sharing_spark.testing.server.responses import Request, Response
from support.buckets import BucketServer

STORED = Path(__file__).parents[1] / "data" / "iceberg"


def newest_metadata(table: Path) -> Path:
    """The newest metadata document of a table that a catalog of directories wrote."""
    numbered = {int(re.sub(r"\D", "", file.name)): file for file in (table / "metadata").glob("v*.metadata.json")}
    return numbered[max(numbered)]


class IcebergLake(BucketServer):
    """The stored tables, as ``s.db.<name>`` of a share whose tables are Iceberg alone.

    Attributes:
        ends: Before this many more requests of the bucket, the keys that were vended end; None: they stay.
    """

    ends: int | None = None

    def __init__(self, directory: Path = STORED / "lake") -> None:
        super().__init__()
        self.bucket("lake", directory)
        for metadata in sorted(directory.glob("db/*/metadata")):
            self.share(metadata.parent)

    def share(self, table: Path) -> str:
        """Share a table of the bucket as it is now; returns its name."""
        name = f"s.db.{table.name}"
        self.share_iceberg(name, newest_metadata(table), "lake")
        if table.name == "imported":  # its files lie where they were imported from
            shared = self.iceberg.tables["s", "db", table.name]
            shared.storage_credentials = [{"prefix": "s3://lake", "config": self.vended}]
        return name

    def vended(self) -> dict[str, str]:
        """New keys of the bucket, and where it is."""
        return self.vended_properties("s3://lake", say_end=False)

    def answer(self, request: Request) -> Response:
        if request.kind in ("data", "log") and self.ends is not None:
            self.ends -= 1
            if self.ends < 0:
                self.ends = None
                self.expire_credentials()
        return super().answer(request)
