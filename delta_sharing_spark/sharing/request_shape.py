"""Asks for a snapshot's files in one of two shapes, and with fewer reader features, for servers that refuse the first request.

The reference server picks one of two engines by what stands in a query: Delta Kernel, which knows the reader features,
or Delta Standalone, which does not, as soon as ``maxFiles``, ``predicateHints``, ``startingVersion`` or ``pageToken`` is
there. So a query first carries only what its caller asked for. Where the server refuses it, or fails on it each time, the
same query goes out once more in the other shape (with a page size and without hints, or the other way round), and the
shape that was answered is remembered for the server and the table.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from delta_sharing_spark.errors import RequestRefusedError, ServerError, UnavailableError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.schema.features import reader_features_header
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.query import Query
from delta_sharing_spark.sharing.transport import is_about_versions

#: The page size of the paged shape; the reference server's own bound.
PAGE_SIZE = 10_000
#: Statuses that can be about a query's shape: bad, too large an answer, unprocessable, not implemented.
_ABOUT_SHAPE = (400, 413, 422, 501)
_MOST_TABLES = 1024
_QUOTED = 300


@dataclass(frozen=True, slots=True)
class Fallback:
    """The shape that a server answered after it had refused the other one.

    Attributes:
        is_paged: Whether it has a page size.
        reason: The server's message to the other shape.
    """

    is_paged: bool
    reason: str

    def __str__(self) -> str:
        shape = f"with pages of {PAGE_SIZE} files" if self.is_paged else "without a page size"
        return f"{shape} and without hints, because the server refuses the usual query: {self.reason}"


_fallbacks: ProcessCache[tuple[str, str], Fallback] = ProcessCache(_MOST_TABLES)


def other_shape(query: Query) -> Query | None:
    """The query for the same snapshot in the other shape; None where a query has only one.

    A range of versions has one, and so has a query that renews by a token: its refusal is about the token.
    """
    if query.starting_version is not None or query.refresh_token is not None:
        return None
    is_paged = query.max_files is None and not query.predicate_hints
    return replace(
        query,
        max_files=PAGE_SIZE if is_paged else None,
        predicate_hints=(),
        json_predicate_hints=None,
        limit_hint=None,
        idempotency_key=str(uuid.uuid4()) if query.idempotency_key else None,
    )


def may_answer_other_shape(refusal: ServerError) -> bool:
    """Whether a refusal, or a 500 that came each time, may be about the query's shape; one about versions is not."""
    if is_about_versions(refusal):
        return False
    if isinstance(refusal, UnavailableError):
        return refusal.permanent
    return isinstance(refusal, RequestRefusedError) and refusal.status in _ABOUT_SHAPE


def fallback_of(endpoint: str, table: TableName) -> Fallback | None:
    """The fallback that is remembered for a table of a server; None if there is none."""
    return _fallbacks.get(_key(endpoint, table))


def remember(endpoint: str, table: TableName, fallback: Fallback | None) -> None:
    """Remember the shape that was answered, for a thousand tables at most; None forgets the table."""
    if fallback is None:
        _fallbacks.forget(_key(endpoint, table))
    else:
        _fallbacks.put(_key(endpoint, table), fallback)


def fallback_after(refusal: ServerError, answered: Query) -> Fallback:
    """The fallback to remember after ``answered`` was answered and the other shape refused."""
    reason = refusal.server_message or f"HTTP {refusal.status}"
    return Fallback(answered.max_files is not None, reason[:_QUOTED])


def _key(endpoint: str, table: TableName) -> tuple[str, str]:
    return endpoint, str(table).lower()


_T = TypeVar("_T")
#: By endpoint, the features that the server does not know.
_unknown: ProcessCache[str, frozenset[str]] = ProcessCache(256)


def asked_with_known_features(endpoint: str, ask: Callable[[Sequence[str]], _T]) -> _T:
    """Ask with the reader features that the server may know.

    Args:
        endpoint: The server's.
        ask: Sends the request with these features.

    Raises:
        RequestRefusedError: The server refuses it also without the features that it named, or asks for one of them.
    """
    unknown = _unknown.get(endpoint) or frozenset()
    known = unknown
    first: RequestRefusedError | None = None
    while True:
        features = [name for name in reader_features_header().split(",") if name not in unknown]
        try:
            answer = ask(features)
        except RequestRefusedError as refusal:
            named = _first_named(refusal, features)
            if named is None:
                needs_it = first is not None and _first_named(refusal, sorted(unknown - known)) is not None
                raise (first if needs_it and first is not None else refusal) from None
            first = first or refusal
            unknown |= {named}
            continue
        if unknown != known:
            _unknown.put(endpoint, unknown)
        return answer


def _first_named(refusal: RequestRefusedError, features: Sequence[str]) -> str | None:
    """The first of some features that a refusal names; None if it is about something else."""
    if refusal.status != 400 or not features:
        return None
    names = "|".join(map(re.escape, sorted(features, key=len, reverse=True)))
    found = re.search(rf"(?i)(?<![\w-])(?:{names})(?![\w-])", refusal.server_message or "")
    return found and found[0].lower()
