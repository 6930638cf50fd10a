"""Parses a ``where``: Spark 4's grammar of boolean expressions (SqlBaseParser.g4) over columns and literals.

It is a parser of its own, not sqlglot's, because the two grammars differ where rows would: ``'it''s'``, ``1000Y``,
``0x1F`` and ``a = 1 IN (2)`` are read differently, and casts become TRY_CASTs. Whatever is not in the language is
refused here, by name and position, when the table is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates import coercion, literals, tree
from delta_sharing_spark.predicates.coercion import Monotone, Scalar
from delta_sharing_spark.predicates.functions import CURRENT, call, cast_operand, null_test
from delta_sharing_spark.predicates.lexer import ARITHMETIC, RESERVED, Cursor, Token
from delta_sharing_spark.predicates.like import like_parts
from delta_sharing_spark.predicates.scalar_types import (
    BINARY,
    BOOLEAN,
    SQL_TYPES,
    STRING,
    VOID,
    CastLiteral,
    spark_name,
)
from delta_sharing_spark.predicates.times import Zone
from delta_sharing_spark.schema.types import DataType, Decimal, Struct

_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", "!>": "<=", ">": ">", ">=": ">=",
                "!<": ">=", "<=>": "<=>"}  # fmt: skip
#: Deeper trees (of AND within OR within NOT) are refused: what evaluates, skips and pickles them descends by recursion.
_MAX_DEPTH = 64


def parse_where(text: str, schema: Struct, *, time_zone: str = "UTC", now: int | None = None) -> tree.Expression:
    """Parse a SQL boolean expression in Spark's dialect, bound to the columns of ``schema``.

    Args:
        schema: The table's columns, by logical names; compared as Spark does, without case.
        time_zone: The session zone, in which timestamps without a zone are read.
        now: The moment that ``current_timestamp()`` and its like mean, in microseconds since 1970; None refuses them.

    Raises:
        PredicateError: A syntax error, something outside the language, an unknown column, types that do not compare
            or a literal that Spark could not cast; with the position in the text.
    """
    cursor = Cursor(text)
    result = _Conditions(cursor, Context(schema, Zone(time_zone), now)).parse()
    if tree.depth(result) > _MAX_DEPTH:
        raise cursor.error(
            cursor.peek, f"conditions are nested more than {_MAX_DEPTH} deep; write a flatter expression"
        )
    return result


class _Conditions:
    """Parses the grammar from OR down to comparisons; each part yields the parts within it (``run``)."""

    def __init__(self, cursor: Cursor, context: Context) -> None:
        self._cursor, self._zone = cursor, context.zone
        self._operands = Operands(cursor, context, self._or)

    def parse(self) -> tree.Expression:
        start = self._cursor.peek
        if start.kind == "end":
            raise self._cursor.error(start, "the expression is empty; leave where out to read all rows")
        operand = run(self._or())
        if isinstance(operand, tree.Literal) and operand.type == VOID:
            raise self._cursor.error(start, "NULL alone is not a condition")
        result = self._boolean(operand, start)
        if self._cursor.peek.kind != "end":
            raise self._cursor.unexpected(self._cursor.peek)
        return result

    def _or(self) -> Steps:
        return self._chain("OR", self._and, tree.disjunction)

    def _and(self) -> Steps:
        return self._chain("AND", self._not, tree.conjunction)

    def _chain(
        self, word: str, operand: Callable[[], Steps], join: Callable[[list[tree.Expression]], tree.Expression]
    ) -> Steps:
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
        return tree.negation(inner) if negations % 2 else inner

    def _boolean(self, operand: Operand, start: Token) -> tree.Expression:
        """A column or literal that stands for a boolean expression."""
        if isinstance(operand, tree.Column | Monotone | coercion.Coalesce):
            if operand.type != BOOLEAN:
                raise self._cursor.error(
                    start, f"a condition is needed here, not a column of type {spark_name(operand.type)}"
                )
            return self._cursor.bound(
                start, lambda: coercion.compare("=", operand, tree.Literal(True, BOOLEAN), self._zone)
            )
        if isinstance(operand, tree.Literal):
            if operand.type not in (BOOLEAN, VOID):
                raise self._cursor.error(
                    start, f"a condition is needed here, not the {spark_name(operand.type)} literal {operand}"
                )
            assert operand.value is None or isinstance(operand.value, bool)
            return tree.Constant(operand.value)
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
            result = tree.conjunction(
                [self._compare(">=", value, lower, word), self._compare("<=", value, upper, word)]
            )
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
        return tree.negation(self._boolean(result, start)) if negated else result

    def _is_predicate(self, value: Operand, start: Token) -> Steps:
        negated = self._cursor.accept("NOT")
        result: tree.Expression
        word = self._cursor.advance()
        if word.is_one_of("NULL"):
            result = null_test(value)
        elif word.is_one_of("TRUE", "FALSE"):
            inner = self._boolean(value, start)
            result = coercion.is_true(inner if word.value == "TRUE" else tree.negation(inner))
        elif word.is_one_of("UNKNOWN"):
            result = null_test(self._boolean(value, start))
        elif word.is_one_of("DISTINCT"):
            self._cursor.expect("FROM")
            result = tree.negation(self._compare("<=>", value, (yield self._comparison()), word))
        else:
            raise self._cursor.error(word, "after IS comes [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        return tree.negation(result) if negated else result

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
        if not isinstance(value, tree.Column) or value.type != STRING:
            raise self._cursor.error(word, "LIKE is evaluated on STRING columns only")
        if not isinstance(pattern, tree.Literal) or pattern.type not in (STRING, VOID):
            raise self._cursor.error(word, "the pattern of LIKE must be a string literal")
        if not isinstance(pattern.value, str):
            return tree.UNKNOWN
        text = pattern.value
        self._cursor.bound(word, lambda: like_parts(text, escape))
        return tree.Like(value, text, escape)

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

    def _compare(self, op: str, left: Operand, right: Operand, token: Token) -> tree.Expression:
        if isinstance(left, coercion.Scalar) and isinstance(right, coercion.Scalar):
            return self._cursor.bound(token, lambda: coercion.compare(op, left, right, self._zone))
        condition, other = (right, left) if isinstance(left, coercion.Scalar) else (left, right)
        if (
            isinstance(other, tree.Literal)
            and isinstance(other.value, bool)
            and not isinstance(condition, coercion.Scalar)
        ):
            same = condition if other.value else tree.negation(condition)
            if op in ("=", "<>", "<=>"):
                return coercion.is_true(same) if op == "<=>" else same if op == "=" else tree.negation(same)
        if isinstance(left, tree.Constant) and isinstance(right, tree.Constant):
            return self._compare(op, tree.Literal(left.value, BOOLEAN), tree.Literal(right.value, BOOLEAN), token)
        raise self._cursor.error(
            token, "a condition is compared with TRUE or FALSE only; combine conditions with AND, OR and NOT"
        )


Operand = Scalar | tree.Expression
#: A part of the grammar: yields the parts within it, and is sent what they parsed (``run``).
Steps: TypeAlias = "Generator[Steps, Operand, Operand]"

_CHAR = re.compile(r"(?<!var)char\s*\(", re.IGNORECASE)
_PRODUCTS = ("*", "/", "%", "DIV")


@dataclass(frozen=True, slots=True)
class Context:
    """The meaning of names and literals.

    Attributes:
        schema: The table's columns.
        zone: The session's time zone.
        now: The moment of ``current_timestamp``, in microseconds since 1970; None where it may not be used.
    """

    schema: Struct
    zone: Zone
    now: int | None = None


def run(steps: Steps) -> Operand:
    """Parse a part of the grammar and the parts within it, at any depth, without recursion on Python's stack."""
    stack: list[Steps] = [steps]
    value: Operand | None = None
    while True:
        try:
            stack.append(stack[-1].send(value))  # type: ignore[arg-type]  # a part that begins is sent None
            value = None
        except StopIteration as finished:
            stack.pop()
            value = finished.value
            if not stack:
                assert value is not None
                return value


