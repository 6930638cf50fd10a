"""Turns filters of Spark's plans, and those that Spark pushes to a Python data source, into conditions of ``where``.

A filter of a plan is read from the tree of expressions that Spark planned, with the types it resolved, never from a text. A node
that is not known here is left to Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError, PredicateError
from delta_sharing_spark.predicates import scalar_types as types
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.coercion import Scalar, cast_operand
from delta_sharing_spark.predicates.functions import Operand, like
from delta_sharing_spark.predicates.literals import cast, fit, number, typed
from delta_sharing_spark.predicates.sql import resolve
from delta_sharing_spark.predicates.times import Zone
from delta_sharing_spark.predicates.translation import Translator
from delta_sharing_spark.schema.instants import EPOCH, EPOCH_DAY
from delta_sharing_spark.schema.markup import plain_sql
from delta_sharing_spark.schema.types import DataType, Primitive, Struct, backquoted, parse_type

COMPARISONS = {"EqualTo": "=", "EqualNullSafe": "<=>", "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">",
                "GreaterThanOrEqual": ">="}  # fmt: skip
#: Spark's expressions that ``where`` has.
_KNOWN = {*COMPARISONS, "And", "Or", "Not", "In", "InSet", "IsNaN", "Like", "Literal", "AttributeReference", "GetStructField", "Cast",
          "StartsWith", "EndsWith", "Contains", "IsNull", "IsNotNull", "Coalesce", "Year"}  # fmt: skip
#: Stands between the values of a long IN, as the JVM joins them.
_SEPARATOR = "\x1f"


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


def elements(sequence: Any) -> list[Any]:
    """The elements of a sequence of Scala's."""
    return [sequence.apply(place) for place in range(sequence.size())]


def _child(parent: Callable[[], Any], index: int) -> Callable[[], Any]:
    return lambda: parent().children().apply(index)


@dataclass(frozen=True, slots=True)
class ScanConditions:
    """The part of a scan's filters that ``where`` can express.

    Attributes:
        condition: What no needed row fails.
        unused: Filters that are Spark's alone, with the reasons.
        texts: The filters as SQL for people, without the tests for NULL that comparisons imply.
    """

    condition: tree.Expression
    unused: tuple[str, ...]
    texts: tuple[str, ...]


def read_filters(filters: Sequence[Any], schema: Struct, time_zone: str | None) -> ScanConditions:
    """The conditions that a scan's filters (of the JVM) give.

    Args:
        time_zone: The zone in which the load reads ``where``.
    """
    conditions: list[tree.Expression] = []
    unused: list[str] = []
    texts: dict[str, tree.Expression | None] = {}
    reader = _Reader(schema, Zone(time_zone))
    for java in filters:
        try:
            part, exact = reader.implied(node_of(java))
            if tree.depth(part) > tree.MAX_DEPTH:
                raise PredicateError(f"it is more than {tree.MAX_DEPTH} deep")
        except DeltaSharingError as reason:
            unused.append(f"{sql_text(java)}: {reason}")
            texts[sql_text(java)] = None
            continue
        if not exact:
            unused.append(f"{sql_text(java)}: in part only")
        texts[plain_sql(str(part)) if exact else sql_text(java)] = part
        conditions.append(part)
    # A NULL passes no comparison: its test beside one says nothing more.
    compared = {part.column for part in conditions if isinstance(part, tree.Compare | tree.In | tree.Like)}
    tests = [tree.negation(tree.IsNull(column)) for column in compared]
    return ScanConditions(
        tree.conjunction([part for part in dict.fromkeys(conditions) if part not in tests]),
        tuple(unused),
        tuple(text for text, part in texts.items() if part not in tests),
    )


def sql_text(java: Any) -> str:
    """An expression of the JVM as SQL for people: columns without the names of views, numbers without their types."""
    text = str(java.sql())
    for column in elements(java.references().toSeq()):
        if not column.qualifier().isEmpty():
            text = text.replace(str(column.sql()), backquoted(str(column.name())))
    return plain_sql(text)


