"""Turns the hints of other clients (``jsonPredicateHints``) into SQL for ``where``, to skip files by, never to filter rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.predicates.tree import quote

_COMPARED = {
    "equal": "=",
    "lessThan": "<",
    "lessThanOrEqual": "<=",
    "greaterThan": ">",
    "greaterThanOrEqual": ">=",
}
_LITERALS: dict[str, Callable[[str], str]] = {
    "bool": lambda text: {"true": "TRUE", "false": "FALSE"}[text.lower()],
    "int": lambda text: str(int(text)),
    "long": lambda text: f"{int(text)}L",
    "float": lambda text: f"{float(text)!r}D",
    "double": lambda text: f"{float(text)!r}D",
    "string": quote,
    "date": lambda text: f"DATE {quote(text)}",
    "timestamp": lambda text: f"TIMESTAMP {quote(text)}",
}


def condition_of_hints(text: str) -> str | None:
    """A condition that every row which passes the hints fulfils; None if no part of them is understood.

    Args:
        text: JSON as the protocol's section "JSON predicates for filtering" has it.

    Raises:
        OptionError: The text is not JSON.
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(
            "jsonPredicateHints is not JSON; where='...' takes the same condition as SQL, and filters rows by it"
        ) from None
    parts = []
    for node in _conjuncts(tree):
        try:
            parts.append(f"({_condition(node)})")
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            continue  # a hint that is not understood skips nothing
    return " AND ".join(parts) or None


def _conjuncts(node: Any) -> list[Any]:
    if isinstance(node, dict) and node.get("op") == "and" and isinstance(node.get("children"), list):
        return [part for child in node["children"] for part in _conjuncts(child)]
    return [node]


def _condition(node: Any) -> str:
    op, children = node["op"], node["children"]
    if op in _COMPARED:
        left, right = children
        return f"{_operand(left)} {_COMPARED[op]} {_operand(right)}"
    if op in ("and", "or"):
        return f" {op.upper()} ".join(f"({_condition(child)})" for child in children)
    if op == "not":
        (child,) = children
        return f"NOT ({_condition(child)})"
    if op == "isNull":
        (child,) = children
        return f"{_column(child)} IS NULL"
    if op == "in":
        column, *literals = children
        return f"{_column(column)} IN ({', '.join(_literal(value) for value in literals)})"
    raise ValueError(op)


def _operand(node: Any) -> str:
    return _column(node) if node["op"] == "column" else _literal(node)


def _column(node: Any) -> str:
    if node["op"] != "column":
        raise ValueError(node["op"])
    return "`" + str(node["name"]).replace("`", "``") + "`"


def _literal(node: Any) -> str:
    if node["op"] != "literal":
        raise ValueError(node["op"])
    return _LITERALS[node["valueType"]](str(node["value"]))
