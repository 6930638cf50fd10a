"""Represents a volume, a version of a model, or an agent skill: one place with files. They are data; nothing of them is run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

from delta_sharing_spark.display import Listing
from delta_sharing_spark.errors import AddressError, NotFoundError, short_tracebacks
from delta_sharing_spark.schema.markup import html_table, size_text
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.assets import (
    AssetName,
    Model,
    ModelVersion,
    Record,
    get_asset,
    model_alias,
    model_versions,
)
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.storage.range_reader import StorageSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from delta_sharing_spark.assets.download import Downloaded
    from delta_sharing_spark.interop import EngineOptions
    from delta_sharing_spark.storage.clouds.contract import Engine
    from delta_sharing_spark.storage.file_system import PlaceFileSystem
    from delta_sharing_spark.storage.locations import StoredObject
    from delta_sharing_spark.storage.place import Place

#: Files that a notebook shows.
_SHOWN = 100


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file or directory in a listing.

    Attributes:
        path: Below the asset; that of a directory ends in ``/``.
        size: Bytes.
        modified: UTC; None of a directory.
    """

    path: str
    size: int
    modified: datetime | None


def shared_file(entry: StoredObject) -> SharedFile:
    """What a listing shows of a file."""
    return SharedFile(entry.name, entry.size, entry.modified)


@short_tracebacks
class _Shared:
    """What is shared of a volume, a model or a skill: its name, and what the server tells of it."""

    def __init__(self, rest: SharingRest, storage: StorageSettings, asset: AssetName, record: Record | None) -> None:
        self._rest, self._storage, self._asset, self._record = rest, storage, asset, record
        self.name = asset.name

    def __repr__(self) -> str:
        return f"<{self._asset}>"

    @property
    def record(self) -> Record:
        """What the server tells of it; asked for once."""
        if self._record is None:
            self._record = get_asset(self._rest, self._asset)
        return self._record

    def _table_of_record(self) -> str:
        rows = [[f.name, str(value)] for f in fields(self.record) if (value := getattr(self.record, f.name))]
        return html_table([], rows, str(self._asset))


