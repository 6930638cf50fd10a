"""Opens a split's files by presigned URLs, and asks for fresh ones: before they end, and when the storage refuses one.

A worker process asks once for many tasks: an answer is kept, compressed, for as long as its URLs are valid. The ways to
ask, the surest first: the refresh token of the plan, the planned version, the same query again. Where an answer is of
another version than the planned one, the next way is tried; after the last way it is an error. Each answer is compared with the
plan: a table that has changed is an error, never other rows.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from delta_sharing_spark.access.url.file_columns import FileColumns
from delta_sharing_spark.access.url.signed_urls import FreshFile, earliest, fresh_file, renew_at, url_end
from delta_sharing_spark.errors import (
    CredentialError,
    DeltaSharingError,
    FileGoneError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    RequestRefusedError,
    ServerError,
    TableChangedError,
)
from delta_sharing_spark.network.http import NetworkSettings, pause_after_early
from delta_sharing_spark.network.process_cache import AskedByOne, ProcessCache
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileTask
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.types import Field, Struct
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.query import ChangesQuery, Query, QueryResponse
from delta_sharing_spark.storage.presigned import url_reader
from delta_sharing_spark.storage.range_reader import RangeReader, StorageSettings
from delta_sharing_spark.storage.ranges import ByteSource, Part

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.tree import Expression

_log = logging.getLogger(__name__)

#: A load of more files is asked for narrowed to a split's partitions, and read only until the split's files are found.
NARROW_ABOVE_FILES = 20_000
#: Bytes of compressed answers that a process keeps, over all loads: about half a million URLs.
_KEPT_BYTES = 64 << 20
_KEPT_LOADS = 64
_loads: ProcessCache[str, _Load] = ProcessCache(_KEPT_LOADS, lambda load: load.nbytes, _KEPT_BYTES)
#: Types whose serialized values say one thing to every server.
_PLAIN = ("string", "integer", "long")
_MOST_VALUES = 20
_WHOLE = re.compile(r"-?[0-9]+")


@dataclass(frozen=True, slots=True)
class RenewalContext:
    """The profile and the query that planned the files, to ask the server for fresh URLs.

    Attributes:
        key: The load's own id; its renewals are shared within a process.
        table: The table.
        table_id: The id the table had; another one means it was replaced.
        query: The query to repeat, with its hints, without a refresh token.
        refresh_token: The refresh token of the answer that was planned from.
        version: The version that the plan is of, where the server told.
        formats: The response format that the plan was made from, so that ids are of the same kind.
        files: How many files the server listed; 0 if unknown.
        partitions: The table's partition columns, to narrow the query of a large table by.
    """

    key: str
    table: TableName
    table_id: str
    profile: Profile = field(repr=False)
    settings: NetworkSettings = field(repr=False)
    query: Query | ChangesQuery = field(repr=False)
    formats: tuple[str, ...]
    refresh_token: str | None = field(default=None, repr=False)
    version: int | None = None
    files: int = 0
    partitions: tuple[Field, ...] = field(default=(), repr=False)

    @property
    def is_pinned(self) -> bool:
        """Whether ``query`` itself names a version or a range of them; a moment may come to mean a later version."""
        query = self.query
        return isinstance(query, ChangesQuery) or (query.version, query.starting_version) != (None, None)


@dataclass(frozen=True, slots=True)
class FreshUrl:
    """A fresh URL, when to renew it in turn (seconds since the epoch; None: when the storage refuses it), when it ends."""

    url: str = field(repr=False)
    renew_at: float | None
    ends: float | None

    def is_due(self) -> bool:
        """Whether it is time to renew it."""
        return self.renew_at is not None and time.time() >= self.renew_at


class _Load(AskedByOne):
    """What this process keeps of one load: the last answer, and the ways of asking that the server refused."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[FileColumns] = []
        self.since = 0.0
        self.earliest: float | None = None
        self.token: str | None = None
        self.refused: set[str] = set()
        #: After the failure of a renewal ahead of time, the next one ahead of time comes no sooner than this.
        self.early_again = 0.0

    def find(self, file_id: str) -> FreshFile | None:
        """A file of the last answer."""
        return fresh_file(self.pages, file_id)

    @property
    def nbytes(self) -> int:
        return sum(page.nbytes for page in self.pages)

    def renewed(self, file: FreshFile, url: str) -> FreshUrl:
        """``url`` of a file, with the earliest end that anything says."""
        ends = earliest(file.ends, self.earliest, url_end(url))
        return FreshUrl(url, renew_at(ends, self.since), ends)


