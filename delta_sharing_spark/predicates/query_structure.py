"""The structure of a query: its SELECTs, the relations of each FROM, their conditions, and where a ``*`` stands."""

from __future__ import annotations

from collections.abc import Callable

from delta_sharing_spark.predicates.lexer import Source, Token
from delta_sharing_spark.predicates.query_conditions import Block, Name, Relation, Side
from delta_sharing_spark.predicates.query_tokens import (
    CLAUSES,
    NAMES,
    Group,
    Item,
    begins_clause,
    begins_join,
    grouped,
    is_word,
    name_of,
)
from delta_sharing_spark.schema.types import Struct

_JOIN_WORDS = {"JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI", "NATURAL", "ON", "USING",
               "LATERAL"}  # fmt: skip
#: With these, the columns of ``EXISTS (SELECT *`` matter.
_COUNTED_COLUMNS = ("UNION", "EXCEPT", "INTERSECT", "MINUS", "GROUP", "HAVING")
#: Words after a table's name that are no alias.
_NO_ALIAS = CLAUSES | _JOIN_WORDS | {"PIVOT", "UNPIVOT", "TABLESAMPLE", "SELECT", "FROM", "SET", "WITH", "VERSION", "FOR",
                                      "SYSTEM_VERSION", "SYSTEM_TIME", "ASOF", "WATERMARK", "MATCH_RECOGNIZE"}  # fmt: skip
_TRAVEL = {"VERSION", "TIMESTAMP", "FOR", "SYSTEM_VERSION", "SYSTEM_TIME", "WITH", "WATERMARK"}


class Structure:
    """A query taken apart by its words and parentheses.

    Args:
        source, tokens: The query.
        schema_of: As in ``analyse``.

    Attributes:
        blocks: Its SELECTs.
        starred: Aliases that a ``*`` is of.
        whole: Why every table must be read with all its columns; None if nothing says so.
        reversed: Whether a FROM stands before its SELECT, where conditions are not told apart.

    Raises:
        PredicateError: Parentheses that do not match, or a shared table in a place where its name cannot be replaced.
    """

    def __init__(self, source: Source, tokens: list[Token], schema_of: Callable[[Name], Struct | None]) -> None:
        self._source, self._tokens, self._schema_of = source, tokens, schema_of
        self.blocks: list[Block] = []
        self.starred: set[str] = set()
        self.whole: str | None = None
        self.reversed = False
        self._level(grouped(source, tokens), False)

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
                    self.blocks.append(block)
                elif item.value == "FROM" and at == 0:
                    block = Block(False, star=True, complicated="FROM")
                    self.blocks.append(block)
                    self.whole, self.reversed = self.whole or "FROM before SELECT", True
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
                self.whole = self.whole or "*"
        elif before.value == "." and before.kind == "operator":
            of = items[at - 2] if at > 1 else None
            if isinstance(of, Token) and of.kind in NAMES:
                self.starred.add(name_of(of).lower())
            else:
                self.whole = self.whole or "a qualified *"
        elif (before.kind == "word" and before.value in ("SELECT", "DISTINCT", "ALL")) or before.value == ",":
            if block is None:
                self.whole = self.whole or "*"
            elif not block.exists:
                block.star = True

    def _lone_star(self, star: Item) -> None:
        at = next(i for i, t in enumerate(self._tokens) if t.start == star.start)
        if at < 2 or not is_word(self._tokens[at - 2], "COUNT"):
            self.whole = self.whole or "*"

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
                self.blocks.append(inner)
                self._from(item.items, 0, inner)
                block.complicated = block.complicated or "joins in parentheses"
                inner.star = True  # the star may be of the SELECT around
            at += 1
        elif item.kind in NAMES:
            parts: list[Token] = [item]
            at += 1
            while at + 1 < len(items) and items[at].value == "." and items[at].kind == "operator":
                part = items[at + 1]
                if isinstance(part, Group) or part.kind not in NAMES:
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
                    relation.span = parts[0].start, parts[-1].end
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
        end = items[at - 1].end
        explicit = at < len(items) and is_word(items[at], "AS")
        named = at + 1 if explicit else at
        item = items[named] if named < len(items) else None
        if (
            isinstance(item, Token)
            and item.kind in NAMES
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
