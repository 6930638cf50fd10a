"""Cuts a Spark SQL expression into tokens, as Spark 4's own lexer does (SqlBaseLexer.g4, ``unescapeSQLString``), and steps through them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from delta_sharing_spark.errors import PredicateError, SchemaError

#: White space, and comments without comments in them.
_BLANK = re.compile(r"(?:[ \t\r\n]|--(?:\\\n|[^\r\n])*\r?\n?|/\*(?!\+)(?:(?!/\*(?!/)|\*/).)*\*/)*", re.DOTALL)
_SUFFIX, _ENDS = r"(?:[fFdD]|[bB][dD])?", "(?![A-Za-z0-9_])"
#: A token by its kind; what begins none of these is an error.
_TOKEN = re.compile(
    rf"""(?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)+`)
    |(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?{_SUFFIX}{_ENDS}
        |[0-9]+[eE][+-][0-9]+{_SUFFIX}|[0-9]+(?:[LlSsYy]|(?:[eE][0-9]+)?{_SUFFIX}){_ENDS})
    |(?P<word>(?![rR]['"])[A-Za-z0-9_]+)
    |(?P<operator><=>|>>>|<=|>=|<>|!=|==|!>|!<|::|\|\||->|=>|<<|>>|\|>|[-=<>!().,+*/%&|^~\[\]:?;@\#${{}}])""",
    re.VERBOSE | re.DOTALL,
)
_UNCLOSED = {
    "'": "the string is not closed; add its quote",
    '"': "the string is not closed; add its quote",
    "r": "the raw string is not closed; add its quote",
    "`": "a backquoted name is empty or not closed; write it as `name`",
}
_ESCAPE = {
    mark: re.compile(rf"\\(?:u([0-9a-fA-F]{{4}})|U([0-9a-fA-F]{{8}})|([01][0-7]{{2}})|(.))|({mark}){mark}", re.DOTALL)
    for mark in "'\""
}
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


@dataclass(frozen=True, slots=True)
class Token:
    """One token: ``kind`` is ``word``, ``quoted``, ``number``, ``string``, ``operator`` or ``end``.

    ``text`` is the source text; ``value`` what it stands for (an upper-cased word, an unquoted name, a string's content).
    """

    kind: str
    text: str
    start: int
    value: str

    @property
    def end(self) -> int:
        """Where the source goes on after it."""
        return self.start + len(self.text)

    def is_one_of(self, *values: str) -> bool:
        """Whether it is a word or an operator, and one of these."""
        return self.kind in ("word", "operator") and self.value in values


def error_at(text: str, start: int, message: str) -> PredicateError:
    """The error of a place in the text of a ``where``: names the position (from 1), and shows the text around it.

    Args:
        message: What is wrong there, and after a semicolon what to write instead; else the next step that is always left.
    """
    before, after = (part.replace("\n", " ") for part in (text[max(0, start - 20) : start], text[start : start + 30]))
    place = (f" at {after!r}" if after else " (the end)") + (f" after {before!r}" if before else "")
    advice = "" if "; " in message else "; write it otherwise, or filter the rows after the load"
    return PredicateError(f"where, position {start + 1}{place}: {message}{advice}", position=start)


def tokenize(text: str) -> list[Token]:
    """Cut the text into tokens, without comments and white space, and an ``end`` token last; raises PredicateError."""
    position, tokens = 0, []
    while True:
        position = _skip(text, position)
        if position >= len(text):
            tokens.append(Token("end", "", len(text), ""))
            return tokens
        token = _next(text, position)
        tokens.append(token)
        position += len(token.text)


def both_conditions(first: str, second: str) -> str:
    """Two conditions as one, each on lines of its own: either may end in a comment.

    Raises:
        PredicateError: One of them is none by itself, for its parentheses do not match: joined, they could mean another one.
    """
    for condition in (first, second):
        _check_closed(condition)
    return f"({first}\n) AND ({second}\n)"


def _check_closed(text: str) -> None:
    opened: list[Token] = []
    for token in tokenize(text):
        if token.is_one_of("("):
            opened.append(token)
        elif token.is_one_of(")"):
            if not opened:
                raise error_at(text, token.start, "this parenthesis closes none; remove it")
            opened.pop()
    if opened:
        raise error_at(text, opened[-1].start, "this parenthesis is not closed; add )")


