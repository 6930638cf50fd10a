"""A query's tokens as a tree of parentheses, and the places in it where a clause, a join or a conjunct begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from delta_sharing_spark.predicates.lexer import Source, Token

_MAX_DEPTH = 100
#: Kinds of tokens that are names.
NAMES = ("word", "quoted")
#: Words at the level of a SELECT that end its FROM, or its WHERE.
CLAUSES = {"WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET", "WINDOW", "QUALIFY",
            "UNION", "EXCEPT", "INTERSECT", "MINUS"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """What stands between two parentheses."""

    items: list[Token | Group]
    start: int
    end: int
    kind: str = "group"
    value: str = ""


Item = Token | Group


def grouped(source: Source, tokens: list[Token]) -> list[Item]:
    """The tokens (but for the last, the end) as a tree of parentheses.

    Raises:
        PredicateError: Parentheses that do not match, or too many.
    """
    stack: list[tuple[list[Item], int]] = [([], 0)]
    for token in tokens[:-1]:
        if token.kind == "operator" and token.value == "(":
            stack.append(([], token.start))
            if len(stack) > _MAX_DEPTH:
                raise source.error(token.start, f"more than {_MAX_DEPTH} nested parentheses")
        elif token.kind == "operator" and token.value == ")":
            if len(stack) == 1:
                raise source.error(token.start, "this parenthesis closes nothing")
            items, start = stack.pop()
            stack[-1][0].append(Group(items, start, token.start + 1))
        else:
            stack[-1][0].append(token)
    if len(stack) > 1:
        raise source.error(stack[-1][1], "this parenthesis is not closed")
    return stack[0][0]


def edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """The text with other words in some places (start, end, what stands there instead), which do not overlap."""
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def name_of(token: Token) -> str:
    return token.text if token.kind == "word" else token.value


def is_word(item: Item | None, *words: str) -> bool:
    return item is not None and item.kind == "word" and item.value in words


def begins_clause(items: list[Item], at: int) -> bool:
    """Whether a clause begins here, after which nothing is of the FROM or the WHERE before."""
    item = items[at]
    if item.kind == "operator":
        return item.value in ("|>", ";")
    return is_word(item, *CLAUSES) and not (at and items[at - 1].value == "." and items[at - 1].kind == "operator")


def begins_join(items: list[Item], at: int) -> bool:
    """Whether a word of a join is here; LEFT(..) and RIGHT(..) are functions."""
    item, after = items[at], items[at + 1] if at + 1 < len(items) else None
    if not is_word(item, "JOIN", "INNER", "CROSS", "LEFT", "RIGHT", "FULL", "OUTER", "SEMI", "ANTI"):
        return False
    dotted = at > 0 and items[at - 1].value == "." and items[at - 1].kind == "operator"
    return not dotted and not (isinstance(after, Group) and item.value != "JOIN")


def conjuncts_of(items: list[Item]) -> list[list[Item]]:
    """The parts of a condition between its own ANDs; one part if there is an OR beside them."""
    parts: list[list[Item]] = [[]]
    between = cases = 0
    for item in items:
        cases += 1 if is_word(item, "CASE") else -1 if is_word(item, "END") and cases else 0
        if not cases and is_word(item, "OR"):
            return [items]
        if not cases and is_word(item, "BETWEEN"):
            between += 1
        elif not cases and is_word(item, "AND"):
            if not between:
                parts.append([])
                continue
            between -= 1
        parts[-1].append(item)
    return [p for p in parts if p]


def disjuncts_of(items: list[Item]) -> list[list[Item]]:
    """The parts of a condition between its own ORs."""
    parts: list[list[Item]] = [[]]
    cases = 0
    for item in items:
        cases += 1 if is_word(item, "CASE") else -1 if is_word(item, "END") and cases else 0
        if not cases and is_word(item, "OR"):
            parts.append([])
        else:
            parts[-1].append(item)
    return [p for p in parts if p]


def flat(items: list[Item], tokens: list[Token]) -> list[Token]:
    """The tokens of some neighbouring items, parentheses included."""
    start, end = items[0].start, items[-1].end
    return [t for t in tokens if start <= t.start < end]
