"""Turns filters of Spark's plans into conditions of ``where``.

A filter is read from the tree of expressions that Spark planned, with the types it resolved, never from a text: a node
that is not known here is left to Spark. Every condition made here is parsed by ``where`` before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import quote
from delta_sharing_spark.schema.types import Struct, backquoted

COMPARISONS = {"EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
                "GreaterThanOrEqual": ">="}  # fmt: skip
_PATTERNS = {"StartsWith": "{}%", "EndsWith": "%{}", "Contains": "%{}%"}
_CONDITIONS = {*COMPARISONS, *_PATTERNS, "And", "Or", "Not", "IsNull", "IsNotNull", "In", "InSet", "IsNaN", "Like"}
TEMPORAL = ("date", "timestamp", "timestamp_ntz")
_NUMBERS = {"byte": "{}Y", "short": "{}S", "integer": "{}", "long": "{}L", "float": "CAST('{}' AS FLOAT)",
            "double": "CAST('{}' AS DOUBLE)"}  # fmt: skip
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_EPOCH = datetime(1970, 1, 1)
#: How far a bound that follows the clock may move back: a day, for changes of the zone's offset.
_SLACK = timedelta(days=1)


class _Unreadable(Exception):
    """``where`` cannot express this."""


@dataclass(frozen=True, slots=True)
class Node:
    """One expression of a plan, or a plan itself.

    Attributes:
        kind: The class of Spark's expression, without its package.
        fields: Its fields as Spark writes them to JSON.
        children: The expressions below it.
        java: The JVM's object of the node, for values that JSON does not carry exactly.
    """

    kind: str
    fields: dict[str, Any]
    children: tuple[Node, ...]
    java: Callable[[], Any] = field(default=lambda: None, repr=False, compare=False)

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.walk()


def class_of(row: Mapping[str, Any]) -> str:
    """The class of what a row of Spark's JSON describes, without its package."""
    return str(row["class"]).rpartition(".")[2]


def node_of(java: Any) -> Node:
    """An expression of the JVM, fetched as one JSON text."""
    rows = iter(json.loads(java.toJSON()))

    def build(own: Callable[[], Any]) -> Node:
        row = next(rows)
        children = tuple(build(_child(own, i)) for i in range(row["num-children"]))
        return Node(class_of(row), row, children, own)

    return build(lambda: java)


def _child(parent: Callable[[], Any], index: int) -> Callable[[], Any]:
    return lambda: parent().children().apply(index)


@dataclass(frozen=True, slots=True)
class ScanConditions:
    """The part of a scan's filters that ``where`` can express.

    Attributes:
        conditions: Conditions that no needed row fails.
        left: Filters that are left to Spark alone, with the reason.
    """

    conditions: tuple[str, ...]
    left: tuple[str, ...]


def read_filters(filters: Sequence[Any], schema: Struct, time_zone: str, *, follows_clock: bool) -> ScanConditions:
    """The conditions that a scan's filters (of the JVM) give.

    Args:
        time_zone: The zone in which the load reads ``where``.
        follows_clock: Whether bounds follow the clock: then lower bounds in time are widened, other conditions on times left out.
    """
    conditions: list[str] = []
    left: list[str] = []
    for java in filters:
        try:
            text, exact = _Renderer(schema, time_zone, follows_clock).positive(node_of(java))
        except (_Unreadable, DeltaSharingError) as reason:
            left.append(f"{java.sql()}: {reason}")
            continue
        if not exact:
            left.append(f"{java.sql()}: in part only")
        if text not in conditions:
            conditions.append(text)
    return ScanConditions(tuple(_without_implied(conditions)), tuple(left))


def _without_implied(conditions: Sequence[str]) -> Iterator[str]:
    """Leave out ``c IS NOT NULL`` where a comparison of the column stands beside it, which no NULL passes."""
    for condition in conditions:
        column = condition.removesuffix(" IS NOT NULL")
        implying = tuple(f"{column} {operator} " for operator in ("=", "<", "<=", ">", ">=", "IN", "LIKE"))
        if column == condition or not any(other.startswith(implying) for other in conditions):
            yield condition


def either(scans: Sequence[ScanConditions]) -> tuple[str | None, tuple[str, ...]]:
    """The condition of rows that any of a table's scans needs (None if one needs all), and the filters left to Spark."""
    left = tuple(dict.fromkeys(text for scan in scans for text in scan.left))
    if not scans or not all(scan.conditions for scan in scans):
        return None, left
    return disjunction([" AND ".join(scan.conditions) for scan in scans]), left


