"""Answers that end too early, however they end, and answers with a damaged line: asked for once more, and then an error."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.sharing import query as reading
from delta_sharing_spark.sharing.queries import Query
from delta_sharing_spark.sharing.rest import SharingRest
from unit.sharing.scripted_server import (
    HEAD,
    METADATA,
    NAME,
    PROTOCOL,
    Asked,
    Clock,
    Reply,
    ScriptedServer,
    end_line,
    file_line,
)

FILES = [file_line(name) for name in "abc"]
#: Bodies that end with their connection, in chunks that a proxy framed anew, and of a length that is.
WAYS = (Reply(closes=True), Reply(chunked=True), Reply())


@pytest.fixture(autouse=True)
def _nothing_was_told() -> None:
    reading._warned.clear()


def head(**counts: int) -> list[Any]:
    return [PROTOCOL, {"metaData": METADATA["metaData"] | counts}]


def names(rest: SharingRest, query: Query = Query()) -> list[str]:  # noqa: B008  # frozen
    return [name for block in rest.query(NAME, query).blocks() for name in block.ids]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counts", [{"numFiles": 3}, {"numFiles": 3, "size": 1}, {"size": 30}])
def test_fewer_files_than_the_table_has(
    server: ScriptedServer, rest: SharingRest, way: Reply, counts: dict[str, int]
) -> None:
    lines = [*head(**counts), *FILES]
    server.on("/query", replace(way, body=lines[:-1]), replace(way, body=lines))
    assert names(rest) == ["a", "b", "c"]
    server.on("/query", replace(way, body=lines[:-2]))
    with pytest.raises(
        ResponseError, match=r"ended after (1 of 3 files|10 of 30 bytes of files), and so it did.*maxFiles"
    ):
        names(rest)
    assert len(server.asked) == 4


@pytest.mark.parametrize(
    "query",
    [
        Query(limit_hint=1),
        Query(json_predicate_hints="{}"),
        Query(predicate_hints=("id = 1",)),
        Query(starting_version=0),
    ],
)
def test_fewer_files_that_may_be_right(server: ScriptedServer, rest: SharingRest, query: Query) -> None:
    server.on("/query", Reply([*head(numFiles=3, size=30), *FILES[:1]], closes=True))
    assert names(rest, query) == ["a"]


@pytest.mark.parametrize(
    ("metadata", "headers"),
    [
        ({"numFiles": 3, "version": 9}, {"Delta-Table-Version": "5"}),  # the newest version's count
        ({"numFiles": 0}, {}),
        ({"numFiles": 1, "size": 99}, {}),  # whatever a server counts the bytes of
    ],
)
def test_counts_that_say_nothing(
    server: ScriptedServer, rest: SharingRest, metadata: dict[str, int], headers: dict[str, str]
) -> None:
    server.on("/query", Reply([*head(**metadata), *FILES[:1]], headers=headers))
    assert names(rest, Query(version=5)) == ["a"]


def test_the_files_of_all_pages_are_counted(server: ScriptedServer, rest: SharingRest) -> None:
    pages = [[*head(numFiles=3), FILES[0], end_line(nextPageToken="n")], FILES[1:2], FILES[1:]]
    replies = [Reply(lines, closes=True) for lines in pages]

    def reply(asked: Asked) -> Reply:
        return replies.pop(0) if len(replies) > 1 else replies[0]

    server.on("/query", reply)
    assert names(rest, Query(max_files=1)) == ["a", "b", "c"]
    assert [asked.json.get("pageToken") for asked in server.asked] == [None, "n", "n"]
    replies = [Reply(lines, closes=True) for lines in pages[:2]]
    with pytest.raises(ResponseError, match="ended after 2 of 3 files"):
        names(rest, Query(max_files=1))


def test_a_count_beyond_the_mark_of_the_end_is_told(
    server: ScriptedServer, rest: SharingRest, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that shares a part of a table may count all of it; what it ends itself is whole."""
    server.on("/query", Reply([*head(numFiles=3), *FILES[:1], end_line()], closes=True))
    assert names(rest) == names(rest) == ["a"]
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING] == [
        "the server marks the end of the files of sh.sch.t after 1 of 3 files; its count is not believed"
    ]


@pytest.mark.parametrize(
    ("reply", "is_told"),
    [
        (Reply([*HEAD, *FILES], closes=True), True),
        (Reply([*HEAD, *FILES], chunked=True), True),
        (Reply([*HEAD, *FILES]), False),
        (Reply([*HEAD, *FILES, end_line()], closes=True), False),
        (Reply([*head(numFiles=3), *FILES], closes=True), False),
        (Reply([*head(size=30), *FILES], chunked=True), False),
    ],
)
def test_an_answer_whose_end_nothing_tells(
    server: ScriptedServer, rest: SharingRest, caplog: pytest.LogCaptureFixture, reply: Reply, is_told: bool
) -> None:
    server.on("/query", reply)
    assert names(rest) == names(rest) == ["a", "b", "c"]
    told = [record for record in caplog.records if "nothing tells where" in record.getMessage()]
    assert len(told) == is_told


DAMAGED = [
    [b"<html>login</html>"],
    [b"<html>", b"</html>"],
    [*HEAD, b'{"file":', FILES[0]],
    [*HEAD, b'\x00{"file":{}}', FILES[0]],
    [b"[1]"],
    [b"5", PROTOCOL],
]


@pytest.mark.parametrize("lines", DAMAGED)
def test_a_damaged_line_is_asked_for_again(
    server: ScriptedServer, rest: SharingRest, clock: Clock, lines: list[Any]
) -> None:
    whole = [*HEAD, *FILES, end_line()]
    server.on("/query", Reply(lines), Reply(whole))
    assert names(rest) == ["a", "b", "c"]
    server.on("/query", Reply(lines))
    with pytest.raises(ResponseError, match=f"{NAME} has a line that is not (JSON|an object); check that the endpoint"):
        names(rest)
    assert len(server.asked) == 4
    assert clock.slept == [pytest.approx(0.375, abs=0.126)] * 2


def test_a_page_that_differs_each_time_is_no_damage(server: ScriptedServer, rest: SharingRest) -> None:
    """A login page holds another number each time."""
    server.on("/query", lambda asked: Reply(f"<html>{len(server.asked)}</html>"))
    with pytest.raises(ResponseError, match="not JSON"):
        names(rest)
    assert len(server.asked) == 2


@pytest.mark.parametrize("body", ["<html>", '{"items": [', "[]"])
def test_a_damaged_listing_is_asked_for_again(server: ScriptedServer, rest: SharingRest, body: str) -> None:
    server.on("/shares", Reply(body), Reply({"items": [{"name": "s"}]}))
    assert [share.name for share in rest.list_shares()] == ["s"]
    server.on("/shares", Reply(body))
    with pytest.raises(
        ResponseError, match="the list of shares: the answer is not a JSON object; check that the endpoint"
    ):
        list(rest.list_shares())
    assert len(server.asked) == 4


def test_damage_in_a_later_page(server: ScriptedServer, rest: SharingRest) -> None:
    first, second = [*HEAD, FILES[0], end_line(nextPageToken="n")], [*FILES[1:], end_line()]
    server.on("/query", Reply(first), Reply([b'{"fi', *second]), Reply(second))
    assert names(rest, Query(max_files=1)) == ["a", "b", "c"]
