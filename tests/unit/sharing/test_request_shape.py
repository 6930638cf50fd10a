"""A query that is refused goes out once more in its other shape, and the shape that was answered is remembered."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from delta_sharing_spark.errors import RequestRefusedError, ServerError, UnavailableError
from delta_sharing_spark.sharing import query as request_shape
from delta_sharing_spark.sharing.queries import Query
from delta_sharing_spark.sharing.query import PAGE_SIZE
from delta_sharing_spark.sharing.rest import SharingRest
from unit.sharing.scripted_server import (
    HEAD,
    NAME,
    Asked,
    Clock,
    Reply,
    Rest,
    ScriptedServer,
    end_line,
    file_line,
    refusal,
)

HINTED = Query(limit_hint=3, json_predicate_hints="{}", include_refresh_token=True)
#: What forces the reference server's old engine, which knows no reader feature.
OLD_ENGINE = {"maxFiles", "predicateHints", "startingVersion", "pageToken"}


def answering(accepts: Any, otherwise: Reply) -> Any:
    """A script: the table's files for bodies that are accepted, a refusal for others."""

    def reply(asked: Asked) -> Reply:
        return Reply([*HEAD, file_line("f"), end_line()]) if accepts(asked.json) else otherwise

    return reply


def bodies(server: ScriptedServer) -> list[Any]:
    return [asked.json for asked in server.asked]


def test_first_request_carries_what_it_must(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/query", answering(lambda body: True, refusal(400)))
    rest.query(NAME, Query())
    rest.query(NAME, HINTED)
    assert bodies(server) == [{}, {"limitHint": 3, "jsonPredicateHints": "{}", "includeRefreshToken": True}]


@pytest.mark.parametrize("status", [400, 413, 422, 500, 501])
@pytest.mark.parametrize(
    ("query", "other"),
    [
        (HINTED, {"maxFiles": PAGE_SIZE, "includeRefreshToken": True}),
        (Query(version=2, max_files=7), {"version": 2}),
        (Query(predicate_hints=("p = 1",), json_predicate_hints="{}"), {}),
        (Query(max_files=7, predicate_hints=("p = 1",)), {}),
    ],
)
def test_other_shape(
    server: ScriptedServer,
    rest: SharingRest,
    caplog: pytest.LogCaptureFixture,
    query: Query,
    other: dict[str, Any],
    status: int,
) -> None:
    paged = "maxFiles" in other
    server.on("/query", answering(lambda body: ("maxFiles" in body) == paged, refusal(status, "NO", "cannot do that")))
    if not paged and not query.max_files:
        server.on(
            "/query", answering(lambda body: "predicateHints" not in body, refusal(status, "NO", "cannot do that"))
        )
    with caplog.at_level(logging.INFO):
        response = rest.query(NAME, query)
    tries = 3 if status == 500 else 1
    assert bodies(server)[tries:] == [other]
    assert response.query.body() == other
    assert "cannot do that" in str(response.fallback)
    assert str(response.fallback) in caplog.text
    assert [name for block in response.blocks() for name in block.ids] == ["f"]

    server.asked.clear()
    again = rest.query(NAME, query)
    assert (bodies(server), again.fallback) == ([other], response.fallback), "the shape is remembered"


def test_memory_is_of_server_and_table(rest_of: Rest) -> None:
    with ScriptedServer() as picky, ScriptedServer() as easy:
        picky.on("/query", answering(lambda body: "maxFiles" in body, refusal(400)))
        easy.on("/query", answering(lambda body: "maxFiles" not in body, refusal(400)))
        answers = [list(rest_of(server).query(NAME, Query()).blocks()) for server in (picky, easy, picky, easy)]
        assert all(answers)
        assert [len(picky.asked), len(easy.asked)] == [3, 2]
    assert len(request_shape.FALLBACKS) <= request_shape._MOST_TABLES


def test_server_that_changes_its_mind(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/query", answering(lambda body: "maxFiles" in body, refusal(400)))
    rest.query(NAME, Query())
    server.on("/query", answering(lambda body: "maxFiles" not in body, refusal(400)))
    server.asked.clear()
    assert [rest.query(NAME, Query()).fallback for _ in range(2)] == [None, None]
    assert bodies(server) == [{"maxFiles": PAGE_SIZE}, {}, {}]


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        (Query(starting_version=1), refusal(400)),
        (Query(refresh_token="old", include_refresh_token=True), refusal(400)),
        (Query(), refusal(401)),
        (Query(), refusal(403)),
        (Query(), refusal(404)),
        (Query(version=0), refusal(400, "INVALID", "You can only query table data since version 1.")),
        (Query(version=0), refusal(400, "INVALID", "Reading table by version or timestamp is not supported because "
                                   "history sharing is not enabled on table: a.b.c")),
    ],
)  # fmt: skip
def test_refusals_that_are_not_about_the_shape(
    server: ScriptedServer, rest: SharingRest, query: Query, reply: Reply
) -> None:
    server.on("", reply)
    with pytest.raises(ServerError):
        rest.query(NAME, query)
    assert len(server.asked) == 1


def test_refusal_of_both_shapes_is_the_first(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("", refusal(400, "FIRST", "first words"), refusal(400, "SECOND", "second words"))
    with pytest.raises(RequestRefusedError, match="first words"):
        rest.query(NAME, Query())
    assert request_shape.FALLBACKS.get((rest.profile.endpoint, str(NAME).lower())) is None


def test_500_in_the_same_words_is_permanent(server: ScriptedServer, rest: SharingRest, clock: Clock) -> None:
    server.on("", refusal(500, "INTERNAL_ERROR", "no checkpoint here"))
    with pytest.raises(
        UnavailableError, match=r"no checkpoint here; the server fails on this request each time"
    ) as error:
        rest.table_version(NAME)
    assert (error.value.permanent, len(server.asked)) == (True, 3)
    assert sum(clock.slept) < 5
    assert "try again later" not in str(error.value)


def test_500s_in_other_words_are_retried_longer(server: ScriptedServer, rest: SharingRest) -> None:
    replies = [refusal(500, "E", f"request {number} failed") for number in (0, 1, 1, 2)]
    server.on("", *replies, Reply(headers={"Delta-Table-Version": "7"}))
    assert rest.table_version(NAME) == 7