def disjunction(conditions: Sequence[str]) -> str:
    """Any of some conditions, each of them once."""
    each = list(dict.fromkeys(conditions))
    return each[0] if len(each) == 1 else " OR ".join(f"({text})" for text in each)


class _Renderer:
    """Writes one filter as a condition of ``where``."""

    def __init__(self, schema: Struct, time_zone: str, follows_clock: bool) -> None:
        self._schema, self._time_zone, self._follows_clock = schema, time_zone, follows_clock

    def positive(self, node: Node) -> tuple[str, bool]:
        """A condition that is true of every row of which the filter is, and whether it is the filter itself.

        Raises:
            _Unreadable, PredicateError: There is no such condition.
        """
        if node.kind == "And":
            parts = []
            exact = True
            refused: Exception = _Unreadable("")
            for child in node.children:
                try:
                    text, whole = self.positive(child)
                except (_Unreadable, DeltaSharingError) as reason:
                    exact, refused = False, reason
                    continue
                parts.append(text)
                exact = exact and whole
            if not parts:
                raise refused
            return (f"({parts[0]} AND {parts[1]})" if len(parts) == 2 else parts[0]), exact
        if node.kind == "Or":
            (left, left_exact), (right, right_exact) = (self.positive(child) for child in node.children)
            return f"({left} OR {right})", left_exact and right_exact
        if self._follows_clock and any(n.kind == "Literal" and _type(n) in TEMPORAL for n in node.walk()):
            node = _widened(node)
        text = self._condition(node)
        parse_where(text, self._schema, time_zone=self._time_zone)
        return text, True

    def _condition(self, node: Node) -> str:
        kind, children = node.kind, node.children
        if kind in COMPARISONS:
            left, right = self._operands(children)
            return f"{left} {COMPARISONS[kind]} {right}"
        if kind in ("And", "Or"):
            return f"({self._condition(children[0])} {kind.upper()} {self._condition(children[1])})"
        if kind == "Not":
            return f"(NOT ({self._condition(children[0])}))"
        if kind in ("IsNull", "IsNotNull"):
            return f"{self._operand(children[0])} {'IS NULL' if kind == 'IsNull' else 'IS NOT NULL'}"
        if kind == "In":
            first, *rest = self._operands(children)
            return f"{first} IN ({', '.join(rest)})"
        if kind == "InSet":
            return self._in_set(node)
        if kind == "IsNaN":
            return f"{self._operand(children[0])} <=> CAST('NaN' AS {str(_type(children[0])).upper()})"
        if kind in _PATTERNS:
            text = _plain_string(children[1])
            escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
            return f"{self._operand(children[0])} LIKE {quote(_PATTERNS[kind].format(escaped))}"
        if kind == "Like":
            escape = str(node.java().escapeChar())
            clause = "" if escape == "\\" else f" ESCAPE {quote(escape)}"
            return f"{self._operand(children[0])} LIKE {quote(_plain_string(children[1]))}{clause}"
        return self._operand(node)

    def _in_set(self, node: Node) -> str:
        """A long IN: JSON leaves its values out, and Spark's SQL of times is in the session's zone."""
        value = node.children[0]
        if _type(value) in ("timestamp", "timestamp_ntz", "date") and self._follows_clock:
            raise _Unreadable("a list of times may follow the clock")
        if _type(value) == "timestamp":
            micros = str(node.java().hset().mkString(",")).split(",")
            values = ["NULL" if m == "null" else _timestamp(int(m), "TIMESTAMP", "Z") for m in micros]
            return f"{self._operand(value)} IN ({', '.join(values)})"
        text, head = str(node.java().sql()), f"({node.java().child().sql()} IN "
        if not text.startswith(head):
            raise _Unreadable("a list of values in an unknown form")
        return f"{self._operand(value)} IN {text[len(head) : -1]}"

    def _operands(self, nodes: Sequence[Node]) -> list[str]:
        """Operands that are compared with each other; a cast that loses nothing is left out beside literals."""
        literals = all(n.kind == "Literal" for n in nodes[1:]) or all(n.kind == "Literal" for n in nodes[:-1])
        return [self._operand(_uncast(n) if literals else n) for n in nodes]

    def _operand(self, node: Node) -> str:
        kind, children = node.kind, node.children
        if kind in ("Literal", "EarlierLiteral"):
            return _literal(node, _SLACK if kind == "EarlierLiteral" else timedelta())
        if kind in ("AttributeReference", "GetStructField"):
            return backquoted(*_path(node))
        if kind == "Coalesce":
            return f"coalesce({', '.join(self._operand(c) for c in children)})"
        if kind == "Year" and _type(children[0]) == "date":
            return f"year({self._operand(children[0])})"
        if kind == "Cast" and children[0].kind != "Literal" and _type(node) == "date":
            if _type(children[0]) != "timestamp" or node.fields.get("timeZoneId") != self._time_zone:
                raise _Unreadable("a day of a moment in another zone than the load's")
            return f"CAST({self._operand(children[0])} AS DATE)"
        if kind in _CONDITIONS:
            return f"({self._condition(node)})"
        raise _Unreadable(f"{kind} is not part of the language of where")


