"""Seeded damage of JSON, of lines, and of bytes.

Each function returns the damaged input and whether it must not change rows: a value of another type, a line twice or a
line that is none are an error or harmless; another text, a number of the same type, or nothing at all may be a valid
input that means something else.
"""

from __future__ import annotations

import json
import random
from typing import Any

#: Values that no field expects, or none of that size.
HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**31 - 1, 2**40, 10**15, 2**53 + 1, 4 * 10**18, 2**63 - 1, 2**63, -(2**63) - 1,
    10**24, 10**400, 0.5, 1e300, 1e999, -1e999, float("nan"), "", "x", "0", "1", "-1", "1e999", "9" * 400, "\ud800",
    "\x00", "\u202e", "a" * 10_000, "²", "../../..", "http://[", "https://127.0.0.1:99999/x", "%ff", "%", "null", "{}",
    [], [None], [[]], ["x"], [1], {}, {"x": 1}, {"": None}, {"path": None},
]  # fmt: skip
#: Lines that are no action.
NO_LINES = [
    b"null", b" null", b"[]", b"1", b'"x"', b"true", b"nul", b"{", b"}", b"{}null", b"\xff", b"\x00", b"\xef\xbb\xbf{}",
    b'{"add":null}', b'{"add":"x"}', b'{"remove":[]}', b'{"file":1}', b'{"protocol":0}', b'{"metaData":"x"}',
    b'{"sidecar":"x"}', b'{"cdc":-1}', b'{"endStreamAction":5}', b"[" * 20_000, b'{"x":' * 5_000,
]  # fmt: skip
#: Of these lines, those that say nothing at all.
_SILENT = {b'{"add":null}', b"{}"}


def _paths(tree: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    paths = []
    for name, value in inner:
        paths.append((*above, name))
        paths += _paths(value, (*above, name))
    return paths


def _inside(tree: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def json_value(tree: Any, draw: random.Random) -> tuple[Any, bool]:
    """One value of a tree replaced, removed, wrapped, or (for a schema within a text) changed inside."""
    paths = _paths(tree)
    if not paths:
        return draw.choice(HOSTILE), True
    copy = json.loads(json.dumps(tree))
    *above, last = draw.choice(paths)
    parent = _inside(copy, tuple(above))
    old = parent[last]
    if isinstance(old, str) and old.startswith("{") and draw.random() < 0.8:
        inner, strict = json_value(json.loads(old), draw)
        parent[last] = json.dumps(inner)
        return copy, strict
    kind = draw.randrange(10)
    if kind == 0 and isinstance(parent, dict):
        del parent[last]
        return copy, False
    if kind == 1:
        parent[last] = [old]
        return copy, not isinstance(old, list)
    if kind == 2:
        deep: Any = old
        for _ in range(draw.choice([5, 80, 900])):
            deep = [deep]
        parent[last] = deep
        return copy, not isinstance(old, list)
    if kind == 3 and isinstance(old, str) and old:
        place = draw.randrange(len(old))
        parent[last] = old[:place] + draw.choice(["", "x", "\x00", "%", "é", "\ud800", old]) + old[place + 1 :]
        return copy, False
    new = draw.choice(HOSTILE)
    parent[last] = new
    # Another number, text, list or object may be right; null is absence.
    number = isinstance(old, int | float) and isinstance(new, int | float)
    return copy, not (new is None or old is None or type(new) is type(old) or number)


def lines(data: bytes, draw: random.Random) -> tuple[bytes, bool]:
    """One line of NDJSON damaged, doubled, moved, lost, or another put in; or bytes of the whole."""
    rows = data.split(b"\n")
    rows = rows[:-1] if rows[-1] == b"" else rows
    place = draw.randrange(len(rows))
    kind = draw.randrange(10)
    strict = True
    if kind < 5:
        try:
            tree, strict = json_value(json.loads(rows[place]), draw)
        except (ValueError, RecursionError):
            return byte(data, draw)
        rows[place] = json.dumps(tree).encode()
    elif kind == 5:
        rows.insert(draw.randrange(len(rows) + 1), rows[place])
    elif kind == 6:
        other = draw.randrange(len(rows))
        rows[place], rows[other] = rows[other], rows[place]
    elif kind == 7:
        line = draw.choice(NO_LINES)
        strict = line not in _SILENT
        rows.insert(draw.randrange(len(rows) + 1), line)
    elif kind == 8:
        del rows[place]
        strict = False
    else:
        return byte(data, draw)
    return b"\n".join(rows) + b"\n", strict


def byte(data: bytes, draw: random.Random, first: int = 0) -> tuple[bytes, bool]:
    """Bytes from ``first`` on changed, lost, doubled or cut."""
    if len(data) <= first:
        return data + b"\x00", False
    place = draw.randrange(first, len(data))
    kind = draw.randrange(6)
    if kind <= 2:
        damaged = bytearray(data)
        for _ in range(draw.choice([1, 1, 1, 2, 8])):
            position = draw.randrange(first, len(data))
            damaged[position] = draw.choice(
                [
                    damaged[position] ^ (1 << draw.randrange(8)),
                    0,
                    255,
                    0x7F,
                    0x80,
                    (damaged[position] + 1) % 256,
                    draw.randrange(256),
                ]
            )
        return bytes(damaged), False
    length = draw.choice([1, 2, 4, 8, 64])
    if kind == 3:
        return data[:place] + data[place + length :], False
    if kind == 4:
        return data[:place] + data[place : place + length] + data[place:], False
    return data[:place], False
