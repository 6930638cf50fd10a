"""File skipping by a query's hints: exact over partition values, by ranges over statistics, never by guess.

A mode of its own (``naive``) repeats what the reference server does wrong, for clients that must not fall for it.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from delta_sharing_spark.schema.instants import timestamp_micros
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.testing.server.settings import ServerSettings
from delta_sharing_spark.testing.server.table_logs import FileAction

#: Can the predicate be true, and can it be not true (false or unknown), for some row of the file?
_Outcome = tuple[bool, bool]
_UNKNOWN: _Outcome = (True, True)

_COMPARISONS = {"equal": "=", "lessThan": "<", "lessThanOrEqual": "<=", "greaterThan": ">", "greaterThanOrEqual": ">="}
_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_MAX_DEPTH = 100

_NAME = r"`?([A-Za-z_][\w]*)`?"
_LITERAL = r"('(?:[^']|'')*'|-?\d+(?:\.\d+)?|true|false|(?:date|timestamp)\s*'[^']*')"
_SQL_COMPARISON = re.compile(rf"\s*{_NAME}\s*(=|<>|!=|<=|>=|<|>)\s*{_LITERAL}\s*", re.IGNORECASE)
_SQL_FLIPPED = re.compile(rf"\s*{_LITERAL}\s*(=|<>|!=|<=|>=|<|>)\s*{_NAME}\s*", re.IGNORECASE)
_SQL_NULL = re.compile(rf"\s*{_NAME}\s+is\s+(not\s+)?null\s*", re.IGNORECASE)


class _Unusable(Exception):
    """A hint that cannot be evaluated: nothing is skipped by it."""


class HintFilter:
    """Decides which files of a snapshot a query's hints leave.

    Args:
        metadata, protocol: Of the snapshot.
        parameters: The query's body.
        settings: Of the server.
    """

    def __init__(
        self, metadata: Metadata, protocol: Protocol, parameters: Mapping[str, Any], settings: ServerSettings
    ) -> None:
        self._mode = settings.predicate_hints
        self._ieee = settings.engine == "reference"
        mapping = metadata.mapping(protocol, "the table")
        self._partitions = {k.lower(): v for k, v in metadata.physical_partition_columns(mapping, "the table").items()}
        schema = metadata.schema("the table")
        self._columns = {f.name.lower(): f.physical_name if mapping != "none" else f.name for f in schema.fields}
        self._types = {f.name.lower(): str(f.type) for f in schema.fields}
        tree = _tree(parameters.get("jsonPredicateHints"))
        #: The hints, and whether they are evaluated as the reference server does.
        self._hints = [] if tree is None else [(tree, self._mode == "naive")]
        for hint in parameters.get("predicateHints") or ():
            with suppress(_Unusable):
                self._hints.append((self._sql_tree(str(hint)), False))

    def remaining(self, files: Sequence[FileAction]) -> list[FileAction]:
        if self._mode == "ignore" or not self._hints:
            return list(files)
        remaining, dropped = [], 0
        for file in files:
            if self._may_match(file):
                remaining.append(file)
            else:
                dropped += 1
                if self._mode == "over-return" and dropped % 2:
                    remaining.append(file)
        return remaining

    def _may_match(self, file: FileAction) -> bool:
        view = _FileView(file, self._partitions, self._columns, ieee=self._ieee)
        for hint, is_naive in self._hints:
            with suppress(_Unusable):
                if not self._outcome(hint, view, is_naive)[0]:
                    return False
        return True

    def _outcome(self, node: Mapping[str, Any], view: _FileView, is_naive: bool) -> _Outcome:
        op = node.get("op")
        children: Any = node.get("children") or ()
        if op == "isNull":
            return view.null_outcome(str(children[0].get("name")), naive=is_naive)
        if op in _COMPARISONS:
            return self._compare(children, _COMPARISONS[op], view)
        if op == "column":
            return _UNKNOWN
        bounds = [self._outcome(child, view, is_naive) for child in children]
        if op == "and":
            return all(t for t, _ in bounds), any(f for _, f in bounds)
        if op == "or":
            return any(t for t, _ in bounds), all(f for _, f in bounds)
        if op == "not":
            true, false = bounds[0]
            return (not true, not false) if is_naive else (false, true)
        raise _Unusable

    def _compare(self, children: Sequence[Mapping[str, Any]], sign: str, view: _FileView) -> _Outcome:
        left, right = children
        if left.get("op") == "literal":
            left, right, sign = right, left, _FLIPPED[sign]
        if left.get("op") != "column" or right.get("op") != "literal":
            return _UNKNOWN
        kind = str(left.get("valueType")).lower()
        return view.outcome(str(left.get("name")), sign, kind, _parse(str(right.get("value")), kind))

    def _sql_tree(self, hint: str) -> dict[str, Any]:
        """The tree of a comparison or a test for NULL; raises _Unusable for any other hint."""
        if match := _SQL_NULL.fullmatch(hint):
            tree, is_negated = {"op": "isNull", "children": [self._partition(match[1])]}, bool(match[2])
        else:
            if match := _SQL_COMPARISON.fullmatch(hint):
                name, sign, literal = match.groups()
            elif match := _SQL_FLIPPED.fullmatch(hint):
                literal, sign, name = match.groups()
                sign = _FLIPPED.get(sign, sign)
            else:
                raise _Unusable
            text = literal[literal.index("'") + 1 : -1].replace("''", "'") if "'" in literal else literal
            is_negated = sign in ("<>", "!=")
            op = "equal" if is_negated else next(op for op, symbol in _COMPARISONS.items() if symbol == sign)
            tree = {"op": op, "children": [self._partition(name), {"op": "literal", "value": text}]}
        return {"op": "not", "children": [tree]} if is_negated else tree

    def _partition(self, name: str) -> dict[str, Any]:
        """A partition column: the only ones that are understood in SQL, as by the reference server."""
        if name.lower() not in self._partitions:
            raise _Unusable
        kind = self._types[name.lower()]
        kind = {"integer": "int", "short": "int", "byte": "int", "boolean": "bool"}.get(kind, kind)
        return {"op": "column", "name": name, "valueType": kind}


class _FileView:
    """What is known of a column's values in one file; with ``ieee`` a NaN is a bound that nothing compares with."""

    def __init__(
        self, file: FileAction, partitions: Mapping[str, str], columns: Mapping[str, str], *, ieee: bool = False
    ) -> None:
        self._file, self._partitions, self._columns, self._ieee = file, partitions, columns, ieee
        self._stats: dict[str, Any] | None = None

    def outcome(self, name: str, sign: str, kind: str, value: Any) -> _Outcome:
        """Of ``name sign value``."""
        is_exact = name.lower() in self._partitions
        text = self._partition(name) if is_exact else None
        if is_exact and not text:
            return False, True
        low, high = (_parse(text, kind),) * 2 if text else self._bounds(name, kind)
        if low is None or high is None:
            return _UNKNOWN
        true = {"=": low <= value <= high, "<": low < value, "<=": low <= value, ">": high > value, ">=": high >= value}
        return true[sign], not (is_exact and true[sign])

    def null_outcome(self, name: str, *, naive: bool) -> _Outcome:
        """Of ``name IS NULL``."""
        if name.lower() in self._partitions:
            null = not self._partition(name)
            return null, not null
        physical = self._columns.get(name.lower(), name)
        stats = self._statistics()
        if naive:
            return physical not in stats.get("minValues", {}), True
        nulls, rows = stats.get("nullCount", {}).get(physical), stats.get("numRecords")
        # Counts beside a deletion vector are of all rows, whatever ``tightBounds`` says.
        if not isinstance(nulls, int) or stats.get("tightBounds") is False or self._file.vector is not None:
            return _UNKNOWN
        return nulls > 0, nulls != rows

    def _partition(self, name: str) -> str | None:
        values: Mapping[str, str | None] = self._file.body.get("partitionValues") or {}
        return values.get(self._partitions[name.lower()])

    def _statistics(self) -> dict[str, Any]:
        if self._stats is None:
            self._stats = json.loads(self._file.body.get("stats") or "{}") or {}
        return self._stats

    def _bounds(self, name: str, kind: str) -> tuple[Any, Any]:
        physical = self._columns.get(name.lower(), name)
        stats = self._statistics()
        low, high = stats.get("minValues", {}).get(physical), stats.get("maxValues", {}).get(physical)
        if low is None or high is None or isinstance(low, dict):
            return None, None
        if self._ieee and kind in ("float", "double"):
            return float(low), float(high)
        least, greatest = _parse(str(low), kind), _parse(str(high), kind)
        if kind == "timestamp":
            greatest += 1000  # statistics are cut down to milliseconds
        return least, greatest


