"""Finds out which of a table's three names the server does not have, and suggests the nearest one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from delta_sharing_spark.errors import DeltaSharingError, NotFoundError
from delta_sharing_spark.options.values import nearest
from delta_sharing_spark.sharing.address import segment

if TYPE_CHECKING:
    from delta_sharing_spark.sharing.rest import SharingRest

#: Names looked at, which is one page of a listing, and names shown where none is near.
_LOOKED_AT, _SHOWN = 500, 5
#: Seconds for an answer, and for tries: the error is known already, and this only explains it.
_TIMEOUT = 5.0
#: What a 404 says to do, which the names that there are make needless.
_ADVICE = "; check the names of share, schema and table, and the endpoint in the profile"


def with_near_names(
    error: NotFoundError, rest: SharingRest, share: str, schema: str = "", table: str = ""
) -> NotFoundError:
    """The same error with the nearest names of the share added, if one page of one listing has any; else unchanged.

    Args:
        error: The server's 404.
        rest: The server that is asked for the listing.
        share, schema, table: The names asked for; without a table, or a schema, those whose content was to be listed.
    """
    settings = replace(rest.settings, read_timeout=min(_TIMEOUT, rest.settings.read_timeout), retry_seconds=0.0)
    brief = replace(rest, settings=settings)
    listings: tuple[tuple[str, str, Callable[[], Iterator[str]], str], ...] = (
        ("table", table, lambda: (t.name for t in brief.list_tables(share, schema)), f"{share}.{schema}"),
        ("schema", schema, lambda: (s.name for s in brief.list_schemas(share)), share),
        ("share", share, lambda: (s.name for s in brief.list_shares()), "the profile"),
    )
    for kind, name, listing, holder in listings:
        if not name:
            continue
        try:
            names = list(islice(listing(), _LOOKED_AT))
        except NotFoundError:
            continue  # the name above it is wrong as well
        except DeltaSharingError:
            return error
        hint = near_name(kind, name, names, holder)
        if hint is None:
            return error
        if kind == "table" and _is_volume(brief, share, schema, table):
            hint = f"it is a volume: client.volume('{share}.{schema}.{table}')"
        return NotFoundError(f"{str(error).removesuffix(_ADVICE)}; {hint}", **{**error.__dict__, "is_unlisted": True})
    return error


def _is_volume(rest: SharingRest, share: str, schema: str, name: str) -> bool:
    path = f"/shares/{segment(share)}/schemas/{segment(schema)}/volumes/{segment(name)}"
    try:
        return bool(rest.ask_json("GET", path, "the description of a volume"))
    except DeltaSharingError:
        return False  # the error is known already, and this only explains it


def near_name(kind: str, name: str, names: Iterable[str], holder: str) -> str | None:
    """That ``holder`` has no ``kind`` of a name, and what it has that is near; None if it has it."""
    known = sorted(names)
    if name.lower() in (k.lower() for k in known):
        return None
    if not known:
        return f"{holder} has no {kind}s"
    close = nearest(name, known)
    if close is not None:
        return f"{holder} has no {kind} {name!r}; did you mean {close!r}?"
    shown = ", ".join(map(repr, known[:_SHOWN])) + (", ..." if len(known) > _SHOWN else "")
    return f"{holder} has no {kind} {name!r}; it has {shown}"
