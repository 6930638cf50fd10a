"""Parses a ``where``: Spark 4's grammar of boolean expressions (SqlBaseParser.g4) over columns and literals.

It is a parser of its own, not sqlglot's, because the two grammars differ where rows would: ``'it''s'``, ``1000Y``,
``0x1F`` and ``a = 1 IN (2)`` are read differently, and casts become TRY_CASTs. Whatever is not in the language is
refused here, by name and position, when the table is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TypeAlias

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates import coercion, literals, tree
from delta_sharing_spark.predicates.coercion import Monotone, Scalar, cast_operand
from delta_sharing_spark.predicates.functions import CURRENT, call, compare, condition, like, membership, null_test
from delta_sharing_spark.predicates.lexer import ARITHMETIC, RESERVED, Cursor, Token
from delta_sharing_spark.predicates.padding import char_length, char_type
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
from delta_sharing_spark.schema.types import DataType, Decimal, Field, FieldsByName, Struct

_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", "!>": "<=", ">": ">", ">=": ">=",
                "!<": ">=", "<=>": "<=>"}  # fmt: skip


Operand = Scalar | tree.Expression
#: A part of the grammar: yields the parts within it, and is sent what they parsed (``_run``).
Steps: TypeAlias = "Generator[Steps, Operand, Operand]"
_CHAR = re.compile(r"(?<!var)char\s*\(", re.IGNORECASE)
_MARK = "__CHAR_VARCHAR_TYPE_STRING"
_PRODUCTS = ("*", "/", "%", "DIV")
#: Of a text, as of any option's (``options.values``), which this package knows nothing of.
_MOST_CHARACTERS = 1 << 20
#: Parts of the grammar within one another: some 12,000 parentheses.
_MOST_PARTS = 100_000
_OTHER_LIKES = ("ILIKE", "RLIKE", "REGEXP")


def parse_where(text: str, schema: Struct, *, time_zone: str | None = "UTC", now: int | None = None) -> tree.Expression:
    """Parse a SQL boolean expression in Spark's dialect, bound to the columns of ``schema``.

    Args:
        schema: The table's columns, by logical names; compared as Spark does, without case.
        time_zone: The session zone, in which timestamps without a zone are read; None where none is known, and they are refused.
        now: The moment that ``current_timestamp()`` and its like mean, in microseconds since 1970; None refuses them.

    Raises:
        PredicateError: A syntax error, something outside the language, an unknown column, types that do not compare
            or a literal that Spark could not cast; with the position in the text.
    """
    return _Parser(text, schema, Zone(time_zone), now).parse()


class _Parser(Cursor):
    """Parses the grammar from OR down to comparisons and operands; each part yields the parts within it (``_run``).

    Args:
        schema: The table's columns.
        zone: The session's time zone.
        now: The moment of ``current_timestamp``, in microseconds since 1970; None where it may not be used.
    """

    def __init__(self, text: str, schema: Struct, zone: Zone, now: int | None) -> None:
        if len(text) > _MOST_CHARACTERS:
            raise PredicateError(
                f"a condition has {len(text)} characters, and at most {_MOST_CHARACTERS} are read; join with a DataFrame of the values"
            )
        super().__init__(text)
        self._schema, self._zone, self._now = schema, zone, now
        #: Of each struct that was looked into, by its identity, the fields of each name without case: a table may have 100,000.
        self._fields: dict[int, FieldsByName] = {}

    def parse(self) -> tree.Expression:
        start = self.peek
        if start.kind == "end":
            raise self.error(start, "the expression is empty; leave where out to read all rows")
        operand = _run(
            self._or(), lambda: self.error(self.peek, "parentheses nest too deep here; write a flatter expression")
        )
        if isinstance(operand, tree.Literal) and operand.type == VOID:
            raise self.error(start, "NULL alone is not a condition")
        result = self._boolean(operand, start)
        if self.peek.kind != "end":
            raise self.unexpected(self.peek, "an operator, AND, OR or the end")
        if tree.depth(result) > tree.MAX_DEPTH:
            raise self.error(self.peek, f"conditions nest more than {tree.MAX_DEPTH} deep; write a flatter expression")
        return result

    def _or(self) -> Steps:
        return self._chain("OR", self._and, tree.disjunction)

    def _and(self) -> Steps:
        return self._chain("AND", self._not, tree.conjunction)

    def _chain(
        self, word: str, operand: Callable[[], Steps], join: Callable[[list[tree.Expression]], tree.Expression]
    ) -> Steps:
        start = self.peek
        first = yield operand()
        if not self.peek.is_one_of(word):
            return first
        parts = [self._boolean(first, start)]
        while self.accept(word):
            start = self.peek
            parts.append(self._boolean((yield operand()), start))
        return join(parts)

    def _not(self) -> Steps:
        negations = 0
        while self.peek.is_one_of("NOT", "!") and not self.ahead(1).is_one_of(*_COMPARISONS):
            self.advance()
            negations += 1
        start = self.peek
        operand = yield self._predicated()
        if not negations:
            return operand
        inner = self._boolean(operand, start)
        return tree.negation(inner) if negations % 2 else inner

    def _boolean(self, operand: Operand, start: Token) -> tree.Expression:
        """A column or literal that stands for a boolean expression."""
        return self.bound(start, lambda: condition(operand, self._zone))

    def _predicated(self) -> Steps:
        start = self.peek
        value = yield self._comparison()
        token = self.peek
        if token.is_one_of("IS"):
            self.advance()
            return (yield self._is_predicate(value, start))
        negated = token.is_one_of("NOT") and self.ahead(1).is_one_of("IN", "BETWEEN", "LIKE", *_OTHER_LIKES)
        if negated:
            self.advance()
        result: Operand
        word = self.peek
        if self.accept("BETWEEN"):
            if isinstance(value, tree.Column) and char_length(value.type):
                raise self.outside(
                    word, "BETWEEN of a CHAR column, beside which Spark pads no bound,", "write >= and <="
                )
            lower = self._compare(">=", value, (yield self._comparison()), word)
            self.expect("AND")
            result = tree.conjunction([lower, self._compare("<=", value, (yield self._comparison()), word)])
        elif self.accept("IN"):
            result = yield self._membership(value, word)
        elif self.accept("LIKE"):
            result = yield self._like(value, word)
        elif word.is_one_of(*_OTHER_LIKES):
            raise self.outside(word, f"{word.value}", "filter the DataFrame for it")
        else:
            return value
        return tree.negation(self._boolean(result, start)) if negated else result

    def _is_predicate(self, value: Operand, start: Token) -> Steps:
        negated = self.accept("NOT")
        result: tree.Expression
        word = self.advance()
        if word.is_one_of("NULL"):
            result = null_test(value)
        elif word.is_one_of("TRUE", "FALSE"):
            inner = self._boolean(value, start)
            result = coercion.is_true(inner if word.value == "TRUE" else tree.negation(inner))
        elif word.is_one_of("UNKNOWN"):
            result = null_test(self._boolean(value, start))
        elif word.is_one_of("DISTINCT"):
            self.expect("FROM")
            result = tree.negation(self._compare("<=>", value, (yield self._comparison()), word))
        else:
            raise self.error(word, "after IS comes [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        return tree.negation(result) if negated else result

    def _membership(self, value: Operand, word: Token) -> Steps:
        self.expect("(")
        if self.peek.is_one_of("SELECT", "WITH", "VALUES", "FROM", "TABLE") and self.ahead(1).kind != "operator":
            raise self.outside(self.peek, "a subquery", "list the values")
        items = yield from self._list()
        return self.bound(word, lambda: membership(value, items, self._zone))

    def _list(self) -> Generator[Steps, Operand, list[Operand]]:
        items = [self._lone_literal() or (yield self._or())]
        while self.accept(","):
            items.append(self._lone_literal() or (yield self._or()))
        self.expect(")")
        return items

    def _like(self, value: Operand, word: Token) -> Steps:
        if self.peek.is_one_of("ANY", "SOME", "ALL"):
            raise self.error(self.peek, "LIKE ANY and LIKE ALL are not read; write several LIKEs with OR or AND")
        pattern, escape = (yield self._comparison()), "\\"
        if self.accept("ESCAPE"):
            token = self.advance()
            if token.kind != "string" or len(token.value.encode("utf-16-le")) != 2:  # one unit of UTF-16, as in Spark
                raise self.error(token, "ESCAPE takes a string of one character")
            escape = token.value
        return self.bound(word, lambda: like(value, pattern, escape))

    def _comparison(self) -> Steps:
        value = yield self._sum()
        is_chained = False
        while True:
            token = self.peek
            if token.kind == "operator" and token.value in _COMPARISONS:
                self.advance()
                right = yield self._sum()
                if is_chained and token.value not in ("=", "==", "<=>", "<>", "!="):
                    raise self.error(token, "a chained comparison compares a condition; write a < b AND b < c")
                value, is_chained = self._compare(_COMPARISONS[token.value], value, right, token), True
            elif token.kind == "operator" and token.value in ARITHMETIC:
                raise self.arithmetic(token)
            elif token.is_one_of("COLLATE"):
                raise self.outside(token, "a collation", "strings compare by bytes")
            else:
                return value

    def _compare(self, op: str, left: Operand, right: Operand, token: Token) -> tree.Expression:
        return self.bound(token, lambda: compare(op, left, right, self._zone))

    def _sum(self) -> Steps:
        """Operands joined by ``+`` and ``-``, each joined by ``*``, ``/``, ``%`` and ``DIV``: of literals, computed here."""
        return self._computed(("+", "-"), lambda: self._computed(_PRODUCTS, self._primary))

    def _computed(self, operators: tuple[str, ...], operand: Callable[[], Steps]) -> Steps:
        value = yield operand()
        while self.peek.is_one_of(*operators):
            token = self.advance()
            right = yield operand()
            if not (isinstance(value, tree.Literal) and isinstance(right, tree.Literal)):
                raise self.outside(token, f"arithmetic ({token.text}) on columns", "compute the literal")
            result = self.bound(token, partial(literals.fold, token.value, value, right, self._zone))
            value = CastLiteral(result.value, result.type)
        return value

    def _primary(self) -> Steps:
        """One operand, with the casts (``::``) that follow it."""
        value = yield self._plain()
        while True:
            token = self.peek
            if token.is_one_of("::"):
                self.advance()
                value = self._cast(value, self._type(), token)
            elif token.is_one_of("["):
                raise self.error(token, "subscripts of arrays and maps are not part of the language of where")
            elif token.is_one_of("."):
                raise self.error(token, "a field can be taken of a column only, as in a.b")
            elif token.kind == "string":
                raise self.error(token, "two literals in a row; write one string, or put AND or OR between")
            else:
                return value

    def _lone_literal(self) -> tree.Literal | None:
        """A number or a string, if one stands here alone before a comma or a parenthesis: the values of a long IN."""
        token = self.peek
        if token.kind not in ("number", "string") or not self.ahead(1).is_one_of(",", ")"):
            return None
        self.advance()
        return tree.Literal(token.value, STRING) if token.kind == "string" else self._number(token, False)

    def _plain(self) -> Steps:
        token = self.peek
        if token.kind == "number" or token.kind == "string":
            self.advance()
            return tree.Literal(token.value, STRING) if token.kind == "string" else self._number(token, False)
        if token.is_one_of("-", "+"):
            self.advance()
            if self.peek.kind == "number":
                return self._number(self.advance(), token.value == "-")
            return self._signed(token, (yield self._primary()))
        if token.is_one_of("("):
            return (yield self._parenthesised())
        if token.kind == "word" and token.value in ("TRUE", "FALSE", "NULL"):
            self.advance()
            return tree.Literal(None, VOID) if token.value == "NULL" else tree.Literal(token.value == "TRUE", BOOLEAN)
        if token.kind in ("word", "quoted"):
            return (yield self._name())
        if token.is_one_of("?", ":"):
            raise self.error(token, "parameters are not filled in; write the value itself")
        raise self.unexpected(token)

    def _signed(self, token: Token, value: Operand) -> tree.Literal:
        if not isinstance(value, tree.Literal):
            raise self.outside(token, f"arithmetic ({token.text}) on columns", "compute the literal")
        result = self.bound(token, lambda: literals.negate(value)) if token.value == "-" else value
        return CastLiteral(result.value, result.type)

    def _parenthesised(self) -> Steps:
        self.advance()
        if self.peek.is_one_of("SELECT", "WITH", "VALUES") and self.ahead(1).kind not in ("operator", "end"):
            raise self.outside(self.peek, "a subquery")
        value = yield self._or()
        if self.peek.is_one_of(","):
            raise self.outside(self.peek, "a row in parentheses", "compare column by column")
        self.expect(")")
        return value

    def _number(self, token: Token, is_negative: bool) -> tree.Literal:
        return self.bound(token, lambda: literals.number(token.value, is_negative))

    def _name(self) -> Steps:
        token, following = self.peek, self.ahead(1)
        if token.kind == "word":
            if following.kind == "string" and token.value != "INTERVAL":
                return self._typed_literal()
            if token.value == "CAST" and following.is_one_of("("):
                return (yield self._cast_call())
            if token.value == "EXISTS" and following.is_one_of("("):
                raise self.outside(token, "EXISTS (a subquery)")
            if token.value == "CASE" and not self._follows_operand(following):
                raise self.outside(token, "CASE", "write AND, OR and NOT")
            if token.value == "INTERVAL" and self._begins_interval():
                return self._interval()
            if token.value in RESERVED and not (self._is_column(token) and self._follows_operand(following)):
                raise self.unexpected(token)
            if token.value in CURRENT and not following.is_one_of("(", "."):
                self.advance()
                if self._is_column(token):
                    name = token.text
                    raise self.error(token, f"{name} is a column and a function; write `{name}` or {name}()")
                return self._call(token, token.value, [])
        if following.is_one_of("("):
            return (yield self._function(token))
        self.advance()
        parts = [token.text if token.kind == "word" else token.value]
        while self.peek.is_one_of(".") and self.ahead(1).kind in ("word", "quoted"):
            self.advance()
            part = self.advance()
            parts.append(part.text if part.kind == "word" else part.value)
        if self.peek.is_one_of("("):
            raise self.outside(token, f"the function {'.'.join(parts)}()")
        return self.bound(token, lambda: resolve(parts, self._schema, self._fields, takes_char=True))

    def _is_column(self, token: Token) -> bool:
        """Whether a word that may mean something else is a column here, as Spark has it."""
        return bool(_fields_named(token.value, self._schema, self._fields))

    def _follows_operand(self, token: Token) -> bool:
        """Whether a token can only stand behind an operand."""
        if token.kind == "operator":
            return token.value not in ("(", "-", "+", "!", "~", "?", ":", "[")
        return token.kind == "end" or token.is_one_of("AND", "OR", "IS", "IN", "BETWEEN", "LIKE", "NOT")

    def _function(self, token: Token) -> Steps:
        self.advance()
        self.expect("(")
        arguments = [] if self.accept(")") else (yield from self._list())
        return self._call(token, (token.text if token.kind == "word" else token.value).upper(), arguments)

    def _call(self, token: Token, name: str, arguments: list[Operand]) -> Operand:
        result = self.bound(token, lambda: call(name, arguments, self._zone, self._now))
        if result is None:
            raise self.outside(token, f"the function {token.text}()", "filter the DataFrame for it")
        return result

    def _typed_literal(self) -> tree.Literal:
        kind, text = self.advance(), self.advance()
        if kind.value in ("DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"):
            target = SQL_TYPES[kind.value]
            return self.bound(text, lambda: literals.cast(tree.Literal(text.value, STRING), target, self._zone))
        if kind.value == "X":
            digits = text.value if len(text.value) % 2 == 0 else "0" + text.value
            if not re.fullmatch(r"[0-9A-Fa-f]*", digits):
                raise self.error(text, "a binary literal X'..' holds hexadecimal digits only")
            return tree.Literal(bytes.fromhex(digits), BINARY)
        raise self.error(kind, f"{kind.text} literals are not part of the language of where")

    def _begins_interval(self) -> bool:
        signs = 1 if self.ahead(1).is_one_of("-", "+") else 0
        return self.ahead(1 + signs).kind in ("number", "string") and self.ahead(2 + signs).is_one_of(*literals.UNITS)

    def _interval(self) -> tree.Literal:
        start = self.advance()
        parts: list[tuple[str, str]] = []
        while not parts or self.peek.kind in ("number", "string"):
            sign = self.advance().value if self.peek.is_one_of("-", "+") else ""
            number, unit = self.advance(), self.advance()
            if not unit.is_one_of(*literals.UNITS):
                raise self.error(unit, "a unit is missing here, as in INTERVAL 7 DAYS")
            if sign == "-" and number.value[:1] in ("-", "+"):
                raise self.error(number, "an interval with two signs is not read; write one")
            parts.append(((sign if sign == "-" else "") + number.value, unit.value))
            if self.peek.is_one_of("TO"):
                self.advance()
                last = self.advance()
                if len(parts) > 1 or not last.is_one_of(*literals.UNITS):
                    raise self.outside(last, "an interval of this form")
                return self.bound(start, partial(literals.interval_range, *parts[0], last.value))
        return self.bound(start, lambda: literals.interval(parts))

    def _cast_call(self) -> Steps:
        token = self.advance()
        self.expect("(")
        value = yield self._or()
        self.expect("AS")
        target = self._type()
        self.expect(")")
        return self._cast(value, target, token)

    def _cast(self, value: Operand, target: DataType, token: Token) -> Operand:
        if not isinstance(value, tree.Literal | tree.Column | Monotone):
            raise self.error(token, "only literals and columns are cast in the language of where")
        return self.bound(token, lambda: cast_operand(value, target, self._zone))

    def _type(self) -> DataType:
        token = self.advance()
        name = token.value if token.kind == "word" else ""
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            sizes = [10, 0]
            if self.accept("("):
                sizes = [self._size(), 0]
                if self.accept(","):
                    sizes[1] = self._size()
                self.expect(")")
            if not (1 <= sizes[0] <= 38 and 0 <= sizes[1] <= sizes[0]):
                raise self.error(token, "a DECIMAL has 1 to 38 digits, and no more after the point")
            return Decimal(*sizes)
        if name not in SQL_TYPES:
            raise self.outside(token, f"a cast to {token.text or 'nothing'}")
        if self.peek.is_one_of("(", "COLLATE"):
            raise self.outside(self.peek, f"a cast to {name} with parameters")
        return SQL_TYPES[name]

    def _size(self) -> int:
        token = self.advance()
        if token.kind != "number" or not re.fullmatch("[0-9]{1,3}", token.value):
            raise self.error(token, "a number of digits is needed here")
        return int(token.value)


def _run(steps: Steps, too_deep: Callable[[], PredicateError]) -> Operand:
    """Parse a part of the grammar and the parts within it, without recursion on Python's stack."""
    stack: list[Steps] = [steps]
    value: Operand | None = None
    while True:
        try:
            stack.append(stack[-1].send(value))  # type: ignore[arg-type]  # a part that begins is sent None
            value = None
            if len(stack) > _MOST_PARTS:
                raise too_deep()
        except StopIteration as finished:
            stack.pop()
            value = finished.value
            if not stack:
                assert value is not None
                return value


