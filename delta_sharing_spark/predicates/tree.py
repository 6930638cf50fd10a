"""Defines the tree of a ``where``: frozen, picklable nodes, bound to columns and normalised to the columns' own types.

The parser (``sql.py``) resolves every implicit cast while it binds: ``long_column > 1.5`` becomes ``long_column > 1``,
``float_column = 0.1`` becomes a test that no row passes. What is left compares a column with a value of exactly its
own type, or two columns of one type, so that evaluating, hinting and skipping need no rule of type coercion.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from delta_sharing_spark.schema.types import DataType, backquoted

#: A literal's value: ``bool``, ``int`` (integers; days of a date; microseconds of a timestamp), ``float``,
#: ``decimal.Decimal`` (with the type's scale), ``str``, ``bytes``; None is NULL.
Value = bool | int | float | decimal.Decimal | str | bytes | None

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_MAX_DAYS = date.max.toordinal() - _EPOCH_ORDINAL
_MIN_DAYS = date.min.toordinal() - _EPOCH_ORDINAL


@dataclass(frozen=True, slots=True)
class Column:
    """A column or a nested field, by its exact logical names, outermost first."""

    path: tuple[str, ...]
    type: DataType

    def __str__(self) -> str:
        return backquoted(*self.path)


@dataclass(frozen=True, slots=True)
class Literal:
    """A value of a scalar type (``Primitive`` or ``Decimal``)."""

    value: Value
    type: DataType

    def __str__(self) -> str:
        """The literal as Spark SQL reads it (timestamps in UTC, with their zone)."""
        match self.value, str(self.type):
            case None, _:
                return "NULL"
            case bool(value), _:
                return str(value).upper()
            case str(value), _:
                return quote(value)
            case bytes(value), _:
                return f"X'{value.hex().upper()}'"
            case decimal.Decimal() as value, _:
                return f"{value:f}BD"
            case int(value), "date":
                return f"DATE '{date_text(value)}'"
            case int(value), "timestamp":
                return f"TIMESTAMP '{timestamp_text(value)}Z'"
            case int(value), "timestamp_ntz":
                return f"TIMESTAMP_NTZ '{timestamp_text(value)}'"
            case float(value), name if value - value != 0:
                return f"CAST('{value!r}' AS {name.upper()})"
            case value, name:
                return f"{value!r}{ {'float': 'F', 'double': 'D', 'long': 'L'}.get(name, '') }"


@dataclass(frozen=True, slots=True)
class Constant:
    """TRUE, FALSE or, as None, unknown."""

    value: bool | None

    def __str__(self) -> str:
        return "NULL" if self.value is None else str(self.value).upper()


@dataclass(frozen=True, slots=True)
class Compare:
    """``column op literal`` with ``op`` one of ``= < <= > >=`` and a literal of the column's type, never NULL."""

    op: str
    column: Column
    literal: Literal

    def __str__(self) -> str:
        return f"{self.column} {self.op} {self.literal}"


@dataclass(frozen=True, slots=True)
class CompareColumns:
    """``left op right`` of two columns whose values compare directly (one type, or integers or decimals of two widths)."""

    op: str
    left: Column
    right: Column

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True, slots=True)
class In:
    """``column IN (literals)``, the literals of the column's type, none NULL, at least one."""

    column: Column
    literals: tuple[Literal, ...]

    def __str__(self) -> str:
        return f"{self.column} IN ({', '.join(str(v) for v in self.literals)})"


@dataclass(frozen=True, slots=True)
class Like:
    """``column LIKE pattern ESCAPE escape`` on a string column; the pattern has been checked."""

    column: Column
    pattern: str
    escape: str = "\\"

    def __str__(self) -> str:
        escape = "" if self.escape == "\\" else f" ESCAPE {quote(self.escape)}"
        return f"{self.column} LIKE {quote(self.pattern)}{escape}"


@dataclass(frozen=True, slots=True)
class IsNull:
    """``operand IS NULL`` of a column of any type or of a boolean expression; never unknown itself."""

    operand: Column | Expression

    def __str__(self) -> str:
        return f"{_wrap(self.operand)} IS NULL"


@dataclass(frozen=True, slots=True)
class IsTrue:
    """``operand IS TRUE``: unknown becomes false."""

    operand: Expression

    def __str__(self) -> str:
        return f"{_wrap(self.operand)} IS TRUE"


@dataclass(frozen=True, slots=True)
class Not:
    operand: Expression

    def __str__(self) -> str:
        return f"NOT {_wrap(self.operand)}"


@dataclass(frozen=True, slots=True)
class And:
    """All of at least two operands."""

    operands: tuple[Expression, ...]

    def __str__(self) -> str:
        return " AND ".join(_wrap(o) for o in self.operands)


@dataclass(frozen=True, slots=True)
class Or:
    """Any of at least two operands."""

    operands: tuple[Expression, ...]

    def __str__(self) -> str:
        return " OR ".join(_wrap(o) for o in self.operands)


Expression = Constant | Compare | CompareColumns | In | Like | IsNull | IsTrue | Not | And | Or

TRUE, FALSE, UNKNOWN = Constant(True), Constant(False), Constant(None)


def _wrap(node: Column | Expression) -> str:
    return str(node) if isinstance(node, Column | Constant) else f"({node})"


def conjunction(operands: list[Expression]) -> Expression:
    """AND of any number of expressions, flattened; TRUE for none."""
    return _junction(And, operands, TRUE, FALSE)


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
        level = [inner for node in level for inner in _operands(node)]
    return deepest


def _operands(node: Expression) -> tuple[Expression, ...]:
    match node:
        case And(operands) | Or(operands):
            return operands
        case Not(inner) | IsTrue(inner):
            return (inner,)
        case IsNull(operand) if not isinstance(operand, Column):
            return (operand,)
    return ()


def columns(expression: Expression) -> Iterator[Column]:
    """Every column of the tree, with repetitions."""
    match expression:
        case Compare(_, column, _) | In(column, _) | Like(column, _, _):
            yield column
        case CompareColumns(_, left, right):
            yield left
            yield right
        case IsNull(Column() as column):
            yield column
        case _:
            for inner in _operands(expression):
                yield from columns(inner)


def referenced_columns(expression: Expression) -> set[tuple[str, ...]]:
    """The paths of all columns and nested fields that the expression reads."""
    return {column.path for column in columns(expression)}


def quote(text: str) -> str:
    """A Spark SQL string literal that any escape setting reads the same, as far as one exists."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def date_text(days: int) -> str:
    """``YYYY-MM-DD`` of days since 1970; the number itself outside the years 1 to 9999."""
    if not _MIN_DAYS <= days <= _MAX_DAYS:
        return f"{days} days since 1970"
    return date.fromordinal(days + _EPOCH_ORDINAL).isoformat()


def timestamp_text(micros: int, separator: str = " ") -> str:
    """``YYYY-MM-DD HH:MM:SS[.ffffff]`` of microseconds since 1970, without zone."""
    days, rest = divmod(micros, 86_400_000_000)
    if not _MIN_DAYS <= days <= _MAX_DAYS:
        return f"{micros} microseconds since 1970"
    seconds, fraction = divmod(rest, 1_000_000)
    clock = str(timedelta(seconds=seconds)).rjust(8, "0")
    return f"{date_text(days)}{separator}{clock}" + (f".{fraction:06d}" if fraction else "")
