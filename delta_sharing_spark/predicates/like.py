"""Parses LIKE patterns as Spark does (``StringUtils.escapeLikeRegex``)."""

from __future__ import annotations

import fnmatch
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
    """A regular expression for RE2 that matches the whole string; newlines are characters like any other."""
    body = "".join(re.escape(p) if isinstance(p, str) else ".*" if p == ANY else "." for p in like_parts(pattern))
    return rf"(?s)\A{body}\z"


def like_prefix(pattern: str) -> tuple[str, bool]:
    """The literal text every match begins with, and whether it is the whole match."""
    parts = like_parts(pattern)
    if not parts:
        return "", True
    first = parts[0]
    return (first, len(parts) == 1) if isinstance(first, str) else ("", False)


def like_matcher(pattern: str) -> Callable[[str], bool]:
    """A test of one text; its time grows with the text's length times the pattern's, whatever they are, as that of ``fnmatch``."""
    names = {ANY: "*", ONE: "?"}
    parts = (re.sub(r"([*?[])", r"[\1]", p) if isinstance(p, str) else names[p] for p in like_parts(pattern))
    matches = re.compile(fnmatch.translate("".join(parts))).match
    return lambda text: matches(text) is not None
