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

from delta_sharing_spark.predicates.lexer import Source, Token, tokenize
from delta_sharing_spark.predicates.query_conditions import Block, Conditions, Name, Relation, Side
from delta_sharing_spark.predicates.query_tokens import (
    CLAUSES,
    Group,
    Item,
    begins_clause,
    begins_join,
    grouped,
    is_word,
    name_of,
)
from delta_sharing_spark.schema.types import Struct

_NAMES = ("word", "quoted")
_JOIN_WORDS = {"JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "NATURAL", "ON", "USING",
               "LATERAL"}  # fmt: skip
#: With these, the columns of ``EXISTS (SELECT *`` matter.
_COUNTED_COLUMNS = ("UNION", "EXCEPT", "INTERSECT", "MINUS", "GROUP", "HAVING")
#: Words after a table's name that are no alias.
_NO_ALIAS = CLAUSES | _JOIN_WORDS | {"PIVOT", "UNPIVOT", "TABLESAMPLE", "SELECT", "FROM", "SET", "WITH", "VERSION", "FOR",
                                      "SYSTEM_VERSION", "SYSTEM_TIME", "ASOF", "WATERMARK", "MATCH_RECOGNIZE"}  # fmt: skip
_TRAVEL = {"VERSION", "TIMESTAMP", "FOR", "SYSTEM_VERSION", "SYSTEM_TIME", "WITH", "WATERMARK"}
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
        edits += [*self._splices, *((at, at, text) for at, text in self._aliases)]
        text = self.text
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text


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
    conditions = Conditions(source, tokens, time_zone, load_zone or time_zone)
    return _Analysis(source, tokens, schema_of).run(conditions, refused)


