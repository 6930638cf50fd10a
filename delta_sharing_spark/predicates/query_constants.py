"""Constants that a query computes, as literals: a date and intervals (``DATE '1998-12-01' - INTERVAL '90' DAY``), sums of decimals."""

from __future__ import annotations

import calendar
import decimal
import re
from collections.abc import Sequence
from datetime import date

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.lexer import Token
from delta_sharing_spark.predicates.literals import parse_date
from delta_sharing_spark.predicates.tree import date_text

_EPOCH = date(1970, 1, 1).toordinal()
_COMPARISONS = ("=", "==", "<>", "!=", "<", "<=", "!>", ">", ">=", "!<", "<=>")
#: What may stand before and after a whole operand: nothing that binds as closely as a sum.
_BEFORE = (*_COMPARISONS, "(", ",", "BETWEEN", "AND", "OR", "NOT")
_AFTER = (*_COMPARISONS, ")", ",", "AND", "OR")
_MONTHS = {"MONTH": 1, "MONTHS": 1, "YEAR": 12, "YEARS": 12}
_DAYS = ("DAY", "DAYS")
_COUNT = re.compile(r"-?[0-9]{1,6}")
#: So few digits that the sum is exact in Spark, whatever its precision.
_DECIMAL = re.compile(r"[0-9]{0,6}\.[0-9]{1,6}")


def folded(tokens: Sequence[Token]) -> list[tuple[int, int, str]]:
    """Where constants are computed in a condition, and the literal of the same type and value that may stand instead.

    Args:
        tokens: Of the condition.

    Returns:
        Start and end in the text, and the literal.
    """
    edits: list[tuple[int, int, str]] = []
    at = 0
    while at < len(tokens):
        literal, end = _date(tokens, at)
        if literal is None:
            literal, end = _decimal(tokens, at)
        whole = (at == 0 or tokens[at - 1].one_of(*_BEFORE)) and (end >= len(tokens) or tokens[end].one_of(*_AFTER))
        if literal is not None and whole:
            last = tokens[end - 1]
            edits.append((tokens[at].start, last.end, literal))
        at = end
    return edits


def _date(tokens: Sequence[Token], at: int) -> tuple[str | None, int]:
    """A date literal with the intervals after it, and the place after them; None if there is none to compute."""
    if not tokens[at].one_of("DATE") or at + 1 >= len(tokens) or tokens[at + 1].kind != "string":
        return None, at + 1
    try:
        days = parse_date(tokens[at + 1].value)
        end = at + 2
        while end + 3 < len(tokens) and tokens[end].one_of("+", "-") and tokens[end + 1].one_of("INTERVAL"):
            count, unit = tokens[end + 2], tokens[end + 3].value
            if count.kind not in ("string", "number") or _COUNT.fullmatch(count.value) is None:
                return None, end
            amount = int(count.value) * (-1 if tokens[end].value == "-" else 1)
            if unit in _MONTHS:
                days = _plus_months(days, amount * _MONTHS[unit])
            elif unit in _DAYS:
                days = date.fromordinal(days + _EPOCH + amount).toordinal() - _EPOCH
            else:
                return None, end
            end += 4
    except (PredicateError, ValueError, OverflowError):
        return None, at + 2  # Spark says what is wrong with it
    return (f"DATE '{date_text(days)}'" if end > at + 2 else None), end


def _plus_months(days: int, months: int) -> int:
    """As Spark adds them: a day that the month lacks becomes its last."""
    start = date.fromordinal(days + _EPOCH)
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return date(year, month + 1, min(start.day, last)).toordinal() - _EPOCH


def _decimal(tokens: Sequence[Token], at: int) -> tuple[str | None, int]:
    """A sum of decimal literals, and the place after it; None if there is none to compute."""
    if not _is_decimal(tokens[at]):
        return None, at + 1
    total, end = decimal.Decimal(tokens[at].value), at + 1
    while end + 1 < len(tokens) and tokens[end].one_of("+", "-") and _is_decimal(tokens[end + 1]):
        term = decimal.Decimal(tokens[end + 1].value)
        total = total - term if tokens[end].value == "-" else total + term
        end += 2
    return (f"{total:f}" if end > at + 1 else None), end


def _is_decimal(token: Token) -> bool:
    return token.kind == "number" and _DECIMAL.fullmatch(token.value) is not None
