"""How a split asks the sharing server for fresh URLs: before they end, and when the storage refuses one.

A worker process asks once for many tasks: the answers of a load are kept, by file id, for as long as they are valid.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from delta_sharing_spark.access.vectors import vector_of
from delta_sharing_spark.errors import CredentialError, FileGoneError, TableChangedError
from delta_sharing_spark.sharing.actions import FileRecord
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import ChangesQuery, Query, QueryResponse, SharingRest
from delta_sharing_spark.sharing.transport import TransportSettings

_log = logging.getLogger(__name__)

#: A URL is renewed when it has less than this left: seconds, plus a jitter that keeps processes apart.
MARGIN, JITTER = 60.0, 30.0
#: File ids a process remembers the URLs of, over all loads.
_REMEMBERED = 200_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """What it takes to ask again: the profile and the query that planned the files.

    Attributes:
        key: Names the load; renewals of one load are shared within a process.
        table: The table.
        table_id: The id the table had; another one means it was replaced.
        query: The query to repeat, with its hints; a refresh token or the version pins its snapshot.
        pinned: Whether the answer is bound to list the same files.
        formats: The response format that the plan was made from, so that ids are of the same kind.
    """

    key: str
    table: TableName
    table_id: str
    profile: Profile = field(repr=False)
    settings: TransportSettings = field(repr=False)
    query: Query | ChangesQuery = field(repr=False)
    pinned: bool
    formats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FreshUrl:
    """A file's URLs and when they end (seconds since the epoch; None if nobody says); its vectors by unique id."""

    url: str = field(repr=False)
    vectors: Mapping[str, str] = field(repr=False)
    expires_at: float | None

    def of(self, vector: str | None) -> str | None:
        """The URL of the file, or of one of its deletion vectors; None if the server no longer names that."""
        return self.url if vector is None else self.vectors.get(vector)


class _Renewals:
    """Fresh URLs of one load in this process, and the lock that makes many tasks ask once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.urls: dict[str, FreshUrl] = {}
        self.requests = 0


_loads: OrderedDict[str, _Renewals] = OrderedDict()
_loads_lock = threading.Lock()


def fresh_url(recipe: Recipe | None, wanted: str, vector: str | None, stale: str | None, reason: str) -> FreshUrl:
    """A URL of the file ``wanted`` (or of its ``vector``) that is not ``stale``: known to this process, or asked for.

    Args:
        recipe: How to ask; None where the sharing token stays on the driver.
        wanted: The file's id.
        vector: The unique id of the deletion vector whose URL is wanted; None for the file's own.
        stale: The URL that was refused or is about to end.
        reason: Why, for the log and for errors.

    Raises:
        CredentialError: There is no recipe.
        FileGoneError, TableChangedError: The server no longer lists the file.
    """
    if recipe is None:
        raise CredentialError(
            f"file {wanted}: its URL ended ({reason}) and carryProfile=false keeps executors from asking for another; "
            f"load the table again, or leave carryProfile at true"
        )
    renewals = _renewals_of(recipe.key)
    with renewals.lock:
        known = renewals.urls.get(wanted)
        if known is not None and known.of(vector) != stale and not ends_soon(known.expires_at):
            return known
        _ask(recipe, renewals, wanted, reason)
        fresh = renewals.urls.get(wanted)
    if fresh is None or fresh.of(vector) == stale:
        raise _gone(recipe, wanted)
    return fresh


def ends_soon(expires_at: float | None, now: float | None = None) -> bool:
    """Whether a URL that ends at ``expires_at`` should be renewed before it is used."""
    if expires_at is None:
        return False
    return expires_at - (time.time() if now is None else now) < MARGIN


def _renewals_of(key: str) -> _Renewals:
    with _loads_lock:
        renewals = _loads.pop(key, None) or _Renewals()
        _loads[key] = renewals
        while len(_loads) > 1 and sum(len(r.urls) for r in _loads.values()) > _REMEMBERED:
            _loads.popitem(last=False)
        return renewals


def _ask(recipe: Recipe, renewals: _Renewals, wanted: str, reason: str) -> None:
    _log.info("renewing the URLs of %s (%s)", recipe.table, reason)
    renewals.requests += 1
    response = _query(recipe)
    if recipe.table_id and response.head.metadata.id != recipe.table_id:
        raise TableChangedError(f"table {recipe.table} was replaced since it was loaded; load it again")
    found: dict[str, FreshUrl] = {}
    for record in response.records():
        found[record.id] = _merged(found.get(record.id), record, response)
        if wanted in found and len(found) >= _REMEMBERED:
            break
    renewals.urls = found


def _query(recipe: Recipe) -> QueryResponse:
    rest = SharingRest(recipe.profile, recipe.settings)
    if isinstance(recipe.query, ChangesQuery):
        return rest.changes(recipe.table, recipe.query, formats=recipe.formats)
    return rest.query(recipe.table, recipe.query, formats=recipe.formats)


def _merged(known: FreshUrl | None, record: FileRecord, response: QueryResponse) -> FreshUrl:
    """A record's URLs, beside those of another record of the same file (a change feed may list it twice)."""
    vectors = dict(known.vectors) if known else {}
    vector = vector_of(record, response.head.metadata.id)
    if vector is not None and vector.storage != "i":
        vectors[vector.unique_id] = vector.path
    millis = record.expiration_timestamp or response.min_url_expiration
    # Processes that ask at different moments do not all ask again at one.
    ends = None if not millis else max(millis / 1000 - random.uniform(0, JITTER), time.time() + MARGIN + 1)
    return FreshUrl(record.url, vectors, ends)


def _gone(recipe: Recipe, wanted: str) -> FileGoneError:
    why = (
        "the server no longer lists it" if not recipe.pinned else "the server does not return it for the pinned version"
    )
    return FileGoneError(
        f"file {wanted} of {recipe.table}: its URL ended and {why}; the table has changed since it was loaded: load it again",
        file=wanted,
    )