def _widened(node: Node) -> Node:
    """Widen a lower bound in time, so that it holds at any later moment; raises _Unreadable where the node is no lower bound."""
    if node.kind in ("GreaterThan", "GreaterThanOrEqual") and node.children[1].kind == "Literal":
        column, literal = node.children
        if column.kind in ("AttributeReference", "GetStructField"):
            return Node(
                node.kind, node.fields, (column, Node("EarlierLiteral", literal.fields, (), literal.java)), node.java
            )
    raise _Unreadable("it may follow the clock, and is no lower bound of a column")


def _type(node: Node) -> Any:
    """The type of a literal, a column or a cast, as Spark's JSON names it; None for others."""
    if node.kind == "GetStructField":
        inner = _type(node.children[0])
        return inner["fields"][node.fields["ordinal"]]["type"] if isinstance(inner, dict) else None
    return node.fields.get("dataType")


def _path(node: Node) -> list[str]:
    if node.kind == "AttributeReference":
        return [str(node.fields["name"])]
    if node.kind != "GetStructField":
        raise _Unreadable(f"a field of {node.kind}")
    struct = _type(node.children[0])
    if not isinstance(struct, dict) or struct.get("type") != "struct":
        raise _Unreadable("a field of a value whose type is not known")
    return [*_path(node.children[0]), str(struct["fields"][node.fields["ordinal"]]["name"])]


def _uncast(node: Node) -> Node:
    """The operand of a cast to a wider number, which ``where`` does not need to compare numbers of different types exactly."""
    if node.kind != "Cast":
        return node
    source, target = str(_type(node.children[0])), str(_type(node))
    if source in _DIGITS:
        wider = target in _DIGITS and _DIGITS[target] >= _DIGITS[source]
        double = target == "double" and source != "long"
        return node.children[0] if wider or double or _whole_digits(target) >= _DIGITS[source] else node
    if source == "float" and target == "double":
        return node.children[0]
    if source.startswith("decimal(") and target.startswith("decimal("):
        scales = [int(t.rstrip(")").partition(",")[2]) for t in (source, target)]
        return node.children[0] if _whole_digits(target) >= _whole_digits(source) and scales[1] >= scales[0] else node
    return node


def _whole_digits(decimal: str) -> int:
    """Digits before the point of ``decimal(p,s)``; -1 of another type."""
    if not decimal.startswith("decimal("):
        return -1
    precision, _, scale = decimal[8:-1].partition(",")
    return int(precision) - int(scale)


def _plain_string(node: Node) -> str:
    if node.kind != "Literal" or _type(node) != "string" or not isinstance(node.fields["value"], str):
        raise _Unreadable("a pattern that is not a string literal")
    return str(node.fields["value"])


def _literal(node: Node, earlier: timedelta) -> str:
    if "value" not in node.fields:
        raise _Unreadable("a literal without a value")
    kind, value = _type(node), node.fields["value"]
    if value is None:
        return "NULL"
    if not isinstance(kind, str):
        raise _Unreadable(f"a literal of type {kind.get('type')}")
    if kind in ("timestamp", "timestamp_ntz"):
        word, suffix = ("TIMESTAMP", "Z") if kind == "timestamp" else ("TIMESTAMP_NTZ", "")
        return _timestamp(int(node.java().value()) - earlier // timedelta(microseconds=1), word, suffix)
    if kind == "binary":
        return f"X'{bytes(node.java().value()).hex()}'"
    if kind == "boolean":
        return str(value).upper()
    if kind == "string":
        return quote(str(value))
    if kind == "date":
        return f"DATE'{date.fromisoformat(value) - earlier if earlier else value}'"
    if kind in _NUMBERS:
        return _NUMBERS[kind].format(value)
    if kind.startswith("decimal("):
        return f"CAST('{value}' AS {kind.upper()})"
    raise _Unreadable(f"a literal of type {kind}")


def _timestamp(micros: int, word: str, suffix: str) -> str:
    try:
        return f"{word}'{(_EPOCH + timedelta(microseconds=micros)).isoformat(sep=' ')}{suffix}'"
    except OverflowError:
        raise _Unreadable("a moment outside the years 1 to 9999") from None
