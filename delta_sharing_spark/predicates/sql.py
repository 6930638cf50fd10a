"""A ``where`` from its text: Spark 4's grammar of boolean expressions (SqlBaseParser.g4) over columns and literals.

It is a parser of its own, not sqlglot's, because the two grammars differ where rows would: ``a = 1 IS NULL`` tests the
comparison in Spark and the literal in sqlglot, ``'it''s'``, ``1Y`` and ``0x1F`` are read differently, casts become
TRY_CASTs. Whatever is not in the language is refused here, by name and position, when the load is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from delta_sharing_spark.errors import PredicateError, SchemaError
from delta_sharing_spark.predicates import coercion, literals
from delta_sharing_spark.predicates.coercion import CastLiteral
from delta_sharing_spark.predicates.lexer import Source, Token, tokenize
from delta_sharing_spark.predicates.like import like_parts
from delta_sharing_spark.predicates.literals import BOOLEAN, STRING, VOID, Zone, spark_name
from delta_sharing_spark.predicates.tree import (
    UNKNOWN,
    Column,
    Constant,
    Expression,
    IsNull,
    Like,
    Literal,
    conjunction,
    disjunction,
    negation,
)  # fmt: skip
from delta_sharing_spark.schema.types import DataType, Decimal, Struct

Operand = Column | Literal | Expression
_T = TypeVar("_T")

_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", "!>": "<=", ">": ">", ">=": ">=",
                "!<": ">=", "<=>": "<=>"}  # fmt: skip
_ARITHMETIC = set("+-*/%&|^~") | {"||", "<<", ">>", ">>>", "|>"}
_RESERVED = {"AND", "OR", "NOT", "IN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "NULL", "TRUE", "FALSE", "CASE",
             "WHEN", "THEN", "ELSE", "END", "SELECT", "EXISTS", "DISTINCT", "ESCAPE", "DIV", "COLLATE", "AS", "FROM",
             "WHERE", "CAST", "TRY_CAST"}  # fmt: skip
#: Spark reads these as functions, or as columns if there are such: the choice moved between its versions.
_CURRENT = {"CURRENT_DATE", "CURRENT_TIMESTAMP", "CURRENT_TIME", "CURRENT_USER", "SESSION_USER", "LOCALTIMESTAMP"}
_TYPED = {"DATE": literals.DATE, "TIMESTAMP": literals.TIMESTAMP, "TIMESTAMP_LTZ": literals.TIMESTAMP,
          "TIMESTAMP_NTZ": literals.TIMESTAMP_NTZ}  # fmt: skip
_TYPES: dict[str, DataType] = {
    **dict.fromkeys(("BOOLEAN",), literals.BOOLEAN),
    **dict.fromkeys(("TINYINT", "BYTE"), literals.BYTE),
    **dict.fromkeys(("SMALLINT", "SHORT"), literals.SHORT),
    **dict.fromkeys(("INT", "INTEGER"), literals.INTEGER),
    **dict.fromkeys(("BIGINT", "LONG"), literals.LONG),
    **dict.fromkeys(("FLOAT", "REAL"), literals.FLOAT),
    "DOUBLE": literals.DOUBLE,
    "STRING": literals.STRING,
    "BINARY": literals.BINARY,
    **_TYPED,
}
#: Each level costs ten frames of Python's stack, of which a caller may have used some.
_MAX_DEPTH = 50
_CHAR = re.compile(r"(?<!var)char\s*\(", re.IGNORECASE)


def parse_where(text: str, schema: Struct, *, time_zone: str = "UTC") -> Expression:
    """Parse a SQL boolean expression in Spark's dialect, bound to the columns of ``schema``.

    Args:
        text: The expression.
        schema: The table's columns, by logical names; compared as Spark does, without case.
        time_zone: The session zone, in which timestamps without a zone are read.

    Raises:
        PredicateError: A syntax error, something outside the language, an unknown column, types that do not compare
            or a literal that Spark could not cast; with the position in the text.
    """
    return _Parser(text, schema, Zone(time_zone)).parse()


class _Parser:
    def __init__(self, text: str, schema: Struct, zone: Zone) -> None:
        self._source = Source(text)
        self._tokens = tokenize(self._source)
        self._at = 0
        self._depth = 0
        self._schema = schema
        self._zone = zone

    def parse(self) -> Expression:
        if self._peek.kind == "end":
            raise self._error(self._peek, "the expression is empty; leave where out to read all rows")
        start = self._peek
        operand = self._or()
        if isinstance(operand, Literal) and operand.type == VOID:
            raise self._error(start, "NULL alone is not a condition")
        result = self._boolean(operand, start)
        if self._peek.kind != "end":
            raise self._unexpected(self._peek)
        return result

    # tokens

    @property
    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _ahead(self, count: int) -> Token:
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def _advance(self) -> Token:
        token = self._peek
        self._at += 1
        return token

    def _is(self, token: Token, *texts: str) -> bool:
        return token.kind in ("word", "operator") and token.value in texts

    def _accept(self, *texts: str) -> bool:
        if self._is(self._peek, *texts):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> Token:
        if not self._is(self._peek, text):
            raise self._error(self._peek, f"{text} is missing here")
        return self._advance()

    def _error(self, token: Token, message: str) -> PredicateError:
        return self._source.error(token.start, message)

    def _bound(self, token: Token, build: Callable[[], _T]) -> _T:
        """Run what may refuse values or types, and say where in the text that was."""
        try:
            return build()
        except (PredicateError, SchemaError) as error:
            raise self._error(token, str(error)) from None

    # boolean expressions

    def _or(self) -> Operand:
        return self._chain("OR", self._and, disjunction)

    def _and(self) -> Operand:
        return self._chain("AND", self._not, conjunction)

    def _chain(
        self, word: str, operand: Callable[[], Operand], join: Callable[[list[Expression]], Expression]
    ) -> Operand:
        start = self._peek
        first = operand()
        if not self._is(self._peek, word):
            return first
        parts = [self._boolean(first, start)]
        while self._accept(word):
            start = self._peek
            parts.append(self._boolean(operand(), start))
        return join(parts)

    def _not(self) -> Operand:
        negations = 0
        while self._accept("NOT", "!"):
            negations += 1
        start = self._peek
        operand = self._predicated()
        if not negations:
            return operand
        inner = self._boolean(operand, start)
        return negation(inner) if negations % 2 else inner

    def _boolean(self, operand: Operand, start: Token) -> Expression:
        """A column or literal that stands for a boolean expression."""
        if isinstance(operand, Column):
            if operand.type != BOOLEAN:
                raise self._error(
                    start, f"a condition is needed here, not the {spark_name(operand.type)} column {operand}"
                )
            return self._bound(start, lambda: coercion.compare("=", operand, Literal(True, BOOLEAN), self._zone))
        if isinstance(operand, Literal):
            if operand.type not in (BOOLEAN, VOID):
                raise self._error(
                    start, f"a condition is needed here, not the {spark_name(operand.type)} literal {operand}"
                )
            assert operand.value is None or isinstance(operand.value, bool)
            return Constant(operand.value)
        return operand

    def _predicated(self) -> Operand:
        start = self._peek
        value = self._comparison()
        token = self._peek
        if self._is(token, "IS"):
            self._advance()
            return self._is_predicate(value, start)
        negated = self._is(token, "NOT") and self._is(
            self._ahead(1), "IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP"
        )
        if negated:
            self._advance()
        result: Expression
        word = self._peek
        if self._accept("BETWEEN"):
            lower = self._comparison()
            self._expect("AND")
            upper = self._comparison()
            result = conjunction([self._compare(">=", value, lower, word), self._compare("<=", value, upper, word)])
        elif self._accept("IN"):
            result = self._membership(value, word)
        elif self._accept("LIKE"):
            result = self._like(value, word)
        elif self._is(word, "ILIKE", "RLIKE", "REGEXP"):
            raise self._error(word, f"{word.value} is not part of the language of where; filter the DataFrame for it")
        else:
            return value
        return negation(result) if negated else result

    def _is_predicate(self, value: Operand, start: Token) -> Expression:
        negated = self._accept("NOT")
        result: Expression
        word = self._advance()
        if self._is(word, "NULL"):
            result = self._is_null(value)
        elif self._is(word, "TRUE", "FALSE"):
            inner = self._boolean(value, start)
            result = coercion.is_true(inner if word.value == "TRUE" else negation(inner))
        elif self._is(word, "UNKNOWN"):
            result = self._is_null(self._boolean(value, start))
        elif self._is(word, "DISTINCT"):
            self._expect("FROM")
            result = negation(self._compare("<=>", value, self._comparison(), word))
        else:
            raise self._error(word, "after IS comes [NOT] NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM")
        return negation(result) if negated else result

    def _is_null(self, value: Operand) -> Expression:
        if isinstance(value, Literal | Constant):
            return Constant(value.value is None)
        return IsNull(value)

    def _membership(self, value: Operand, word: Token) -> Expression:
        self._expect("(")
        if self._is(self._peek, "SELECT", "WITH", "VALUES", "FROM", "TABLE") and self._ahead(1).kind != "operator":
            raise self._error(self._peek, "a subquery is not part of the language of where; list the values")
        items = [self._item()]
        while self._accept(","):
            items.append(self._item())
        self._expect(")")
        if isinstance(value, Column | Literal) and all(isinstance(i, Column | Literal) for i in items):
            plain = [i for i in items if isinstance(i, Column | Literal)]
            return self._bound(word, lambda: coercion.membership(value, plain, self._zone))
        raise self._error(word, "IN takes columns and literals; compare conditions with AND, OR and NOT")

    def _item(self) -> Operand:
        return self._or()

    def _like(self, value: Operand, word: Token) -> Expression:
        if self._is(self._peek, "ANY", "SOME", "ALL"):
            raise self._error(self._peek, "LIKE ANY and LIKE ALL are not read; write several LIKEs with OR or AND")
        pattern, escape = self._comparison(), "\\"
        if self._accept("ESCAPE"):
            token = self._advance()
            if token.kind != "string" or len(token.value) != 1:
                raise self._error(token, "ESCAPE takes a string of one character")
            escape = token.value
        if not isinstance(value, Column) or value.type != STRING:
            raise self._error(word, "LIKE is evaluated on STRING columns only")
        if not isinstance(pattern, Literal) or pattern.type not in (STRING, VOID):
            raise self._error(word, "the pattern of LIKE must be a string literal")
        if not isinstance(pattern.value, str):
            return UNKNOWN
        text = pattern.value
        self._bound(word, lambda: like_parts(text, escape))
        return Like(value, text, escape)

    # comparisons

    def _comparison(self) -> Operand:
        value = self._primary()
        chained = False
        while True:
            token = self._peek
            if token.kind == "operator" and token.value in _COMPARISONS:
                self._advance()
                right = self._primary()
                if chained and token.value not in ("=", "==", "<=>", "<>", "!="):
                    raise self._error(token, "a chained comparison compares a condition; write a < b AND b < c")
                value, chained = self._compare(_COMPARISONS[token.value], value, right, token), True
            elif (token.kind == "operator" and token.value in _ARITHMETIC) or self._is(token, "DIV"):
                raise self._error(token, f"arithmetic ({token.text}) is not part of the language of where")
            elif self._is(token, "COLLATE"):
                raise self._error(token, "a collation is not part of the language of where; strings compare by bytes")
            else:
                return value

    def _compare(self, op: str, left: Operand, right: Operand, token: Token) -> Expression:
        if isinstance(left, Column | Literal) and isinstance(right, Column | Literal):
            return self._bound(token, lambda: coercion.compare(op, left, right, self._zone))
        condition, other = (right, left) if isinstance(left, Column | Literal) else (left, right)
        if isinstance(other, Literal) and isinstance(other.value, bool) and not isinstance(condition, Column | Literal):
            same = condition if other.value else negation(condition)
            if op in ("=", "<>", "<=>"):
                return coercion.is_true(same) if op == "<=>" else same if op == "=" else negation(same)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return self._compare(op, Literal(left.value, BOOLEAN), Literal(right.value, BOOLEAN), token)
        raise self._error(
            token, "a condition is compared with TRUE or FALSE only; combine conditions with AND, OR and NOT"
        )

    def _primary(self) -> Operand:
        value = self._plain()
        while True:
            token = self._peek
            if self._is(token, "::"):
                self._advance()
                value = self._cast(value, self._type(), token)
            elif self._is(token, "["):
                raise self._error(token, "subscripts of arrays and maps are not part of the language of where")
            elif self._is(token, "."):
                raise self._error(token, "a field can be taken of a column only, as in a.b")
            elif token.kind == "string":
                raise self._error(token, "two literals in a row; write one string, or put AND or OR between")
            else:
                return value

    def _plain(self) -> Operand:
        token = self._peek
        if token.kind == "number" or token.kind == "string":
            self._advance()
            return Literal(token.value, STRING) if token.kind == "string" else self._number(token, False)
        if self._is(token, "-", "+"):
            self._advance()
            if self._peek.kind != "number":
                raise self._error(
                    token, "arithmetic (a sign before anything but a number) is not part of the language of where"
                )
            return self._number(self._advance(), token.value == "-")
        if self._is(token, "("):
            return self._parenthesised()
        if token.kind == "word" and token.value in ("TRUE", "FALSE", "NULL"):
            self._advance()
            return Literal(None, VOID) if token.value == "NULL" else Literal(token.value == "TRUE", BOOLEAN)
        if token.kind in ("word", "quoted"):
            return self._name()
        if self._is(token, "?", ":"):
            raise self._error(token, "parameters are not filled in; write the value itself")
        raise self._unexpected(token)

    def _parenthesised(self) -> Operand:
        token = self._advance()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(token, f"more than {_MAX_DEPTH} nested parentheses; write a flatter expression")
        if self._is(self._peek, "SELECT", "WITH", "VALUES") and self._ahead(1).kind in (
            "word",
            "quoted",
            "number",
            "string",
        ):
            raise self._error(self._peek, "a subquery is not part of the language of where")
        value = self._or()
        if self._is(self._peek, ","):
            raise self._error(
                self._peek, "rows in parentheses are not part of the language of where; compare column by column"
            )
        self._expect(")")
        self._depth -= 1
        return value

    def _number(self, token: Token, negative: bool) -> Literal:
        return self._bound(token, lambda: literals.number(token.value, negative))

    def _name(self) -> Operand:
        token, following = self._peek, self._ahead(1)
        if token.kind == "word":
            if following.kind == "string":
                return self._typed_literal()
            if token.value == "CAST" and self._is(following, "("):
                return self._cast_call()
            if token.value == "EXISTS" and self._is(following, "("):
                raise self._error(token, "EXISTS (a subquery) is not part of the language of where")
            if token.value == "CASE":
                raise self._error(token, "CASE is not part of the language of where; write AND, OR and NOT")
            if (
                token.value == "INTERVAL"
                and following.kind in ("number", "word")
                and not self._is(following, *_RESERVED)
            ):
                raise self._error(token, "INTERVAL is not part of the language of where")
            if token.value in _RESERVED:
                raise self._unexpected(token)
            if token.value in _CURRENT:
                raise self._error(
                    token, f"{token.text} is a function, whose value changes; write the value, or `{token.text}`"
                )
        if self._is(following, "("):
            raise self._error(
                token, f"the function {token.text}() is not part of the language of where; filter the DataFrame for it"
            )
        self._advance()
        parts = [token.text if token.kind == "word" else token.value]
        while self._is(self._peek, ".") and self._ahead(1).kind in ("word", "quoted"):
            self._advance()
            part = self._advance()
            parts.append(part.text if part.kind == "word" else part.value)
        if self._is(self._peek, "("):
            raise self._error(token, f"the function {'.'.join(parts)}() is not part of the language of where")
        return self._bound(token, lambda: resolve(parts, self._schema))

    def _typed_literal(self) -> Literal:
        kind, text = self._advance(), self._advance()
        if kind.value in _TYPED:
            target = _TYPED[kind.value]
            return self._bound(text, lambda: literals.cast(Literal(text.value, STRING), target, self._zone))
        if kind.value == "X":
            digits = text.value if len(text.value) % 2 == 0 else "0" + text.value
            if not re.fullmatch(r"[0-9A-Fa-f]*", digits):
                raise self._error(text, "a binary literal X'..' holds hexadecimal digits only")
            return Literal(bytes.fromhex(digits), literals.BINARY)
        raise self._error(kind, f"{kind.text} literals are not part of the language of where")

    def _cast_call(self) -> Literal:
        token = self._advance()
        self._expect("(")
        value = self._or()
        self._expect("AS")
        target = self._type()
        self._expect(")")
        return self._cast(value, target, token)

    def _cast(self, value: Operand, target: DataType, token: Token) -> Literal:
        if not isinstance(value, Literal):
            raise self._error(token, "only literals are cast; a cast of a column is not part of the language of where")
        result = self._bound(token, lambda: literals.cast(value, target, self._zone))
        return CastLiteral(result.value, result.type)

    def _type(self) -> DataType:
        token = self._advance()
        name = token.value if token.kind == "word" else ""
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            sizes = [10, 0]
            if self._accept("("):
                sizes = [self._size(), 0]
                if self._accept(","):
                    sizes[1] = self._size()
                self._expect(")")
            if not (1 <= sizes[0] <= 38 and 0 <= sizes[1] <= sizes[0]):
                raise self._error(token, "a DECIMAL has 1 to 38 digits, and no more after the point")
            return Decimal(*sizes)
        if name not in _TYPES:
            raise self._error(token, f"a cast to {token.text or 'nothing'} is not part of the language of where")
        if self._is(self._peek, "(", "<", "COLLATE"):
            raise self._error(self._peek, f"a cast to {name} with parameters is not part of the language of where")
        return _TYPES[name]

    def _size(self) -> int:
        token = self._advance()
        if token.kind != "number" or not re.fullmatch("[0-9]{1,3}", token.value):
            raise self._error(token, "a number of digits is needed here")
        return int(token.value)

    def _unexpected(self, token: Token) -> PredicateError:
        if token.kind == "end":
            return self._error(token, "the expression ends too early")
        if token.kind == "operator" and token.value in _ARITHMETIC:
            return self._error(token, f"arithmetic ({token.text}) is not part of the language of where")
        if token.kind == "word" and token.value in _RESERVED:
            return self._error(
                token, f"the keyword {token.text} cannot stand here; a column of that name needs backquotes"
            )
        return self._error(token, f"{token.text!r} cannot stand here")


def resolve(parts: Iterable[str], schema: Struct) -> Column:
    """The column, or field of structs, that a dotted name means.

    Raises:
        PredicateError: There is none, it is not within a struct, or it compares by other rules than bytes.
        SchemaError: The name fits several that differ by case.
    """
    path: list[str] = []
    kind: DataType = schema
    for part in parts:
        if not isinstance(kind, Struct):
            raise PredicateError(
                f"{'.'.join(path)} is {spark_name(kind)}, which has no field {part!r} that where can read"
            )
        near = [f.name for f in kind.fields if f.name.lower() == part.lower()]
        if len(near) > 1:
            raise PredicateError(f"the column {part!r} is ambiguous: {', '.join(near)} differ by case only")
        if not near:
            names = ", ".join(kind.names[:20]) + (", ..." if len(kind.names) > 20 else "")
            raise PredicateError(f"there is no column {'.'.join([*path, part])!r}; there are: {names}")
        found = kind.find(near[0])
        assert found is not None
        if "__COLLATIONS" in found.metadata:
            raise PredicateError(f"the column {found.name!r} has a collation, by which strings are not compared here")
        if _CHAR.search(str(found.metadata.get("__CHAR_VARCHAR_TYPE_STRING", ""))):
            raise PredicateError(
                f"the column {found.name!r} is CHAR(n), which Spark pads when comparing; filter the DataFrame"
            )
        path.append(found.name)
        kind = found.type
    return Column(tuple(path), kind)


__all__ = ["parse_where", "resolve"]
