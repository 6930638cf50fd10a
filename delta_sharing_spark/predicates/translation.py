"""Translates conditions that others wrote as trees of their own: filters of Spark's plans, expressions of Polars, hints of the sharing protocol."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates import tree
from delta_sharing_spark.predicates.functions import Operand, call, compare, condition, membership
from delta_sharing_spark.predicates.times import Zone
from delta_sharing_spark.schema.types import Struct

_log = logging.getLogger(__name__)
_JOINS = {"AND": tree.conjunction, "OR": tree.disjunction}
_COMPARISONS = frozenset({"=", "<>", "<=>", "<", "<=", ">", ">="})
#: What is no node any more; of a long list each value is tested.
_READ: Any = tuple | Operand


class Translator(ABC):
    """Translates trees of one kind: ``step`` says what a node is in SQL, and what that means stands here.

    Args:
        schema: The columns that the trees name.
        zone: The zone of moments that name none.
    """

    #: Conditions that nest deeper are left out.
    deepest = tree.MAX_DEPTH

    def __init__(self, schema: Struct, zone: Zone) -> None:
        self.schema, self.zone = schema, zone

    @abstractmethod
    def step(self, node: Any) -> tuple[str, Sequence[Any]] | Operand:
        """What a node is: an operand; or an operator or the name of a function, in upper case, with what is below it: nodes, or what they are.

        It raises whatever error where the node has no equal in the language of ``where``.
        """

    def operand(self, node: Any) -> Operand:
        """The operand that a node is; raises as ``step``, and PredicateError for what is outside the language of ``where``."""
        read = self._read(node)
        if not isinstance(read, tuple):
            return read
        word, below = read
        if word in _JOINS:
            return _JOINS[word]([self.condition(each) for each in below])
        if word == "NOT":
            return tree.negation(self.condition(*below))
        first, *others = map(self.operand, below)
        if word == "IN":
            return membership(first, others, self.zone)
        if word in _COMPARISONS:
            return compare(word, first, others[0], self.zone)
        result = call(word, [first, *others], self.zone, None)
        if result is None:
            raise PredicateError(f"{word} is not part of the language of where")
        return result

    def _read(self, node: Any) -> tuple[str, Sequence[Any]] | Operand:
        read: tuple[str, Sequence[Any]] | Operand = node if isinstance(node, _READ) else self.step(node)
        return read

    def condition(self, node: Any) -> tree.Expression:
        """The condition that a node is; raises as ``operand``."""
        return condition(self.operand(node), self.zone)

    def conjuncts(self, node: Any) -> list[tree.Expression]:
        """Those conjuncts of a condition that ``where`` has: whoever wrote the condition applies the others to the rows that are read."""
        try:
            read = self._read(node)
            if isinstance(read, tuple) and read[0] == "AND":
                return [part for each in read[1] for part in self.conjuncts(each)]
            part = self.condition(node)
        except Exception as unknown:  # ours, another library's, or that of a tree of another form
            _log.debug("a condition leaves out no file and no row: %s", unknown)
            return []
        return [part] if tree.depth(part) <= self.deepest else []
