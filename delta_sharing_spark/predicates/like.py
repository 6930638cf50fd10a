"""Parses LIKE patterns as Spark does (``StringUtils.escapeLikeRegex``)."""

from __future__ import annotations

import re
from collections.abc import Callable

from delta_sharing_spark.errors import PredicateError

#: What a pattern is made of: a literal text, ``ANY`` (``%``) or ``ONE`` (``_``, one Unicode character).
ANY, ONE = 1, 2


def like_parts(pattern: str, escape: str = "\\") -> list[str | int]:
    """Cut a pattern into texts, ``ANY`` and ``ONE``; raises PredicateError where the escape character stands before what needs none."""
    parts: list[str | int] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                raise PredicateError(f"the LIKE pattern {pattern!r} ends in its escape character {escape!r}")
            if escaped not in ("_", "%", escape):
                raise PredicateError(
                    f"in the LIKE pattern {pattern!r} the escape character {escape!r} stands before {escaped!r};"
                    f" it may stand before _, % and itself only"
                )
            character = escaped
        elif character in "%_":
            kind = ANY if character == "%" else ONE
            if not (kind == ANY and parts and parts[-1] == ANY):
                parts.append(kind)
            continue
        if parts and isinstance(parts[-1], str):
            parts[-1] += character
        else:
            parts.append(character)
    return parts


def standard_pattern(pattern: str, escape: str) -> str:
    r"""The pattern that means the same with ``\\`` as its escape character; raises PredicateError as ``like_parts``."""
    parts = like_parts(pattern, escape)
    return "".join(escaped(p) if isinstance(p, str) else "%" if p == ANY else "_" for p in parts)


def escaped(text: str) -> str:
    """A text as a pattern that only it matches."""
    return "".join("\\" + c if c in "%_\\" else c for c in text)


def like_regex(pattern: str) -> str:
    """A regular expression for RE2 or ``re`` that matches the whole string; newlines are characters like any other."""

    def quoted(text: str) -> str:
        return "".join(c if c.isalnum() and c.isascii() else f"\\x{{{ord(c):x}}}" for c in text)

    body = "".join(quoted(p) if isinstance(p, str) else ".*" if p == ANY else "." for p in like_parts(pattern))
    return rf"(?s)\A{body}\z"


def like_prefix(pattern: str) -> tuple[str, bool]:
    """The literal text every match begins with, and whether it is the whole match."""
    parts = like_parts(pattern)
    if not parts:
        return "", True
    first = parts[0]
    return (first, len(parts) == 1) if isinstance(first, str) else ("", False)


def like_matcher(pattern: str) -> Callable[[str], bool]:
    """A test of one text; its time grows with the text's length times the pattern's, whatever they are."""
    segments = [""]
    for part in like_parts(pattern):
        if part == ANY:
            segments.append("")
        else:
            segments[-1] += re.escape(part) if isinstance(part, str) else "."
    first, *rest = segments
    # What a lookahead has found first is not tried anew, as in ``fnmatch``.
    found = "".join(f"(?=(?P<g{i}>.*?{segment}))(?P=g{i})" for i, segment in enumerate(rest[:-1]))
    last = f".*{rest[-1]}" if rest else ""
    matches = re.compile(first + found + last, re.DOTALL).fullmatch
    return lambda text: matches(text) is not None
