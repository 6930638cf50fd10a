"""Parses a ``where``: Spark 4's grammar of boolean expressions (SqlBaseParser.g4) over columns and literals.

It is a parser of its own, not sqlglot's, because the two grammars differ where rows would: ``'it''s'``, ``1000Y``,
``0x1F`` and ``a = 1 IN (2)`` are read differently, and casts become TRY_CASTs. Whatever is not in the language is
refused here, by name and position, when the table is loaded.
"""

from __future__ import annotations

from collections.abc import Callable

from delta_sharing_spark.predicates import coercion
from delta_sharing_spark.predicates.cursor import ARITHMETIC, Cursor
from delta_sharing_spark.predicates.functions import null_test
from delta_sharing_spark.predicates.lexer import Token
from delta_sharing_spark.predicates.like import like_parts
from delta_sharing_spark.predicates.monotone import Monotone
from delta_sharing_spark.predicates.operands import Context, Operand, Operands, Steps, run
from delta_sharing_spark.predicates.scalar_types import BOOLEAN, STRING, VOID, spark_name
from delta_sharing_spark.predicates.times import Zone
from delta_sharing_spark.predicates.tree import (
    UNKNOWN,
    Column,
    Constant,
    Expression,
    Like,
    Literal,
    conjunction,
    depth,
    disjunction,
    negation,
)  # fmt: skip
from delta_sharing_spark.schema.types import Struct

_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", "!>": "<=", ">": ">", ">=": ">=",
                "!<": ">=", "<=>": "<=>"}  # fmt: skip


#: Deeper trees (of AND within OR within NOT) are refused: what evaluates, skips and pickles them descends by recursion.
_MAX_DEPTH = 64


def parse_where(text: str, schema: Struct, *, time_zone: str = "UTC", now: int | None = None) -> Expression:
    """Parse a SQL boolean expression in Spark's dialect, bound to the columns of ``schema``.

    Args:
        text: The expression.
        schema: The table's columns, by logical names; compared as Spark does, without case.
        time_zone: The session zone, in which timestamps without a zone are read.
        now: The moment that ``current_timestamp()`` and its like mean, in microseconds since 1970; None refuses them.

    Raises:
        PredicateError: A syntax error, something outside the language, an unknown column, types that do not compare
            or a literal that Spark could not cast; with the position in the text.
    """
    cursor = Cursor(text)
    result = _Conditions(cursor, Context(schema, Zone(time_zone), now)).parse()
    if depth(result) > _MAX_DEPTH:
        raise cursor.error(
            cursor.peek, f"conditions are nested more than {_MAX_DEPTH} deep; write a flatter expression"
        )
    return result


