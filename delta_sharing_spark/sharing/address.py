"""Addresses: ``<profile>#<share>.<schema>.<table>`` and its parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

from delta_sharing_spark.errors import AddressError

_MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's three-part name; names are compared without case by servers."""

    share: str
    schema: str
    table: str

    def __str__(self) -> str:
        return f"{self.share}.{self.schema}.{self.table}"

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


def parse_address(text: str) -> Address:
    """Parse ``<profile>#<share>.<schema>.<table>``; the last ``#`` splits. Without ``#`` the profile is None.

    Raises:
        AddressError: A part is missing or breaks the naming rules.
    """
    profile, mark, name = text.rpartition("#")
    if mark and not profile.strip():
        raise AddressError(f"the address {text!r} has no profile before '#'; write <profile>#<share>.<schema>.<table>")
    return Address(profile if mark else None, parse_table_name(name))


def parse_table_name(text: str) -> TableName:
    """Parse ``share.schema.table``: the last two dots separate schema and table, a share's name may contain more.

    Raises:
        AddressError: Not three parts, or a name that breaks the rules of the protocol.
    """
    parts = text.strip().rsplit(".", 2)
    if len(parts) != 3 or not all(parts):
        raise AddressError(
            f"{text!r} does not name a table; write <share>.<schema>.<table>, after <profile># where a profile is used"
        )
    for kind, name in zip(("share", "schema", "table"), parts, strict=True):
        check_name(name, kind)
    return TableName(*parts)


def check_name(name: str, kind: str) -> str:
    """``name`` if the protocol allows it for a share, schema or table.

    Raises:
        AddressError: Empty, too long, or with a space, ``/`` or a control character; a period outside a share's name.
    """
    if not name:
        raise AddressError(f"a {kind} name is empty; write <share>.<schema>.<table>")
    if len(name) > _MAX_NAME:
        raise AddressError(f"a {kind} name has {len(name)} characters; the protocol allows {_MAX_NAME}")
    bad = next((c for c in name if c in " /\x7f" or ord(c) < 32 or "\ud800" <= c <= "\udfff"), None)
    if bad is not None:
        raise AddressError(f"the {kind} name {name!r} contains {bad!r}, which the protocol does not allow")
    if name in (".", ".."):
        raise AddressError(f"the {kind} name {name!r} cannot stand in a URL's path; ask the provider for another name")
    if kind != "share" and "." in name:
        raise AddressError(
            f"the {kind} name {name!r} contains a period, which the protocol allows in a share's name only"
        )
    return name
