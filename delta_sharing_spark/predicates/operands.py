"""The operands of a ``where``: columns and fields, literals and their casts, and what stands in parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates import literals
from delta_sharing_spark.predicates.coercion import CastLiteral
from delta_sharing_spark.predicates.cursor import RESERVED, Cursor
from delta_sharing_spark.predicates.lexer import Token
from delta_sharing_spark.predicates.literals import BOOLEAN, STRING, VOID, Zone, spark_name
from delta_sharing_spark.predicates.tree import Column, Expression, Literal
from delta_sharing_spark.schema.types import DataType, Decimal, Struct

Operand = Column | Literal | Expression

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


class Operands:
    """Parses operands at a cursor.

    Args:
        cursor: Where they stand.
        schema, zone: As in ``parse_where``.
        expression: Parses what stands in parentheses.
    """

    def __init__(self, cursor: Cursor, schema: Struct, zone: Zone, expression: Callable[[], Operand]) -> None:
        self._cursor, self._schema, self._zone, self._expression = cursor, schema, zone, expression
        self._depth = 0

    def parse(self) -> Operand:
        """One operand, with the casts (``::``) that follow it.

        Raises:
            PredicateError: None stands here, or one that the language of ``where`` does not have.
        """
        value = self._plain()
        while True:
            token = self._cursor.peek
            if token.one_of("::"):
                self._cursor.advance()
                value = self._cast(value, self._type(), token)
            elif token.one_of("["):
                raise self._cursor.error(token, "subscripts of arrays and maps are not part of the language of where")
            elif token.one_of("."):
                raise self._cursor.error(token, "a field can be taken of a column only, as in a.b")
            elif token.kind == "string":
                raise self._cursor.error(token, "two literals in a row; write one string, or put AND or OR between")
            else:
                return value

    def _plain(self) -> Operand:
        token = self._cursor.peek
        if token.kind == "number" or token.kind == "string":
            self._cursor.advance()
            return Literal(token.value, STRING) if token.kind == "string" else self._number(token, False)
        if token.one_of("-", "+"):
            self._cursor.advance()
            if self._cursor.peek.kind != "number":
                raise self._cursor.error(
                    token, "arithmetic (a sign before anything but a number) is not part of the language of where"
                )
            return self._number(self._cursor.advance(), token.value == "-")
        if token.one_of("("):
            return self._parenthesised()
        if token.kind == "word" and token.value in ("TRUE", "FALSE", "NULL"):
            self._cursor.advance()
            return Literal(None, VOID) if token.value == "NULL" else Literal(token.value == "TRUE", BOOLEAN)
        if token.kind in ("word", "quoted"):
            return self._name()
        if token.one_of("?", ":"):
            raise self._cursor.error(token, "parameters are not filled in; write the value itself")
        raise self._cursor.unexpected(token)

    def _parenthesised(self) -> Operand:
        token = self._cursor.advance()
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._cursor.error(token, f"more than {_MAX_DEPTH} nested parentheses; write a flatter expression")
        if self._cursor.peek.one_of("SELECT", "WITH", "VALUES") and self._cursor.ahead(1).kind in (
            "word",
            "quoted",
            "number",
            "string",
        ):
            raise self._cursor.error(self._cursor.peek, "a subquery is not part of the language of where")
        value = self._expression()
        if self._cursor.peek.one_of(","):
            raise self._cursor.error(
                self._cursor.peek, "rows in parentheses are not part of the language of where; compare column by column"
            )
        self._cursor.expect(")")
        self._depth -= 1
        return value

    def _number(self, token: Token, negative: bool) -> Literal:
        return self._cursor.bound(token, lambda: literals.number(token.value, negative))

    def _name(self) -> Operand:
        token, following = self._cursor.peek, self._cursor.ahead(1)
        if token.kind == "word":
            if following.kind == "string":
                return self._typed_literal()
            if token.value == "CAST" and following.one_of("("):
                return self._cast_call()
            if token.value == "EXISTS" and following.one_of("("):
                raise self._cursor.error(token, "EXISTS (a subquery) is not part of the language of where")
            if token.value == "CASE":
                raise self._cursor.error(token, "CASE is not part of the language of where; write AND, OR and NOT")
            if token.value == "INTERVAL" and following.kind in ("number", "word") and not following.one_of(*RESERVED):
                raise self._cursor.error(token, "INTERVAL is not part of the language of where")
            if token.value in RESERVED:
                raise self._cursor.unexpected(token)
            if token.value in _CURRENT:
                raise self._cursor.error(
                    token, f"{token.text} is a function, whose value changes; write the value, or `{token.text}`"
                )
        if following.one_of("("):
            raise self._cursor.error(
                token, f"the function {token.text}() is not part of the language of where; filter the DataFrame for it"
            )
        self._cursor.advance()
        parts = [token.text if token.kind == "word" else token.value]
        while self._cursor.peek.one_of(".") and self._cursor.ahead(1).kind in ("word", "quoted"):
            self._cursor.advance()
            part = self._cursor.advance()
            parts.append(part.text if part.kind == "word" else part.value)
        if self._cursor.peek.one_of("("):
            raise self._cursor.error(token, f"the function {'.'.join(parts)}() is not part of the language of where")
        return self._cursor.bound(token, lambda: resolve(parts, self._schema))

    def _typed_literal(self) -> Literal:
        kind, text = self._cursor.advance(), self._cursor.advance()
        if kind.value in _TYPED:
            target = _TYPED[kind.value]
            return self._cursor.bound(text, lambda: literals.cast(Literal(text.value, STRING), target, self._zone))
        if kind.value == "X":
            digits = text.value if len(text.value) % 2 == 0 else "0" + text.value
            if not re.fullmatch(r"[0-9A-Fa-f]*", digits):
                raise self._cursor.error(text, "a binary literal X'..' holds hexadecimal digits only")
            return Literal(bytes.fromhex(digits), literals.BINARY)
        raise self._cursor.error(kind, f"{kind.text} literals are not part of the language of where")

    def _cast_call(self) -> Literal:
        token = self._cursor.advance()
        self._cursor.expect("(")
        value = self._expression()
        self._cursor.expect("AS")
        target = self._type()
        self._cursor.expect(")")
        return self._cast(value, target, token)

    def _cast(self, value: Operand, target: DataType, token: Token) -> Literal:
        if not isinstance(value, Literal):
            raise self._cursor.error(
                token, "only literals are cast; a cast of a column is not part of the language of where"
            )
        result = self._cursor.bound(token, lambda: literals.cast(value, target, self._zone))
        return CastLiteral(result.value, result.type)

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
        if name not in _TYPES:
            raise self._cursor.error(token, f"a cast to {token.text or 'nothing'} is not part of the language of where")
        if self._cursor.peek.one_of("(", "<", "COLLATE"):
            raise self._cursor.error(
                self._cursor.peek, f"a cast to {name} with parameters is not part of the language of where"
            )
        return _TYPES[name]

    def _size(self) -> int:
        token = self._cursor.advance()
        if token.kind != "number" or not re.fullmatch("[0-9]{1,3}", token.value):
            raise self._cursor.error(token, "a number of digits is needed here")
        return int(token.value)


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
