"""Receives the next page of a query while one is parsed: a page's last line tells the next one's token."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TypeAlias

from delta_sharing_spark.network.parallel_calls import begin

#: Bytes of a page that is held whole; a longer one is parsed as it arrives, and nothing is asked for ahead.
_HELD_BYTES = 32 << 20
#: Of a last line that is looked at before the lines above it.
_LONGEST_END = 64 << 10

#: The headers of a page, and its body.
HeldPage: TypeAlias = "tuple[Mapping[str, str], list[bytes]]"


class PagesAhead:
    """The page that is being received, of one query; one at a time, which is dropped if another is asked for."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._coming: tuple[str, Future[HeldPage]] | None = None

    def take(self, token: str) -> HeldPage | None:
        """Wait for the page of a token; None if it was not begun, or is too long to be held. Raises as ``receive`` did."""
        coming, self._coming = self._coming, None
        if coming is None or coming[0] != token:
            return None
        try:
            return coming[1].result()
        except _TooLong:
            return None

    def begin(self, chunks: Iterable[bytes], receive: Callable[[str], HeldPage]) -> Iterator[bytes]:
        """The chunks of a page, once ``receive`` was begun with the token in its last line."""
        arriving = iter(chunks)
        try:
            body = held(arriving)
        except _TooLong as long:
            return itertools.chain(long.chunks, arriving)
        token = _next_token(body)
        if token is not None and token not in self._begun:
            self._begun.add(token)
            self._coming = token, begin([partial(receive, token)], 1)[0]
        return iter(body)


class _TooLong(Exception):
    """A page of more bytes than are held, and the chunks that have arrived of it."""

    def __init__(self, chunks: list[bytes]) -> None:
        super().__init__()
        self.chunks = chunks


def held(chunks: Iterable[bytes]) -> list[bytes]:
    """All chunks of a page; raises _TooLong where they are too many."""
    body, size = [], 0
    for chunk in chunks:
        body.append(chunk)
        size += len(chunk)
        if size > _HELD_BYTES:
            raise _TooLong(body)
    return body


def _next_token(body: list[bytes]) -> str | None:
    """The token in the last line, if it is one that tells of a next page; what is wrong with it is the parser's to say."""
    end = b""
    for chunk in reversed(body):
        end = chunk + end
        if len(end) > _LONGEST_END or b"\n" in end.rstrip():
            break
    last = end.rstrip().rpartition(b"\n")[2]
    if len(last) > _LONGEST_END or b"nextPageToken" not in last:
        return None
    try:
        tree = json.loads(last)
        token = tree.get("endStreamAction", tree).get("nextPageToken")
    except (ValueError, RecursionError, AttributeError):
        return None
    return token if isinstance(token, str) and token else None
