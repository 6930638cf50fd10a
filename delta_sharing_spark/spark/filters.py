"""Makes a condition to prune by of the filters that Spark offers. Spark applies them all the same, so any may be left out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.schema.types import Struct, backquoted

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.tree import Expression

_log = logging.getLogger(__name__)

_COMPARED = {
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
}
_LIKE = {"StringStartsWith": ("", "%"), "StringEndsWith": ("%", ""), "StringContains": ("%", "%")}


class PushedFilters:
    """The ``pushFilters`` of a reader, which Spark calls with its conf on, and which is no error with its conf off.

    Spark takes a reader that overrides ``pushFilters`` for one that cannot do without, and fails every query while the
    conf is off. The test is on ``__func__``, which this therefore shares with the base class.
    """

    def __init__(self, take: Callable[[list[Any]], None]) -> None:
        self._take = take
        # Of the instance: a class's function would come out bound, and be another object.
        self.__func__ = getattr(DataSourceReader, "pushFilters", None)

    def __call__(self, filters: list[Any]) -> Iterable[Any]:
        """Keep the filters, and return all of them as not applied."""
        self._take(list(filters))
        return filters


def to_expression(filters: Iterable[Any], schema: Struct, time_zone: str) -> Expression | None:
    """The conjunction of the filters that ``where`` can express; None if there are none."""
    from delta_sharing_spark.predicates.sql import parse_where
    from delta_sharing_spark.predicates.tree import conjunction

    parts = []
    for offered in filters:
        text = _text(offered)
        if text is None:
            continue
        try:
            parts.append(parse_where(text, schema, time_zone=time_zone))
        except PredicateError as error:
            # Spark applies the filter itself: what cannot be said only does not prune.
            _log.debug("a filter of Spark's does not prune: %s", error)
    return conjunction(parts) if parts else None


def _text(offered: Any) -> str | None:
    """A filter as SQL; None if it cannot be expressed exactly."""
    kind = type(offered).__name__
    if kind == "Not":
        inner = _text(offered.child)
        return None if inner is None else f"NOT ({inner})"
    column = backquoted(*offered.attribute)
    if kind in ("IsNull", "IsNotNull"):
        return f"{column} IS {'NOT ' if kind == 'IsNotNull' else ''}NULL"
    if kind in _COMPARED:
        value = _literal(offered.value)
        return None if value is None else f"{column} {_COMPARED[kind]} {value}"
    if kind == "In":
        values = [_literal(value) for value in offered.value]
        return None if None in values or not values else f"{column} IN ({', '.join(map(str, values))})"
    if kind in _LIKE:
        before, after = _LIKE[kind]
        pattern = "".join("\\" + c if c in "%_\\" else c for c in offered.value)
        return f"{column} LIKE {_string(before + pattern + after)}"
    return None


def _literal(value: Any) -> str | None:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return f"{value}L" if abs(value) < 1 << 63 else None
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return f"{value:f}BD" if value.is_finite() else None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return f"TIMESTAMP_NTZ '{value.isoformat(sep=' ')}'"
        return f"TIMESTAMP '{value.astimezone(timezone.utc).replace(tzinfo=None).isoformat(sep=' ')}Z'"
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    return _string(value) if isinstance(value, str) else None


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
