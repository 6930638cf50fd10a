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
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from delta_sharing_spark.access.url.file_columns import FileColumns
from delta_sharing_spark.access.url.signed_urls import FreshFile, earliest, fresh_file, url_end, url_term
from delta_sharing_spark.errors import (
    CredentialError,
    FileGoneError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    RequestRefusedError,
    ServerError,
    TableChangedError,
)
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.renewable import Renewable, Term
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileTask
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.types import Field, Struct
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.queries import ChangesQuery, Query
from delta_sharing_spark.storage.presigned import url_reader
from delta_sharing_spark.storage.range_reader import RangeReader, StorageSettings
from delta_sharing_spark.storage.ranges import ByteSource, Part

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.tree import Expression
    from delta_sharing_spark.sharing.query import QueryResponse

_log = logging.getLogger(__name__)

#: A load of more files is asked for narrowed to a split's partitions, and read only until the split's files are found.
NARROW_ABOVE_FILES = 20_000
#: Bytes of compressed answers that a process keeps, over all loads: about half a million URLs.
_ANSWER_BYTES = 64 << 20
_LOADS = 64
_loads: ProcessCache[str, _Load] = ProcessCache(_LOADS, lambda load: load.nbytes, _ANSWER_BYTES)
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
class _Answer:
    """An answer of the sharing server: the pages with its URLs, when it came, and when the first URL ends, where it says so."""

    pages: Sequence[FileColumns]
    since: float
    earliest: float | None

    def url(self, file: FreshFile, vector: DeletionVector | None) -> Term[str] | None:
        """The URL of a file, or of its ``vector``, with the earliest end that anything says; None where the answer has none."""
        url = file.url_of(vector)
        return None if url is None else url_term(url, earliest(file.ends, self.earliest, url_end(url)), self.since)


class _Load:
    """What this process keeps of one load.

    Attributes:
        answers: The last answer.
        refused: The ways of asking that the server refused.
        token: The refresh token of the last answer, of the planned version.
    """

    def __init__(self, table: TableName) -> None:
        self.answers: Renewable[_Answer] = Renewable(f"the URLs of {table}", kind="urls", table=str(table))
        self.refused: set[str] = set()
        self.token: str | None = None

    @property
    def nbytes(self) -> int:
        answer = self.answers.value
        return 0 if answer is None else sum(page.nbytes for page in answer.pages)


