"""What a SQL query needs of each shared table it names, by the places of its tokens; the text is never regenerated.

Two rules make narrowing safe without analysing names as Spark does:

* *Columns*: a table keeps every column whose name stands anywhere in the query. A column that is not named can matter
  only where names are implied (``*``, NATURAL, USING, PIVOT, column lists of aliases...): there the whole table is read.
* *Rows*: a conjunct of a WHERE or an ON is given to a table of the same FROM only if it is in the language of ``where``,
  speaks of that table alone, and no row without it could change the result (``query_conditions``). Spark applies the
  WHERE and the ON again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from delta_sharing_spark.predicates.lexer import Source, Token, tokenize
from delta_sharing_spark.predicates.query_conditions import Conditions, Name, Relation
from delta_sharing_spark.predicates.query_structure import Structure
from delta_sharing_spark.predicates.query_tokens import NAMES, edited, name_of
from delta_sharing_spark.schema.types import Struct

#: What makes names stand for columns without naming them; and what of it also decides which rows there are.
_IMPLIED = {"PIVOT": "PIVOT", "UNPIVOT": "UNPIVOT", "NATURAL": "a NATURAL join", "USING": "USING", "TABLESAMPLE": "TABLESAMPLE",
            "MATCH_RECOGNIZE": "MATCH_RECOGNIZE", "RECURSIVE": "a recursive query"}  # fmt: skip
_COLUMNS_ONLY = ("a NATURAL join", "USING")
_UNSTABLE = {"RAND", "RANDN", "RANDOM", "UUID", "SHUFFLE", "UNIFORM", "RANDSTR", "MONOTONICALLY_INCREASING_ID",
             "SPARK_PARTITION_ID", "INPUT_FILE_NAME", "INPUT_FILE_BLOCK_START", "INPUT_FILE_BLOCK_LENGTH"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableReference:
    """One shared table in a query.

    Attributes:
        name: Share, schema and table as written.
        start, end: Its place in the text (``text[start:end]``).
        alias: The name that the query's columns know it by.
        columns: The columns to load, in the table's order (possibly none, as in ``count(*)``); None for all.
        where: A condition, in the language of ``where``, that may be applied to its rows; None for none.
        whole: Why all columns are read; None if they are not.
        unpushed: Why no condition is given, or not all of them; None if there is nothing to say.
    """

    name: Name
    start: int
    end: int
    alias: str
    columns: tuple[str, ...] | None
    where: str | None
    whole: str | None = None
    unpushed: str | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """A query's text, the shared tables in it, and where their names are to be replaced."""

    text: str
    references: tuple[TableReference, ...]
    _splices: tuple[tuple[int, int, str], ...] = field(repr=False, default=())
    _aliases: tuple[tuple[int, str], ...] = field(repr=False, default=())

    def splice(self, names: Sequence[str]) -> str:
        """The text with the i-th reference's name replaced by ``names[i]`` (a SQL identifier), all else as it was."""
        edits = [(r.start, r.end, name) for r, name in zip(self.references, names, strict=True)]
        return edited(self.text, [*edits, *self._splices, *((at, at, text) for at, text in self._aliases)])


