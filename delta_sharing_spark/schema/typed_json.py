"""Reads JSON by msgspec: any text, and objects as typed records, with errors in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

_T = TypeVar("_T")
_decode = msgspec.json.Decoder().decode
#: What msgspec calls the forms of JSON, in words.
_FORMS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_MISSING = "Object missing required field "
#: The steps of a place, as msgspec writes it.
_STEPS = re.compile(r"\.\w+|\[(?:\d+|\.\.\.)\]")
#: Characters of a value that an error shows.
_LONGEST_VALUE = 40


def decode_json(text: str | bytes, decode: Callable[[Any], Any] = _decode) -> Any:
    """The value that a JSON text holds.

    Args:
        decode: A decoder of msgspec. What it refuses and Python's own reader takes is read by the latter: NaN, halves of
            surrogate pairs, values of other types.

    Raises:
        ValueError, RecursionError: It is no JSON.
    """
    try:
        return decode(text)
    except (ValueError, RecursionError):
        return json.loads(text)


def statistics_object(text: str, decode: Callable[[Any], Any]) -> Any:
    """The object in the JSON of a file's statistics, as ``decode`` or Python makes it; None where it holds none, as if there were no statistics."""
    try:
        tree = decode_json(text, decode)
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict | msgspec.Struct) else None


def statistics_lines(texts: Sequence[str | None]) -> bytes:
    """The JSON of files' statistics, one a line; ``null`` for what is no object.

    Each line begins and ends with a brace, so that no value goes on in the next line, and none is missing from a line.
    """
    with suppress(TypeError):  # some have none
        lines = "\n".join(cast("Sequence[str]", texts)).encode(errors="surrogatepass")
        if _are_braced(lines, len(texts)):
            return lines
    # Within an object a break is space, as a tab is, and as little a part of a string.
    return "\n".join([_line(text or "") for text in texts]).encode(errors="surrogatepass")


def lines_of(lines: bytes) -> list[str]:
    """The lines of ``statistics_lines``."""
    return lines.decode(errors="surrogatepass").split("\n")


def _are_braced(lines: bytes, count: int) -> bool:
    """Whether there are so many lines, each of which begins and ends with a brace."""
    characters = np.frombuffer(lines, np.uint8)
    breaks = np.flatnonzero(characters == ord("\n"))
    if len(breaks) != count - 1 or len(lines) < 2 or (lines[:1], lines[-1:]) != (b"{", b"}"):
        return False
    return bool((characters[breaks - 1] == ord("}")).all() and (characters[breaks + 1] == ord("{")).all())


def _line(text: str) -> str:
    text = text.strip(" \t\r\n").replace("\n", "\t")
    return text if text[:1] == "{" and text[-1:] == "}" else "null"


def records_together(lines: bytes, count: int, decode_lines: Callable[[Any], list[Any]] | None) -> list[Any] | None:
    """What a decoder of lines makes of ``count`` files' statistics; None where it does not take all of them."""
    if decode_lines is not None:
        with suppress(ValueError, RecursionError):
            records = decode_lines(lines)
            if len(records) == count:
                return records
    return None


def record_of(kind: type[_T], tree: Any, name: str, names: Mapping[str, str] | None = None) -> _T:
    """A decoded value as a typed record.

    Args:
        name: What the value is called where it stands.
        names: What its fields are called there, where that is not their name here.

    Raises:
        ValueError: A field is missing or of another type; the message names it.
    """
    try:
        return msgspec.convert(tree, kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise ValueError(_in_words(str(error).replace("`", ""), tree, name, names or {})) from None


def _in_words(message: str, tree: Any, name: str, names: Mapping[str, str]) -> str:
    """What msgspec says of a value, in words and with the place of the fault."""
    what, _, place = message.partition(" - at ")
    of_key, _, path = place.rpartition("$")
    field, value = _value_at(tree, path, names)
    field = f"{'a key in ' if of_key else ''}{name}{field}"
    if what.startswith("Expected "):
        form = what.removeprefix("Expected ").split(",")[0].split(" | ")[0]
        return f"{field} is {value}not {_FORMS.get(form, form)}"
    if what.startswith(_MISSING):
        missing = what.removeprefix(_MISSING)
        return f"{field} has no {names.get(missing, missing)}"
    return f"{field}: {what[:1].lower()}{what[1:]}"


def _value_at(tree: Any, path: str, names: Mapping[str, str]) -> tuple[str, str]:
    """The name of a place, and the number or short text there, with a comma: nothing for what may be long or hold a secret."""
    field = ""
    for step in _STEPS.findall(path):
        fields = dict(enumerate(tree)) if isinstance(tree, list) else tree if isinstance(tree, dict) else {}
        if step == "[...]":  # msgspec does not say which: the first value that is no text
            key: Any = next((key for key, value in fields.items() if not isinstance(value, str | None)), None)
            field += f"[{key!r}]"
        else:
            key = int(step[1:-1]) if step[0] == "[" else step[1:]
            field += f".{names.get(key, key)}" if step[0] == "." else step
        tree = fields.get(key)
    text = repr(str(tree)) if isinstance(tree, str | int | float) else "?"  # of what is nested deeply there is no text
    is_safe = len(text) < _LONGEST_VALUE and "?" not in text
    return field, f"{text}, " if is_safe else ""