def _fields_named(name: str, struct: Struct, by_struct: dict[int, FieldsByName]) -> list[Field]:
    """The fields of a name without case; ``by_struct`` keeps those of all names."""
    if id(struct) not in by_struct:
        by_struct[id(struct)] = FieldsByName(struct)
    return by_struct[id(struct)].alike(name)


def resolve(
    names: Iterable[str],
    schema: Struct,
    by_struct: dict[int, FieldsByName] | None = None,
    *,
    takes_char: bool = False,
) -> tree.Column:
    """The column, or field of structs, that a dotted name means.

    Args:
        names: The name's parts, outermost first.
        by_struct: Keeps the fields of structs by their names, for many names of one schema.
        takes_char: Whether a CHAR column is meant as Spark shows it, padded.

    Raises:
        PredicateError: There is no such column, it is not within a struct, or it compares by other rules than bytes.
        SchemaError: The name fits several columns that differ by case.
    """
    path: list[str] = []
    kind: DataType = schema
    by_struct = {} if by_struct is None else by_struct
    for part in names:
        if not isinstance(kind, Struct):
            raise PredicateError(
                f"{'.'.join(path)} is {spark_name(kind)}, which has no field {part!r} that where can read"
            )
        near = _fields_named(part, kind, by_struct)
        if len(near) > 1:
            raise PredicateError(
                f"the column {part!r} is ambiguous: {', '.join(f.name for f in near)} differ by case only"
            )
        if not near:
            there_are = ", ".join(kind.names[:20]) + (", ..." if len(kind.names) > 20 else "")
            text = "" if path else "; a text stands in quotes"
            raise PredicateError(f"there is no column {'.'.join([*path, part])!r}; there are: {there_are}{text}")
        field = near[0]
        path.append(field.name)
        kind = field.type
        if "__COLLATIONS" in field.metadata:
            raise PredicateError(
                f"the column {'.'.join(path)} has a collation, by which strings are not compared here; leave it out of where, and filter "
                f"what is read by a rule of your own: in pandas df[df[{field.name!r}].str.lower() == 'text']; Spark's df.filter knows the "
                f"collation"
            )
        mark = str(field.metadata.get(_MARK, ""))
        if _CHAR.search(mark):
            char = char_type(mark) if takes_char and len(path) == 1 else None
            if char is None:
                raise PredicateError(
                    f"the column {'.'.join(path)} holds CHAR, which Spark pads, within another type; leave it out of where, and filter "
                    f"what is read: in pandas by str.ljust(n) on both sides, or by Spark's df.filter"
                )
            kind = char
    return tree.Column(tuple(path), kind)