def analyse(
    text: str,
    schema_of: Callable[[Name], Struct | None],
    *,
    time_zone: str = "UTC",
    load_zone: str | None = None,
    refused: str | None = None,
) -> Query:
    """Find the shared tables of a query, and the columns and conditions that each may be loaded with.

    Args:
        text: A Spark SQL query (SELECT or WITH).
        schema_of: The schema of the shared table of that name; None if the name is not one of a shared table.
        time_zone: The session's zone.
        load_zone: The zone in which a load reads ``where``; the session's by default.
        refused: Why no table may be given a condition; None if they may.

    Raises:
        PredicateError: Not a query, or a shared table in a place where its name cannot be replaced.
    """
    source = Source(text, query=True)
    tokens = tokenize(source)
    first = next((t for t in tokens if t.value != "("), tokens[-1])
    if first.kind != "word" or first.value not in ("SELECT", "WITH", "FROM", "TABLE", "VALUES"):
        raise source.error(first.start, "a query (SELECT or WITH) is needed here")
    implied = _implied(tokens)
    structure = Structure(source, tokens, schema_of)
    whole = implied or structure.whole
    unfiltered = implied
    if implied in (None, *_COLUMNS_ONLY):
        unfiltered = next((f"{t.text}()" for t in tokens if t.kind == "word" and t.value in _UNSTABLE), None)
    if structure.reversed:
        unfiltered = whole
    named = {(t.text if t.kind != "quoted" else t.value).lower().strip('"') for t in tokens if t.kind != "operator"}
    conditions = Conditions(source, tokens, time_zone, load_zone or time_zone)
    references = []
    for block in structure.blocks:
        conditions.give(block, refused or unfiltered)
        for relation in block.relations:
            if relation.name:
                starred = block.star or (relation.alias or "").lower() in structure.starred
                why = whole or ("*" if starred else "an alias with column names" if relation.renamed else None)
                references.append(_reference(relation, why, named))
    relations = [r for b in structure.blocks for r in b.relations]
    added = tuple((r.alias_at, f" AS `{r.alias}`") for r in relations if r.alias_at is not None)
    ordered = tuple(sorted(references, key=lambda r: r.start))
    return Query(text, ordered, _qualifiers(tokens, relations), added)


def _implied(tokens: list[Token]) -> str | None:
    """What makes names stand for columns without naming them, anywhere in the query."""
    found = {_IMPLIED[t.value] for t in tokens if t.kind == "word" and t.value in _IMPLIED}
    for token, after in pairwise(tokens):
        if token.kind == "word" and token.value == "IDENTIFIER" and after.value == "(":
            return "IDENTIFIER()"
        if token.kind == "word" and token.value == "TABLE" and after.kind in NAMES:
            return "TABLE"
        if token.value == "|>" and token.kind == "operator":
            return "the pipe syntax"
    return min(found, key=lambda why: why in _COLUMNS_ONLY) if found else None


def _reference(relation: Relation, whole: str | None, named: set[str]) -> TableReference:
    assert relation.name is not None
    assert relation.schema is not None
    assert relation.alias is not None
    columns = None if whole else tuple(f.name for f in relation.schema.fields if f.name.lower() in named)
    where = " AND ".join(f"({text})" for text in relation.where) or None
    unpushed = "; ".join(dict.fromkeys(relation.unpushed)) or None
    return TableReference(relation.name, *relation.span, relation.alias, columns, where, whole, unpushed)


def _qualifiers(tokens: list[Token], relations: list[Relation]) -> tuple[tuple[int, int, str], ...]:
    """Columns named by the whole name of a table without alias: the name becomes the alias that is added."""
    unaliased = {tuple(p.lower() for p in r.name): r for r in relations if r.name and r.alias_at is not None}
    spans = {r.span[0] for r in relations if r.name}
    aliases = {(r.alias or "").lower() for r in relations}
    edits: list[tuple[int, int, str]] = []
    at = 0
    while at < len(tokens):
        chain = [at]
        while chain[-1] + 2 < len(tokens) and tokens[chain[-1]].kind in NAMES and tokens[chain[-1] + 1].value == ".":
            chain.append(chain[-1] + 2)
        if len(chain) > 2 and tokens[at].start not in spans:
            parts = tuple(name_of(tokens[i]).lower() for i in chain)
            found = unaliased.get(parts[:3]) if len(chain) > 3 else None
            size = 3
            if found is None and parts[0] not in aliases:
                size, found = 2, next((r for name, r in unaliased.items() if name[1:] == parts[:2]), None)
            if found is not None:
                last = tokens[chain[size - 1]]
                edits.append((tokens[at].start, last.end, f"`{found.alias}`"))
        at = chain[-1] + 1
    return tuple(edits)