class _Analysis:
    def __init__(self, source: Source, tokens: list[Token], schema_of: Callable[[Name], Struct | None]) -> None:
        self._source = source
        self._tokens = tokens
        self._schema_of = schema_of
        self._blocks: list[Block] = []
        #: Aliases that a ``*`` is of.
        self._starred: set[str] = set()
        #: Why every table is read with all its columns, and why none has a condition.
        self._whole = self._implied()
        unstable = next((f"{t.text}()" for t in tokens if t.kind == "word" and t.value in _UNSTABLE), None)
        self._unfiltered = unstable if self._whole in (None, *_COLUMNS_ONLY) else self._whole

    def run(self, conditions: Conditions, refused: str | None) -> Query:
        first = next((t for t in self._tokens if t.value != "("), self._tokens[-1])
        if first.kind != "word" or first.value not in ("SELECT", "WITH", "FROM", "TABLE", "VALUES"):
            raise self._source.error(first.start, "a query (SELECT or WITH) is needed here")
        self._level(grouped(self._source, self._tokens), False)
        named = {
            (t.text if t.kind != "quoted" else t.value).lower().strip('"') for t in self._tokens if t.kind != "operator"
        }
        references = []
        for block in self._blocks:
            conditions.give(block, refused or self._unfiltered)
            references += [self._reference(block, r, named) for r in block.relations if r.name]
        relations = [r for b in self._blocks for r in b.relations]
        added = tuple((r.alias_at, f" AS `{r.alias}`") for r in relations if r.alias_at is not None)
        ordered = tuple(sorted(references, key=lambda r: r.start))
        return Query(self._source.text, ordered, self._qualifiers(relations), added)

    def _implied(self) -> str | None:
        """What makes names stand for columns without naming them, anywhere in the query."""
        found = {_IMPLIED[t.value] for t in self._tokens if t.kind == "word" and t.value in _IMPLIED}
        for token, after in zip(self._tokens, self._tokens[1:], strict=False):
            if token.kind == "word" and token.value == "IDENTIFIER" and after.value == "(":
                return "IDENTIFIER()"
            if token.kind == "word" and token.value == "TABLE" and after.kind in _NAMES:
                return "TABLE"
            if token.value == "|>" and token.kind == "operator":
                return "the pipe syntax"
        return min(found, key=lambda why: why in _COLUMNS_ONLY) if found else None

    # structure

    def _level(self, items: list[Item], exists: bool) -> None:
        """Everything between two parentheses: the SELECTs in it, in order, and what is nested deeper."""
        block: Block | None = None
        at = 0
        while at < len(items):
            item, before = items[at], items[at - 1] if at else None
            dotted = before is not None and before.value == "." and before.kind == "operator"
            if isinstance(item, Group):
                exists = is_word(before, "EXISTS") and not any(is_word(i, *_COUNTED_COLUMNS) for i in item.items)
                self._level(item.items, exists)
            elif item.kind == "operator" and item.value == "*":
                self._star(items, at, block)
            elif item.kind == "word" and not dotted:
                if item.value == "SELECT":
                    if block is not None and block.complicated == "FROM":
                        at += 1
                        continue
                    block = Block(exists)
                    self._blocks.append(block)
                elif item.value == "FROM" and at == 0:
                    block = Block(False, star=True, complicated="FROM")
                    self._blocks.append(block)
                    self._whole = self._unfiltered = self._whole or "FROM before SELECT"
                    at = self._from(items, 1, block)
                    continue
                elif (
                    item.value == "FROM"
                    and block is not None
                    and not block.relations
                    and not is_word(before, "DISTINCT")
                ):
                    at = self._from(items, at + 1, block)
                    continue
                elif item.value == "FROM" and block is not None and not is_word(before, "DISTINCT"):
                    block.complicated = "a second FROM"
                elif item.value == "WHERE" and block is not None:
                    end = next((i for i in range(at + 1, len(items)) if begins_clause(items, i)), len(items))
                    if block.where:
                        block.complicated = "a second WHERE"
                    block.where = items[at + 1 : end]
            at += 1

    def _star(self, items: list[Item], at: int, block: Block | None) -> None:
        before = items[at - 1] if at else None
        if before is None:  # the first within parentheses
            if len(items) == 1 and block is None:
                self._lone_star(items[0])
            else:
                self._whole = self._whole or "*"
        elif before.value == "." and before.kind == "operator":
            of = items[at - 2] if at > 1 else None
            if isinstance(of, Token) and of.kind in _NAMES:
                self._starred.add(name_of(of).lower())
            else:
                self._whole = self._whole or "a qualified *"
        elif (before.kind == "word" and before.value in ("SELECT", "DISTINCT", "ALL")) or before.value == ",":
            if block is None:
                self._whole = self._whole or "*"
            elif not block.exists:
                block.star = True

    def _lone_star(self, star: Item) -> None:
        at = next(i for i, t in enumerate(self._tokens) if t.start == star.start)
        if at < 2 or not is_word(self._tokens[at - 2], "COUNT"):
            self._whole = self._whole or "*"

    def _from(self, items: list[Item], at: int, block: Block) -> int:
        """Read the relations of a FROM up to the clause that follows. Returns where that begins."""
        kind = ","
        while at < len(items):
            among: dict[Relation, Side] = {}
            at = self._relation(items, at, block, kind, among)
            on: list[Item] | None = None
            while at < len(items):  # an ON, or what is not understood
                item = items[at]
                ended = (
                    begins_clause(items, at) or begins_join(items, at) or is_word(item, "SELECT", "INSERT", "LATERAL")
                )
                if on is not None and not ended and not (item.kind == "operator" and item.value == ","):
                    on.append(item)
                elif on:
                    block.on.append((on, among))
                    on = None
                if begins_clause(items, at) or is_word(item, "SELECT", "INSERT"):
                    return at
                if isinstance(item, Group):
                    self._level(item.items, False)
                elif item.kind == "operator" and item.value == ",":
                    kind, at = ",", at + 1
                    break
                elif is_word(item, "LATERAL") and at + 1 < len(items) and is_word(items[at + 1], "VIEW"):
                    block.laterals = True
                    at = self._skip_view(items, at + 2)
                    continue
                elif begins_join(items, at):
                    words = []
                    while at < len(items) and begins_join(items, at):
                        words.append(items[at].value)
                        at += 1
                    kind = next((w for w in ("ANTI", "SEMI", "FULL", "RIGHT", "LEFT") if w in words), "INNER")
                    break
                elif on is None and is_word(item, "ON"):
                    on = []
                at += 1
            else:
                if on:
                    block.on.append((on, among))
                return at
        return at

    def _skip_view(self, items: list[Item], at: int) -> int:
        """Past ``LATERAL VIEW [OUTER] f(..) t AS a, b``, whose commas are not of the FROM."""
        while (
            at < len(items)
            and not begins_clause(items, at)
            and not begins_join(items, at)
            and not is_word(items[at], "LATERAL")
        ):
            item = items[at]
            if isinstance(item, Group):
                self._level(item.items, False)
            at += 1
        return at

    def _relation(self, items: list[Item], at: int, block: Block, kind: str, among: dict[Relation, Side]) -> int:
        """Read one relation; ``among`` is filled with those that its ON may be given to."""
        if is_word(items[at], "LATERAL"):
            block.complicated = block.complicated or "LATERAL"
            at += 1
        if at >= len(items):
            return at
        item = items[at]
        relation = Relation(None)
        if isinstance(item, Group):
            if item.items and (
                isinstance(item.items[0], Group) or is_word(item.items[0], "SELECT", "WITH", "VALUES", "FROM", "TABLE")
            ):
                self._level(item.items, False)
            else:  # joins in parentheses
                inner = Block(block.exists, complicated="joins in parentheses")
                self._blocks.append(inner)
                self._from(item.items, 0, inner)
                block.complicated = block.complicated or "joins in parentheses"
                inner.star = True  # the star may be of the SELECT around
            at += 1
        elif item.kind in _NAMES:
            parts: list[Token] = [item]
            at += 1
            while at + 1 < len(items) and items[at].value == "." and items[at].kind == "operator":
                part = items[at + 1]
                if isinstance(part, Group) or part.kind not in _NAMES:
                    break
                parts.append(part)
                at += 2
            relation.alias = name_of(parts[-1])
            if at < len(items) and isinstance(items[at], Group):
                block.complicated = block.complicated or "a table function"
            elif len(parts) == 3:
                name = (name_of(parts[0]), name_of(parts[1]), name_of(parts[2]))
                schema = self._schema_of(name)
                if schema is not None:
                    relation.name, relation.schema = name, schema
                    relation.span = parts[0].start, parts[-1].start + len(parts[-1].text)
        else:
            block.complicated = block.complicated or item.text
            return at
        at = self._alias(items, at, relation)
        among.update(block.join(relation, kind))
        return at

    def _alias(self, items: list[Item], at: int, relation: Relation) -> int:
        if relation.name and at < len(items):
            dated = is_word(items[at], "TIMESTAMP", "VERSION")
            following = items[at + 1 : at + 3]
            if (is_word(items[at], *_TRAVEL) and not dated) or (
                dated and len(following) == 2 and is_word(following[0], "AS") and is_word(following[1], "OF")
            ):
                raise self._source.error(
                    items[at].start, "options and time travel of a shared table are given to load(), not in SQL"
                )
        while at < len(items) and is_word(items[at], "TABLESAMPLE", "REPEATABLE"):
            at += 2
        end = items[at - 1].end if isinstance(items[at - 1], Group) else items[at - 1].start + len(items[at - 1].text)  # type: ignore[union-attr]
        explicit = at < len(items) and is_word(items[at], "AS")
        named = at + 1 if explicit else at
        item = items[named] if named < len(items) else None
        if (
            isinstance(item, Token)
            and item.kind in _NAMES
            and (explicit or item.kind == "quoted" or item.value not in _NO_ALIAS)
        ):
            relation.alias = name_of(item)
            at = named + 1
            if at < len(items) and isinstance(items[at], Group):
                relation.renamed = True
                at += 1
        elif relation.name:
            relation.alias_at = end
        return at

    # what each table needs

    def _reference(self, block: Block, relation: Relation, named: set[str]) -> TableReference:
        assert relation.name is not None
        assert relation.schema is not None
        assert relation.alias is not None
        why = self._whole or (
            "*"
            if block.star or relation.alias.lower() in self._starred
            else "an alias with column names"
            if relation.renamed
            else None
        )
        columns = None if why else tuple(f.name for f in relation.schema.fields if f.name.lower() in named)
        where = " AND ".join(f"({text})" for text in relation.where) or None
        unpushed = "; ".join(dict.fromkeys(relation.unpushed)) or None
        return TableReference(relation.name, *relation.span, relation.alias, columns, where, why, unpushed)

    def _qualifiers(self, relations: list[Relation]) -> tuple[tuple[int, int, str], ...]:
        """Columns named by the whole name of a table without alias: the name becomes the alias that is added."""
        unaliased = {tuple(p.lower() for p in r.name): r for r in relations if r.name and r.alias_at is not None}
        spans = {r.span[0] for r in relations if r.name}
        aliases = {(r.alias or "").lower() for r in relations}
        edits: list[tuple[int, int, str]] = []
        tokens, at = self._tokens, 0
        while at < len(tokens):
            chain = [at]
            while (
                chain[-1] + 2 < len(tokens) and tokens[chain[-1]].kind in _NAMES and tokens[chain[-1] + 1].value == "."
            ):
                chain.append(chain[-1] + 2)
            if len(chain) > 2 and tokens[at].start not in spans:
                parts = tuple(name_of(tokens[i]).lower() for i in chain)
                found = unaliased.get(parts[:3]) if len(chain) > 3 else None
                size = 3
                if found is None and parts[0] not in aliases:
                    size, found = 2, next((r for name, r in unaliased.items() if name[1:] == parts[:2]), None)
                if found is not None:
                    last = tokens[chain[size - 1]]
                    edits.append((tokens[at].start, last.start + len(last.text), f"`{found.alias}`"))
            at = chain[-1] + 1
        return tuple(edits)
