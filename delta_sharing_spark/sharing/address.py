"""Parses addresses: ``<profile>#<share>.<schema>.<table>`` and its parts.

A name that breaks the protocol's rules, and that a server lists all the same, stands in backquotes as in SQL:
``<profile>#`My share`.sales.`2024/q1```; a backquote in a name is doubled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote

from delta_sharing_spark.errors import AddressError
from delta_sharing_spark.schema.types import backquoted

_MAX_NAME = 255
_QUOTED = "`(?:[^`]|``)*`"
_BARE = "[^`#.]+"
_NAME = re.compile(rf"(?:{_QUOTED}|{_BARE})(?:\.(?:{_QUOTED}|{_BARE}))*")
#: An address whose name has a part in backquotes, in which a ``#`` is no mark.
_QUOTED_ADDRESS = re.compile(rf"(?P<profile>.*)#(?P<name>\s*{_NAME.pattern}\s*)", re.DOTALL)
_PART = re.compile(rf"{_QUOTED}|{_BARE}")


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's three-part name; names are compared without case by servers."""

    share: str
    schema: str
    table: str

    def __str__(self) -> str:
        """The name as ``parse_table_name`` reads it: odd parts in backquotes."""
        share, schema, table = (
            backquoted(name) if is_odd(name, kind) else name
            for kind, name in (("share", self.share), ("schema", self.schema), ("table", self.table))
        )
        return f"{share}.{schema}.{table}"

    @property
    def path(self) -> str:
        """The table's path below the endpoint, each segment quoted whole."""
        share, schema, table = (segment(n) for n in (self.share, self.schema, self.table))
        return f"/shares/{share}/schemas/{schema}/tables/{table}"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a table is: the profile that leads to its server (None with inline credentials), and its name."""

    profile: str | None = field(repr=False)
    table: TableName


def segment(name: str) -> str:
    """A name as one segment of a URL's path."""
    return quote(name, safe="")


def shares_path(share: str, schema: str | None = None) -> str:
    """The path of a share, or of a schema of it, below the endpoint; raises AddressError for a name that no path can have."""
    path = f"/shares/{segment(check_segment(share, 'share'))}"
    return path if schema is None else f"{path}/schemas/{segment(check_segment(schema, 'schema'))}"


def text_of(name: object, form: str) -> str:
    """A name or an address as a user gave it; raises AddressError, which says how it is written, where it is no text."""
    if not isinstance(name, str):
        raise AddressError(f"{str(name)[:100]!r} ({type(name).__name__}) is no text; write {form}")
    return name


def parse_address(text: str) -> Address:
    """Parse ``<profile>#<share>.<schema>.<table>``; the last ``#`` outside backquotes splits. Without it the profile is None. Raises AddressError."""
    text = text_of(text, "'<profile>#<share>.<schema>.<table>'")
    quoted = _QUOTED_ADDRESS.fullmatch(text) if "`" in text else None
    if quoted is not None:
        profile, mark, name = quoted["profile"], "#", quoted["name"]
    elif _quoted_parts(text.strip(), 3):
        profile, mark, name = "", "", text
    else:
        profile, mark, name = text.rpartition("#")
        if not mark and "/" in text:
            raise AddressError(
                f"the address {text!r} has no '#' between profile and table; write <profile>#<share>.<schema>.<table>"
            )
    if mark and not profile.strip():
        raise AddressError(f"the address {text!r} has no profile before '#'; write <profile>#<share>.<schema>.<table>")
    return Address(profile if mark else None, parse_table_name(name))


def parse_table_name(text: str) -> TableName:
    """Parse ``share.schema.table``: the last two dots separate schema and table, a share's name may contain more.

    Raises:
        AddressError: Not three parts, or a name that breaks the rules of the protocol and is not in backquotes.
    """
    share, schema, table = _parse_parts(text, ("share", "schema", "table"))
    return TableName(share, schema, table)


