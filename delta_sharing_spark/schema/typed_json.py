"""Reads JSON by msgspec: any text, and objects as typed records, with errors in words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

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


def statistics_lines(texts: Sequence[str | None]) -> str:
    """The JSON of files' statistics, one a line; ``null`` for what is no object.

    Each line begins and ends with a brace, so that no value goes on in the next line, and none is missing from a line.
    """
    lines = "\n".join([text if text and text[0] == "{" and text[-1] == "}" else _line(text or "") for text in texts])
    # Within an object a break is space, as a tab is, and as little a part of a string.
    return lines if lines.count("\n") < len(texts) else "\n".join([_line(text or "") for text in texts])


def _line(text: str) -> str:
    text = text.strip(" \t\r\n").replace("\n", "\t")
    return text if text[:1] == "{" and text[-1:] == "}" else "null"


def statistics_objects(
    lines: str, count: int, decode_lines: Callable[[Any], list[Any]] | None, decode: Callable[[str], Any]
) -> list[Any]:
    """The records of ``count`` files' statistics, together if that is possible, else each by ``decode``; None as ``statistics_object``."""
    if decode_lines is not None:
        with suppress(ValueError, RecursionError):
            records = decode_lines(lines)
            if len(records) == count:
                return records
    return [decode(text) for text in lines.split("\n")] if count else []


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
