"""Protocol and metadata are one record each: what a line of an answer and an action of a log make of the same object."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from delta_sharing_spark.deltalog.actions import metadata_from, protocol_from
from delta_sharing_spark.errors import DeltaSharingError, LogError, ResponseError
from delta_sharing_spark.sharing.response import parse_page

PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["f"], "writerFeatures": ["f"]}
METADATA = {
    "id": "T",
    "name": "n",
    "description": "d",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": "{}",
    "partitionColumns": ["p"],
    "configuration": {"k": "v"},
    "createdTime": 5,
}
#: By kind: a sound object, its name within a line of an answer, what reads it in a log.
KINDS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "protocol": (PROTOCOL, "deltaProtocol", protocol_from),
    "metaData": (METADATA, "deltaMetadata", metadata_from),
}
#: An object's field, its value, and whether an answer and a log that have it are read.
CASES: list[tuple[str, Any, bool, bool]] = [
    # Numbers as text, as JavaScript needs those of 64 bits, stand in answers alone.
    *(("minReaderVersion", value, True, False) for value in ("3", "3.0", 3.0)),
    *(("minReaderVersion", value, False, False) for value in (None, True, "x", 1.5, [3], {}, float("nan"))),
    ("minReaderVersion", 1 << 63, False, True),  # and the gate refuses it
    *(("readerFeatures", value, False, False) for value in ("f", [1], [None], [["f"]], {}, 5)),
    ("readerFeatures", None, True, True),
    # Of what reading needs not an answer may say anything, a log what the protocol allows.
    *(("minWriterVersion", value, True, False) for value in ("7", True, [])),
    *(("writerFeatures", value, True, False) for value in ("f", [1], {})),
    *((name, 5, True, False) for name in ("id", "name", "description")),
    ("id", None, True, False),
    ("createdTime", "soon", True, True),
    ("createdTime", 1 << 70, True, True),
    # A table to which nothing was written may have no schema in its log.
    ("schemaString", None, False, True),
    ("schemaString", 5, False, False),
    *(("partitionColumns", value, False, False) for value in ("p", [1], [None], {}, 0)),
    ("partitionColumns", None, True, True),
    *(("configuration", value, False, False) for value in ([], 0, "", "x")),
    ("configuration", {"k": None}, True, True),
    ("configuration", {"k": 5}, True, False),
    *(("format", value, False, False) for value in (0, "", [], {"provider": 0}, {"provider": ["parquet"]})),
    *(("format", value, True, True) for value in (None, {}, {"provider": None}, {"provider": "", "options": 5})),
    ("unknown", {"deep": [1]}, True, True),
]


@pytest.mark.parametrize(("name", "value", "in_answer", "in_log"), CASES)
def test_what_is_read_and_what_is_refused(name: str, value: object, in_answer: bool, in_log: bool) -> None:
    kind = "protocol" if name in PROTOCOL else "metaData"
    sound, within, read = KINDS[kind]
    tree = {**sound, name: value}
    line = json.dumps({kind: {within: tree}}).encode()

    def record(is_read: bool, error: type[DeltaSharingError], ask: Callable[[], Any]) -> Any:
        if is_read:
            return ask()
        with pytest.raises(DeltaSharingError) as refusal:
            ask()
        assert type(refusal.value) is error
        told = str(refusal.value)
        assert name in told
        assert "s.d.t" in told or "0.json" in told
        assert "`" not in told
        assert "$" not in told, "words, not msgspec's paths"
        return None

    page = record(in_answer, ResponseError, lambda: parse_page([line], "s.d.t"))
    of_log = record(in_log, LogError, lambda: read(tree, "0.json"))
    if in_answer and in_log:
        assert (page.protocol if kind == "protocol" else page.metadata) == of_log


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("protocol", {"readerFeatures": ["f", 5]}, "protocol.readerFeatures[1] is '5', not text"),
        ("metaData", {"configuration": {"a": "b", "k": 5}}, "metaData.configuration['k'] is '5', not text"),
        ("metaData", {"format": "parquet"}, "metaData.format is 'parquet', not an object"),
        ("metaData", {"id": None}, "metaData has no id"),
        ("metaData", {"name": ["x"]}, "metaData.name is not text"),
    ],
)
def test_a_refusal_names_the_field_and_its_value(kind: str, change: dict[str, Any], words: str) -> None:
    sound, _, read = KINDS[kind]
    with pytest.raises(LogError) as refusal:
        read({**sound, **change}, "_delta_log/7.json")
    assert str(refusal.value) == (
        f"the {kind} action in _delta_log/7.json is malformed: {words}; the table's log is corrupt"
    )