def parse_schema_name(text: str) -> tuple[str, str]:
    """Parse ``share.schema`` by the same rules; raises AddressError as ``parse_table_name``."""
    share, schema = _parse_parts(text, ("share", "schema"))
    return share, schema


def _parse_parts(text: str, kinds: tuple[str, ...]) -> list[str]:
    count, form = len(kinds), ".".join(f"<{kind}>" for kind in kinds)
    text = text_of(text, f"'{form}'").strip()
    is_quoted = "`" in text and _NAME.fullmatch(text) is not None
    parts = (_quoted_parts(text, count) or []) if is_quoted else text.rsplit(".", count - 1)
    if len(parts) != count or not all(parts):
        behind = ", after <profile># where a profile is used" if count == 3 else ""
        raise AddressError(f"{text!r} does not name a {kinds[-1]}; write {form}{behind}, and odd names in backquotes")
    return [
        check_name(part, kind) if (name := unquoted(part)) == part else check_segment(name, kind)
        for part, kind in zip(parts, kinds, strict=True)
    ]


def name_parts(text: str) -> list[str]:
    """The parts of a name, or of the beginning of one, at the periods outside backquotes, as they are written."""
    return _PART.findall(text) if _NAME.fullmatch(text) else text.split(".")


def unquoted(part: str) -> str:
    """What a part of a name means, which may stand in backquotes."""
    return part[1:-1].replace("``", "`") if re.fullmatch(_QUOTED, part) else part


def _quoted_parts(text: str, count: int) -> list[str] | None:
    """The parts of a name that has some in backquotes; a share without them may contain periods. None if it has not."""
    if _NAME.fullmatch(text) is None:
        return None
    parts = _PART.findall(text)
    share = parts[: len(parts) - count + 1]
    if len(share) > 1 and not any(part.startswith("`") for part in share):
        parts[: len(share)] = [".".join(share)]
    return parts if len(parts) == count and any(part.startswith("`") for part in parts) else None


def check_name(name: str, kind: str) -> str:
    """``name`` if the protocol allows it for a share, schema or table.

    Raises:
        AddressError: Empty, too long, or with a space, ``/`` or a control character; a period outside a share's name.
    """
    check_segment(name, kind)
    bad = next((c for c in name if c in " /\x7f" or ord(c) < 32), None)
    if bad is not None:
        raise AddressError(
            f"the {kind} name {name!r} contains {bad!r}, which the protocol does not allow; if the server lists it so, "
            f"write it in backquotes"
        )
    if kind != "share" and "." in name:
        raise AddressError(
            f"the {kind} name {name!r} contains a period, which the protocol allows in a share's name only; if the server "
            f"lists it so, write it in backquotes"
        )
    return name


def check_segment(name: str, kind: str) -> str:
    """``name`` if it can stand in a URL's path, whatever the protocol says of it: servers list odd names.

    Raises:
        AddressError: Empty, too long, a lone surrogate, or a name that a URL's path resolves away.
    """
    if not text_of(name, f"the {kind}'s name, or take what a listing holds"):
        raise AddressError(f"a {kind} name is empty; write <share>.<schema>.<table>")
    if len(name) > _MAX_NAME:
        raise AddressError(f"a {kind} name has {len(name)} characters; the protocol allows {_MAX_NAME}")
    if any("\ud800" <= c <= "\udfff" for c in name):
        raise AddressError(f"the {kind} name {name!r} contains half a character, which the protocol does not allow")
    if name in (".", ".."):
        raise AddressError(f"the {kind} name {name!r} cannot stand in a URL's path; ask the provider for another name")
    return name


def is_odd(name: str, kind: str) -> bool:
    """Whether a name that a server lists stands in backquotes: the protocol does not allow it, or addresses use its signs."""
    try:
        check_name(name, kind)
    except AddressError:
        return True
    return bool({"#", "`"} & set(name)) or name != name.strip()