def fresh_url(
    context: RenewalContext | None,
    task: FileTask,
    vector: DeletionVector | None,
    stale: FreshUrl,
    reason: str,
    files: Sequence[FileTask] = (),
    *,
    is_refused: bool,
) -> FreshUrl:
    """A URL of a task's file, or of its ``vector``, other than ``stale``: known to this process, or asked for.

    While one still works, an outage of the server is not waited out: it is ``stale`` again, or one that is known, until the next try.

    Args:
        context: How to ask; None where the sharing token stays on the driver.
        task: The file as planned.
        vector: The deletion vector whose URL is wanted; None for the file's own.
        stale: The URL that was refused or is about to end.
        reason: Why, for the log and for errors.
        files: All files of the split: an answer that names them will do.
        is_refused: Whether the storage refused ``stale``.

    Raises:
        CredentialError: There is no context.
        FileGoneError, TableChangedError: The table is no longer the one that was planned.
        ServerError, NetworkError: The server does not answer.
    """
    if context is None:
        raise CredentialError(
            f"file {task.id}: its URL ended ({reason}) and carryProfile=false keeps executors from asking for another; "
            f"load the table again, or leave carryProfile at true"
        )
    load = _loads.get_or_make(context.key, _Load)
    asked = load.asked
    with load.lock:
        known = _known(load, task, vector, stale.url)
        if known is not None and not known.is_due():
            return known
        held = known or (None if is_refused else stale)
        left = 0.0 if held is None or held.ends is None else held.ends - time.time()
        if held is None or held.ends is None or left <= 0:
            try:
                load.ask(partial(_ask, context, load, task, files, reason), asked, context.settings)
            except (ServerError, NetworkError, CredentialError) as error:
                why = f"was refused ({reason})" if is_refused else "has ended"
                error.args = (f"the URL of file {task.id} {why}, and the sharing server gave no other: {error}",)
                raise
        elif not _ask_early(context, load, task, files, reason, left):
            # It still works for a while; the storage's refusal is the last word.
            return replace(held, renew_at=min(held.ends, load.early_again))
        fresh = load.find(task.id)
        if fresh is None:
            raise _gone(context, task)
        _check_same(context, task, fresh)
        url = fresh.url_of(vector)
        if url is None:
            raise _changed(context, task, "the server no longer names its deletion vector's file")
        return load.renewed(fresh, url)


def _known(load: _Load, task: FileTask, vector: DeletionVector | None, stale: str) -> FreshUrl | None:
    """A URL that the last answer named, other than ``stale``, and that has not ended."""
    file = load.find(task.id)
    if file is None or file.size != task.size:
        return None
    url = file.url_of(vector)
    if url is None or url == stale:
        return None
    renewed = load.renewed(file, url)
    return None if renewed.ends is not None and renewed.is_due() and renewed.ends <= time.time() else renewed


def _ask_early(
    context: RenewalContext, load: _Load, task: FileTask, files: Sequence[FileTask], reason: str, left: float
) -> bool:
    """Ask while the task can still read for ``left`` seconds. Tells whether the server answered; else what was known stays so."""
    if time.time() < load.early_again:
        return False
    before = load.pages, load.since, load.earliest
    try:
        _ask(replace(context, settings=context.settings.early(left)), load, task, files, reason)
    except DeltaSharingError as error:
        load.pages, load.since, load.earliest = before
        if not isinstance(error, (ServerError, NetworkError, CredentialError)):
            raise
        load.early_again = time.time() + pause_after_early(left)
        return False
    return True


