"""Opens a table in url mode: the sharing server lists its files, presigned URLs read them."""

from __future__ import annotations

import bisect
import time
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from math import inf

from delta_sharing_spark.access.asking import (
    REFUSALS,
    Refusal,
    classified,
    iso,
    refused_travel,
    response_formats,
    storage_settings,
    words_of,
)
from delta_sharing_spark.access.contract import (
    AsOf,
    FileListing,
    NotPinnedError,
    OpenTable,
    StreamIdentity,
    TableState,
    VersionFiles,
    VersionListing,
    as_insert,
    as_loaded,
    last_version,
    range_of_versions,
)
from delta_sharing_spark.access.planned_files import FileBatches
from delta_sharing_spark.access.pruning import FilePruner
from delta_sharing_spark.access.resolved_scan import NegotiatedTable, ResolvedScan
from delta_sharing_spark.access.table_shape import check_same
from delta_sharing_spark.access.url.access import RenewalContext, UrlAccess, of_versions
from delta_sharing_spark.access.url.files import (
    FileSelection,
    SnapshotFiles,
    check_each_once,
    check_parquet,
    features_beyond_parquet,
    files_by_version,
    shape_of_head,
    shapes_of,
    with_shapes,
)
from delta_sharing_spark.access.url.snapshot_listing import LISTING_BYTES, LISTINGS, listing_of
from delta_sharing_spark.errors import (
    DeltaSharingError,
    RequestRefusedError,
    ServerError,
    StreamError,
    UnavailableError,
    VersionError,
)
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.schema.instants import to_millis
from delta_sharing_spark.sharing.auth import carried_profile, carried_settings
from delta_sharing_spark.sharing.queries import ChangesQuery, Query
from delta_sharing_spark.sharing.query import QueryResponse
from delta_sharing_spark.sharing.response import FileBlocks, FileSink
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.transport import is_about_versions
from delta_sharing_spark.sharing.wire_records import TableSnapshotHead

#: The hash that streams ask for file ids under, so that these do not depend on the response format.
ID_HASH = "delta"
#: What versions are committed at, and so what moments are told apart by.
_TICK = timedelta(milliseconds=1)