class Operands:
    """Parses operands at a cursor.

    Args:
        context: What names and literals mean.
        expression: Parses a part in parentheses.
    """

    def __init__(self, cursor: Cursor, context: Context, expression: Callable[[], Steps]) -> None:
        self._cursor, self._context, self._expression = cursor, context, expression

    def sum(self) -> Steps:
        """Operands joined by ``+`` and ``-``, each joined by ``*``, ``/``, ``%`` and ``DIV``: of literals, computed here.

        Raises:
            PredicateError: There is no operand here, or one that the language of ``where`` does not have.
        """
        value = yield self._product()
        while self._cursor.peek.is_one_of("+", "-"):
            token = self._cursor.advance()
            value = self._compute(token, value, (yield self._product()))
        return value

    def _product(self) -> Steps:
        value = yield self._primary()
        while self._cursor.peek.is_one_of(*_PRODUCTS):
            token = self._cursor.advance()
            value = self._compute(token, value, (yield self._primary()))
        return value

    def _compute(self, token: Token, left: Operand, right: Operand) -> Operand:
        if not (isinstance(left, tree.Literal) and isinstance(right, tree.Literal)):
            raise self._cursor.error(
                token, f"arithmetic ({token.text}) on columns is not part of the language of where; compute the literal"
            )
        result = self._cursor.bound(token, lambda: literals.fold(token.value, left, right, self._context.zone))
        return CastLiteral(result.value, result.type)

    def _primary(self) -> Steps:
        """One operand, with the casts (``::``) that follow it."""
        value = yield self._plain()
        while True:
            token = self._cursor.peek
            if token.is_one_of("::"):
                self._cursor.advance()
                value = self._cast(value, self._type(), token)
            elif token.is_one_of("["):
                raise self._cursor.error(token, "subscripts of arrays and maps are not part of the language of where")
            elif token.is_one_of("."):
                raise self._cursor.error(token, "a field can be taken of a column only, as in a.b")
            elif token.kind == "string":
                raise self._cursor.error(token, "two literals in a row; write one string, or put AND or OR between")
            else:
                return value

    def literal(self) -> tree.Literal | None:
        """A number or a string, if one stands here alone before a comma or a parenthesis: the values of a long IN."""
        token = self._cursor.peek
        if token.kind not in ("number", "string") or not self._cursor.ahead(1).is_one_of(",", ")"):
            return None
        self._cursor.advance()
        return tree.Literal(token.value, STRING) if token.kind == "string" else self._number(token, False)

    def _plain(self) -> Steps:
        token = self._cursor.peek
        if token.kind == "number" or token.kind == "string":
            self._cursor.advance()
            return tree.Literal(token.value, STRING) if token.kind == "string" else self._number(token, False)
        if token.is_one_of("-", "+"):
            self._cursor.advance()
            if self._cursor.peek.kind == "number":
                return self._number(self._cursor.advance(), token.value == "-")
            return self._signed(token, (yield self._primary()))
        if token.is_one_of("("):
            return (yield self._parenthesised())
        if token.kind == "word" and token.value in ("TRUE", "FALSE", "NULL"):
            self._cursor.advance()
            return tree.Literal(None, VOID) if token.value == "NULL" else tree.Literal(token.value == "TRUE", BOOLEAN)
        if token.kind in ("word", "quoted"):
            return (yield self._name())
        if token.is_one_of("?", ":"):
            raise self._cursor.error(token, "parameters are not filled in; write the value itself")
        raise self._cursor.unexpected(token)

    def _signed(self, token: Token, value: Operand) -> tree.Literal:
        if not isinstance(value, tree.Literal):
            raise self._cursor.error(
                token, f"arithmetic ({token.text}) on columns is not part of the language of where; compute the literal"
            )
        result = self._cursor.bound(token, lambda: literals.negate(value)) if token.value == "-" else value
        return CastLiteral(result.value, result.type)

    def _parenthesised(self) -> Steps:
        self._cursor.advance()
        if self._cursor.peek.is_one_of("SELECT", "WITH", "VALUES") and self._cursor.ahead(1).kind in (
            "word",
            "quoted",
            "number",
            "string",
        ):
            raise self._cursor.error(self._cursor.peek, "a subquery is not part of the language of where")
        value = yield self._expression()
        if self._cursor.peek.is_one_of(","):
            raise self._cursor.error(
                self._cursor.peek, "rows in parentheses are not part of the language of where; compare column by column"
            )
        self._cursor.expect(")")
        return value

    def _number(self, token: Token, is_negative: bool) -> tree.Literal:
        return self._cursor.bound(token, lambda: literals.number(token.value, is_negative))

    def _name(self) -> Steps:
        token, following = self._cursor.peek, self._cursor.ahead(1)
        if token.kind == "word":
            if following.kind == "string" and token.value != "INTERVAL":
                return self._typed_literal()
            if token.value == "CAST" and following.is_one_of("("):
                return (yield self._cast_call())
            if token.value == "EXISTS" and following.is_one_of("("):
                raise self._cursor.error(token, "EXISTS (a subquery) is not part of the language of where")
            if token.value == "CASE" and not self._follows_operand(following):
                raise self._cursor.error(token, "CASE is not part of the language of where; write AND, OR and NOT")
            if token.value == "INTERVAL" and self._begins_interval():
                return self._interval()
            if token.value in RESERVED and not (self._is_column(token) and self._follows_operand(following)):
                raise self._cursor.unexpected(token)
            if token.value in CURRENT and not following.is_one_of("(", "."):
                self._cursor.advance()
                if self._is_column(token):
                    raise self._cursor.error(
                        token, f"{token.text} is a column and a function; write `{token.text}` or {token.text}()"
                    )
                return self._call(token, token.value, [])
        if following.is_one_of("("):
            return (yield self._function(token))
        self._cursor.advance()
        parts = [token.text if token.kind == "word" else token.value]
        while self._cursor.peek.is_one_of(".") and self._cursor.ahead(1).kind in ("word", "quoted"):
            self._cursor.advance()
            part = self._cursor.advance()
            parts.append(part.text if part.kind == "word" else part.value)
        if self._cursor.peek.is_one_of("("):
            raise self._cursor.error(token, f"the function {'.'.join(parts)}() is not part of the language of where")
        return self._cursor.bound(token, lambda: resolve(parts, self._context.schema))

    def _is_column(self, token: Token) -> bool:
        """Whether a word that may mean something else is a column here, as Spark has it."""
        return any(name.upper() == token.value for name in self._context.schema.names)

    def _follows_operand(self, token: Token) -> bool:
        """Whether a token can only stand behind an operand."""
        if token.kind == "operator":
            return token.value not in ("(", "-", "+", "!", "~", "?", ":", "[")
        return token.kind == "end" or token.is_one_of("AND", "OR", "IS", "IN", "BETWEEN", "LIKE", "NOT")

    def _function(self, token: Token) -> Steps:
        self._cursor.advance()
        self._cursor.expect("(")
        arguments: list[Operand] = []
        if not self._cursor.accept(")"):
            arguments.append((yield self._expression()))
            while self._cursor.accept(","):
                arguments.append((yield self._expression()))
            self._cursor.expect(")")
        return self._call(token, (token.text if token.kind == "word" else token.value).upper(), arguments)

    def _call(self, token: Token, name: str, arguments: list[Operand]) -> Operand:
        context = self._context
        result = self._cursor.bound(token, lambda: call(name, arguments, context.zone, context.now))
        if result is None:
            raise self._cursor.error(
                token, f"the function {token.text}() is not part of the language of where; filter the DataFrame for it"
            )
        return result

    def _typed_literal(self) -> tree.Literal:
        kind, text = self._cursor.advance(), self._cursor.advance()
        if kind.value in ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"):
            target, context = SQL_TYPES[kind.value], self._context
            return self._cursor.bound(
                text, lambda: literals.cast(tree.Literal(text.value, STRING), target, context.zone)
            )
        if kind.value == "X":
            digits = text.value if len(text.value) % 2 == 0 else "0" + text.value
            if not re.fullmatch(r"[0-9A-Fa-f]*", digits):
                raise self._cursor.error(text, "a binary literal X'..' holds hexadecimal digits only")
            return tree.Literal(bytes.fromhex(digits), BINARY)
        raise self._cursor.error(kind, f"{kind.text} literals are not part of the language of where")

    def _begins_interval(self) -> bool:
        signs = 1 if self._cursor.ahead(1).is_one_of("-", "+") else 0
        return self._cursor.ahead(1 + signs).kind in ("number", "string") and self._cursor.ahead(2 + signs).is_one_of(
            *literals.UNITS
        )

    def _interval(self) -> tree.Literal:
        start = self._cursor.advance()
        parts: list[tuple[str, str]] = []
        while self._cursor.peek.kind in ("number", "string") or (
            self._cursor.peek.is_one_of("-", "+")
            and self._cursor.ahead(1).kind in ("number", "string")
            and self._cursor.ahead(2).is_one_of(*literals.UNITS)
            and not parts
        ):
            sign = self._cursor.advance().value if self._cursor.peek.is_one_of("-", "+") else ""
            number, unit = self._cursor.advance(), self._cursor.advance()
            if not unit.is_one_of(*literals.UNITS):
                raise self._cursor.error(unit, "a unit is missing here, as in INTERVAL 7 DAYS")
            if sign == "-" and number.value[:1] in ("-", "+"):
                raise self._cursor.error(number, "an interval with two signs is not read; write one")
            parts.append(((sign if sign == "-" else "") + number.value, unit.value))
            if self._cursor.peek.is_one_of("TO"):
                self._cursor.advance()
                last = self._cursor.advance()
                if len(parts) > 1 or not last.is_one_of(*literals.UNITS):
                    raise self._cursor.error(last, "an interval of this form is not part of the language of where")
                return self._interval_range(start, *parts[0], last.value)
        return self._cursor.bound(start, lambda: literals.interval(parts))

    def _interval_range(self, start: Token, text: str, first: str, last: str) -> tree.Literal:
        return self._cursor.bound(start, lambda: literals.interval_range(text, first, last))

    def _cast_call(self) -> Steps:
        token = self._cursor.advance()
        self._cursor.expect("(")
        value = yield self._expression()
        self._cursor.expect("AS")
        target = self._type()
        self._cursor.expect(")")
        return self._cast(value, target, token)

    def _cast(self, value: Operand, target: DataType, token: Token) -> Operand:
        if not isinstance(value, tree.Literal | tree.Column | Monotone):
            raise self._cursor.error(token, "only literals and columns are cast in the language of where")
        return self._cursor.bound(token, lambda: cast_operand(value, target, self._context.zone))

    def _type(self) -> DataType:
        token = self._cursor.advance()
        name = token.value if token.kind == "word" else ""
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            sizes = [10, 0]
            if self._cursor.accept("("):
                sizes = [self._size(), 0]
                if self._cursor.accept(","):
                    sizes[1] = self._size()
                self._cursor.expect(")")
            if not (1 <= sizes[0] <= 38 and 0 <= sizes[1] <= sizes[0]):
                raise self._cursor.error(token, "a DECIMAL has 1 to 38 digits, and no more after the point")
            return Decimal(*sizes)
        if name not in SQL_TYPES:
            raise self._cursor.error(token, f"a cast to {token.text or 'nothing'} is not part of the language of where")
        if self._cursor.peek.is_one_of("(", "COLLATE"):
            raise self._cursor.error(
                self._cursor.peek, f"a cast to {name} with parameters is not part of the language of where"
            )
        return SQL_TYPES[name]

    def _size(self) -> int:
        token = self._cursor.advance()
        if token.kind != "number" or not re.fullmatch("[0-9]{1,3}", token.value):
            raise self._cursor.error(token, "a number of digits is needed here")
        return int(token.value)


