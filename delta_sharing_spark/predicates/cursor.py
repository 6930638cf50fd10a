"""Walks over the tokens of a ``where``: looks ahead, steps on, refuses what cannot stand at a place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from delta_sharing_spark.errors import PredicateError, SchemaError
from delta_sharing_spark.predicates.lexer import Source, Token, tokenize

#: Operators that Spark has and the language of ``where`` has not.
ARITHMETIC = set("+-*/%&|^~") | {"||", "<<", ">>", ">>>", "|>"}
#: Words that are no names unless they stand in backquotes.
RESERVED = {"AND", "OR", "NOT", "IN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "NULL", "TRUE", "FALSE", "CASE",
            "WHEN", "THEN", "ELSE", "END", "SELECT", "EXISTS", "DISTINCT", "ESCAPE", "DIV", "COLLATE", "AS", "FROM",
            "WHERE", "CAST", "TRY_CAST"}  # fmt: skip

_T = TypeVar("_T")


class Cursor:
    """The tokens of an expression, the last of which is the end, and a place among them.

    Raises:
        PredicateError: The text cannot be cut into tokens.
    """

    def __init__(self, text: str) -> None:
        self._source = Source(text)
        self._tokens = tokenize(self._source)
        self._place = 0

    @property
    def peek(self) -> Token:
        """The token at this place."""
        return self._tokens[self._place]

    def ahead(self, count: int) -> Token:
        """The token ``count`` places further."""
        return self._tokens[min(self._place + count, len(self._tokens) - 1)]

    def advance(self) -> Token:
        """Step past a token, and return it."""
        token = self.peek
        self._place += 1
        return token

    def accept(self, *values: str) -> bool:
        """Step past one of these words or operators, if it stands here."""
        if self.peek.is_one_of(*values):
            self._place += 1
            return True
        return False

    def expect(self, value: str) -> None:
        """Step past this word or operator.

        Raises:
            PredicateError: Another stands here.
        """
        if not self.accept(value):
            raise self.error(self.peek, f"{value} is missing here")

    def error(self, token: Token, message: str) -> PredicateError:
        """The error of a token, with its position."""
        return self._source.error(token.start, message)

    def bound(self, token: Token, build: Callable[[], _T]) -> _T:
        """Run ``build``, and add the token's position to an error that it raises."""
        try:
            return build()
        except (PredicateError, SchemaError) as error:
            raise self.error(token, str(error)) from None

    def unexpected(self, token: Token) -> PredicateError:
        """The error of a token that cannot stand where it does."""
        if token.kind == "end":
            return self.error(token, "the expression ends too early")
        if token.kind == "operator" and token.value in ARITHMETIC:
            return self.error(token, f"arithmetic ({token.text}) is not part of the language of where")
        if token.kind == "word" and token.value in RESERVED:
            return self.error(
                token, f"the keyword {token.text} cannot stand here; a column of that name needs backquotes"
            )
        return self.error(token, f"{token.text!r} cannot stand here")
