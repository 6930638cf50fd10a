"""Defines the tree of a ``where``: frozen, picklable nodes, bound to columns and normalised to the columns' own types.

The parser (``sql.py``) resolves every implicit cast while it binds: ``long_column > 1.5`` becomes ``long_column > 1``,
``float_column = 0.1`` becomes a test that no row passes. What is left compares a column with a value of exactly its own type, or two
columns of one type. So evaluating, hinting and skipping need no rule of type coercion.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from delta_sharing_spark.schema.instants import EPOCH_DAY
from delta_sharing_spark.schema.types import DataType, backquoted

#: A literal's value: ``bool``, ``int`` (integers; days of a date; microseconds of a timestamp), ``float``,
#: ``decimal.Decimal`` (with the type's scale), ``str``, ``bytes``; None is NULL.
Value = bool | int | float | decimal.Decimal | str | bytes | None

#: Deeper trees (of AND within OR within NOT) are refused: what evaluates, skips and pickles them descends by recursion.
MAX_DEPTH = 64
#: The days since 1970 of the years 1 to 9999.
MAX_DAYS = date.max.toordinal() - EPOCH_DAY
MIN_DAYS = date.min.toordinal() - EPOCH_DAY


class _Node:
    """Part of a condition; its text is Spark SQL that ``where`` reads, too."""

    __slots__ = ()

    def __str__(self) -> str:
        return sql_of(self)  # type: ignore[arg-type]  # each subclass is one


@dataclass(frozen=True, slots=True)
class Column(_Node):
    """A column or a nested field, by its exact logical names, outermost first."""

    path: tuple[str, ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class Literal(_Node):
    """A value of a scalar type (``Primitive`` or ``Decimal``)."""

    value: Value
    type: DataType


@dataclass(frozen=True, slots=True)
class Constant(_Node):
    """TRUE, FALSE or, as None, unknown."""

    value: bool | None


@dataclass(frozen=True, slots=True)
class Compare(_Node):
    """``column op literal`` with ``op`` one of ``= < <= > >=`` and a literal of the column's type, never NULL."""

    op: str
    column: Column
    literal: Literal


@dataclass(frozen=True, slots=True)
class CompareColumns(_Node):
    """``left op right`` of two columns whose values compare directly (one type, or integers or decimals of two widths)."""

    op: str
    left: Column
    right: Column


@dataclass(frozen=True, slots=True)
class In(_Node):
    """``column IN (literals)``, the literals of the column's type, none NULL, at least one."""

    column: Column
    literals: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Like(_Node):
    r"""``column LIKE pattern`` on a string column; the pattern has been checked, and escapes by ``\``."""

    column: Column
    pattern: str


@dataclass(frozen=True, slots=True)
class IsNull(_Node):
    """``operand IS NULL`` of a column of any type or of a boolean expression; never unknown itself."""

    operand: Column | Expression


@dataclass(frozen=True, slots=True)
class IsTrue(_Node):
    """``operand IS TRUE``: unknown becomes false."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class Not(_Node):
    operand: Expression


@dataclass(frozen=True, slots=True)
class And(_Node):
    """All of at least two operands."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or(_Node):
    """Any of at least two operands."""

    operands: tuple[Expression, ...]


Expression = Constant | Compare | CompareColumns | In | Like | IsNull | IsTrue | Not | And | Or

TRUE, FALSE, UNKNOWN = Constant(True), Constant(False), Constant(None)


def conjunction(operands: list[Expression]) -> Expression:
    """AND of any number of expressions, flattened; TRUE for none."""
    return _junction(And, operands, TRUE, FALSE)


def all_of(*conditions: Expression | None) -> Expression | None:
    """AND of those conditions that there are; None for none."""
    present = [condition for condition in conditions if condition is not None]
    return conjunction(present) if present else None


def disjunction(operands: list[Expression]) -> Expression:
    """OR of any number of expressions, flattened; FALSE for none."""
    return _junction(Or, operands, FALSE, TRUE)


def _junction(
    kind: type[And] | type[Or], operands: list[Expression], neutral: Constant, absorbing: Constant
) -> Expression:
    flat = [part for o in operands for part in (o.operands if isinstance(o, kind) else (o,)) if part != neutral]
    if absorbing in flat:
        return absorbing
    return neutral if not flat else flat[0] if len(flat) == 1 else kind(tuple(flat))


def negation(operand: Expression) -> Expression:
    """NOT of an expression, double negation removed."""
    match operand:
        case Constant(value):
            return Constant(None if value is None else not value)
        case Not(inner):
            return inner
    return Not(operand)


def conjuncts(expression: Expression) -> tuple[Expression, ...]:
    """The parts that must all hold."""
    return expression.operands if isinstance(expression, And) else (expression,)


def depth(expression: Expression) -> int:
    """The depth to which conditions are nested; found without recursion."""
    deepest, level = 0, [expression]
    while level:
        deepest += 1
        level = [inner for node in level for inner in operands(node)]
    return deepest


