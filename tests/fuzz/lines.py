"""The surface of an answer's lines: what is read of many together, beside a plain reader of one line after the other."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError, ResponseError
from delta_sharing_spark.network.retry import RetryableError
from delta_sharing_spark.sharing.response import FileBlocks, line_blocks, parse_page
from fuzz import mutations
from fuzz.surface import Case, Surface
from fuzz.tables import Rows

#: How many answers a case reads.
ANSWERS = 20
_SCHEMA = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})
_INTEGER = re.compile(r"-?[0-9]{1,19}(?:\.0+)?")
_MOST = {"size": (0, 1 << 48), "timestamp": (-(1 << 63) // 1000, (1 << 63) // 1000 - 1)}
#: The names of the actions in both formats.
_KINDS = {"file": "add", "add": "add", "cdf": "cdf", "remove": "remove"}
_DELTA_KINDS = {"add": "add", "cdc": "cdf", "remove": "remove"}


class Lines(Surface):
    """Lines of files in both formats, a few of them damaged; a vector is not, for its errors are those of the log's."""

    name = "lines"

    def draw(self, draw: random.Random) -> Case:
        answers = [_answer(draw) for _ in range(ANSWERS)]

        def case() -> tuple[Rows, bool]:
            for data in answers:
                expected, found = _outcome(lambda data=data: _plain(data)), _outcome(lambda data=data: _together(data))  # type: ignore[misc]
                assert found == expected, f"{found} instead of {expected} of {data!r}"[:2000]
            return [], True

        return case

    def expected(self) -> Rows:
        return []


def _answer(draw: random.Random) -> bytes:
    is_delta = draw.random() < 0.6
    lines = [json.dumps(_line(draw, number, is_delta=is_delta)) for number in range(draw.choice([1, 3, 8]))]
    for _ in range(draw.choice([0, 1, 1, 2])):
        place = draw.randrange(len(lines))
        with suppress(RecursionError, ValueError):  # what was damaged before may be none or too deep
            damaged, _ = mutations.json_value(json.loads(lines[place]), draw)
            lines[place] = json.dumps(damaged)
    if draw.random() < 0.1:  # a key twice
        place = draw.randrange(len(lines))
        lines[place] = lines[place].replace('"size"', '"size": 1, "size"', 1)
    if draw.random() < 0.1:
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(["", " ", '{"x": 1}', '{"file": null}']))
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def _line(draw: random.Random, number: int, *, is_delta: bool) -> dict[str, Any]:
    """The line of a file, with some of the forms that servers give to its fields."""
    own: dict[str, Any] = {
        "size": draw.choice([number, str(number), float(number), 1 << 40]),
        "partitionValues": draw.choice([{}, {"p": "1"}, {"p": None, "q": "é"}, {"p": ""}]),
        "stats": draw.choice(
            [None, "", '{"numRecords": 1, "minValues": {"id": 1}}', '{"minValues": {"id": NaN}}', "x"]
        ),
    }
    around: dict[str, Any] = {"id": f"f{number}", "expirationTimestamp": draw.choice([None, 5, "5", 4e12])}
    if draw.random() < 0.5:
        around |= {"version": draw.choice([1, "1", None]), "timestamp": draw.choice([7, "7", None])}
    if not is_delta:
        kind = draw.choice(["file"] * 6 + ["add", "cdf", "remove"])
        return {kind: {"url": f"https://store/{number}?s=x", **around, **own}}
    own |= {
        "path": f"https://store/{number}?s=x",
        "modificationTime": 1,
        "dataChange": draw.choice([True, True, False]),
    }
    return {"file": {**around, "deltaSingleAction": {draw.choice(["add"] * 6 + ["cdc", "remove"]): own}}}


def _outcome(read: Callable[[], Any]) -> Any:
    """What a reader makes of an answer; an error of ours is as good as another."""
    try:
        return read()
    except (DeltaSharingError, RetryableError):
        return "refused"


