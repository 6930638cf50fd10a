"""Leaves out of a request the reader features that a server does not know, where it refuses the whole request for one.

Servers of OpenSharing answer 400 to a feature in ``readerfeatures`` that they have not heard of, and name it. The request
goes out again without that one, and the server is not told of it any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from delta_sharing_spark.errors import RequestRefusedError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.schema.features import reader_features_header

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
