"""Turns a ``where`` into hints by which no server can drop a row that passes, however it reads statistics; and JSON hints into a condition.

A hint holds for every row that the predicate passes, and for others. A part without a hint is left out under AND and
takes the whole of an OR with it. NOT is pushed down to the comparisons first, so that neither rule is ever applied
upside down. Servers compare a literal with a file's ``[min, max]``, and the reference server answers ``not`` and
``isNull`` over such a range wrongly: it drops files that hold matches. So ``not(isNull)`` is sent for partition columns
only. ``isNull`` is never sent, for a NULL partition may be written as the empty string.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.coercion import Scalar, upcast
from delta_sharing_spark.predicates.functions import Operand
from delta_sharing_spark.predicates.like import like_parts, like_prefix
from delta_sharing_spark.predicates.literals import cast
from delta_sharing_spark.predicates.scalar_types import (
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    FLOATS,
    INTEGER,
    LONG,
    STRING,
    TIMES,
    TIMESTAMP,
    float_key,
    float_value,
    key,
)
from delta_sharing_spark.predicates.sql import resolve
from delta_sharing_spark.predicates.times import DAY, MINUTE, WHOLE_MINUTES, Zone
from delta_sharing_spark.predicates.translation import Translator
from delta_sharing_spark.schema.types import DataType, Decimal, Struct, backquoted

#: More values than this become their range; the peers' bound.
MAX_VALUES = 20
#: The reference server ignores a tree of 100 levels and more, OpenSharing's one above 1 MiB.
_MAX_DEPTH, _MAX_CHARACTERS = 90, 900_000

_NAMES: dict[DataType, str] = {BOOLEAN: "bool", INTEGER: "int", LONG: "long", STRING: "string", DATE: "date", FLOAT: "float", DOUBLE: "double",
          TIMESTAMP: "timestamp"}  # fmt: skip
_OPS = {"=": "equal", "<": "lessThan", "<=": "lessThanOrEqual", ">": "greaterThan", ">=": "greaterThanOrEqual"}
_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_SQL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Digits of a second beyond microseconds.
_FINER = re.compile(r"\.[0-9]{7}")
#: Decimals of no more digits are told apart by a DOUBLE.
_DIGITS_OF_DOUBLE = 15
_SQL_TEXT = re.compile(r"[A-Za-z0-9 _.:+-]*")

Node = dict[str, Any]


def json_hints(expression: tree.Expression, schema: Struct, partition_columns: Collection[str]) -> str | None:
    """``jsonPredicateHints`` (spec section "JSON predicates for filtering"), or None if no part of it has a hint.

    Args:
        expression: A bound tree from ``parse_where``.
        schema: The table's schema, by logical names.
    """
    once_float = frozenset(f.name.lower() for f in schema.fields if f.type == DOUBLE and f.was_another_type)
    columns = {name.lower() for name in schema.names}
    partitions = frozenset(name.lower() for name in partition_columns) & columns
    node = HintBuilder(partitions, once_float).build(expression, False, 1)
    if node is None:
        return None
    text = json.dumps(node, separators=(",", ":"), ensure_ascii=True)
    return text if len(text) <= _MAX_CHARACTERS else None


def sql_hints(expression: tree.Expression, partition_columns: Collection[str]) -> list[str]:
    """``predicateHints``: SQL conditions on partition columns, all of which must hold; simple forms only."""
    partitions = {name.lower() for name in partition_columns}
    texts = (_sql(part, partitions) for part in tree.conjuncts(expression))
    return [text for text in texts if text is not None]


class HintBuilder:
    """Builds the tree of a hint, in which every NOT is pushed down to the comparisons.

    Args:
        partitions: Names of the partition columns, in lower case.
        once_float: Names of DOUBLE columns that were FLOAT, in lower case.
    """

    def __init__(self, partitions: frozenset[str], once_float: frozenset[str]) -> None:
        self._partitions, self._once_float = partitions, once_float

    def build(self, node: tree.Expression, is_negated: bool, depth: int) -> Node | None:
        """A hint that holds for every row for which ``node`` (or its negation) is true; None if there is none."""
        if depth > _MAX_DEPTH:
            return None
        match node:
            case tree.And(operands) | tree.Or(operands):
                return self._junction(operands, isinstance(node, tree.And) != is_negated, is_negated, depth)
            case tree.Not(operand):
                return self.build(operand, not is_negated, depth)
            case tree.IsTrue(operand):
                return None if is_negated else self.build(operand, False, depth)
            case tree.Compare(op, column, literal):
                return self._compare(op, column, literal, is_negated)
            case tree.In(column, literals):
                return self._membership(column, literals, is_negated)
            case tree.Like(column, pattern):
                return None if is_negated else self._like(column, pattern)
            case tree.IsNull(tree.Column() as column) if is_negated and self._is_partition(column):
                is_null = {"op": "isNull", "children": [_column(column)]} if column.type in _NAMES else None
                return is_null and {"op": "not", "children": [is_null]}
        return None

    def _junction(
        self, operands: tuple[tree.Expression, ...], is_conjunction: bool, is_negated: bool, depth: int
    ) -> Node | None:
        if not is_conjunction:  # of an OR, a side that can never be true adds no row
            never = (tree.UNKNOWN, tree.Constant(is_negated))
            operands = tuple(o for o in operands if o not in never)
        hints = [self.build(o, is_negated, depth + 1) for o in operands]
        return _all(hints) if is_conjunction else _any(hints)

    def _is_partition(self, column: tree.Column) -> bool:
        return len(column.path) == 1 and column.path[0].lower() in self._partitions

    def _compare(self, op: str, column: tree.Column, literal: tree.Literal, is_negated: bool) -> Node | None:
        if is_negated and op == "=":
            if not self._is_partition(column) or column.type in (FLOAT, DOUBLE, BOOLEAN):
                return None
            return _any([self._compare(side, column, literal, False) for side in ("<", ">")])
        op = _NEGATED[op] if is_negated else op
        if len(column.path) != 1 or column.type not in _NAMES:
            return None
        kind = column.type
        if kind == BOOLEAN and op != "=":
            return None
        if kind in FLOATS:
            is_single = kind == FLOAT or column.path[0].lower() in self._once_float
            return _float(op, column, literal, 32 if is_single else 64)
        if kind == TIMESTAMP:
            return None if self._is_partition(column) else _timestamp(op, column, literal)
        text = _text(literal)
        return None if text is None else _node(op, column, text)

    def _membership(self, column: tree.Column, literals: tuple[tree.Literal, ...], is_negated: bool) -> Node | None:
        if is_negated:
            return _all([self._compare("=", column, v, True) for v in literals[:MAX_VALUES]])
        if len(literals) <= MAX_VALUES and column.type not in FLOATS:
            return _any([self._compare("=", column, v, False) for v in literals])
        ordered = sorted(literals, key=lambda v: key(v.value, v.type))
        ends = ((">=", ordered[0]), ("<=", ordered[-1]))
        return _all([self._compare(op, column, v, False) for op, v in ends])

    def _like(self, column: tree.Column, pattern: str) -> Node | None:
        prefix, whole = like_prefix(pattern)
        if not like_parts(pattern) or whole:
            return self._compare("=", column, tree.Literal(prefix, STRING), False)
        if not prefix or ord(prefix[-1]) >= 0xD7FF:
            return None
        after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        ends = ((">=", prefix), ("<", after))
        return _all([self._compare(op, column, tree.Literal(text, STRING), False) for op, text in ends])


def _all(hints: list[Node | None]) -> Node | None:
    """The hint that all of these hold; a part without a hint is left out."""
    return _joined("and", [hint for hint in hints if hint is not None])


def _any(hints: list[Node | None]) -> Node | None:
    """The hint that one of these holds; none if a part has none."""
    return None if None in hints else _joined("or", [hint for hint in hints if hint is not None])


def _joined(op: str, nodes: list[Node]) -> Node | None:
    return None if not nodes else nodes[0] if len(nodes) == 1 else {"op": op, "children": nodes}


def _column(column: tree.Column) -> Node:
    return {"op": "column", "name": column.path[0], "valueType": _NAMES[column.type]}


def _node(op: str, column: tree.Column, text: str) -> Node:
    literal = {"op": "literal", "value": text, "valueType": _NAMES[column.type]}
    return {"op": _OPS[op], "children": [_column(column), literal]}


def _text(literal: tree.Literal) -> str | None:
    value, kind = literal.value, literal.type
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # Servers compare strings in UTF-16, whose order differs from that of bytes from U+D800 on.
        # An empty one may be taken for NULL.
        return value if value and all(c < "\ud800" for c in value) else None
    if kind == DATE and isinstance(value, int):
        return tree.date_text(value) if tree.MIN_DAYS <= value <= tree.MAX_DAYS else None
    if isinstance(value, float):
        return repr(value) if value - value == 0 else None
    return str(value) if isinstance(value, int) else None


def _float(op: str, column: tree.Column, literal: tree.Literal, bits: int) -> Node | None:
    """``column <= bound``, the one comparison that reads no maximum: Delta writes NaN there, which is above all numbers.

    A server that compares by IEEE would drop the file for ``=``, ``>=`` and ``>``. Statistics of single precision
    (``bits`` 32) have its digits or those of double precision, and are read as either: the bound is a float higher.
    So is that of zero, which servers hold to be above -0.0.
    """
    assert isinstance(literal.value, float)
    if op in (">", ">=") or literal.value != literal.value:
        return None
    bound = float_key(literal.value, 64 if column.type == DOUBLE else 32)
    if bits == 32 and column.type == DOUBLE:  # the least number of single precision that is not below
        bound = upcast(tree.Column(column.path, FLOAT), DOUBLE, Zone()).first(bound)
    text = _text(tree.Literal(float_value(bound + 1 if bits == 32 or bound == 0 else bound, bits), column.type))
    return None if text is None else _node("<=", column, text)


def _timestamp(op: str, column: tree.Column, literal: tree.Literal) -> Node | None:
    """A bound in whole milliseconds, as the statistics are: their maxima are cut, so a lower bound is cut as well."""
    value = literal.value
    assert isinstance(value, int)
    millis = value // 1000
    if op in ("<", "<="):
        op, millis = "<=", -(-value // 1000)
    elif op == ">":
        op = ">="
    # Statistics may lack the seconds of offsets from before.
    if not WHOLE_MINUTES + MINUTE <= value <= (tree.MAX_DAYS + 1) * DAY - 1000:
        return None
    text = tree.timestamp_text(millis // 1000 * 1_000_000, "T")
    return _node(op, column, f"{text}.{millis % 1000:03d}Z")


def _sql(node: tree.Expression, partitions: set[str]) -> str | None:
    match node:
        case tree.Compare(op, column, literal):
            return _sql_compare(op, column, literal, partitions)
        case tree.Not(tree.Compare("=", column, literal)):
            return _sql_compare("<>", column, literal, partitions)
        case tree.Not(tree.Compare(op, column, literal)) if column.type not in FLOATS:
            return _sql_compare(_NEGATED[op], column, literal, partitions)
        case tree.Not(tree.IsNull(tree.Column() as column)) if _sql_column(column, partitions):
            return f"{_sql_column(column, partitions)} is not null"
    return None


def _sql_column(column: tree.Column, partitions: set[str]) -> str | None:
    name = column.path[0]
    if len(column.path) != 1 or name.lower() not in partitions or column.type not in (INTEGER, LONG, STRING, DATE):
        return None
    return name if _SQL_NAME.fullmatch(name) else backquoted(name)


def _sql_compare(op: str, column: tree.Column, literal: tree.Literal, partitions: set[str]) -> str | None:
    name, text = _sql_column(column, partitions), _text(literal)
    if name is None or text is None:
        return None
    if column.type in (INTEGER, LONG):
        return f"{name} {op} {text}"
    return f"{name} {op} '{text}'" if _SQL_TEXT.fullmatch(text) else None  # nothing that needs an escape


_COMPARED = {name: op for op, name in _OPS.items()}


def condition_of_hints(text: str, schema: Struct) -> tree.Expression | None:
    """A condition that every row which passes the hints fulfils; None if no part of them is understood.

    Args:
        text: JSON as the protocol's section "JSON predicates for filtering" has it.

    Raises:
        OptionError: The text is not JSON.
    """
    try:
        hints = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise OptionError(
            "jsonPredicateHints is not JSON; where='...' takes the same condition as SQL, and filters rows by it"
        ) from None
    parts = _HintReader(schema, Zone()).conjuncts(hints)  # a hint that is not understood skips nothing
    return tree.conjunction(parts) if parts else None


class _HintReader(Translator):
    """Reads the tree of a hint."""

    def step(self, node: Any) -> tuple[str, Sequence[Any]] | Operand:
        match node["op"], node["children"]:
            case ("and" | "or") as op, [_, *_] as children:
                return op.upper(), children
            case "not", [child]:
                return "NOT", [child]
            case "isNull", [{"op": "column", "name": str(name)}]:
                return tree.IsNull(resolve([name], self.schema))
            case "in", [_, _, *_] as children:
                return "IN", _operands(children, self.schema)
            case op, [_, _] as children:
                return _COMPARED[op], _operands(children, self.schema)
        raise ValueError(node["op"])


def _operands(nodes: list[Any], schema: Struct) -> list[Scalar]:
    """Columns, and literals of their type; raises ValueError where they are cast for the comparison to one that orders them otherwise."""
    columns = [resolve([str(node["name"])], schema) if node["op"] == "column" else None for node in nodes]
    kind = next((column.type for column in columns if column is not None), STRING)
    for node, column in zip(nodes, columns, strict=True):
        if node["valueType"] not in _value_types(column.type if column else kind):
            raise ValueError(node["valueType"])
    return [column or _literal(node, kind) for node, column in zip(nodes, columns, strict=True)]


def _value_types(kind: DataType) -> tuple[str, ...]:
    if kind in BITS and kind != LONG:
        return ("int", "long")
    if isinstance(kind, Decimal) and kind.precision <= _DIGITS_OF_DOUBLE:
        return ("double",)
    return (_NAMES.get(kind, ""),)


def _literal(node: Any, kind: DataType) -> tree.Literal:
    if node["op"] != "literal":
        raise ValueError(node["op"])
    text = str(node["value"])
    literal = cast(tree.Literal(text, STRING), kind, Zone())
    if isinstance(literal.value, decimal.Decimal):
        is_exact = literal.value == decimal.Decimal(text)
    elif kind == DATE:
        is_exact = len(text) <= len("2024-01-01")
    elif kind == STRING:  # from there on, UTF-16 has another order
        is_exact = max(text, default="") < "\ud800"
    else:
        is_exact = kind not in TIMES or _FINER.search(text) is None
    if not is_exact:  # a row may pass the hint, and not a comparison with what it was rounded to
        raise ValueError(text)
    return literal
