"""A table on the object server, what a sharing server would say of it, and its rows read as an executor reads them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from delta_sharing_spark.access.directory.access import Issuer
from delta_sharing_spark.access.directory.table import DirectoryTable, open_directory
from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.resolved_scan import Decision, Mode, NegotiatedTable
from delta_sharing_spark.deltalog.replay import Snapshot
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.scan.plan import FileSlice, FileTask, ReadSpec, Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.wire_records import TableSnapshotHead
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.tables import DeltaTableBuilder

NAME = TableName("share", "schema", "table")
PROFILE = Profile("http://127.0.0.1:9/delta-sharing", bearer_token="sharing-token-text")


def upload(directory: Path, prefix: str) -> dict[str, bytes]:
    """The files of a table under an object server's ``bucket/prefix``."""
    return {
        f"{prefix}/{path.relative_to(directory).as_posix()}": path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def head_of(
    table: DeltaTableBuilder, location: str, *, auxiliary: tuple[str, ...] = (), version: int | None = None
) -> TableSnapshotHead:
    metadata = Metadata(
        id=table.table_id,
        schema_string="{}",
        partition_columns=(),
        location=location,
        auxiliary_locations=auxiliary,
        access_modes=("url", "dir"),
    )
    return TableSnapshotHead(table.version if version is None else version, "delta", Protocol(1, ()), metadata)


def negotiated(
    head: TableSnapshotHead,
    profile: Profile = PROFILE,
    transport: NetworkSettings | None = None,
    fallback: Mode | None = None,
    name: TableName = NAME,
    **options: str,
) -> NegotiatedTable:
    parsed = parse_options({"path": str(name), **options})
    decision = Decision("dir", "many files", fallback)
    return NegotiatedTable(parsed, profile, transport or NetworkSettings(), name, head, decision)


def opened(
    head: TableSnapshotHead,
    *,
    endpoint: str | None = None,
    retry_seconds: float = 2,
    seconds: float = 120,  # a machine under load opens no connection in the ten that users wait
    issuer: Issuer | None = None,
    **options: Any,
) -> DirectoryTable:
    settings = StorageSettings(endpoint=endpoint, retry_seconds=retry_seconds, first_wait=0.01)
    return open_directory(negotiated(head, **options), settings=settings, seconds=seconds, issuer=issuer)


def falling_back(by_directory: Callable[[], Any]) -> TableOpener:
    """An opener whose table is what ``by_directory`` gives, else the text "by url"."""
    head = TableSnapshotHead(None, "delta", Protocol(1, ()), Metadata("", "", ()))
    modes: Any = {"dir": lambda _: by_directory(), "url": lambda _: "by url"}
    return TableOpener(negotiated(head, fallback="url"), lambda negotiated: modes[negotiated.decision.mode](negotiated))


def split_of(table: DirectoryTable, snapshot: Snapshot, tasks: list[FileTask]) -> Split:
    """A split as it arrives on an executor: through a pickle, but for the issuer that counts."""
    metadata, mapping = snapshot.metadata, snapshot.mapping
    keys = metadata.partition_keys(mapping, str(NAME))
    spec = ReadSpec(str(NAME), snapshot.schema, snapshot.schema, metadata.partition_columns, keys, mapping)
    access = table.renewed_access(tasks).restricted_to(tasks)
    split = Split(0, spec, tuple(FileSlice(task) for task in tasks), replace(access, issuer=None))
    arrived: Split = pickle.loads(pickle.dumps(split))
    return replace(arrived, access=replace(arrived.access, issuer=access.issuer))


def whole_split(table: DirectoryTable, **asked: int) -> Split:
    snapshot = table.read_snapshot(lambda snapshot: snapshot, **asked)
    return split_of(table, snapshot, list(table.checked(snapshot.tasks())))


def rows(table: DirectoryTable, **asked: int) -> list[dict[str, object]]:
    batches = list(read_split(whole_split(table, **asked)))
    return pa.Table.from_batches(batches).to_pylist() if batches else []