def resolve(names: Iterable[str], schema: Struct) -> tree.Column:
    """The column, or field of structs, that a dotted name means.

    Args:
        names: The name's parts, outermost first.

    Raises:
        PredicateError: There is no such column, it is not within a struct, or it compares by other rules than bytes.
        SchemaError: The name fits several columns that differ by case.
    """
    path: list[str] = []
    kind: DataType = schema
    for part in names:
        if not isinstance(kind, Struct):
            raise PredicateError(
                f"{'.'.join(path)} is {spark_name(kind)}, which has no field {part!r} that where can read"
            )
        near = [f.name for f in kind.fields if f.name.lower() == part.lower()]
        if len(near) > 1:
            raise PredicateError(f"the column {part!r} is ambiguous: {', '.join(near)} differ by case only")
        if not near:
            known = ", ".join(kind.names[:20]) + (", ..." if len(kind.names) > 20 else "")
            raise PredicateError(f"there is no column {'.'.join([*path, part])!r}; there are: {known}")
        field = kind.find(near[0])
        assert field is not None
        if "__COLLATIONS" in field.metadata:
            raise PredicateError(f"the column {field.name!r} has a collation, by which strings are not compared here")
        if _CHAR.search(str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))):
            raise PredicateError(
                f"the column {field.name!r} is CHAR(n), which Spark pads when comparing; filter the DataFrame"
            )
        path.append(field.name)
        kind = field.type
    return tree.Column(tuple(path), kind)
