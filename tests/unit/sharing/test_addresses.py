"""Addresses and names: what is one, what is not, and how a name stands in a URL (peers.md T33 to T37)."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import AddressError
from delta_sharing_spark.sharing.address import Address, TableName, check_name, parse_address, parse_table_name

NAMES = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters=" ./\x7f#"), min_size=1, max_size=255
).filter(lambda text: text == text.strip())


@pytest.mark.parametrize(
    ("text", "profile", "table"),
    [
        ("file:///foo/bar#a.b.c", "file:///foo/bar", "a.b.c"),  # T33
        ("file:///foo/bar#bar#a.b.c", "file:///foo/bar#bar", "a.b.c"),  # T34
        # T35: the reference keeps the space as part of the name; no name may hold one, so here it is white space around.
        ("file:///foo/bar#a.b.c ", "file:///foo/bar", "a.b.c"),
        # T36 in part: a share's name may contain periods, so this is share "a.b" where the reference refuses.
        ("foo#a.b.c.d", "foo", "a.b.c.d"),
        ("a.b.c", None, "a.b.c"),  # T37: with inline credentials
        ("s3://bucket/p.share#sh.1.sch.t", "s3://bucket/p.share", "sh.1.sch.t"),
    ],
)
def test_the_last_mark_splits(text: str, profile: str | None, table: str) -> None:
    address = parse_address(text)
    assert address == Address(profile, parse_table_name(table))
    assert str(address.table) == table


@pytest.mark.parametrize("text", ["p.share/sh.sch.t", "/home/me/p.share.sh.sch.t", "s3://bucket/p.share/sh.sch.t"])
def test_a_path_without_its_mark_is_told_of_it(text: str) -> None:
    with pytest.raises(AddressError, match=r"has no '#' between profile and table; write <profile>#<share>"):
        parse_address(text)


def test_the_last_two_periods_separate() -> None:
    assert parse_table_name("my.share.v2.sch.t") == TableName("my.share.v2", "sch", "t")


@pytest.mark.parametrize(
    "text",
    ["file:///foo/bar", "#a.b.c", "foo#a.b", "foo#a.b.", "foo#a.b.c.", "foo#.b.c", "foo#", "", "foo#a..c", " #a.b.c"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(AddressError, match=r"<share>\.<schema>\.<table>"):
        parse_address(text)


@pytest.mark.parametrize(
    ("name", "kind", "why"),
    [
        ("", "schema", "empty"),
        ("x" * 256, "table", "256 characters"),
        ("a b", "table", "' '"),
        ("a/b", "share", "'/'"),
        ("a\x00", "share", "does not allow"),
        ("a\x7f", "schema", "does not allow"),
        ("a\ud800", "schema", "does not allow"),
        ("..", "share", "cannot stand"),
        ("a.b", "schema", "period"),
        ("a.b", "table", "period"),
    ],
)
def test_names_that_the_protocol_does_not_allow(name: str, kind: str, why: str) -> None:
    with pytest.raises(AddressError, match=why):
        check_name(name, kind)


@given(st.lists(NAMES, min_size=1, max_size=3).map(".".join).filter(lambda s: len(s) <= 255), NAMES, NAMES)
def test_any_allowed_name_survives_parsing_and_quoting(share: str, schema: str, table: str) -> None:
    """Segments are quoted whole: the reference client sends ``?``, ``#`` and ``%`` as they are (peers.md D4)."""
    name = parse_address(f"p#{share}.{schema}.{table}").table
    assert name == TableName(share, schema, table)
    segments = name.path.split("/")
    assert [unquote(s) for s in segments] == ["", "shares", share, "schemas", schema, "tables", table]
    assert not set("?#;& ") & set(name.path)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_address_error(text: str) -> None:
    with suppress(AddressError):
        parse_address(text)


ODD_NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=40).filter(
    lambda text: text not in (".", "..")
)


@given(ODD_NAMES, ODD_NAMES, ODD_NAMES)
def test_whatever_a_server_lists_can_be_written(share: str, schema: str, table: str) -> None:
    """A name as a ``TableName`` writes it is read as the same name, alone and behind any profile."""
    name = TableName(share, schema, table)
    assert parse_table_name(str(name)) == name
    assert parse_address(str(name)) == Address(None, name)
    assert parse_address(f"/tmp/a `b`#c.share#{name}") == Address("/tmp/a `b`#c.share", name)
    assert [unquote(part) for part in name.path.split("/")[2::2]] == [share, schema, table]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("`Ünïcode share`.s.t", ("Ünïcode share", "s", "t")),
        ("a.b.`c.d`", ("a", "b", "c.d")),
        ("a.b.s.`c.d`", ("a.b", "s", "c.d")),
        (" `a#b`.`s`.`x``y` ", ("a#b", "s", "x`y")),
        ("a`b.s.t", ("a`b", "s", "t")),
    ],
)
def test_names_in_backquotes(text: str, parts: tuple[str, str, str]) -> None:
    assert parse_address(f"p.share#{text}") == Address("p.share", TableName(*parts))
    assert parse_table_name(text) == TableName(*parts)


@pytest.mark.parametrize("text", ["`a b`.s", "`a b`.`s.1`", "`a b.s.t", "``.s.t", "`a`b.c d.t", "`..`.s.t"])
def test_backquotes_that_name_no_table(text: str) -> None:
    with pytest.raises(AddressError):
        parse_table_name(text)
