"""Which conditions of a SELECT may be applied to the rows of one of its tables before anything else is done with them.

What is given to a table never changes the result. With R the rows of the table, and c a condition on R alone that is
implied by a WHERE or an ON:

* WHERE, R not made NULL by an outer join: a row of R that fails c has no part in any row that passes.
* WHERE, R on the side that an outer join fills with NULL: without the rows that fail c, others may be filled with NULL
  in their place; if c does not hold for NULLs either, those fail just as well. So c is given only if it refuses NULLs.
* ON of an inner join: as a WHERE over what is joined so far. Of a semi join: the same.
* ON of an outer or anti join: rows of the side that is not preserved matter only where they match, and the rows that
  fail c match nothing. The preserved side keeps the rows that fail c, and is given nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.lexer import Source, Token
from delta_sharing_spark.predicates.query_constants import folded
from delta_sharing_spark.predicates.query_tokens import (
    NAMES,
    Group,
    Item,
    conjuncts_of,
    disjuncts_of,
    edited,
    flat,
    is_word,
    name_of,
)
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import Expression, columns
from delta_sharing_spark.schema.types import Struct

Name = tuple[str, str, str]
#: ``kept``: a row that fails a condition has no part in the result; ``filled``: or NULLs stand in its place;
#: ``hidden``: the right side of a semi or anti join.
Side = Literal["kept", "filled", "hidden"]


@dataclass(slots=True, eq=False)
class Relation:
    """One relation of a FROM; ``schema`` and ``name`` are None for what is not a shared table."""

    alias: str | None
    name: Name | None = None
    schema: Struct | None = None
    span: tuple[int, int] = (0, 0)
    #: Where an alias has to be written, if the query gives none.
    alias_at: int | None = None
    #: The alias names the columns anew, by their order.
    renamed: bool = False
    side: Side = "kept"
    where: list[str] = field(default_factory=list)
    unpushed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Block:
    """One SELECT: its relations, its conditions, and what keeps it from being narrowed."""

    exists: bool
    relations: list[Relation] = field(default_factory=list)
    where: list[Item] = field(default_factory=list)
    #: Each ON, with the relations that it may be given to.
    on: list[tuple[list[Item], dict[Relation, Side]]] = field(default_factory=list)
    star: bool = False
    laterals: bool = False
    complicated: str | None = None

    def join(self, relation: Relation, kind: str) -> dict[Relation, Side]:
        """Add a relation, by ``INNER``, ``LEFT``, ``RIGHT``, ``FULL``, ``SEMI``, ``ANTI`` or a comma.

        Returns:
            The relations that conditions of the join's ON may be given to, as they stand before the join.
        """
        before: dict[Relation, Side] = {r: r.side for r in self.relations if r.side != "hidden"}
        new: dict[Relation, Side] = {relation: "kept"}
        if kind in ("RIGHT", "FULL"):
            for other in before:
                other.side = "filled"
        relation.side = "filled" if kind in ("LEFT", "FULL") else "hidden" if kind in ("SEMI", "ANTI") else "kept"
        self.relations.append(relation)
        if kind in ("LEFT", "ANTI"):
            return new
        if kind == "RIGHT":
            return before
        return {} if kind == "FULL" else {**before, **new}


class Conditions:
    """Gives each relation of a block the conditions that it may be loaded with.

    Args:
        source, tokens: The query.
        time_zone: The session's zone, in which Spark reads literals.
        load_zone: The zone in which a load reads them; what means another thing there is not given.
    """

    def __init__(self, source: Source, tokens: list[Token], time_zone: str, load_zone: str) -> None:
        self._source = source
        self._tokens = tokens
        self._zones = (time_zone, load_zone)

    def give(self, block: Block, refused: str | None) -> None:
        """Fill in ``where`` and ``unpushed`` of the relations; ``refused`` says why none may have any."""
        reason = refused or block.complicated
        if reason:
            if block.where:
                for relation in block.relations:
                    relation.unpushed.append(reason)
            return
        sides: dict[Relation, Side] = {r: r.side for r in block.relations if r.side != "hidden"}
        given: list[tuple[list[Item], dict[Relation, Side]]] = [*block.on, (block.where, sides)]
        for items, among in given:
            for conjunct in conjuncts_of(items):
                for relation, side in among.items():
                    if relation.name and not relation.renamed:
                        self._offer(conjunct, relation, side, block)
        if block.where:
            for relation in block.relations:
                if relation.side != "kept" and not relation.where:
                    relation.unpushed.append("the other side of an outer or semi join")

    def _offer(self, conjunct: list[Item], relation: Relation, side: Side, block: Block) -> None:
        text = self._implied(conjunct, relation, block)
        if text is None or text in relation.where:
            return
        expression = self._parsed(text, relation)
        if isinstance(expression, PredicateError):
            return  # parts that parse alone, but are too many together
        if side == "filled" and holds_for_nulls(expression, relation.schema):
            relation.unpushed.append(f"{text} also holds for the NULLs of an outer join")
        else:
            relation.where.append(text)

    def _implied(self, items: list[Item], relation: Relation, block: Block, depth: int = 0) -> str | None:
        """A condition on the relation alone that holds wherever this one does; None if there is none."""
        text = self._bound(items, relation, block)
        if text is not None or depth > 8:
            return text
        if len(items) == 1:
            only = items[0]
            if not isinstance(only, Group) or not only.items or is_word(only.items[0], "SELECT", "WITH", "VALUES"):
                return None
            return self._implied(only.items, relation, block, depth + 1)
        parts = conjuncts_of(items)
        if len(parts) > 1:
            found = [self._implied(part, relation, block, depth + 1) for part in parts]
            said = [part for part in found if part is not None]
            return " AND ".join(f"({part})" for part in said) if len(said) > 1 else said[0] if said else None
        parts = disjuncts_of(items)
        if len(parts) < 2:
            return None
        either = []
        for part in parts:
            implied = self._implied(part, relation, block, depth + 1)
            if implied is None:
                return None
            either.append(f"({implied})")
        return " OR ".join(dict.fromkeys(either))

    def _bound(self, items: list[Item], relation: Relation, block: Block) -> str | None:
        """The text of a condition without the relation's qualifier; None if it is not of that relation alone."""
        schema = relation.schema
        assert schema is not None
        assert relation.alias is not None
        tokens = list(flat(items, self._tokens))
        others = [r for r in block.relations if r is not relation]
        alias = relation.alias.lower()
        if any(r.alias is None or r.alias.lower() == alias for r in others):
            return None
        aliases = {r.alias.lower() for r in others if r.alias is not None}
        alone = not block.laterals and all(r.schema is not None and not r.renamed for r in others)
        known = {f.name.lower() for r in others if r.schema for f in r.schema.fields}
        edits = folded(tokens)
        cut = False
        for i, token in enumerate(tokens):
            if token.kind not in NAMES or (i and _is_dot(tokens[i - 1])):
                continue
            word = name_of(token).lower()
            qualified = i + 2 < len(tokens) and _is_dot(tokens[i + 1])
            if qualified and word == alias:
                edits.append((token.start, tokens[i + 2].start, ""))
                cut = True
            elif not any(f.name.lower() == word for f in schema.fields):
                if token.kind == "quoted" or (qualified and word in aliases):
                    return None
            elif (qualified and word in aliases) or not alone or word in known:
                return None
        last = tokens[-1]
        condition = edited(self._source.text[: last.end], edits)[tokens[0].start :]
        parsed = self._parsed(condition, relation)
        if not isinstance(parsed, PredicateError):
            return condition
        if (cut or len(block.relations) == 1) and aliases.isdisjoint(_names(tokens)):
            relation.unpushed.append(str(parsed))
        return None

    def _parsed(self, text: str, relation: Relation) -> Expression | PredicateError:
        assert relation.schema is not None
        session, load = self._zones
        try:
            expression = parse_where(text, relation.schema, time_zone=session)
            if load != session and parse_where(text, relation.schema, time_zone=load) != expression:
                return PredicateError(f"{text} depends on the session's time zone, and is left to Spark")
            return expression
        except PredicateError as error:
            return error


def holds_for_nulls(expression: Expression, schema: Struct | None) -> bool:
    """Whether a condition is true of a row that is all NULL."""
    import pyarrow as pa

    from delta_sharing_spark.predicates.evaluate import evaluate
    from delta_sharing_spark.schema.arrow import arrow_schema

    assert schema is not None
    needed = {c.path[0] for c in columns(expression)}
    fields = [f for f in arrow_schema(schema) if f.name in needed]
    nulls = pa.table([pa.nulls(1, f.type) for f in fields], names=[f.name for f in fields])
    if not fields:
        return True  # a constant
    (answer,) = evaluate(expression, nulls).to_pylist()
    return answer is True


def _is_dot(token: Token) -> bool:
    return token.kind == "operator" and token.value == "."


def _names(tokens: list[Token]) -> Mapping[str, None]:
    return dict.fromkeys(name_of(t).lower() for t in tokens if t.kind in NAMES)