@short_tracebacks
class Asset(_Shared):
    """A volume, a version of a model, or an agent skill. Nothing is asked for before it is needed.

    Paths are below the asset, parted by ``/``; ``..``, absolute paths and links are refused. Credentials are renewed by themselves.
    Whatever reads its files raises DeltaSharingError; a file that there is not is a ``FileNotFoundError`` as well.

    Attributes:
        kind: ``volume``, ``model`` or ``skill``.
        name: Its three-part name.
        version: Of a model.
    """

    def __init__(
        self, rest: SharingRest, storage: StorageSettings, asset: AssetName, record: Record | None = None
    ) -> None:
        super().__init__(rest, storage, asset, record)
        self._place: Place | None = None
        self.kind, self.version = asset.kind, asset.version

    @property
    def place(self) -> Place:
        """Where its files are.

        Raises:
            DeltaSharingError: The server names no place that can be read, or the version of a model is not ready.
        """
        if self._place is None:
            from delta_sharing_spark.assets.credentials import place_of

            self._place = place_of(self._rest, self._asset, self.record, self._storage)
        return self._place

    def files(self, path: str = "") -> Sequence[SharedFile]:
        """All files, those below a directory, or the one that ``path`` names, with sizes and times; a list that prints as a table.

        Raises:
            NoSuchFileError: There is neither a directory nor a file of that path.
        """
        entries = list(self.place.entries(path, deep=True))
        if not entries and not (named := self.place.info(path)).name.endswith("/"):
            entries = [named]
        return Listing(map(shared_file, entries))

    def fs(self) -> PlaceFileSystem:
        """An fsspec file system of its files, rooted here and read-only.

        Examples:
            >>> pandas.read_csv(volume.open("raw/a.csv"))                                    # doctest: +SKIP
            >>> pyarrow.dataset.dataset("tables/t", filesystem=volume.fs())                  # doctest: +SKIP
            >>> duckdb.register_filesystem(volume.fs()); duckdb.read_csv("opensharing://raw/a.csv")  # doctest: +SKIP
        """
        from delta_sharing_spark.storage.file_system import PlaceFileSystem

        return PlaceFileSystem(self.place)

    def open(self, path: str, mode: str = "rb", **options: Any) -> IO[Any]:
        """A file, to be read: bytes, or text with ``mode="r"`` and the options ``encoding``, ``newline``, ``errors``."""
        file: IO[Any] = self.fs().open(self.place.checked(path), mode, **options)
        return file

    def download(
        self, path: str = "", to: str | os.PathLike[str] = ".", *, replace: bool = False, progress: bool = True
    ) -> Downloaded:
        """Download a file, or a directory with all below it, in parallel; what is there already is not fetched again.

        Sizes and ETags are checked. A download that was cut goes on from what has arrived.

        Args:
            path: A file or a directory; all by default.
            to: The directory; for a file also its new name, unless a directory is there or ``to`` ends in ``/``.
            replace: Whether files that are there and differ are replaced.
            progress: Whether a bar is shown on a terminal and in a notebook.

        Raises:
            ConfigError: A file is there that differs.
            FileError: The disk is full, a name would lead elsewhere, or a file changed meanwhile.
        """
        from delta_sharing_spark.assets.download import download

        return download(self.place, path, to, replace=replace, progress=progress)

    def spark_path(self, pattern: str = "", spark: SparkSession | None = None) -> str:
        """A path for Spark's own readers, by a gateway in this process or on each machine of a cluster; no credential is in it.

        Args:
            pattern: A file, a directory or a pattern (``raw/*.json``); a directory is listed at once, a pattern file by file.
            spark: A classic session; the active one by default.

        Raises:
            ConfigError: No such session, or a machine of its cluster has no gateway.

        Examples:
            >>> spark.read.json(volume.spark_path("raw"))          # doctest: +SKIP
        """
        from delta_sharing_spark.spark.native import spark_path

        return spark_path(self.place, pattern, spark)

    def storage_options(self, engine: Engine = "fsspec") -> EngineOptions:
        """Temporary credentials in the words of another engine, which cannot renew them; as ``SharedTable.storage_options``."""
        from delta_sharing_spark.interop import storage_options

        lease: Any = self.place.lease
        return storage_options(lease.token(), self._storage, engine=engine)

    def _repr_html_(self) -> str:
        entries = list(islice(self.place.entries(deep=True), _SHOWN + 1))
        rows = [
            [one.path, size_text(one.size), f"{one.modified:%Y-%m-%d %H:%M:%S}"]
            for one in map(shared_file, entries[:_SHOWN])
        ]
        note = f"the first {_SHOWN} files" if len(entries) > _SHOWN else "" if entries else "no files"
        return self._table_of_record() + html_table(["path", "size", "modified"], rows, note=note)


@short_tracebacks
class SharedModel(_Shared):
    """A model, whose files are those of its versions."""

    def __init__(
        self, rest: SharingRest, storage: StorageSettings, name: TableName, record: Model | None = None
    ) -> None:
        super().__init__(rest, storage, AssetName("model", name), record)

    def versions(self) -> Sequence[ModelVersion]:
        """The versions that are ready, as a list that prints as a table."""
        return Listing(
            model_versions(self._rest, self._asset), hidden=frozenset({"share", "schema", "id", "storage_location"})
        )

    def version(self, number: int) -> Asset:
        """A version by its number; reading one that is not ready is refused. Raises AddressError for what is no number."""
        if type(number) is not int:
            raise AddressError(
                f"{str(number)[:100]!r} is no number of a version; write one of versions(), or an alias()"
            )
        return self._version(number)

    def alias(self, alias: str) -> Asset:
        """The version that an alias stands for now.

        Raises:
            NotFoundError: The model has no such alias.
        """
        record = model_alias(self._rest, self._asset, alias)
        return self._version(record.version, record)

    def latest(self) -> Asset:
        """The version of the highest number that is ready.

        Raises:
            NotFoundError: None is.
        """
        newest = max(model_versions(self._rest, self._asset), key=lambda version: version.version, default=None)
        if newest is None:
            raise NotFoundError(f"{self._asset} has no version that is ready; ask the provider")
        return self._version(newest.version, newest)

    def _version(self, number: int, record: ModelVersion | None = None) -> Asset:
        return Asset(self._rest, self._storage, AssetName("model", self.name, number), record)

    def _repr_html_(self) -> str:
        rows = [[str(one.version), one.status, one.comment or ""] for one in self.versions()]
        return self._table_of_record() + html_table(["version", "status", "comment"], rows)