def _skip(text: str, position: int) -> int:
    blank = _BLANK.match(text, position)
    assert blank is not None
    position = blank.end()
    if not text.startswith("/*", position):
        return position
    if text.startswith("/*+", position):
        raise error_at(text, position, "a hint is not part of the language of where; remove it")
    if text.find("*/", position + 2) < 0:
        raise error_at(text, position, "the comment is not closed; add */")
    raise error_at(text, position, "comments within comments are not read; remove the inner one")


def _next(text: str, position: int) -> Token:
    token, first = _TOKEN.match(text, position), text[position]
    kind, source = (token.lastgroup or "", token[0]) if token else ("", "")
    if (first.isalpha() and not first.isascii()) or (kind == "word" and text[position + len(source) :][:1].isalpha()):
        raise error_at(text, position, "a name with other characters than A-Z, 0-9 and _ needs backquotes")
    match kind:
        case "raw":
            return Token("string", source, position, source[2:-1])
        case "string":
            return Token(kind, source, position, _unescape(text, position, source))
        case "quoted":
            return Token(kind, source, position, source[1:-1].replace("``", "`"))
        case "":
            why = _UNCLOSED.get(first.lower(), f"the character {first!r} (U+{ord(first):04X}) cannot stand here")
            raise error_at(text, position, why)
    return Token(kind, source, position, source.upper())


def _unescape(text: str, position: int, literal: str) -> str:
    def meant(match: re.Match[str]) -> str:
        u16, u32, octal, other, doubled = match.groups()
        if u32 and int(u32, 16) > 0x10FFFF:
            raise error_at(text, position, f"\\U{u32} is not a Unicode character")
        if u16 or u32 or octal:
            return chr(int(octal, 8) if octal else int(u16 or u32, 16))
        return doubled or _ESCAPED.get(other, other)

    body = _ESCAPE[literal[0]].sub(meant, literal[1:-1])
    if any("\ud800" <= c <= "\udfff" for c in body):
        try:
            body = body.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise error_at(text, position, "the string holds half a surrogate pair, which no column can") from None
    return body


#: Operators that Spark has and the language of ``where`` has not.
ARITHMETIC = set("+-*/%&|^~") | {"||", "<<", ">>", ">>>", "|>"}
#: What is meant by those that join conditions in other languages.
_JOINS = {"&": "join conditions by AND", "|": "join conditions by OR", "||": "join conditions by OR"}
#: Words that are no names unless they stand in backquotes.
RESERVED = {"AND", "OR", "NOT", "IN", "IS", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "NULL", "TRUE", "FALSE", "CASE",
            "WHEN", "THEN", "ELSE", "END", "SELECT", "EXISTS", "DISTINCT", "ESCAPE", "DIV", "COLLATE", "AS", "FROM",
            "WHERE", "CAST", "TRY_CAST"}  # fmt: skip

_T = TypeVar("_T")


class Cursor:
    """The tokens of an expression, the last of which is the end, and a place among them; raises as ``tokenize``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
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
        """Step past this word or operator; raises PredicateError where another stands here."""
        if not self.accept(value):
            raise self.error(self.peek, f"{value} is missing here; add it")

    def error(self, token: Token, message: str) -> PredicateError:
        """The error of a token, with its position."""
        return error_at(self._text, token.start, message)

    def outside(self, token: Token, what: str, advice: str = "") -> PredicateError:
        """The error of something that Spark has and the language of ``where`` has not."""
        return self.error(token, f"{what} is not part of the language of where{advice and '; '}{advice}")

    def arithmetic(self, token: Token) -> PredicateError:
        """The error of one of these operators."""
        return self.outside(token, f"arithmetic ({token.text})", _JOINS.get(token.text, ""))

    def bound(self, token: Token, build: Callable[[], _T]) -> _T:
        """Run ``build``, and add the token's position to an error that it raises."""
        try:
            return build()
        except (PredicateError, SchemaError) as error:
            raise self.error(token, str(error)) from None

    def unexpected(self, token: Token, expected: str = "a column, a literal, a function or (") -> PredicateError:
        """The error of a token that cannot stand where ``expected`` can."""
        if token.kind == "end":
            return self.error(token, f"the expression ends too early; {expected} is expected here")
        if token.kind == "operator" and token.value in ARITHMETIC:
            return self.arithmetic(token)
        if token.kind == "word" and token.value in RESERVED:
            return self.error(
                token,
                f"the keyword {token.text} cannot stand here; {expected} is expected, and a column of that name needs backquotes",
            )
        return self.error(token, f"{token.text!r} cannot stand here; {expected} is expected")
