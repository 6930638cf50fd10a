"""Opens a table by the Iceberg catalog of its share, and lists the files of a snapshot by its manifests."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from delta_sharing_spark.access.asking import storage_settings
from delta_sharing_spark.access.cached_access import table_namespace
from delta_sharing_spark.access.contract import AsOf, FileListing, OpenTable, StreamIdentity, TableState, VersionListing
from delta_sharing_spark.access.directory.access import TOKENS, DirectoryAccess, Issuer
from delta_sharing_spark.access.iceberg.avro import corrupt
from delta_sharing_spark.access.iceberg.catalog import IcebergCatalog
from delta_sharing_spark.access.iceberg.credentials import (
    CatalogIssuer,
    VendedPlaces,
    table_locations,
    token_for,
    vended_settings,
)
from delta_sharing_spark.access.iceberg.deletes import DeleteIndex, require_parquet
from delta_sharing_spark.access.iceberg.manifest_files import ManifestFiles
from delta_sharing_spark.access.iceberg.manifests import (
    DATA,
    MISSING,
    Entry,
    Manifest,
    read_manifest,
    read_manifest_list,
)
from delta_sharing_spark.access.iceberg.metadata import (
    IcebergMetadata,
    IcebergSnapshot,
    PartitionField,
    malformed,
    parse_metadata,
)
from delta_sharing_spark.access.iceberg.pruning import EntryPruner
from delta_sharing_spark.access.iceberg.schema import path_of_id
from delta_sharing_spark.access.planned_files import FileBatches
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import NegotiatedTable, ResolvedScan
from delta_sharing_spark.access.table_shape import TableShape, check_same
from delta_sharing_spark.errors import FileGoneError, UnsupportedFeatureError
from delta_sharing_spark.network.parallel_calls import in_parallel
from delta_sharing_spark.predicates.skip_reason import SkipReason
from delta_sharing_spark.scan.delete_files import PATH_ID
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.schema.instants import to_millis
from delta_sharing_spark.schema.types import Field, Struct, Unreadable, inner_fields
from delta_sharing_spark.sharing.auth import carried_profile, carried_settings
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import object_reader
from delta_sharing_spark.storage.range_reader import renewing

#: Manifests fetched at once.
_AT_ONCE = 8
#: A manifest list or a manifest that is larger is none: a table's are some MB each.
_LARGEST_MANIFEST = 1 << 30


def open_iceberg(negotiated: NegotiatedTable) -> IcebergTable:
    """Ask the catalog for the table and its credentials: two requests.

    Raises:
        AccessModeError: The profile names no catalog; a location or an endpoint that is not read.
        CredentialError: No credentials are vended for it, or they are malformed.
        ServerError, NetworkError: The catalog refuses or does not answer.
        UnsupportedFeatureError: A view, another format version, encryption, remote signing.
    """
    table, options = negotiated.table, negotiated.options
    catalog = IcebergCatalog.of_share(negotiated.profile, negotiated.settings, table)
    loaded = catalog.load(table)
    metadata = parse_metadata(loaded.metadata, str(table))
    own = (*metadata.locations, *([loaded.location.rpartition("/")[0]] if loaded.location else []))
    locations = table_locations(loaded.credentials, own, catalog, str(table))
    tokens = tuple(token_for(location, loaded.credentials, catalog, table) for location in locations)
    issuer = CatalogIssuer(catalog, table)
    for token in tokens:
        TOKENS.put(issuer, token.location, token)
    settings = vended_settings(storage_settings(options, table), loaded.credentials, catalog, str(table))
    canary = None if loaded.location is None else parse_location(loaded.location)
    driver = DirectoryAccess(str(table), tokens, issuer, settings, canary)
    return IcebergTable(negotiated, metadata, driver)


class IcebergTable(OpenTable):
    """A table in Iceberg mode (``OpenTable``), as the catalog described it once; versions are ids of snapshots, and are not counted.

    Args:
        metadata: The table's metadata.
        driver: The driver's access, which may always ask for credentials.
    """

    mode = "iceberg"

    def __init__(self, negotiated: NegotiatedTable, metadata: IcebergMetadata, driver: DirectoryAccess) -> None:
        self._negotiated, self._metadata, self._driver = negotiated, metadata, driver
        self._table = str(negotiated.table)
        self._last_values: tuple[int, Mapping[int | str, object], Mapping[int, object]] | None = None

    def describe(self, as_of: AsOf) -> TableState:
        """See ``OpenTable.describe``; nothing is asked for. ``AsOf.version`` is the id of a snapshot."""
        if self._negotiated.options.read_change_feed:
            self._refuse("readChangeFeed")
        metadata, ref = self._metadata, self._negotiated.options.ref
        schema = metadata.schemas[metadata.current_schema]
        snapshot_id = metadata.current
        if as_of.version is not None or as_of.moment is not None:
            snapshot_id = metadata.snapshot_at(to_millis(as_of.moment)) if as_of.moment is not None else as_of.version
        elif ref is not None:
            snapshot_id, is_branch = metadata.ref(ref)
        if snapshot_id is not None:
            snapshot = metadata.snapshot(snapshot_id)
            # A branch is read by the table's schema, as the newest snapshot is (Iceberg, "Snapshot References").
            if as_of != AsOf() or (ref is not None and not is_branch):
                schema = metadata.schema_of(snapshot)
        shape = TableShape(metadata.id, schema, (), "id", may_have_vectors=metadata.version > 1)
        return TableState(snapshot_id, shape)

    def newest_version(self) -> int:
        self._refuse("a stream")

    def commit_times(self, most: int) -> Mapping[int, int | None]:
        """See ``OpenTable.commit_times``; nothing is asked for. Snapshots of all branches, by their time."""
        snapshots = sorted(self._metadata.snapshots.values(), key=lambda one: one.timestamp_ms)
        return {one.id: one.timestamp_ms for one in snapshots[-most:]} if most else {}

    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        """See ``OpenTable.snapshot``: the manifest list, then the manifests that may hold a file of the query.

        Raises:
            CorruptFileError: A manifest is damaged.
            UnsupportedFeatureError: A file that is left to read is not Parquet, or is encrypted.
        """
        pruner.begin()
        metadata = self._metadata
        now = replace(scan.shape, id=metadata.id)
        check_same(scan.shape, now, self._table)
        if scan.version is None:
            return FileListing(FileBatches(()), self._renewed(()))
        snapshot = metadata.snapshot(scan.version)
        conditions = EntryPruner(scan, metadata.specs)
        manifests, listed = [], 0
        for one in self._manifests(snapshot):
            if conditions.may_hold(one):
                manifests.append(one)
            elif one.content == DATA:
                listed += one.files
                pruner.count(SkipReason.PARTITION_VALUES, one.files)
        index = DeleteIndex(
            (entry for one in self._read([m for m in manifests if m.content != DATA], (PATH_ID,)) for entry in one),
            self._key_columns,
            self._spec,
            table_namespace(self._negotiated.profile, self._negotiated.table, metadata.id),
        )
        places = VendedPlaces(self._driver.tokens, self._table)
        batches, rows, needed = [], 0, scan.row_limit.any_rows
        for entries in self._read([m for m in manifests if m.content == DATA], conditions.fields):
            batch, before = ManifestFiles(), listed
            for entry in entries:
                listed += 1
                if conditions.may_match(entry):
                    self._append(entry, index, places, batch)
            pruner.look_at(listed - before)
            batches.append(batch)
            rows += FileBatches([batch]).least_rows()
            if needed is not None and rows >= needed:
                break
        conditions.count_into(pruner)
        files = FileBatches(batches)
        return FileListing(files, self._renewed(files), version=scan.version, listed=listed)

    def _append(self, entry: Entry, index: DeleteIndex, places: VendedPlaces, batch: ManifestFiles) -> None:
        require_parquet(entry)
        vector, deletes = index.of(entry)
        places.check(entry.path)
        if vector is not None:
            places.check(vector.path)
        for delete in deletes:
            places.check(delete.location)
        batch.append(entry, vector, deletes, self._identity_values(entry))

    def _identity_values(self, entry: Entry) -> Mapping[int, object]:
        """The values of a file's partition by the ids of their columns; one object for the files of a partition that follow each other."""
        last = self._last_values  # read once: other threads list snapshots as well
        if last is not None and last[:2] == (entry.spec_id, entry.partition):
            return last[2]
        values: dict[int, object] = {}
        for field in self._spec(entry.spec_id):
            if field.transform == "identity":
                value = entry.partition_value(field)
                if value is MISSING:
                    raise corrupt(entry.path, f"its partition has no value for {field.name!r}")
                values[field.source_id] = value
        if not any(isinstance(value, float) for value in values.values()):  # 0.0 equals -0.0, and is another value
            self._last_values = entry.spec_id, entry.partition, values
        return values

    def _spec(self, spec_id: int) -> Sequence[PartitionField]:
        spec = self._metadata.specs.get(spec_id)
        if spec is None:
            raise malformed(self._table, f"it has no partition spec {spec_id}, which a manifest names")
        return spec

    def _key_columns(self, ids: Sequence[int], file: str) -> tuple[Field, ...]:
        """The columns of an equality delete, named with their ids: structs have the fields alone that are compared.

        They may have been renamed or dropped since.
        """
        return _tree([self._path_of(number, file) for number in ids])

    def _path_of(self, field_id: int, file: str) -> tuple[Field, ...]:
        schemas = self._metadata.schemas
        for number in sorted(schemas, key=lambda one: (one == self._metadata.current_schema, one), reverse=True):
            path = path_of_id(schemas[number], field_id)
            if path is not None:
                if isinstance(path[-1].type, Unreadable) or inner_fields(path[-1].type):
                    break
                return path
        raise UnsupportedFeatureError(
            f"{file} of {self._table} deletes rows by the field {field_id}, which is no column or field of a struct of a type that "
            f"this reader compares; ask the provider to rewrite the table without equality deletes",
            features=("equality deletes",),
        )

    def _manifests(self, snapshot: IcebergSnapshot) -> list[Manifest]:
        if snapshot.manifest_list is None:
            # Version 1 may list its manifests in the metadata, and then they tell their specs themselves.
            only = next(iter(self._metadata.specs)) if len(self._metadata.specs) == 1 else None
            return [Manifest(path, None, only, DATA, 0) for path in snapshot.manifests]
        return read_manifest_list(self._fetch(snapshot.manifest_list, None), snapshot.manifest_list)

    def _read(self, manifests: Sequence[Manifest], fields: Collection[int]) -> Iterator[Iterator[Entry]]:
        """The live files of each manifest, some of which are fetched at once, with the bounds of some fields."""
        for start in range(0, len(manifests), _AT_ONCE):
            some = manifests[start : start + _AT_ONCE]
            fetched = in_parallel([partial(self._fetch, one.path, one.length) for one in some])
            for manifest, data in zip(some, fetched, strict=True):
                yield read_manifest(data, manifest, fields)

    def _fetch(self, path: str, size: int | None) -> memoryview:
        location = parse_location(path)
        lease = self._driver.lease(location)
        if size is not None:
            if not 0 < size < _LARGEST_MANIFEST:
                raise corrupt(path, f"it would have {size} bytes")
            return object_reader(lease, location, name=path, size=size, is_data=False).read(0, size)
        try:
            return renewing(lease, path, lambda storage: memoryview(storage.get(location, what=path)))
        except FileNotFoundError:
            raise FileGoneError(
                f"file {path} of {self._table} is gone: the snapshot has expired; load the table again", file=path
            ) from None

    def _renewed(self, files: Sequence[FileTask]) -> DirectoryAccess:
        """The access for executors, with tokens that are valid now."""
        issuer, negotiated = self._driver.issuer, self._negotiated
        assert isinstance(issuer, CatalogIssuer)
        tokens = tuple(TOKENS.get(issuer, token.location) for token in self._driver.tokens)
        samples = tuple(parse_location(task.location) for task in (files[0], files[-1])) if files else ()
        carry, catalog = negotiated.options.carry_profile, issuer.catalog
        profile = carried_profile(catalog.profile, catalog.settings, carry)
        executors: Issuer | None = None
        if carry and profile is not None:
            settings = carried_settings(catalog.settings, carry)
            executors = replace(issuer, catalog=replace(catalog, profile=profile, settings=settings))
        return replace(self._driver, tokens=tokens, samples=samples, issuer=executors)

    def changes(self, scan: ResolvedScan) -> VersionListing:
        self._refuse("readChangeFeed")

    def versions(
        self, scan: ResolvedScan, first: int, last: int, identity: StreamIdentity | None = None
    ) -> VersionListing:
        self._refuse("a stream")

    def all_files(self, scan: ResolvedScan, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        self._refuse("a stream")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedFeatureError(
            f"{self._table} is read by its Iceberg catalog, and {what} of an Iceberg table is not read; load its snapshots "
            f"(versionAsOf, ref, timestampAsOf), or ask the provider to share it as Delta",
            features=("iceberg",),
        )


def _tree(paths: Sequence[tuple[Field, ...]]) -> tuple[Field, ...]:
    """The columns that paths of fields lead to, structs with those fields alone."""
    by_id: dict[int, list[tuple[Field, ...]]] = {}
    for path in paths:
        by_id.setdefault(path[0].field_id or 0, []).append(path)
    return tuple(
        replace(
            some[0][0],
            name=f"{some[0][0].name} ({number})",  # one that was dropped may have the name of another
            type=Struct(_tree([path[1:] for path in some])) if len(some[0]) > 1 else some[0][0].type,
        )
        for number, some in by_id.items()
    )