def _tree(text: Any) -> dict[str, Any] | None:
    """The JSON hint's tree; None if it is none, or too deep."""
    if not text:
        return None
    try:
        tree = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    return tree if isinstance(tree, dict) and _depth(tree) <= _MAX_DEPTH else None


def _depth(node: Mapping[str, Any]) -> int:
    return 1 + max((_depth(child) for child in node.get("children") or ()), default=0)


def _number(text: str) -> float:
    number = float(text)
    if number != number:
        raise ValueError("NaN is above every number, which comparisons in Python do not say")
    return number


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "int": int,
    "long": int,
    "float": _number,
    "double": _number,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "date": datetime.date.fromisoformat,
    "timestamp": partial(timestamp_micros, time_zone="UTC"),
    "string": lambda text: text.encode("utf-8", "surrogateescape"),
}


def _parse(text: str, kind: str) -> Any:
    try:
        return _PARSERS[kind](text)
    except (KeyError, ValueError):
        raise _Unusable from None


def limited(files: Sequence[FileAction], limit: int) -> list[FileAction]:
    """As many files as hold ``limit`` rows by their statistics, deleted rows counted, as real servers do."""
    remaining, rows = [], 0
    for file in files:
        if rows >= limit:
            break
        remaining.append(file)
        rows += json.loads(file.body.get("stats") or "{}").get("numRecords") or 0
    return remaining
