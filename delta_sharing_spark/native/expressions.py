"""Writes values and conditions as Spark SQL that means the same in every session, whatever its time zone, dialect and escapes."""

from __future__ import annotations

import decimal
from typing import Any

from delta_sharing_spark.predicates.tree import (
    And,
    Column,
    Compare,
    CompareColumns,
    Constant,
    Expression,
    In,
    IsNull,
    IsTrue,
    Like,
    Literal,
    Not,
    Or,
)
from delta_sharing_spark.schema.types import DataType, Decimal, Primitive

_TYPE_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_DAY = 86_400_000_000


def literal_sql(value: Any, kind: DataType) -> str:
    """A value (as ``predicates.tree.Value`` has it) as a constant expression of exactly its type.

    >>> literal_sql("é", Primitive("string"))
    "cast(x'C3A9' as string)"
    """
    name = type_sql(kind)
    if value is None:
        return f"cast(null as {name})"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"x'{value.hex().upper()}'"
    if isinstance(value, str):
        return f"cast(x'{value.encode().hex().upper()}' as string)"
    if isinstance(value, float):
        text = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
        return f"cast('{text}' as {name})"
    if isinstance(value, decimal.Decimal):
        return f"cast('{value:f}' as {name})"
    match name:
        case "date":
            return f"date_from_unix_date({value})"
        case "timestamp":
            return f"timestamp_micros(cast('{value}' as bigint))"
        case "timestamp_ntz":
            days, rest = divmod(value, _DAY)
            seconds, micros = divmod(rest, 1_000_000)
            return (
                f"(timestamp_ntz'1970-01-01 00:00:00' + "
                f"make_dt_interval({days}, 0, 0, cast('{seconds}.{micros:06}' as decimal(18, 6))))"
            )
    return f"cast('{value}' as {name})"


def type_sql(kind: DataType) -> str:
    """A scalar type's name in Spark SQL."""
    if isinstance(kind, Decimal):
        return f"decimal({kind.precision}, {kind.scale})"
    assert isinstance(kind, Primitive)
    return _TYPE_NAMES.get(kind.name, kind.name)


def condition_sql(node: Expression) -> str | None:
    """A ``where`` as Spark SQL; None where part of it cannot be written to mean the same in every session."""
    match node:
        case Constant(None):
            return "cast(null as boolean)"
        case Constant(value):
            return "true" if value else "false"
        case Compare(op, column, literal):
            return f"({column} {op} {_literal(literal)})"
        case CompareColumns(op, left, right):
            return f"({left} {op} {right})"
        case In(column, literals):
            return f"({column} IN ({', '.join(map(_literal, literals))}))"
        case Like(column, pattern, escape):
            if escape in "'\"":
                return None
            ending = "" if escape == "\\" else f" ESCAPE '{escape}'"
            return f"({column} LIKE {literal_sql(pattern, Primitive('string'))}{ending})"
        case IsNull(operand):
            inner = str(operand) if isinstance(operand, Column) else condition_sql(operand)
            return None if inner is None else f"({inner} IS NULL)"
        case IsTrue(operand):
            return _wrapped("({} IS TRUE)", operand)
        case Not(operand):
            return _wrapped("(NOT {})", operand)
        case And(operands):
            return _joined(" AND ", operands)
        case Or(operands):
            return _joined(" OR ", operands)


def _literal(literal: Literal) -> str:
    return literal_sql(literal.value, literal.type)


def _wrapped(form: str, operand: Expression) -> str | None:
    inner = condition_sql(operand)
    return None if inner is None else form.format(inner)


def _joined(word: str, operands: tuple[Expression, ...]) -> str | None:
    parts = [condition_sql(operand) for operand in operands]
    return None if None in parts else "(" + word.join(str(part) for part in parts) + ")"