class _Conditions:
    """Parses the grammar from OR down to comparisons; each part yields the parts within it (``operands.run``)."""

    def __init__(self, cursor: Cursor, context: Context) -> None:
        self._cursor, self._zone = cursor, context.zone
        self._operands = Operands(cursor, context, self._or)

    def parse(self) -> Expression:
        start = self._cursor.peek
        if start.kind == "end":
            raise self._cursor.error(start, "the expression is empty; leave where out to read all rows")
        operand = run(self._or())
        if isinstance(operand, Literal) and operand.type == VOID:
            raise self._cursor.error(start, "NULL alone is not a condition")
        result = self._boolean(operand, start)
        if self._cursor.peek.kind != "end":
            raise self._cursor.unexpected(self._cursor.peek)
        return result

    def _or(self) -> Steps:
        return self._chain("OR", self._and, disjunction)

    def _and(self) -> Steps:
        return self._chain("AND", self._not, conjunction)

    def _chain(self, word: str, operand: Callable[[], Steps], join: Callable[[list[Expression]], Expression]) -> Steps:
        start = self._cursor.peek
        first = yield operand()
        if not self._cursor.peek.is_one_of(word):
            return first
        parts = [self._boolean(first, start)]
        while self._cursor.accept(word):
            start = self._cursor.peek
            parts.append(self._boolean((yield operand()), start))
        return join(parts)

    def _not(self) -> Steps:
        negations = 0
        while self._cursor.peek.is_one_of("NOT", "!") and not self._cursor.ahead(1).is_one_of(*_COMPARISONS):
            self._cursor.advance()
            negations += 1
        start = self._cursor.peek
        operand = yield self._predicated()
        if not negations:
            return operand
        inner = self._boolean(operand, start)
        return negation(inner) if negations % 2 else inner

    def _boolean(self, operand: Operand, start: Token) -> Expression:
        """A column or literal that stands for a boolean expression."""
        if isinstance(operand, Column | Monotone | coercion.Coalesce):
            if operand.type != BOOLEAN:
                raise self._cursor.error(
                    start, f"a condition is needed here, not a column of type {spark_name(operand.type)}"
                )
            return self._cursor.bound(start, lambda: coercion.compare("=", operand, Literal(True, BOOLEAN), self._zone))
        if isinstance(operand, Literal):
            if operand.type not in (BOOLEAN, VOID):
                raise self._cursor.error(
                    start, f"a condition is needed here, not the {spark_name(operand.type)} literal {operand}"
                )
            assert operand.value is None or isinstance(operand.value, bool)
            return Constant(operand.value)
        return operand

    def _predicated(self) -> Steps:
        start = self._cursor.peek
        value = yield self._comparison()
        token = self._cursor.peek
        if token.is_one_of("IS"):
            self._cursor.advance()
            return (yield self._is_predicate(value, start))
        negated = token.is_one_of("NOT") and self._cursor.ahead(1).is_one_of(
            "IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP"
        )
        if negated:
            self._cursor.advance()
        result: Operand
        word = self._cursor.peek
        if self._cursor.accept("BETWEEN"):
            lower = yield self._comparison()
            self._cursor.expect("AND")
            upper = yield self._comparison()
            result = conjunction([self._compare(">=", value, lower, word), self._compare("<=", value, upper, word)])
        elif self._cursor.accept("IN"):
            result = yield self._membership(value, word)
        elif self._cursor.accept("LIKE"):
            result = yield self._like(value, word)
        elif word.is_one_of("ILIKE", "RLIKE", "REGEXP"):
            raise self._cursor.error(
                word, f"{word.value} is not part of the language of where; filter the DataFrame for it"
            )
        else:
            return value
        return negation(self._boolean(result, start)) if negated else result

    def _is_predicate(self, value: Operand, start: Token) -> Steps:
        negated = self._cursor.accept("NOT")
        result: Expression
        word = self._cursor.advance()
        if word.is_one_of("NULL"):
            result = null_test(value)
        elif word.is_one_of("TRUE", "FALSE"):
            inner = self._boolean(value, start)
            result = coercion.is_true(inner if word.value == "TRUE" else negation(inner))
        elif word.is_one_of("UNKNOWN"):
            result = null_test(self._boolean(value, start))
        elif word.is_one_of("DISTINCT"):
            self._cursor.expect("FROM")
            result = negation(self._compare("<=>", value, (yield self._comparison()), word))
        else:
            raise self._cursor.error(word, "after IS comes [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        return negation(result) if negated else result

    def _membership(self, value: Operand, word: Token) -> Steps:
        self._cursor.expect("(")
        if (
            self._cursor.peek.is_one_of("SELECT", "WITH", "VALUES", "FROM", "TABLE")
            and self._cursor.ahead(1).kind != "operator"
        ):
            raise self._cursor.error(
                self._cursor.peek, "a subquery is not part of the language of where; list the values"
            )
        items = [self._operands.literal() or (yield self._or())]
        while self._cursor.accept(","):
            items.append(self._operands.literal() or (yield self._or()))
        self._cursor.expect(")")
        scalars = [i for i in items if isinstance(i, coercion.Scalar)]
        if isinstance(value, coercion.Scalar) and len(scalars) == len(items):
            return self._cursor.bound(word, lambda: coercion.membership(value, scalars, self._zone))
        raise self._cursor.error(word, "IN takes columns and literals; compare conditions with AND, OR and NOT")

    def _like(self, value: Operand, word: Token) -> Steps:
        if self._cursor.peek.is_one_of("ANY", "SOME", "ALL"):
            raise self._cursor.error(
                self._cursor.peek, "LIKE ANY and LIKE ALL are not read; write several LIKEs with OR or AND"
            )
        pattern, escape = (yield self._comparison()), "\\"
        if self._cursor.accept("ESCAPE"):
            token = self._cursor.advance()
            if token.kind != "string" or len(token.value.encode("utf-16-le")) != 2:  # one unit of UTF-16, as in Spark
                raise self._cursor.error(token, "ESCAPE takes a string of one character")
            escape = token.value
        if not isinstance(value, Column) or value.type != STRING:
            raise self._cursor.error(word, "LIKE is evaluated on STRING columns only")
        if not isinstance(pattern, Literal) or pattern.type not in (STRING, VOID):
            raise self._cursor.error(word, "the pattern of LIKE must be a string literal")
        if not isinstance(pattern.value, str):
            return UNKNOWN
        text = pattern.value
        self._cursor.bound(word, lambda: like_parts(text, escape))
        return Like(value, text, escape)

    def _comparison(self) -> Steps:
        value = yield self._operands.sum()
        is_chained = False
        while True:
            token = self._cursor.peek
            if token.kind == "operator" and token.value in _COMPARISONS:
                self._cursor.advance()
                right = yield self._operands.sum()
                if is_chained and token.value not in ("=", "==", "<=>", "<>", "!="):
                    raise self._cursor.error(token, "a chained comparison compares a condition; write a < b AND b < c")
                value, is_chained = self._compare(_COMPARISONS[token.value], value, right, token), True
            elif token.kind == "operator" and token.value in ARITHMETIC:
                raise self._cursor.error(token, f"arithmetic ({token.text}) is not part of the language of where")
            elif token.is_one_of("COLLATE"):
                raise self._cursor.error(
                    token, "a collation is not part of the language of where; strings compare by bytes"
                )
            else:
                return value

    def _compare(self, op: str, left: Operand, right: Operand, token: Token) -> Expression:
        if isinstance(left, coercion.Scalar) and isinstance(right, coercion.Scalar):
            return self._cursor.bound(token, lambda: coercion.compare(op, left, right, self._zone))
        condition, other = (right, left) if isinstance(left, coercion.Scalar) else (left, right)
        if isinstance(other, Literal) and isinstance(other.value, bool) and not isinstance(condition, coercion.Scalar):
            same = condition if other.value else negation(condition)
            if op in ("=", "<>", "<=>"):
                return coercion.is_true(same) if op == "<=>" else same if op == "=" else negation(same)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return self._compare(op, Literal(left.value, BOOLEAN), Literal(right.value, BOOLEAN), token)
        raise self._cursor.error(
            token, "a condition is compared with TRUE or FALSE only; combine conditions with AND, OR and NOT"
        )