def operands(node: Expression) -> tuple[Expression, ...]:
    """The conditions right within a condition."""
    match node:
        case And(inner) | Or(inner):
            return inner
        case Not(operand) | IsTrue(operand):
            return (operand,)
        case IsNull(operand) if not isinstance(operand, Column):
            return (operand,)
    return ()


def leaves(expression: Expression) -> Iterator[Expression]:
    """The conditions of the tree that have none within, with repetitions."""
    if not (inner := operands(expression)):
        yield expression
    for operand in inner:
        yield from leaves(operand)


def columns(expression: Expression) -> Iterator[Column]:
    """Every column of the tree, with repetitions."""
    for leaf in leaves(expression):
        match leaf:
            case Compare(_, column, _) | In(column, _) | Like(column, _) | IsNull(Column() as column):
                yield column
            case CompareColumns(_, left, right):
                yield from (left, right)


def referenced_columns(expression: Expression) -> set[tuple[str, ...]]:
    """The paths of all columns and nested fields that the expression reads."""
    return {column.path for column in columns(expression)}


def quote(text: str) -> str:
    """A Spark SQL string literal, as sessions read it unless they take backslashes for themselves (``escapedStringLiterals``)."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def quote_bytes(text: str) -> str:
    """A string as Spark SQL that every session reads alike."""
    return f"CAST(X'{text.encode().hex().upper()}' AS STRING)"


def sql_of(node: Column | Literal | Expression, quoted: Callable[[str], str] = quote) -> str:
    """A condition as Spark SQL; ``quoted`` writes its strings, and nothing else depends on the session that reads it."""

    def operand(inner: Column | Expression, *simple: type) -> str:
        if inner == UNKNOWN:
            return "NULL"
        text = sql_of(inner, quoted)
        return text if isinstance(inner, (Column, Constant, *simple)) else f"({text})"

    match node:
        case Column(path):
            return backquoted(*path)
        case Literal(value, kind):
            return quoted(value) if isinstance(value, str) else _literal_sql(value, str(kind))
        case Constant(value):
            return "CAST(NULL AS BOOLEAN)" if value is None else str(value).upper()  # NULL alone is no condition
        case Compare(op, left, right) | CompareColumns(op, left, right):
            return f"{sql_of(left)} {op} {sql_of(right, quoted)}"
        case In(column, literals):
            return f"{sql_of(column)} IN ({', '.join(sql_of(literal, quoted) for literal in literals)})"
        case Like(column, pattern):
            return f"{sql_of(column)} LIKE {quoted(pattern)}"
        case IsNull(inner):
            return f"{operand(inner)} IS NULL"
        case IsTrue(inner):
            return f"{operand(inner)} IS TRUE"
        case Not(IsNull(inner)):
            return f"{operand(inner)} IS NOT NULL"
        case Not(inner):
            return f"NOT {operand(inner)}"
        case And(operands) | Or(operands):
            word = " AND " if isinstance(node, And) else " OR "
            return word.join(
                operand(inner, Compare, CompareColumns, In, Like, IsNull, IsTrue, Not) for inner in operands
            )


def _literal_sql(value: Value, kind: str) -> str:
    """A value other than a string; timestamps in UTC, with their zone."""
    match value, kind:
        case None, _:
            return "NULL"
        case bool(), _:
            return str(value).upper()
        case bytes(), _:
            return f"X'{value.hex().upper()}'"
        case decimal.Decimal(), _:
            return f"{value:f}BD"
        case int(), "date":
            return f"DATE '{date_text(value)}'"
        case int(), "timestamp":
            return f"TIMESTAMP '{timestamp_text(value)}Z'"
        case int(), "timestamp_ntz":
            return f"TIMESTAMP_NTZ '{timestamp_text(value)}'"
        case float(), _ if value - value != 0:
            return f"CAST('{value!r}' AS {kind.upper()})"
    return f"{value!r}{ {'float': 'F', 'double': 'D', 'long': 'L', 'short': 'S', 'byte': 'Y'}.get(kind, '') }"


def date_text(days: int) -> str:
    """``YYYY-MM-DD`` of days since 1970, with a sign outside the years 0 to 9999."""
    if MIN_DAYS <= days <= MAX_DAYS:
        return date.fromordinal(days + EPOCH_DAY).isoformat()
    import numpy as np

    text = str(np.datetime64(days, "D"))
    return ("-" if text[0] == "-" else "+" if days > 0 else "") + text.lstrip("-").zfill(10)


def timestamp_text(micros: int, separator: str = " ") -> str:
    """``YYYY-MM-DD HH:MM:SS[.ffffff]`` of microseconds since 1970, without zone."""
    days, rest = divmod(micros, 86_400_000_000)
    seconds, fraction = divmod(rest, 1_000_000)
    clock = str(timedelta(seconds=seconds)).rjust(8, "0")
    return f"{date_text(days)}{separator}{clock}" + (f".{fraction:06d}" if fraction else "")