class _Reader(Translator):
    """Reads the filters of one scan."""

    def implied(self, node: Node) -> tuple[tree.Expression, bool]:
        """A condition that is true of every row of which the filter is, and whether it is the filter itself.

        Raises:
            DeltaSharingError: There is no such condition.
        """
        if node.kind == "And":
            parts: list[tuple[tree.Expression, bool]] = []
            refused: list[DeltaSharingError] = []
            for child in node.children:
                try:
                    parts.append(self.implied(child))
                except DeltaSharingError as reason:
                    refused.append(reason)
            if not parts:
                raise refused[-1]
            return tree.conjunction([part for part, _ in parts]), not refused and all(exact for _, exact in parts)
        if node.kind == "Or":
            parts = [self.implied(child) for child in node.children]
            return tree.disjunction([part for part, _ in parts]), all(exact for _, exact in parts)
        return self.condition(node), True

    def step(self, node: Node) -> tuple[str, Sequence[Any]] | Operand:
        kind, children = node.kind, node.children
        if kind not in _KNOWN:
            raise PredicateError(f"{kind} is not part of the language of where")
        if kind == "Literal":
            return _literal(node)
        if kind in ("AttributeReference", "GetStructField"):
            return resolve(_field(node)[0], self.schema)
        if kind == "Cast":
            return self._cast(self.operand(children[0]), node)
        if kind == "IsNaN":
            first = self.operand(children[0])
            return "<=>", [first, cast(tree.Literal("NaN", types.STRING), _type_of(first), self.zone)]
        if kind == "Like":
            return like(self.operand(children[0]), self.operand(children[1]), str(node.java().escapeChar()))
        if kind == "InSet":
            first = self.operand(children[0])
            return "IN", [first, *self._set(node, _type_of(first))]
        return COMPARISONS.get(kind, kind.upper()), children

    def _cast(self, operand: Operand, node: Node) -> Operand:
        target = _scalar_type(node.fields.get("dataType"))
        if not isinstance(operand, tree.Column):
            raise PredicateError("a cast of what is no column")
        if types.TIMESTAMP in (operand.type, target) and node.fields.get("timeZoneId") != self.zone.name:
            raise PredicateError("a day of a moment in another zone than the load's")
        return cast_operand(operand, target, self.zone)

    def _set(self, node: Node, kind: DataType) -> list[Operand]:
        """The values of a long IN, which JSON leaves out."""
        if kind == types.BINARY:
            raise PredicateError("a list of bytes")
        values = node.java().hset()
        texts = sorted(str(values.mkString(_SEPARATOR)).split(_SEPARATOR))
        if len(texts) != values.size():
            raise PredicateError("a list of values in an unknown form")
        nulls: list[Operand] = []
        if values.contains(None):
            texts.remove("null")  # of two, the other is a string
            nulls.append(tree.Literal(None, types.VOID))
        return nulls + [typed(int(text), kind) if kind in types.TIMES else _cast(text, kind) for text in texts]


def _literal(node: Node) -> tree.Literal:
    if "value" not in node.fields:
        raise PredicateError("a literal without a value")
    value = node.fields["value"]
    if value is None:
        return tree.Literal(None, types.VOID)
    kind = _scalar_type(node.fields.get("dataType"))
    if kind in (types.TIMESTAMP, types.TIMESTAMP_NTZ):
        return typed(int(node.java().value()), kind)
    return typed(bytes(node.java().value()), kind) if kind == types.BINARY else _cast(str(value), kind)


def _cast(text: str, kind: DataType) -> tree.Literal:
    return types.CastLiteral(cast(tree.Literal(text, types.STRING), kind, Zone()).value, kind)


def _scalar_type(name: Any) -> DataType:
    """The type of a name in Spark's JSON."""
    if isinstance(name, str) and (name.startswith("decimal(") or Primitive(name) in types.SCALARS):
        return parse_type(name, "", "")
    raise PredicateError(f"a value of type {name.get('type') if isinstance(name, dict) else name}")


def _type_of(operand: Operand) -> DataType:
    return operand.type if isinstance(operand, Scalar) else types.BOOLEAN


def _field(node: Node) -> tuple[list[str], Any]:
    """The path of a column or field, and its type as Spark's JSON has it."""
    if node.kind == "AttributeReference":
        return [str(node.fields["name"])], node.fields.get("dataType")
    if node.kind != "GetStructField":
        raise PredicateError(f"a field of {node.kind}")
    path, struct = _field(node.children[0])
    if not isinstance(struct, dict) or struct.get("type") != "struct":
        raise PredicateError("a field of a value whose type is not known")
    field = struct["fields"][node.fields["ordinal"]]
    return [*path, str(field["name"])], field["type"]


def pushed_condition(filters: Iterable[Any], schema: Struct, time_zone: str | None) -> tree.Expression | None:
    """The conjunction of those filters that ``where`` can express, as Spark gives them to a Python data source; None if there are none."""
    reader = _FilterReader(schema, Zone(time_zone))
    parts = [part for offered in filters for part in reader.conjuncts(offered)]
    return tree.conjunction(parts) if parts else None


class _FilterReader(Translator):
    """Reads filters of PySpark (``pyspark.sql.datasource.Filter``)."""

    def step(self, node: Any) -> tuple[str, Sequence[Any]] | Operand:
        kind = type(node).__name__
        if kind == "Not":
            return "NOT", [node.child]
        values = node.value if kind == "In" else [node.value] if hasattr(node, "value") else []
        word = COMPARISONS.get(kind, kind.removeprefix("String").upper())
        return word, [resolve(node.attribute, self.schema), *map(_of_python, values)]


def _of_python(value: Any) -> tree.Literal:
    """A value of Python's as a literal."""
    match value:
        case None:
            return tree.Literal(None, types.VOID)
        case bool():
            return tree.Literal(value, types.BOOLEAN)
        case int():
            return tree.Literal(fit(value, types.LONG), types.LONG)
        case float():
            return tree.Literal(value, types.DOUBLE)
        case Decimal() if value.is_finite():
            return number(f"{value.copy_abs():f}BD", value < 0)  # abs() rounds to 28 digits
        case str():
            return tree.Literal(value, types.STRING)
        case datetime():
            since = value.replace(tzinfo=value.tzinfo or timezone.utc) - EPOCH
            kind = types.TIMESTAMP_NTZ if value.tzinfo is None else types.TIMESTAMP
            return tree.Literal(since // timedelta(microseconds=1), kind)
        case date():
            return tree.Literal(value.toordinal() - EPOCH_DAY, types.DATE)
    raise PredicateError(f"a value of the type {type(value).__name__}")