def _ask(context: RenewalContext, load: _Load, task: FileTask, files: Sequence[FileTask], reason: str) -> None:
    _log.info("renewing the URLs of %s (%s)", context.table, reason)
    large = context.files > NARROW_ABOVE_FILES
    file_ids = {file.id for file in files} | {task.id}
    narrow = narrowed(context.query, context.partitions, files) if large and files else None
    # Should a server read the narrowed hints otherwise than they are meant, the whole answer decides.
    for by in (narrow, context.query) if narrow is not None else (context.query,):
        load.pages, load.since = [], time.time()
        response = _answered(context, load, by)
        if context.table_id and response.head.metadata.id != context.table_id:
            raise TableChangedError(f"table {context.table} was replaced since it was loaded; load it again")
        missing = set(file_ids)
        for page in response.pages():
            load.pages.append(page)
            missing -= page.holds(missing)
            if not missing and (large or load.nbytes > _KEPT_BYTES // 2):
                break
            while len(load.pages) > 1 and load.nbytes > _KEPT_BYTES:
                missing |= load.pages[0].holds(file_ids)
                load.pages.pop(0)
        load.earliest = response.min_url_expiration / 1000 if response.min_url_expiration else None
        if response.refresh_token and response.head.version == context.version is not None:
            load.token = response.refresh_token  # of another version, it would pin that one
        if not missing or by is context.query:
            return


def _answered(context: RenewalContext, load: _Load, query: Query | ChangesQuery) -> QueryResponse:
    """Ask in each way until the server answers; the refusal of the last way is raised."""
    from delta_sharing_spark.sharing.rest import SharingRest

    rest = SharingRest(context.profile, context.settings)

    if isinstance(query, ChangesQuery):
        return rest.changes(context.table, query, formats=context.formats, sink=FileColumns)
    for way, asking in _renewal_queries(context, load, query):
        try:
            response = rest.query(context.table, asking, formats=context.formats, sink=FileColumns)
        except (RequestRefusedError, ForbiddenError, NotFoundError) as refusal:
            if way == "query":
                raise
            why = f"refuses (HTTP {refusal.status})"
        else:
            if way == "query" or response.head.version in (None, context.version):
                return response
            # Delta Kernel in the reference server looks at a token's age and table, and answers the newest version.
            why = "answers another version"
        _log.info("%s: asked to renew by %s, the server %s", context.table, way, why)
        load.refused.add(way)
        load.token = None
    raise AssertionError("the query itself is always asked")


def _renewal_queries(context: RenewalContext, load: _Load, query: Query) -> Iterator[tuple[str, Query]]:
    if context.is_pinned:
        yield "query", query
        return
    token = load.token or (context.refresh_token if "refresh token" not in load.refused else None)
    if token is not None:
        yield "refresh token", replace(query, refresh_token=token, include_refresh_token=True)
    if context.version is not None and "version" not in load.refused:
        yield "version", replace(query, version=context.version, timestamp=None, include_refresh_token=False)
    yield "query", replace(query, include_refresh_token=query.timestamp is None)


def _check_same(context: RenewalContext, task: FileTask, fresh: FreshFile) -> None:
    """Compare an answer's file with the plan's."""
    if fresh.size != task.size:
        raise _changed(context, task, f"it has {fresh.size} bytes now, planned were {task.size}")
    vectors = [v for v in (task.deletion_vector, task.excluded) if v is not None]
    if any(fresh.vector(v) is None for v in vectors):
        raise _changed(context, task, "its deletion vector is another one now")
    is_range = isinstance(context.query, ChangesQuery) or context.query.starting_version is not None
    if task.commit_version is None and fresh.vectors and not vectors and not is_range:
        raise _changed(context, task, "rows of it were deleted since")


def _changed(context: RenewalContext, task: FileTask, why: str) -> TableChangedError:
    return TableChangedError(
        f"table {context.table} has changed since it was loaded (file {task.id}: {why}); load it again", file=task.id
    )


def _gone(context: RenewalContext, task: FileTask) -> FileGoneError:
    why = (
        "the server does not return it for the planned version"
        if context.is_pinned
        else "the server no longer lists it"
    )
    return FileGoneError(
        f"file {task.id} of {context.table}: its URL ended and {why}; the table has changed since it was loaded: "
        f"load it again",
        file=task.id,
    )


def narrowed(
    query: Query | ChangesQuery, partitions: Sequence[Field], files: Sequence[FileTask]
) -> Query | ChangesQuery | None:
    """``query`` with hints that all ``files`` fulfil, beside its own; None if there is nothing to say.

    A change feed takes no hints: it is narrowed to the versions of the files.
    """
    if isinstance(query, ChangesQuery):
        versions = [file.commit_version for file in files if file.commit_version is not None]
        if len(versions) != len(files):
            return None
        return of_versions(query, min(versions), max(versions))
    if query.starting_version is not None:
        return None
    from delta_sharing_spark.predicates.hints import json_hints, sql_hints
    from delta_sharing_spark.predicates.tree import conjunction

    keys = partition_keys({column.name: column.physical_name for column in partitions})
    plain = [column for column in partitions if str(column.type) in _PLAIN]
    parts = [part for column in plain if (part := _values(column, keys[column.physical_name], files)) is not None]
    if not parts:
        return None
    condition = conjunction(parts)
    names = [column.name for column in partitions]
    tree = json_hints(condition, Struct(tuple(partitions)), names)
    if tree is not None and query.json_predicate_hints:
        both = [json.loads(query.json_predicate_hints), json.loads(tree)]
        tree = json.dumps({"op": "and", "children": both}, separators=(",", ":"))
    texts = tuple(sql_hints(condition, names)) if query.predicate_hints else ()
    return replace(
        query, json_predicate_hints=tree or query.json_predicate_hints, predicate_hints=(*query.predicate_hints, *texts)
    )


def of_versions(query: ChangesQuery, first: int, last: int) -> ChangesQuery:
    """The same query of the versions ``first`` to ``last``, both included."""
    return replace(query, starting_version=first, starting_timestamp=None, ending_version=last, ending_timestamp=None)


def _values(column: Field, keys: Sequence[str], files: Sequence[FileTask]) -> Expression | None:
    """``column`` is one of the values that it has in ``files``; None where that is not certain, or long."""
    from delta_sharing_spark.predicates.tree import Column, Compare, IsNull, Literal, disjunction

    texts: set[str | None] = set()
    for file in files:
        values = file.partition_values or {}
        name = next((key for key in keys if key in values), None)
        if name is None:
            return None
        texts.add(values[name] or None)
    kind, is_text = column.type, str(column.type) == "string"
    if len(texts) > _MOST_VALUES or not (is_text or all(_WHOLE.fullmatch(text) for text in texts if text is not None)):
        return None
    operand, known = Column((column.name,), kind), sorted(text for text in texts if text is not None)
    choices: list[Expression] = [IsNull(operand)] if None in texts else []
    choices += [Compare("=", operand, Literal(text if is_text else int(text), kind)) for text in known]
    return disjunction(choices)


@dataclass(slots=True)
class _Lease:
    """The URL of one data file or vector, renewed through the split's renewal context."""

    access: UrlAccess
    task: FileTask
    current: FreshUrl
    vector: DeletionVector | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def url(self) -> str:
        if self.current.is_due() and self.access.renewal is not None:
            with self.lock:
                if self.current.is_due():
                    self._renew("its expiry is near", is_refused=False)
        return self.current.url

    def refused(self, url: str, reason: str) -> None:
        with self.lock:
            if self.current.url == url:
                self._renew(reason, is_refused=True)

    def _renew(self, reason: str, *, is_refused: bool) -> None:
        renewal, files = self.access.renewal, self.access.files
        self.current = fresh_url(renewal, self.task, self.vector, self.current, reason, files, is_refused=is_refused)


@dataclass(frozen=True, slots=True)
class UrlAccess(FileAccess):
    """The access of splits whose files are presigned URLs.

    Attributes:
        settings: How data requests are sent, which never carry the sharing token.
        renewal: How to renew URLs; None where the sharing token stays on the driver.
        planned_at: When the URLs were given out, in seconds since the epoch: they are renewed by their length of life.
        expires_at: When the first of them ends, where the answer said so.
        files: The files of the split, which one renewal should find.
    """

    settings: StorageSettings = field(repr=False)
    renewal: RenewalContext | None = field(default=None, repr=False)
    planned_at: float = 0.0
    expires_at: float | None = None
    files: tuple[FileTask, ...] = field(default=(), repr=False)

    def open(self, task: FileTask) -> RangeReader:
        return self._source(task, task.location, None, task.id, task.size)

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        name = f"deletion vector {vector.unique_id} of {task.id}"
        return Part(self._source(task, vector.path, vector, name, None), vector.frame)

    def _source(
        self, task: FileTask, url: str, vector: DeletionVector | None, name: str, size: int | None
    ) -> RangeReader:
        ends = self.ends(task if vector is None else replace(task, location=url))
        lease = _Lease(self, task, FreshUrl(url, renew_at(ends, self.planned_at), ends), vector)
        return url_reader(lease, self.settings, name=name, size=size)

    def ends(self, task: FileTask) -> float | None:
        """See ``FileAccess.ends``: by the answer, the file's record and the URL itself. What had ended when it came tells nothing."""
        ends = earliest(task.expires_at, self.expires_at, url_end(task.location))
        return None if ends is None or ends <= self.planned_at else ends

    def restricted_to(self, tasks: Iterable[FileTask]) -> UrlAccess:
        """See ``SplitAccess.restricted_to``; the split's pickle names each file once."""
        return replace(self, files=() if self.renewal is None else tuple(tasks))

    def outlasts_planning(self, task: FileTask) -> bool:
        due = renew_at(self.ends(task), self.planned_at)
        # A carried token may have ended: what is given out with the driver's is listed anew in time.
        is_renewed = self.renewal is not None and self.renewal.profile.carried is None
        return is_renewed or due is None or time.time() < due