class UrlTable(OpenTable):
    """A table in url mode (``OpenTable``). Opening makes no request: the server described the table when it was negotiated."""

    mode = "url"

    def __init__(self, negotiated: NegotiatedTable) -> None:
        self._negotiated = negotiated
        self._table = negotiated.table
        self._rest = SharingRest(negotiated.profile, negotiated.settings)
        options = negotiated.options
        self._described = AsOf(options.version_as_of, options.timestamp_as_of)
        self._listing_key = uuid.uuid4().hex
        weakref.finalize(self, LISTINGS.forget, self._listing_key)

    def describe(self, as_of: AsOf) -> TableState:
        """See ``OpenTable.describe``; no request for what was negotiated, where the server looked at the version."""
        negotiated = self._negotiated
        options, head = negotiated.options, negotiated.head
        if as_of != self._described:
            options = replace(options, version_as_of=as_of.version, timestamp_as_of=as_of.moment)
            try:
                head = self._rest.metadata(
                    self._table, version=as_of.version, timestamp=iso(as_of.moment), formats=response_formats(options)
                )
            except REFUSALS as refusal:
                raise refused_travel(self._table, options, negotiated.head.version, refusal) from refusal
        head = self._head_as_of(options, head)
        return TableState(head.version, shape_of_head(head, str(self._table), is_newest=as_of == AsOf()))

    def newest_version(self) -> int:
        """See ``OpenTable.newest_version``; one request."""
        return self._rest.table_version(self._table)

    def version_at_or_after(self, moment: datetime) -> int:
        """See ``OpenTable.version_at_or_after``; two or three requests, for servers may answer a version late."""
        try:
            return self._rest.table_version(self._table, iso(moment))
        except REFUSALS as refusal:
            raise VersionError(
                f"the stream of {self._table} cannot start at {iso(moment)}: {words_of(refusal)}; give a moment that its "
                f"shared history covers, or startingVersion"
            ) from refusal

    def version_at_or_before(self, moment: datetime) -> int | None:
        """See ``OpenTable.version_at_or_before``; as many requests as for the version after."""
        after = self._version_after(moment)
        return None if after is None else after - 1

    def snapshot(self, scan: ResolvedScan, pruner: FilePruner) -> FileListing:
        """See ``OpenTable.snapshot``.

        With a limit and no filter the server is told, and asked again if it told of too few files. It is not told where the first files
        are wanted. An earlier listing of all files answers any other query of the same version, as long as its URLs live.
        """
        earlier = LISTINGS.get(self._listing_key)
        if earlier is not None and earlier.answers(scan):
            return earlier.selection_by(pruner)
        limit = scan.row_limit
        sends_hint = limit.rows_listed is not None
        rows = limit.rows_listed if sends_hint else limit.first_listed
        if rows is not None:
            listing = self._snapshot(scan, pruner, rows, sends_hint=sends_hint)
            if not sends_hint or (isinstance(listing.files, FileBatches) and listing.files.least_rows() >= rows):
                return listing
        return self._snapshot(scan, pruner, None)

    def _snapshot(
        self, scan: ResolvedScan, pruner: FilePruner, needed: int | None, *, sends_hint: bool = True
    ) -> FileListing:
        """List files, until their statistics tell of so many rows as are ``needed``; the server is told the number if ``sends_hint``."""
        options, table = scan.options, str(self._table)
        travels = options.version_as_of is not None or options.timestamp_as_of is not None
        pinned = scan.version if scan.is_pinned and not travels else None
        query = replace(
            _hints(scan, needed if sends_hint else None),
            version=options.version_as_of if pinned is None else pinned,
            timestamp=iso(options.timestamp_as_of),
            max_files=options.max_files_per_request,
            include_refresh_token=not travels and pinned is None,
            idempotency_key=str(uuid.uuid4()) if options.async_query else None,
        )

        pages: list[SnapshotFiles] = []

        def sink() -> SnapshotFiles:
            room = 0 if needed is not None else LISTING_BYTES - sum(page.nbytes for page in pages)
            return SnapshotFiles(table, pruner, needed, room)

        try:
            # A version that was the newest when it was described has the format of then.
            described_as_delta = pinned is not None and self._negotiated.head.response_format == "delta"
            formats = response_formats(options, of_versions=described_as_delta)
            response = self._rest.query(self._table, query, formats=formats, sink=sink, reads_all=True)
        except RequestRefusedError as refusal:
            if pinned is not None:
                raise NotPinnedError(f"{table} is not listed by version: {words_of(refusal)}") from refusal
            raise classified(self._table, options, self._negotiated.head.version, refusal) from refusal
        head = response.head
        if pinned is not None and head.version != pinned:
            raise NotPinnedError(
                f"the server was asked for version {pinned} of {table} and answers with {head.version}"
            )
        if pinned is None and not travels:
            again = partial(self._snapshot, replace(scan, is_pinned=True), pruner, needed, sends_hint=sends_hint)
            if (listing := as_loaded(scan, head.version, again, (NotPinnedError,))) is not None:
                return listing
        check_same(scan.shape, shape_of_head(head, table, is_newest=not travels), table)
        selections: list[FileSelection] = []
        for page in response.pages():
            pages.append(page)
            selections.append(page.selection())
            if needed is not None and FileBatches(selections).least_rows() >= needed:
                break
        check_each_once(pages, table)
        listed = sum(page.listed for page in pages)
        sent = _hints_by_name(query) if response.fallback is None else {}
        access = self._access(scan, response, listed)
        listing_bytes = self._keep(scan, pages, listed, head.version, access, is_hinted=bool(sent))
        return FileListing(
            FileBatches(selections),
            access,
            version=head.version,
            listed=listed,
            sent=sent,
            fallback=response.fallback,
            total_files=None if sent or needed is not None else listed,
            listing_bytes=listing_bytes,
        )

    def _keep(
        self,
        scan: ResolvedScan,
        pages: list[SnapshotFiles],
        listed: int,
        version: int | None,
        access: UrlAccess,
        *,
        is_hinted: bool,
    ) -> int:
        """Keep a listing for other queries of the version, if it has all files; returns the bytes that it takes.

        A server may leave files out by hints. It has left out none where it lists as many as it says, without hints, that there are.
        """
        described = self._negotiated.head
        is_counted = version == described.version and described.metadata.num_files == listed
        is_whole = all(page.is_whole for page in pages) and (is_counted or not is_hinted)
        if version is None or version != scan.version or not is_whole:
            return 0
        listing = listing_of(version, pages, access, listed)
        if listing is None:
            return 0
        LISTINGS.put(self._listing_key, listing)
        return listing.nbytes

    def forget_listing(self) -> None:
        LISTINGS.forget(self._listing_key)

    def changes(self, scan: ResolvedScan) -> VersionListing:
        """See ``OpenTable.changes``; the server resolves moments, and what it refuses is asked for by versions."""
        options, newest = scan.options, self._negotiated.head.version
        start, end = options.starting_version, options.ending_version
        if newest is not None:
            if isinstance(start, int) and not range_of_versions(start, end, newest, str(self._table), options):
                return self._no_versions(scan)
            if options.ending_timestamp is None:
                end = newest if end is None else min(end, newest)
        query = ChangesQuery(
            starting_version=start if isinstance(start, int) else None,
            starting_timestamp=iso(options.starting_timestamp),
            ending_version=end,
            ending_timestamp=iso(options.ending_timestamp),
            max_files=options.max_files_per_request,
            include_historical_metadata=True,
            include_historical_protocol=True,
        )
        formats = response_formats(options, of_versions=True)
        try:
            response = self._rest.changes(self._table, query, formats=formats)
        except UnavailableError as failure:
            raise self._refused_feed(failure) from failure
        except REFUSALS as refusal:
            versions = self._refused_range(refusal)
            if not versions:
                return self._no_versions(scan)
            query = of_versions(query, versions[0], versions[-1])
            try:
                response = self._rest.changes(self._table, query, formats=formats)
            except REFUSALS as again:
                raise self._refused_feed(again) from again
        table, last = str(self._table), newest if query.ending_version is None else query.ending_version
        self._check_range(response, last)
        # A moment that is still to come would let in versions that the load does not have.
        by_version = files_by_version(response.blocks(), query.starting_version, last, table, feed=True)
        tasks = [task for files in by_version.values() for task in files.tasks]
        late = options.ending_timestamp
        if late is not None and any((task.commit_timestamp or 0) > to_millis(late) for task in tasks):
            raise VersionError(
                f"the change feed of {table} until {iso(late)} cannot be read: the sharing server answers with later changes; "
                f"give endingVersion instead"
            )
        shapes = list(shapes_of(response, table))
        first = query.starting_version
        if first is None:
            first = min(by_version, default=shapes[0][0] or 0)
        return self._listing(scan, response, with_shapes(by_version, shapes, first, last), len(tasks))

    def commit_times(self, most: int) -> Mapping[int, int | None]:
        """See ``OpenTable.commit_times``; one query, whose files tell the times: a version without files has none.

        Where the server has fewer versions, the first of them is found by halves.
        """
        last = self.newest_version()
        first = max(0, last - most + 1)
        try:
            return self._commit_times(first, last)
        except REFUSALS as refusal:
            candidates = range(first + 1, last + 1)
            first += 1 + bisect.bisect_left(candidates, True, key=self._is_listed)
            if first <= last:
                return self._commit_times(first, last)
            raise VersionError(
                f"the versions of {self._table} cannot be listed ({words_of(refusal)}); ask for version() alone, or the provider to "
                f"share the table's history"
            ) from refusal

    def _commit_times(self, first: int, last: int) -> dict[int, int | None]:
        times: dict[int, int | None] = dict.fromkeys(range(first, last + 1))
        query = Query(starting_version=first, ending_version=last)
        response = self._rest.query(self._table, query, formats=response_formats(self._negotiated.options))
        for block in response.blocks():
            times.update({v: time for v, time in zip(block.versions, block.timestamps, strict=True) if v in times})
        return times

    def _is_listed(self, version: int) -> bool:
        """Whether the server lists what a version added."""
        try:
            self._commit_times(version, version)
        except REFUSALS:
            return False
        return True

    def versions(
        self, scan: ResolvedScan, first: int, last: int, identity: StreamIdentity | None = None
    ) -> VersionListing:
        """See ``OpenTable.versions``; one query."""
        options, table = scan.options, str(self._table)
        feed = options.read_change_feed
        query = (ChangesQuery if feed else Query)(
            starting_version=first,
            ending_version=last,
            include_historical_metadata=True,
            include_historical_protocol=True,
            max_files=options.max_files_per_request,
        )
        response = self._stream_answer(query, identity, range(first, last + 1))
        self._check_range(response, last)
        by_version = files_by_version(response.blocks(), first, last, table, feed=feed)
        shapes = list(shapes_of(response, table))
        return self._listing(scan, response, with_shapes(by_version, shapes, first, last))

    def all_files(self, scan: ResolvedScan, version: int, identity: StreamIdentity | None = None) -> VersionListing:
        """See ``OpenTable.all_files``; one query; raises VersionError where the server answers with another version."""
        options, table = scan.options, str(self._table)
        query = Query(version=version, max_files=options.max_files_per_request)
        feed, with_stats = options.read_change_feed, scan.prune is not None
        pruner = FilePruner(
            replace(scan, predicate=None, pushed=None)
        )  # positions count the files that are skipped as well

        def sink() -> SnapshotFiles:
            return SnapshotFiles(
                table, pruner, most_bytes=inf if with_stats else 0, with_stats=with_stats, with_times=feed
            )

        response = self._stream_answer(query, identity, range(version, version + 1), sink)
        head = response.head
        if head.version is not None and head.version != version:
            raise VersionError(
                f"the files of version {version} were asked for, and the server answers with those of {head.version}; "
                f"ask the provider to share the table's history"
            )
        pages: list[SnapshotFiles] = list(response.pages())
        check_each_once(pages, table)

        def insert(task: FileTask) -> FileTask:
            return as_insert(task, version, task.commit_timestamp)

        tasks = FileBatches([page.selection() for page in pages], insert if feed else None)
        files = VersionFiles(version, tasks, shape=shape_of_head(head, table, is_newest=False))
        return self._listing(scan, response, [files])

    def _stream_answer(
        self,
        query: Query | ChangesQuery,
        identity: StreamIdentity | None,
        asked: range,
        sink: Callable[[], FileSink] = FileBlocks,
    ) -> QueryResponse:
        """The answer for a stream's range of versions, in the stream's own format unless file ids do not depend on that.

        Raises:
            VersionError, StreamError: The server refuses the range, or fails on it each time.
        """
        if identity is None or identity.hash is not None:
            formats = response_formats(self._negotiated.options, of_versions=True)
        else:
            formats = (identity.format,)
        query = replace(query, file_id_hash=ID_HASH if identity is None else identity.hash)
        try:
            if isinstance(query, ChangesQuery):
                return self._rest.changes(self._table, query, formats=formats)
            return self._rest.query(self._table, query, formats=formats, sink=sink)
        except (*REFUSALS, UnavailableError) as refusal:
            if isinstance(refusal, UnavailableError) and not refusal.permanent:
                raise
            versions = f"version {asked[0]}" if len(asked) == 1 else f"versions {asked[0]} to {asked[-1]}"
            cause = f"the changes of {versions} cannot be listed ({words_of(refusal)})"
            if (advice := self._feature_advice(refusal)) is not None:
                raise StreamError(f"the stream of {self._table} cannot go on: {cause}; {advice}") from refusal
            raise VersionError(f"{cause}; ask the provider to share the table's history") from refusal

    def _check_range(self, response: QueryResponse, last: int | None) -> None:
        """Raise UnsupportedFeatureError for an answer up to a version whose format cannot express what the table's head needs."""
        head, table = self._negotiated.head, str(self._table)
        is_within = last is None or head.version is None or head.version <= last
        if is_within and response.head.response_format == "parquet":
            check_parquet(features_beyond_parquet(head, table), table)

    def _head_as_of(self, options: ReadOptions, head: TableSnapshotHead) -> TableSnapshotHead:
        """Protocol and metadata at ``versionAsOf`` or ``timestampAsOf``, also from a server whose metadata is always the newest.

        Args:
            head: The metadata endpoint's answer for that version or moment.

        Raises:
            VersionError: The server does not have it, or does not share it.
        """
        version, moment, table = options.version_as_of, iso(options.timestamp_as_of), self._table
        if version is not None and head.version is not None and head.version != version:
            query = Query(version=version, limit_hint=1)
        elif moment is not None and head.version in (None, self._rest.table_version(table)):
            # It is the newest: of that moment, or of a server that does not look at the moment.
            query = Query(timestamp=moment, limit_hint=1)
        else:
            return head
        try:
            answered = self._rest.query(table, query, formats=response_formats(options)).head
        except REFUSALS as refusal:
            raise refused_travel(table, options, head.version, refusal) from refusal
        if version is not None and answered.version is not None and answered.version != version:
            raise VersionError(
                f"version {version} of {table} was asked for and the server answers with {answered.version}; "
                f"leave versionAsOf out, or ask the provider to share the table's history"
            )
        return answered

    def _refused_range(self, refusal: Refusal) -> range:
        """The range by versions, maybe empty, of a change data feed that the server refuses by its moments.

        A server may refuse moments that no version lies between, and an end after the newest version.

        Raises:
            VersionError: The range is not one, or is not shared.
        """
        options, newest = self._negotiated.options, self._negotiated.head.version
        first, last = options.starting_timestamp, options.ending_timestamp
        end = last_version(self, options, newest)
        start = options.starting_version if first is None else self._version_after(first - _TICK)
        by_moment = first is not None or last is not None
        if by_moment and newest is not None and isinstance(start, int) and end is not None and end >= 0:
            versions = range_of_versions(start, end, newest, str(self._table), options)
            if versions or (last is not None and end == newest) or self._is_shared(end):
                return versions
        raise self._refused_feed(refusal) from refusal

    def _is_shared(self, version: int) -> bool:
        """Whether a version can be read: where its commit is gone, a moment after it looks like one before the first."""
        try:
            self.describe(AsOf(version))
        except VersionError:
            return False
        return True

    def _version_after(self, moment: datetime) -> int | None:
        """The first version after a moment; None if there is none."""
        with suppress(*REFUSALS):
            return self._rest.table_version(self._table, iso(moment + _TICK))
        return None

    def _refused_feed(self, refusal: ServerError) -> DeltaSharingError:
        """The error of a change data feed that the server refuses, or fails on each time; else the refusal."""
        if isinstance(refusal, UnavailableError) and not refusal.permanent:
            return refusal
        options = self._negotiated.options
        start = iso(options.starting_timestamp) or f"version {options.starting_version}"
        last = "the newest version" if options.ending_version is None else f"version {options.ending_version}"
        advice = self._feature_advice(refusal) or (
            "choose a range that is shared, or ask the provider to record and share the table's changes"
        )
        return VersionError(
            f"the change feed of {self._table} from {start} to {iso(options.ending_timestamp) or last} cannot be read: "
            f"{words_of(refusal)}; {advice}"
        )

    def _feature_advice(self, refusal: ServerError) -> str | None:
        """What to do where a server cannot list changes of a table for its features; None where that is not the cause."""
        protocol, metadata = self._negotiated.head.protocol, self._negotiated.head.metadata
        features = protocol.reader_features or (("columnMapping",) if protocol.min_reader_version > 1 else ())
        if not features or is_about_versions(refusal):
            return None
        is_offered = "dir" in metadata.access_modes
        by_directory = f"{'set' if is_offered else 'ask the provider for directory access and set'} accessMode=dir"
        return (
            f"the table uses {', '.join(features)}, and some servers list the snapshots of such tables but no changes: read "
            f"snapshots, {by_directory}, or ask the provider for a server that lists them"
        )

    def stream_identity(self, scan: ResolvedScan) -> StreamIdentity:
        return StreamIdentity(scan.shape.id, self.mode, self._negotiated.head.response_format, None)

    def _listing(
        self, scan: ResolvedScan, response: QueryResponse, versions: Sequence[VersionFiles], files: int = 0
    ) -> VersionListing:
        identity = StreamIdentity(
            response.head.metadata.id, self.mode, response.head.response_format, response.file_id_hash
        )
        access, planned = self._access(scan, response, files), [files.version for files in versions if files.tasks]
        if access.renewal is not None and isinstance(access.renewal.query, ChangesQuery) and planned:
            # Renewed by the versions that have files: moments, and no end at all, may come to mean more of them.
            query = of_versions(access.renewal.query, planned[0], planned[-1])
            access = replace(access, renewal=replace(access.renewal, query=query))
        return VersionListing(versions, access, identity)

    def _no_versions(self, scan: ResolvedScan) -> VersionListing:
        settings = storage_settings(scan.options, self._table, self._negotiated.profile)
        nothing = UrlAccess(settings, planned_at=time.time())
        return VersionListing((), nothing, self.stream_identity(scan))

    def _access(self, scan: ResolvedScan, response: QueryResponse, files: int) -> UrlAccess:
        """The access to an answer's files; executors repeat the answered query to renew URLs.

        Args:
            response: The answer, read to its end.
            files: How many files it listed, where that is known.
        """
        negotiated, head, ends = self._negotiated, response.head, response.min_url_expiration
        renewal = None
        profile = carried_profile(negotiated.profile, negotiated.settings, negotiated.options.carry_profile)
        if profile is not None:
            query, partitions = response.query, scan.shape.partition_columns
            if isinstance(query, Query):  # as executors repeat it: whole, whatever the limit, and answered at once
                query = replace(query, include_refresh_token=False, limit_hint=None, idempotency_key=None)
            renewal = RenewalContext(
                key=uuid.uuid4().hex,
                table=self._table,
                table_id=head.metadata.id,
                profile=profile,
                settings=carried_settings(negotiated.settings, negotiated.options.carry_profile),
                query=query,
                formats=(head.response_format,),
                refresh_token=response.refresh_token,
                version=head.version,
                files=files,
                partitions=tuple(f for f in scan.shape.schema.fields if f.name in partitions),
            )
        settings = storage_settings(negotiated.options, self._table, negotiated.profile)
        return UrlAccess(settings, renewal, response.received_at, ends / 1000 if ends else None)


def _hints(scan: ResolvedScan, limit_hint: int | None) -> Query:
    """A query with what the server is told to prune by."""
    query = Query(limit_hint=limit_hint)
    if scan.prune is None:
        return query
    from delta_sharing_spark.predicates.hints import json_hints, sql_hints

    partitions, kinds = scan.shape.partition_columns, scan.options.server_hints
    return replace(
        query,
        json_predicate_hints=json_hints(scan.prune, scan.shape.schema, partitions) if kinds != "sql" else None,
        predicate_hints=tuple(sql_hints(scan.prune, partitions)) if kinds != "json" else (),
    )


def _hints_by_name(query: Query) -> dict[str, str]:
    """The hints of a query, as ``explain`` shows them."""
    texts = {
        "limitHint": None if query.limit_hint is None else str(query.limit_hint),
        "jsonPredicateHints": query.json_predicate_hints,
        "predicateHints": " AND ".join(query.predicate_hints),
    }
    return {name: text for name, text in texts.items() if text}