def _together(data: bytes) -> list[Any]:
    """What the package reads."""
    head = [
        {"protocol": {"minReaderVersion": 1}},
        {"metaData": {"id": "T", "schemaString": _SCHEMA, "format": {"provider": "parquet"}}},
    ]
    begun = b"".join(json.dumps(line).encode() + b"\n" for line in head)
    page = parse_page(line_blocks([begun, data]), "t")
    assert isinstance(page.blocks, FileBlocks)
    return [
        (
            block.kind, block.ids[place], block.urls[place], block.sizes[place], block.partition_values[block.partitions[place]],
            block.stats[place], block.expirations[place], block.versions[place], block.timestamps[place], place not in block.unchanged,
        )
        for block in page.blocks
        for place in range(len(block))
    ]  # fmt: skip


def _plain(data: bytes) -> list[Any]:
    """The same, read line by line and field by field."""
    return [file for line in data.split(b"\n") if line.strip() for file in _files_of(json_object(line))]


def json_object(line: bytes) -> dict[str, Any]:
    """An object of JSON; raises ResponseError for anything else."""
    try:
        tree = json.loads(line.decode())
    except (ValueError, RecursionError):
        raise ResponseError("no JSON") from None
    return _checked(tree, dict)


def _checked(value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        raise ResponseError(f"{value!r:.40} is of another form")
    return value


def _files_of(tree: dict[str, Any]) -> Iterator[Any]:
    names = [
        name
        for name in (*_KINDS, "protocol", "metaData", "endStreamAction", "queryStatus")
        if tree.get(name) is not None
    ]
    if len(names) > 1:
        raise ResponseError("several kinds")
    if not names or names[0] not in _KINDS:
        if names or any(tree.get(name) for name in ("errorCode", "error_code", "error", "message", "errorMessage")):
            raise ResponseError("another line")
        return
    body = _checked(tree[names[0]], dict)
    action, kind, path = body, _KINDS[names[0]], "url"
    if names[0] == "file" and "deltaSingleAction" in body:
        single = _checked(body["deltaSingleAction"], dict)
        kinds = [name for name in _DELTA_KINDS if single.get(name) is not None]
        if len(kinds) > 1:
            raise ResponseError("several actions")
        if not kinds:
            _text(body.get("id"))
            for name in ("expirationTimestamp", "version", "timestamp"):
                _checked(body.get(name), int, float, str, type(None))
            return
        action, kind, path = _checked(single[kinds[0]], dict), _DELTA_KINDS[kinds[0]], "path"
    values = action.get("partitionValues")
    if values is not None:
        for name, value in _checked(values, dict).items():
            _text(name), _text(value)
    numbers = [
        _number(of.get(name), name)
        for of, name in ((action, "size"), *((body, n) for n in ("expirationTimestamp", "version", "timestamp")))
    ]
    own_id, url, stats = _text(body.get("id")), _text(action.get(path)), action.get("stats")
    if own_id is None or url is None or numbers[0] is None:
        raise ResponseError("a field is missing")
    changes = action.get("dataChange", True) if path == "path" else True
    is_text = isinstance(stats, str) and not any("\ud800" <= character <= "\udfff" for character in stats)
    yield (kind, own_id, url, numbers[0], values, stats if is_text else None, *numbers[1:], _checked(changes, bool))


def _text(value: Any) -> str | None:
    text: str | None = _checked(value, str, type(None))
    if text is not None and any("\ud800" <= character <= "\udfff" for character in text):
        raise ResponseError("half a character")
    return text


def _number(value: Any, name: str) -> int | None:
    if value is None:
        return None
    _checked(value, int, float, str)
    if isinstance(value, str | float):
        if not (match := _INTEGER.fullmatch(str(value))):
            raise ResponseError("no whole number")
        value = int(match[0].partition(".")[0])
    least, most = _MOST.get(name, (-(1 << 63), (1 << 63) - 1))
    if not least <= value <= most:
        raise ResponseError("too large")
    return int(value)
