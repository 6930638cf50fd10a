"""Opens a table in directory mode: gets a credential for each of its locations, and lists its files by its own log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TypeVar

import pyarrow.compute as pc

from delta_sharing_spark.access.asking import iceberg_advice, storage_settings
from delta_sharing_spark.access.contract import (
    AsOf,
    FileListing,
    OpenTable,
    StreamIdentity,
    TableState,
    VersionFiles,
    VersionListing,
    as_insert,
    last_version,
    range_of_versions,
)
from delta_sharing_spark.access.directory.access import (
    TOKENS,
    DirectoryAccess,
    Issuer,
    SharingIssuer,
    StorageToken,
    paths_of,
    storage_for,
    token_covering,
)
from delta_sharing_spark.access.planned_files import FileBatches
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import NegotiatedTable, ResolvedScan
from delta_sharing_spark.access.table_shape import shape_of
from delta_sharing_spark.deltalog.add_batch import AddBatch
from delta_sharing_spark.deltalog.commit_times import CommitTimes
from delta_sharing_spark.deltalog.log_store import CachedLogStore, StorageLogStore
from delta_sharing_spark.deltalog.paths import LAST_CHECKPOINT, LOG_DIR, commit_name, in_log
from delta_sharing_spark.deltalog.replay import (
    Head,
    Snapshot,
    head_at,
    load_head,
    read_snapshot,
    times_of,
)
from delta_sharing_spark.deltalog.segment import find_segment, list_before
from delta_sharing_spark.errors import (
    AccessModeError,
    CredentialError,
    FileGoneError,
    LogError,
    NetworkError,
    TableChangedError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.parallel_calls import DaemonPool, is_done_within
from delta_sharing_spark.network.urls import is_on_loopback
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.schema.arrow_bridge import scalar
from delta_sharing_spark.schema.instants import to_millis
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.auth import carried_profile, carried_settings
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.wire_records import TableSnapshotHead
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.objects import Storage, object_reader
from delta_sharing_spark.storage.range_reader import StorageSettings

_T = TypeVar("_T")
_S = TypeVar("_S", "NetworkSettings", StorageSettings)

#: Seconds within which the driver knows whether a table's locations can be read.
DECISION_SECONDS = 10.0
#: The share of them that a request of the log may stay unanswered, where another access mode is at hand.
_SILENCE = 0.3
#: Versions that are listed within them; a longer log is listed when that has been decided.
_OPENING_VERSIONS = 1000


def open_directory(
    negotiated: NegotiatedTable,
    *,
    settings: StorageSettings | None = None,
    seconds: float = DECISION_SECONDS,
    issuer: Issuer | None = None,
) -> DirectoryTable:
    """Obtain a credential for every location of a table and find out, within ``seconds``, whether all can be read.

    A storage that stops to answer later, while the log is read, is given up soon if the table can be read in another
    way: within the same ``seconds``, or after three tenths of them if it has answered longer than that. Else it is
    given the time that the settings say.

    Args:
        settings: Region, endpoint, time-outs; those of the options by default.
        seconds: The bound of the decision.
        issuer: Instead of the sharing server, for tests.

    Raises:
        AccessModeError: An unsupported scheme, a local location of a remote server, or no location.
        CredentialError: A credential that is malformed or does not cover its location.
        NetworkError: The storage or the server did not answer in time.
        ServerError: The sharing server refuses to issue one.
    """
    profile, transport, table, head = negotiated.profile, negotiated.settings, negotiated.table, negotiated.head
    settings = settings or storage_settings(negotiated.options, table)
    has_fallback, first_version = negotiated.decision.fallback is not None, _first_version(negotiated.options)
    name = str(table)
    root, others = _locations(head, name)
    local = next((location for location in (root, *others) if location.is_local), None)
    if local is not None and not is_on_loopback(profile.endpoint):
        raise AccessModeError(
            f"table {table} lies at {local}, a local path, which is read only for a sharing server on this machine; "
            f"use accessMode=url if the server offers it"
        )
    if root.folded != root:
        asker = issuer or SharingIssuer(profile, _bounded(transport, seconds, seconds, seconds), table, root)
        storage = storage_for(TOKENS.get(asker, root), _bounded(settings, seconds, seconds, seconds))
        root = _as_written(storage, root, head.version, name)
    driver_issuer: Issuer = issuer or SharingIssuer(profile, transport, table, root)
    # Equal to ``driver_issuer``, so that the tokens are the same; it only gives up sooner.
    quick_issuer: Issuer = issuer or SharingIssuer(
        profile, _bounded(transport, seconds / 3, seconds, seconds / 2), table, root
    )
    version = head.version
    canary = None if version is None else parse_location(f"{root}/{in_log(commit_name(version))}")
    silence = seconds * _SILENCE
    driver_settings = _bounded(settings, silence, silence, silence) if has_fallback else settings
    # Without another way a busy machine is waited for as long as the decision may take. A storage that cannot be
    # reached is tried as long as a sharing server.
    connecting, retrying = (silence, silence) if has_fallback else (seconds * 0.8, settings.first_contact_seconds)
    probe_settings = _bounded(driver_settings, connecting, seconds * 0.8, retrying)

    store = StorageLogStore(root, version)
    log = CachedLogStore(store)
    if first_version is not None and (version or 0) - first_version <= _OPENING_VERSIONS:
        log.list_from_version(first_version)

    def connect(location: Location) -> StorageToken:
        token = TOKENS.get(quick_issuer, location)
        if location != root:
            return token
        store.lease_for = DirectoryAccess(name, (token,), quick_issuer, probe_settings, canary).lease
        try:  # what finding a version asks first, and then has
            if version is not None:
                list_before(log, version)
            else:
                log.read(LAST_CHECKPOINT)
        except (FileNotFoundError, PermissionError):
            pass  # there is no hint
        except NetworkError as error:
            if has_fallback or not error.busy:
                raise  # else the log is read as patiently as the settings say
        return TOKENS.get(quick_issuer, location)

    # The time-outs end what is silent; where nothing else can be tried, a busy machine has longer to come to its answers.
    opening_seconds = seconds * (1 - _SILENCE if has_fallback else 3)
    tokens = _together(connect, (root, *others), opening_seconds, name)
    driver = DirectoryAccess(name, tokens, driver_issuer, driver_settings, canary)
    store.lease_for = driver.lease
    if first_version is not None:
        log.list_from_version(first_version)
    return DirectoryTable(negotiated, driver, settings, log)


def _bounded(settings: _S, connect: float, read: float, retry: float) -> _S:
    """The settings with no longer time-outs than these, in seconds."""
    return replace(
        settings,
        connect_timeout=min(settings.connect_timeout, connect),
        read_timeout=min(settings.read_timeout, read),
        retry_seconds=min(settings.retry_seconds, retry),
    )


def _locations(head: TableSnapshotHead, table: str) -> tuple[Location, tuple[Location, ...]]:
    metadata = head.metadata
    if not metadata.location:
        raise AccessModeError(
            f"the sharing server offers table {table} by dir but names no location for it, which the protocol requires; "
            f"ask the provider to correct it, or use accessMode=url if the server offers it"
        )
    root = parse_location(metadata.location)
    # A location below the root has a credential of its own, which may be the only one that its files are read with.
    others = {
        (location.realm, location.key): location for location in map(parse_location, metadata.auxiliary_locations or ())
    }
    others.pop((root.realm, root.key), None)
    return root, tuple(others.values())


def _as_written(storage: Storage, root: Location, version: int | None, table: str) -> Location:
    """Where the log of a table lies whose location has empty segments (``s3://bucket//table``).

    Storages keep them in keys; Hadoop's file systems leave them out of all that they write, and the provider knows no other name.
    """

    def has_log(one: Location) -> bool:
        try:
            return bool(storage.list_page(parse_location(f"{one}/{LOG_DIR}"), None, what=f"the log of {table}")[0])
        except PermissionError:  # the credential may not list
            return version is not None and storage.reads(parse_location(f"{one}/{in_log(commit_name(version))}"))

    return next((one for one in (root, root.folded) if has_log(one)), root)


def _together(
    connect: Callable[[Location], StorageToken], locations: Sequence[Location], seconds: float, table: str
) -> tuple[StorageToken, ...]:
    """A token per location, or an error once ``seconds`` are over."""
    deadline = time.monotonic() + seconds
    tokens = []
    with DaemonPool(len(locations)) as threads:
        begun = [threads.submit(connect, location) for location in locations]
        for location, token in zip(locations, begun, strict=True):
            if not is_done_within(token, deadline - time.monotonic()):
                raise NetworkError(
                    f"table {table}: its location {location} could not be reached within {seconds:.0f} s; check the network "
                    f"from the driver to the storage, or use accessMode=url if the server offers it"
                )
            tokens.append(token.result())
    return tuple(tokens)


def table_tokens(
    profile: Profile, transport: NetworkSettings, table: TableName, head: TableSnapshotHead, location: str | None = None
) -> tuple[StorageToken, ...]:
    """The tokens of all of a table's locations, its root's first, or of one of them, for another engine that reads the table.

    Raises:
        AccessModeError: The server names no location: the table is not shared by directory.
        CredentialError: ``location`` is none of the table's, or a credential is malformed.
    """
    root, others = _locations(head, str(table))
    locations = (root, *others)
    if location is not None:
        requested = parse_location(location)
        if requested not in locations:
            raise CredentialError(
                f"{requested} is no location of table {table}; it has {', '.join(str(each) for each in locations)}"
            )
        locations = (requested,)
    issuer = SharingIssuer(profile, transport, table, root)
    return tuple(TOKENS.get(issuer, each) for each in locations)


class DirectoryTable(OpenTable):
    """A table in directory mode (``OpenTable``), of which every location could be read. Its log is the authority. It is
    listed once, and each of its files fetched once, per load.

    Args:
        driver: The driver's access, which may always ask for credentials.
        settings: How executors reach the storage.
        log: The table's log.
    """

    mode = "dir"

    def __init__(
        self, negotiated: NegotiatedTable, driver: DirectoryAccess, settings: StorageSettings, log: CachedLogStore
    ) -> None:
        self.driver, self.log = driver, log
        self._negotiated, self._settings, self._table = negotiated, settings, driver.table
        #: Of the last version of a range: the next range need not search the log for its own.
        self._head: Head | None = None

    def describe(self, as_of: AsOf) -> TableState:
        """See ``OpenTable.describe``; the log's small actions alone are read.

        Raises:
            TableChangedError: The log is of another table than the server's, or behind what the server said.
        """
        version = as_of.version
        if as_of.moment is not None:
            version = self._times().at_or_before(to_millis(as_of.moment))
        try:
            # A feed can begin and end with versions that are no snapshots any more.
            if version is not None and self._negotiated.options.read_change_feed:
                head = head_at(self.log, version, self._table)
            else:
                head = load_head(self.log, version=version, table=self._table)
        except LogError as error:
            if not error.has_no_log or self._negotiated.head.metadata.id:
                raise
            # The server refused to describe the table, and only the list of tables told that there is a directory.
            raise UnsupportedFeatureError(
                f"{self._table} is no Delta table as far as its directory tells: {self.log.root} has no Delta log, and the "
                f"sharing server does not describe it; it may be an Iceberg table: "
                f"{iceberg_advice(self._negotiated.profile)}"
            ) from error
        self._check(head, is_newest=as_of == AsOf())
        return TableState(head.version, shape_of(head.protocol, head.metadata, self._table))

    def newest_version(self) -> int:
        """See ``OpenTable.newest_version``; by the names of the log's files."""
        self.log.refresh()
        return find_segment(self.log, None, self._table).version

    def version_at_or_after(self, moment: datetime) -> int:
        return self._times().at_or_after(to_millis(moment))

    def version_at_or_before(self, moment: datetime) -> int | None:
        return self._times().at_or_before(to_millis(moment), may_be_late=True)

    def commit_times(self, most: int) -> Mapping[int, int | None]:
        return self._times().of_newest(most)

    def _times(self) -> CommitTimes:
        return times_of(self.log, self._table)

    def read_snapshot(self, read: Callable[[Snapshot], _T], version: int | None = None) -> _T:
        """What ``read`` makes of a version, the newest by default, by its log, checked against what the sharing server said of it.

        It is called once more where a checkpoint turns out to be damaged (``deltalog.replay.read_snapshot``).

        Raises:
            LogError, VersionError, UnsupportedFeatureError: As ``deltalog.replay.read_snapshot``.
            TableChangedError: The log is of another table than the server's, or behind what the server said.
            CredentialError, NetworkError: The storage cannot be read.
        """

        def checked(snapshot: Snapshot) -> _T:
            self._check(snapshot, is_newest=version is None)
            return read(snapshot)

        return read_snapshot(self.log, checked, version=version, table=self._table)

    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        """See ``OpenTable.snapshot``; the files stay columns, and no object is built for one that is skipped."""
        return self.read_snapshot(partial(self._list, scan, pruner), scan.version)

    def _list(self, scan: ResolvedScan, pruner: FilePruner, snapshot: Snapshot) -> FileListing:
        pruner.begin()
        batches, listed, needed = [], 0, scan.row_limit.first_listed
        rows: int | None = 0
        total: int | None = None
        for batch in snapshot.adds(with_stats=True, stats_columns=pruner.stats_columns):
            listed += batch.num_rows
            remaining = pruner.remaining_rows(batch)
            if remaining.num_rows:
                self.check(remaining)
                batches.append(remaining.without_stats())
            if needed is not None and rows is not None:
                here = FileBatches([remaining]).live_rows()
                rows = None if here is None else rows + here
                if rows is not None and rows >= needed:
                    break
        else:
            total = listed
        tasks = FileBatches(batches)
        return FileListing(
            tasks, self.renewed_access(tasks), version=snapshot.version, listed=listed, total_files=total
        )

    def changes(self, scan: ResolvedScan) -> VersionListing:
        """See ``OpenTable.changes``; versions are read as they are iterated."""
        options, newest = scan.options, scan.version
        assert newest is not None, "the log tells its version"
        start = options.starting_version
        if not isinstance(start, int):
            assert options.starting_timestamp is not None, "a batch feed has a start"
            start = self.version_at_or_after(options.starting_timestamp)
        versions = range_of_versions(start, last_version(self, options, newest), newest, self._table, options)
        feed = self._commits(versions[0], versions[-1], feed=True) if versions else iter(())
        return self._listing(scan, feed)

    def versions(
        self, scan: ResolvedScan, first: int, last: int, identity: StreamIdentity | None = None
    ) -> VersionListing:
        self.log.list_from_version(first)
        return self._listing(scan, self._commits(first, last, feed=scan.options.read_change_feed))

    def all_files(self, scan: ResolvedScan, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        def all_of(snapshot: Snapshot) -> VersionFiles:
            with_stats, batches = scan.prune is not None, []
            for batch in snapshot.adds():
                self.check(batch)
                batches.append(replace(batch, with_stats=True) if with_stats else batch.without_stats())
            committed = snapshot.timestamp_ms if scan.options.read_change_feed else None

            def insert(task: FileTask) -> FileTask:
                return as_insert(task, version, committed)

            tasks = FileBatches(batches, insert if scan.options.read_change_feed else None)
            return VersionFiles(version, tasks, shape=shape_of(snapshot.protocol, snapshot.metadata, self._table))

        return self._listing(scan, iter([self.read_snapshot(all_of, version)]))

    def stream_identity(self, scan: ResolvedScan) -> StreamIdentity:
        """See ``OpenTable.stream_identity``: ids are paths in the log."""
        return StreamIdentity(scan.shape.id, self.mode, "log", "path")

    def _listing(self, scan: ResolvedScan, versions: Iterator[VersionFiles]) -> VersionListing:
        return VersionListing(versions, self.renewed_access(), self.stream_identity(scan))

    def _commits(self, first: int, last: int, *, feed: bool) -> Iterator[VersionFiles]:
        """The files of each version, with the table's shape where a commit begins the range or changes it."""
        from delta_sharing_spark.deltalog.commit_feed import load_commits

        for commit in load_commits(self.log, first, last, feed=feed, table=self._table, before=self._head):
            tasks = list(self.checked(commit.tasks))
            self._head = commit.head
            # The first commit of a table of Databricks' pipelines has no schema yet, and no file.
            has_shape = (commit.has_new_head or commit.version == first) and commit.head.metadata.schema_string
            shape = shape_of(commit.head.protocol, commit.head.metadata, self._table) if has_shape else None
            yield VersionFiles(commit.version, tasks, commit.removes, shape)

    def renewed_access(self, tasks: Sequence[FileTask] = ()) -> DirectoryAccess:
        """The access for executors, with tokens that are valid now: a table may stay open longer than they hold.

        Args:
            tasks: The plan's files, of which some are kept as samples.
        """
        issuer, negotiated = self.driver.issuer, self._negotiated
        assert issuer is not None, "the driver may always ask"
        samples = (parse_location(task.location) for task in (tasks[0], tasks[-1])) if tasks else ()
        tokens = tuple(TOKENS.get(issuer, token.location) for token in self.driver.tokens)
        carry = negotiated.options.carry_profile
        executors: Issuer | None = issuer if carry else None
        if isinstance(issuer, SharingIssuer):
            profile = carried_profile(issuer.profile, negotiated.settings, carry)
            settings = carried_settings(issuer.settings, carry)
            executors = None if profile is None else replace(issuer, profile=profile, settings=settings)
        return replace(self.driver, tokens=tokens, samples=tuple(samples), issuer=executors, settings=self._settings)

    def _check(self, head: Head | Snapshot, *, is_newest: bool) -> None:
        expected = self._negotiated.head.metadata.id
        if expected and head.metadata.id and head.metadata.id != expected:
            raise TableChangedError(
                f"the log at {self.log.root} is of the table with the id {head.metadata.id}, but the sharing server "
                f"says that {self._table} has the id {expected}: it was replaced; load it again"
            )
        version = self._negotiated.head.version
        if is_newest and version is not None and head.version < version:
            raise TableChangedError(
                f"the log of {self._table} ends with version {head.version}, but the sharing server said {version}; "
                f"load the table again, and ask the provider whether {self.log.root} is its location"
            )

    def check(self, batch: AddBatch) -> None:
        """As ``checked``, for files in columns: only those outside the root are looked at one by one."""
        outside = pc.or_(pc.match_substring(batch.paths, ":"), pc.starts_with(batch.paths, "/"))
        if batch.vectors is not None:
            outside = pc.or_kleene(outside, pc.equal(pc.struct_field(batch.vectors, "storageType"), scalar("p")))
        if outside.true_count:
            for _ in self.checked(batch.filter(outside).tasks()):
                pass

    def checked(self, tasks: Iterable[FileTask]) -> Iterator[FileTask]:
        """Tasks of this table (a snapshot's or a change feed's), each known to lie in a location that a credential covers.

        The first file in each auxiliary location is touched, so that a refusal shows on the driver.

        Raises:
            CredentialError: A file lies elsewhere, or its location is refused.
        """
        root = self.log.root + "/"
        touched: set[StorageToken] = set()
        for task in tasks:
            for path in paths_of(task):
                if path.startswith(root):
                    continue
                location = parse_location(path)
                token = token_covering(self.driver.tokens, location, table=self._table)
                if token not in touched and str(token.location) != self.log.root:
                    touched.add(token)
                    reader = object_reader(self.driver.lease(location), location, name=path, size=None)
                    with suppress(FileGoneError):  # its own reader says so, if it is needed at all
                        reader.read(0, 1)
            yield task


def _first_version(options: ReadOptions) -> int | None:
    """The first version whose commit will be looked at, where that may be long before the newest."""
    if options.version_as_of is not None:
        return options.version_as_of
    if options.timestamp_as_of or options.starting_timestamp or options.ending_timestamp:
        return 0
    return options.starting_version if isinstance(options.starting_version, int) else None