def _ask(context: RenewalContext, load: _Load, files: Sequence[FileTask]) -> _Answer:
    """Ask the server for the URLs of a split's files; the answer holds those of other files as well, as far as they are kept."""
    large = context.files > NARROW_ABOVE_FILES
    narrow = narrowed(context.query, context.partitions, files) if large else None
    # Should a server read the narrowed hints otherwise than they are meant, the whole answer decides.
    for query in (context.query,) if narrow is None else (narrow, context.query):
        since, pages, nbytes = time.time(), list[FileColumns](), 0
        response = _answered(context, load, query)
        if context.table_id and response.head.metadata.id != context.table_id:
            raise TableChangedError(f"table {context.table} was replaced since it was loaded; load it again")
        file_ids = {file.id for file in files}
        missing = set(file_ids)
        for page in response.pages():
            pages.append(page)
            nbytes += page.nbytes
            missing -= page.holds(missing)
            if not missing and (large or nbytes > _ANSWER_BYTES // 2):
                break
            while len(pages) > 1 and nbytes > _ANSWER_BYTES:
                oldest = pages.pop(0)
                nbytes -= oldest.nbytes
                missing |= oldest.holds(file_ids)
        if response.refresh_token and response.head.version == context.version is not None:
            load.token = response.refresh_token  # of another version, it would pin that one
        if not missing:
            break
    return _Answer(pages, since, response.min_url_expiration / 1000 if response.min_url_expiration else None)


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
    operand, present = Column((column.name,), kind), sorted(text for text in texts if text is not None)
    choices: list[Expression] = [IsNull(operand)] if None in texts else []
    choices += [Compare("=", operand, Literal(text if is_text else int(text), kind)) for text in present]
    return disjunction(choices)


@dataclass(slots=True)
class _Lease:
    """The URL of one data file or vector, renewed through the split's renewal context (``storage.range_reader.Lease``)."""

    access: UrlAccess
    task: FileTask
    term: Term[str]
    vector: DeletionVector | None = None

    def current(self) -> str:
        current = self.term
        if time.time() >= current.renew_at and self.access.renewal is not None:
            current = self._renewed(current, "its expiry is near", is_refused=False)
        return current.value

    def refused(self, url: str, name: str, refusal: PermissionError, refusals: int) -> None:
        current = self.term
        if current.value == url:  # else another thread has renewed it meanwhile
            self._renewed(current, str(refusal), is_refused=True)

    def _renewed(self, stale: Term[str], reason: str, *, is_refused: bool) -> Term[str]:
        """Another URL than ``stale``, of this process's last answer or asked for; while ``stale`` still works, maybe itself.

        Raises:
            CredentialError: The sharing token stays on the driver.
            FileGoneError, TableChangedError: The table is no longer the one that was planned.
            ServerError, NetworkError: The server does not answer.
        """
        context, task, vector = self.access.renewal, self.task, self.vector
        if context is None:
            raise CredentialError(
                f"file {task.id}: its URL ended ({reason}) and carryProfile=false keeps executors from asking for another; "
                f"load the table again, or leave carryProfile at true"
            )
        load = _loads.get_or_make(context.key, lambda: _Load(context.table))

        def usable(answer: _Answer | None) -> Term[str] | None:
            file = None if answer is None else fresh_file(answer.pages, task.id)
            if answer is not None and file is not None and file.size == task.size:
                url = answer.url(file, vector)
                if url is not None and url.value != stale.value and time.time() < url.ends_at:
                    return url
            return None if is_refused else stale

        def accept(answer: _Answer) -> Term[str]:
            file = fresh_file(answer.pages, task.id)
            if file is None:
                raise _gone(context, task)
            _check_same(context, task, file)
            url = answer.url(file, vector)
            if url is None:
                raise _changed(context, task, "the server no longer names its deletion vector's file")
            return url

        def ask(seconds: float | None) -> _Answer:
            _log.info("renewing the URLs of %s (%s)", context.table, reason)
            patient = replace(context, settings=context.settings.early(seconds))
            return _ask(patient, load, (*self.access.files, task))

        try:
            self.term = load.answers.get(usable, ask, accept, context.settings)
        except (ServerError, NetworkError, CredentialError) as error:
            why = f"was refused ({reason})" if is_refused else "has ended"
            error.args = (f"the URL of file {task.id} {why}, and the sharing server gave no other: {error}",)
            raise
        return self.term


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
    files: Sequence[FileTask] = field(default=(), repr=False)

    def open(self, task: FileTask) -> RangeReader[str]:
        return self._source(task, task.location, None, task.id, task.size)

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        name = f"deletion vector {vector.unique_id} of {task.id}"
        return Part(self._source(task, vector.path, vector, name, None), vector.frame)

    def _source(
        self, task: FileTask, url: str, vector: DeletionVector | None, name: str, size: int | None
    ) -> RangeReader[str]:
        ends = self.ends(task if vector is None else replace(task, location=url))
        lease = _Lease(self, task, url_term(url, ends, self.planned_at), vector)
        return url_reader(lease, self.settings, name=name, size=size)

    def ends(self, task: FileTask) -> float | None:
        """See ``FileAccess.ends``: by the answer, the file's record and the URL itself. What had ended when it came tells nothing."""
        ends = earliest(task.expires_at, self.expires_at, url_end(task.location))
        return None if ends is None or ends <= self.planned_at else ends

    def restricted_to(self, tasks: Sequence[FileTask]) -> UrlAccess:
        return replace(self, files=() if self.renewal is None else tasks)

    def outlasts_planning(self, task: FileTask) -> bool:
        due = url_term(task.location, self.ends(task), self.planned_at).renew_at
        # A carried token may have ended: what is given out with the driver's is listed anew in time.
        is_renewed = self.renewal is not None and self.renewal.profile.carried is None
        return is_renewed or time.time() < due
