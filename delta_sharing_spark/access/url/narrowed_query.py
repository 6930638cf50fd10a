"""Narrows a renewal's query to the partitions of one split's files, where that spares most of a large answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.schema.types import Field, Struct
from delta_sharing_spark.sharing.rest import ChangesQuery, Query

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.tree import Expression

#: Types whose serialized values say one thing to every server.
_PLAIN = ("string", "integer", "long")
_MOST_VALUES = 20


def narrowed(
    query: Query | ChangesQuery, partitions: Sequence[Field], files: Sequence[FileTask]
) -> Query | ChangesQuery | None:
    """``query`` with hints that all ``files`` fulfil, beside its own; None if there is nothing to say.

    A change feed takes no hints: it is narrowed to the versions of the files.
    """
    if isinstance(query, ChangesQuery):
        versions = [file.commit_version for file in files if file.commit_version is not None]
        if len(versions) != len(files):
            return None
        return replace(
            query,
            starting_version=min(versions),
            ending_version=max(versions),
            starting_timestamp=None,
            ending_timestamp=None,
        )
    if query.starting_version is not None:
        return None
    from delta_sharing_spark.predicates.hints import json_hints, sql_hints
    from delta_sharing_spark.predicates.tree import conjunction

    parts = [part for column in partitions if (part := _values(column, files)) is not None]
    if not parts:
        return None
    condition = conjunction(parts)
    names = [column.name for column in partitions]
    tree = json_hints(condition, Struct(tuple(partitions)), names)
    if tree is not None and query.json_predicate_hints:
        both = [json.loads(query.json_predicate_hints), json.loads(tree)]
        tree = json.dumps({"op": "and", "children": both}, separators=(",", ":"))
    texts = tuple(sql_hints(condition, names)) if query.predicate_hints else ()
    return replace(
        query,
        json_predicate_hints=tree or query.json_predicate_hints,
        predicate_hints=(*query.predicate_hints, *texts),
    )


def _values(column: Field, files: Sequence[FileTask]) -> Expression | None:
    """``column`` is one of the values that it has in ``files``."""
    from delta_sharing_spark.predicates.tree import Column, Compare, IsNull, Literal, disjunction

    if str(column.type) not in _PLAIN:
        return None
    texts: set[str | None] = set()
    for file in files:
        values = file.partition_values or {}
        for name in (column.physical_name, column.name):
            if name in values:
                texts.add(values[name] or None)
                break
        else:
            return None
        if len(texts) > _MOST_VALUES:
            return None
    operand = Column((column.name,), column.type)
    choices: list[Expression] = []
    for text in sorted(texts, key=lambda value: value or ""):
        if text is None:
            choices.append(IsNull(operand))
        elif str(column.type) == "string":
            choices.append(Compare("=", operand, Literal(text, column.type)))
        elif text.lstrip("-").isdigit() and text.isascii():
            choices.append(Compare("=", operand, Literal(int(text), column.type)))
        else:
            return None
    return disjunction(choices)
