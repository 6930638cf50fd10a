"""Finds and replaces the three-part table names in a SQL text; the rest of the text is left to Spark unread."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.schema.types import backquoted
from delta_sharing_spark.sharing.address import parse_address

_TOKEN = re.compile(
    r"""(?P<space>\s+|--(?:\\\n|[^\r\n])*)
      | (?P<comment>/\*)
      | (?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
#: What stands before a table in a query. A comma or a parenthesis may as well stand before a column.
_BEFORE_TABLE = {"FROM", "JOIN", "TABLE", "LATERAL", ",", "("}
#: What stands after a table that has no alias.
_AFTER_TABLE = {"", ")", ",", ";", "|", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "JOIN", "INNER", "CROSS", "LEFT", "RIGHT",
                "FULL", "NATURAL", "SEMI", "ANTI", "ON", "USING", "UNION", "EXCEPT", "INTERSECT", "MINUS"}  # fmt: skip
_VERSION, _TIMESTAMP = ("VERSION", "SYSTEM_VERSION"), ("TIMESTAMP", "SYSTEM_TIME")

Name = tuple[str, str, str]


#: Time travel in statements, by the options that it becomes.
TIME_TRAVEL = {"versionAsOf": "VERSION AS OF", "timestampAsOf": "TIMESTAMP AS OF"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token: ``kind`` is ``string``, ``quoted``, ``word``, ``other`` or ``end``; ``word`` is upper-cased, else the text."""

    kind: str
    text: str
    start: int
    word: str

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def name(self) -> str | None:
        """The name that the token stands for; None if it is no name."""
        if self.kind == "quoted":
            return self.text[1:-1].replace(self.text[0] * 2, self.text[0])
        return self.text if self.kind == "word" else None


@dataclass(frozen=True, slots=True)
class TableReference:
    """One mention of a three-part name where a table may stand.

    Attributes:
        name: Catalog (or share), schema and table as written, without quotes.
        start, end: Its offsets in the text, time travel included.
        is_name_only: Whether only a name may stand here, nothing in parentheses (``TABLE a.b.c``).
        has_no_alias: Whether it certainly has no alias, so that columns may be qualified by its schema and catalog.
        version, timestamp: The literals of VERSION AS OF and TIMESTAMP AS OF.
        profile: The profile of a table that is named by its address, ``deltaSharing.`profile#share.schema.table` ``.
    """

    name: Name
    start: int
    end: int
    is_name_only: bool = False
    has_no_alias: bool = False
    version: str | None = None
    timestamp: str | None = None
    profile: str | None = None

    @property
    def travel(self) -> dict[str, str]:
        """Its time travel as options of a load; a moment without a zone is in the session's."""
        options = dict(zip(TIME_TRAVEL, (self.version, self.timestamp), strict=True))
        return {name: value for name, value in options.items() if value is not None}


def tokens_of(text: str, *, double_quoted_names: bool = False) -> list[Token]:
    """The text's tokens as Spark's lexer makes them, without comments, and one of kind ``end``. No text is refused."""
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        assert match is not None
        kind, lexeme, start = str(match.lastgroup), match[0], position
        position = match.end()
        if kind == "comment":
            position = _end_of_comment(text, position)
        elif kind != "space":
            if kind == "string" and lexeme[0] == '"' and double_quoted_names:
                kind = "quoted"
            tokens.append(Token(kind, lexeme, start, lexeme.upper() if kind == "word" else lexeme))
    return [*tokens, Token("end", "", len(text), "")]


def _end_of_comment(text: str, position: int) -> int:
    """Where a bracketed comment ends that was opened before ``position``; they nest."""
    depth = 1
    while depth:
        mark = _COMMENT_MARK.search(text, position)
        if mark is None:
            return len(text)
        depth += 1 if mark[0] == "/*" else -1
        position = mark.end()
    return position


def table_references(text: str, tokens: Sequence[Token]) -> list[TableReference]:
    """Every three-part name that stands where a table may stand, and every address behind the name of the format.

    Raises:
        PredicateError: Time travel by anything but a literal.
        AddressError: An address that is none.
    """
    references = []
    position = 0
    while position < len(tokens) - 1:
        before = tokens[position - 1].word if position else ""
        chain, after = _name_at(tokens, position)
        if len(chain) == 3 and before in _BEFORE_TABLE and tokens[after].text not in (".", "("):
            references.append(_reference(text, tokens, position, after, (chain[0], chain[1], chain[2])))
        elif len(chain) == 2 and chain[0].lower() == "deltasharing" and before in _BEFORE_TABLE and "#" in chain[1]:
            address = parse_address(chain[1])
            name = (address.table.share, address.table.schema, address.table.table)
            references.append(replace(_reference(text, tokens, position, after, name), profile=address.profile))
        position = after
    return references


def _name_at(tokens: Sequence[Token], position: int) -> tuple[list[str], int]:
    """The dotted name that begins at a token, and the position of the token after it; no parts if there is none."""
    if tokens[position].word == "IDENTIFIER" and [t.text for t in tokens[position + 1 : position + 4 : 2]] == [
        "(",
        ")",
    ]:
        inner = tokens_of(tokens[position + 2].text[1:-1])
        chain, after = _name_at(inner, 0)
        if tokens[position + 2].kind == "string" and inner[after].kind == "end":
            return chain, position + 4
    chain = []
    while (name := tokens[position].name) is not None:
        chain.append(name)
        position += 1
        if tokens[position].text != "." or tokens[position + 1].name is None:
            return chain, position
        position += 1
    return chain, position + 1


def _reference(text: str, tokens: Sequence[Token], start: int, after: int, name: Name) -> TableReference:
    is_name_only = "TABLE" in (
        tokens[start - 1].word,
        tokens[start - 2].word if tokens[start - 1].text == "(" and start > 1 else "",
    )
    end, version, timestamp = tokens[after - 1].end, None, None
    keyword = after + 1 if tokens[after].word == "FOR" else after
    travel = tokens[keyword].word
    if [t.word for t in tokens[keyword + 1 : keyword + 3]] == ["AS", "OF"] and travel in _VERSION + _TIMESTAMP:
        value = keyword + 3
        if tokens[value].word in ("TIMESTAMP", "DATE") and travel in _TIMESTAMP:
            value += 1
        literal = tokens[value]
        plain = literal.text[1:-1] if literal.kind == "string" else literal.text
        numeric = literal.kind == "word" and plain.isdecimal() and travel in _VERSION
        following = tokens[value + 1]
        ends = following.kind in ("word", "quoted", "end") or following.text in (")", ",", ";", "|")
        if not (literal.kind == "string" or numeric) or "\\" in plain or not ends:
            raise PredicateError(
                f"query, position {literal.start + 1}: time travel of {'.'.join(name)} takes a number or a string here; "
                f"compute it first and write it as a literal",
                position=literal.start,
            )
        version, timestamp = (plain, None) if travel in _VERSION else (None, plain)
        after, end = value + 1, literal.end
    return TableReference(
        name, tokens[start].start, end, is_name_only, tokens[after].word in _AFTER_TABLE, version, timestamp
    )


def with_frames(text: str, tokens: Sequence[Token], references: Sequence[TableReference], frames: Sequence[str]) -> str:
    """The text with each reference replaced by a data frame's name in braces, as ``spark.sql(text, **frames)`` takes it.

    A frame stands in parentheses with the table's own name as alias, so that an alias that follows it, or none, means
    what it meant. Columns that are qualified by schema or catalog are qualified by that alias.
    """
    edits: list[tuple[int, int, str]] = []
    for reference, frame in zip(references, frames, strict=True):
        alias = f"{{{frame}}}" if reference.is_name_only else f"({{{frame}}} AS {_quoted(reference.name[2])})"
        edits.append((reference.start, reference.end, alias))
    unaliased = {
        tuple(part.lower() for part in name): r.name[2]
        for r in references
        if r.has_no_alias
        for name in (r.name, r.name[1:])
    }
    edits += _qualifiers(tokens, unaliased, [(r.start, r.end) for r in references])
    pieces, position = [], 0
    for start, end, new in sorted(edits):
        pieces += [_escaped(text[position:start]), new]
        position = end
    return "".join([*pieces, _escaped(text[position:])])


def _qualifiers(
    tokens: Sequence[Token], tables: dict[tuple[str, ...], str], taken: Sequence[tuple[int, int]]
) -> list[tuple[int, int, str]]:
    """Edits of ``schema.table.column`` and ``catalog.schema.table.column`` (or ``*``) to ``table.column``."""
    edits = []
    position = 0
    while position < len(tokens) - 1:
        chain, after = _name_at(tokens, position)
        starred = tokens[after].text == "."
        for length in (3, 2):
            table = tables.get(tuple(part.lower() for part in chain[:length]))
            inside = any(start <= tokens[position].start < end for start, end in taken)
            qualifies = len(chain) > length or (len(chain) == length and starred)
            if table is not None and qualifies and not inside:
                edits.append((tokens[position].start, tokens[position + 2 * length - 2].end, _quoted(table)))
                break
        position = after
    return edits


def _quoted(name: str) -> str:
    return _escaped(backquoted(name))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
