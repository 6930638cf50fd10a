"""Every endpoint: what is sent, how pages are walked, which answers are refused."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from delta_sharing_spark.errors import (
    AddressError,
    NotFoundError,
    RequestRefusedError,
    ResponseError,
    UnavailableError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.schema.features import reader_features_header
from delta_sharing_spark.schema.table_records import Protocol
from delta_sharing_spark.sharing.queries import ChangesQuery, Query
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.wire_records import Schema, Share, Table
from unit.sharing.scripted_server import (
    DELTA_METADATA,
    DELTA_PROTOCOL,
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
    refusal,
)

TABLE = "/shares/sh/schemas/sch/tables/t"
V7 = {"Delta-Table-Version": "7"}


def pages(*bodies: dict[str, Any]) -> list[Reply]:
    return [Reply(body) for body in bodies]


# Listings


@pytest.mark.parametrize(
    "end",
    [{}, {"nextPageToken": ""}, {"nextPageToken": None}, {"items": []}, {"items": None, "nextPageToken": ""}],
)
def test_listings_are_paged(server: ScriptedServer, rest: SharingRest, end: dict[str, Any]) -> None:
    """``items`` may be missing or empty on any page, the token missing or empty on the last."""
    first = {"items": [{"name": "a", "id": "1"}], "nextPageToken": "p2"}
    server.on("/shares", *pages(first, {"nextPageToken": "p3"}, {"items": [{"name": "b"}], "nextPageToken": "p4"}, end))
    assert list(rest.list_shares()) == [Share("a", "1"), Share("b")]
    assert [a.query.get("pageToken") for a in server.asked] == [None, "p2", "p3", "p4"]
    assert {a.query["maxResults"] for a in server.asked} == {"500"}


def test_listings_are_lazy(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/shares", *pages({"items": [{"name": "a"}], "nextPageToken": "p2"}))
    assert next(rest.list_shares()).name == "a"
    assert len(server.asked) == 1


def test_what_listings_tell(server: ScriptedServer, rest: SharingRest) -> None:
    share = {"name": "sh", "id": "1", "displayName": "D", "comment": "C", "properties": {"k": "v", "n": None}, "x": 1}
    expected = Share("sh", "1", "D", "C", {"k": "v"})
    items = json.dumps({"items": [share]}).encode()
    server.on("/shares", Reply(items), Reply(b"\xef\xbb\xbf" + items))
    assert [*rest.list_shares(), *rest.list_shares()] == [expected, expected]
    server.on("/schemas", Reply({"items": [{"name": "sch"}, {"name": "x", "share": "SH"}]}))
    assert list(rest.list_schemas("sh")) == [Schema("sch", "sh"), Schema("x", "SH")]
    table = {
        "name": "t",
        "schema": "sch",
        "share": "sh",
        "shareId": "1",
        "id": "2",
        "comment": "C",
        "location": "s3://b/t",
        "auxiliaryLocations": ["s3://c"],
        "accessModes": ["url", "DIR"],
        "displayName": "D",
        "properties": {"k": "v"},
        "format": "delta",
    }
    whole = Table("t", "sh", "sch", "1", "2", "C", "s3://b/t", ("s3://c",), ("url", "dir"), "D", {"k": "v"}, ("delta",))
    server.on("/tables", Reply({"items": [table, {"name": "bare"}]}))
    assert list(rest.list_tables("sh", "sch")) == [whole, Table("bare", "sh", "sch")]
    server.on("/all-tables", Reply({"items": [table]}))
    assert list(rest.list_all_tables("sh")) == [whole]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_all_tables_is_a_walk_where_the_server_lacks_it(
    server: ScriptedServer, rest: SharingRest, status: int, clock: Clock
) -> None:
    server.on("/all-tables", refusal(status))
    server.on("/schemas", Reply({"items": [{"name": "a"}, {"name": "b"}]}))
    server.on("/schemas/a/tables", Reply({"items": [{"name": "t1"}]}))
    server.on("/schemas/b/tables", Reply({}))
    assert list(rest.list_all_tables("sh")) == [Table("t1", "sh", "a")]
    assert clock.slept == []


def test_a_share_that_is_not_there(rest: SharingRest) -> None:
    with pytest.raises(NotFoundError, match=r"schemas of 'sh'.*check the names"):
        list(rest.list_all_tables("sh"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"items": {"a": 1}}, "'items' is not a list"),
        ({"items": [{"id": "x"}]}, "without a name"),
        ({"items": ["a"]}, "without a name"),
        ({"items": [{"name": 5}]}, "without a name"),
        *(({"items": [], "nextPageToken": token}, "page token is not text") for token in (5, 0, False, [], {})),
        ({"errorCode": "INTERNAL_ERROR", "message": "disk full"}, "INTERNAL_ERROR: disk full"),
        ({"error": {"reason": "disk full"}}, "disk full"),
        ([], "not a JSON object"),
        ("<html></html>", "not a JSON object.*endpoint"),
        ("", "not a JSON object"),
    ],
)
def test_a_listing_that_is_none(server: ScriptedServer, rest: SharingRest, body: Any, message: str) -> None:
    server.on("/shares", Reply(json.dumps(body) if isinstance(body, list) else body))
    with pytest.raises(ResponseError, match=message):
        list(rest.list_shares())


def test_a_repeated_page_token_is_an_error(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/shares", Reply({"items": [{"name": "a"}], "nextPageToken": "same"}))
    with pytest.raises(ResponseError, match="twice"):
        list(rest.list_shares())


def test_names_are_checked_and_quoted(server: ScriptedServer, rest: SharingRest) -> None:
    """peers.md D4: the reference client sends ``?``, ``#`` and ``%`` as they are."""
    server.on("", Reply({}))
    list(rest.list_tables("a.b?c", "100%25#é"))
    assert server.asked[0].path == "/prefix/shares/a.b%3Fc/schemas/100%2525%23%C3%A9/tables"
    list(rest.list_tables("a/b c", "d.e"))  # names that the protocol does not allow, and that servers list
    assert server.asked[1].path == "/prefix/shares/a%2Fb%20c/schemas/d.e/tables"
    with pytest.raises(AddressError):
        list(rest.list_tables("..", "a"))
    with pytest.raises(AddressError):
        list(rest.list_tables("a", ""))


# Version and metadata


def test_the_version(server: ScriptedServer, rest: SharingRest) -> None:
    server.on(f"{TABLE}/version", Reply(headers={"delta-TABLE-version": " 7 "}))
    assert rest.table_version(NAME) == 7
    assert rest.named_version(NAME, "2022-01-01T00:00:00Z") == 7
    assert rest.table_version(NAME, "2022-01-01T00:00:00Z") == 7
    moments = ("2022-01-01T00:00:00Z", "2022-01-01T00:00:00Z", "2021-12-31T23:59:59.999Z")
    assert [(a.method, a.query) for a in server.asked] == [
        ("GET", {}),
        *[("GET", {"startingTimestamp": moment}) for moment in moments],
    ]


@pytest.mark.parametrize("status", [404, 405, 501])
def test_the_version_by_the_deprecated_head(server: ScriptedServer, rest: SharingRest, status: int) -> None:
    server.on("/version", refusal(status))
    server.on(TABLE, Reply(headers=V7))
    assert rest.table_version(NAME) == 7
    assert [a.method for a in server.asked] == ["GET", "HEAD"]


def test_no_version_at_all(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/version", refusal(404, "RESOURCE_DOES_NOT_EXIST", "no such table"))
    with pytest.raises(NotFoundError, match=r"the version of sh.sch.t.*RESOURCE_DOES_NOT_EXIST: no such table"):
        rest.table_version(NAME)
    server.on("/version", refusal(400, "INVALID", "no history"))
    with pytest.raises(RequestRefusedError, match="no history"):
        rest.table_version(NAME)
    server.on("/version", Reply())
    with pytest.raises(ResponseError, match="no Delta-Table-Version"):
        rest.table_version(NAME)


@pytest.mark.parametrize("text", ["7", " 7 ", "7, 7", "7,7"])
def test_a_version_may_come_twice(server: ScriptedServer, rest: SharingRest, text: str) -> None:
    """A header that a gateway sent again."""
    server.on("/version", Reply(headers={"Delta-Table-Version": text}))
    assert rest.table_version(NAME) == 7


@pytest.mark.parametrize("text", ["x", "--5", "²", "1.5", "-1", "9" * 30])
def test_what_is_no_version(server: ScriptedServer, rest: SharingRest, text: str) -> None:
    server.on("/version", Reply(headers={"Delta-Table-Version": text}))
    with pytest.raises(ResponseError, match="version"):
        rest.table_version(NAME)


@pytest.mark.parametrize(("lines", "form"), [(HEAD, "parquet"), ([DELTA_PROTOCOL, DELTA_METADATA], "delta")])
def test_metadata(server: ScriptedServer, rest: SharingRest, lines: list[Any], form: str) -> None:
    server.on("/metadata", Reply(lines, headers=V7))
    head = rest.metadata(NAME)
    assert (head.version, head.response_format, head.metadata.id, head.metadata.version) == (7, form, "T", 7)
    rest.metadata(NAME, version=3)
    rest.metadata(NAME, timestamp="2022-01-01T00:00:00Z")
    assert [a.query for a in server.asked] == [{}, {"version": "3"}, {"timestamp": "2022-01-01T00:00:00Z"}]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no protocol line"),
        ([METADATA], "no protocol line"),
        ([PROTOCOL], "no metaData line"),
        ([{"queryStatus": {"queryId": "q"}}], "no protocol line"),
    ],
)
def test_a_head_that_is_incomplete(
    server: ScriptedServer, rest: SharingRest, lines: list[Any], message: str, clock: Clock
) -> None:
    server.on("/metadata", Reply(lines))
    with pytest.raises(ResponseError, match=f"sh.sch.t has {message}.*endpoint"):
        rest.metadata(NAME)
    assert clock.slept == []


def test_a_newer_parquet_format_is_refused(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/metadata", Reply([{"protocol": {"minReaderVersion": 2}}, METADATA]))
    with pytest.raises(UnsupportedFeatureError, match="upgrade delta-sharing-spark"):
        rest.metadata(NAME)


# Capabilities


@pytest.mark.parametrize("formats", [("delta", "parquet"), ("delta",), ("parquet",)])
def test_capabilities(server: ScriptedServer, rest: SharingRest, formats: tuple[str, ...]) -> None:
    server.on("", Reply(HEAD, headers=V7))
    rest.metadata(NAME, formats=formats)
    rest.query(NAME, Query(), formats=formats)
    rest.changes(NAME, ChangesQuery(starting_version=0), formats=formats)
    form = f"responseformat={','.join(formats)}"
    features = f";readerfeatures={reader_features_header()}" if "delta" in formats else ""
    end = ";includeendstreamaction=true"
    sent = [a.headers["delta-sharing-capabilities"] for a in server.asked]
    assert sent == [form + features, form + features + end, form + features + end]


def test_an_unexpected_delta_answer_is_an_error_and_parquet_is_not(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/metadata", Reply([DELTA_PROTOCOL, DELTA_METADATA]))
    with pytest.raises(ResponseError, match=r"delta format for sh.sch.t.*responseFormat"):
        rest.metadata(NAME, formats=("parquet",))
    server.on("/metadata", Reply(HEAD))
    assert rest.metadata(NAME, formats=("delta",)).response_format == "parquet"


@pytest.mark.parametrize(
    "capabilities", ["includeendstreamaction=true", "responseFormat=delta; IncludeEndStreamAction=TRUE"]
)
def test_the_promise_of_a_last_line_is_kept(
    server: ScriptedServer, rest: SharingRest, capabilities: str, clock: Clock
) -> None:
    """T55, with the header's keys in any case; a page that lacks the line is asked for again."""
    promise = {"Delta-Sharing-Capabilities": capabilities}
    whole = [*HEAD, file_line("a"), end_line()]
    server.on("/query", Reply(whole[:-1], headers=promise), Reply(whole[:2], headers=promise), Reply(whole))
    assert [name for block in rest.query(NAME, Query()).blocks() for name in block.ids] == ["a"]
    assert len(clock.slept) == 2
    server.on("/query", Reply(whole[:-1], headers={"delta-sharing-capabilities": "includeendstreamaction=false"}))
    assert [name for block in rest.query(NAME, Query()).blocks() for name in block.ids] == ["a"]


@pytest.mark.parametrize(
    ("echo", "told"), [({"FileIdHash": "PARQUET"}, "parquet"), ({}, None), ({"fileidhash": "delta"}, "delta")]
)
def test_file_id_hash(server: ScriptedServer, rest: SharingRest, echo: dict[str, str], told: str | None) -> None:
    """T57: the reference throws where the echo is missing; here whoever needs the hash looks at what was told."""
    server.on("", Reply(HEAD, headers=echo))
    assert rest.query(NAME, Query(file_id_hash="parquet")).file_id_hash == told
    assert rest.changes(NAME, ChangesQuery(file_id_hash="parquet")).file_id_hash == told
    assert {a.headers["fileidhash"] for a in server.asked} == {"parquet"}
    assert rest.query(NAME, Query()).file_id_hash is None
    assert "fileidhash" not in server.asked[-1].headers


# Queries


def test_every_field_of_a_query(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/query", Reply(HEAD))
    rest.query(NAME, Query())
    whole = Query(
        1, "2022-01-01T00:00:00Z", 2, 3, ("a = 1", "b > 2"), '{"op":"x"}', 5, 6, True, "R", True, True, None, "key"
    )
    rest.query(NAME, whole)
    assert server.asked[0].json == {}
    assert server.asked[1].json == {
        "version": 1,
        "timestamp": "2022-01-01T00:00:00Z",
        "startingVersion": 2,
        "endingVersion": 3,
        "predicateHints": ["a = 1", "b > 2"],
        "jsonPredicateHints": '{"op":"x"}',
        "limitHint": 5,
        "maxFiles": 6,
        "includeRefreshToken": True,
        "refreshToken": "R",
        "includeHistoricalMetadata": True,
        "includeHistoricalProtocol": True,
        "idempotencyKey": "key",
    }
    assert "asyncquery=true" in server.asked[1].headers["delta-sharing-capabilities"]


def test_every_parameter_of_changes(server: ScriptedServer, rest: SharingRest) -> None:
    """peers.md D4: the reference client sends ``True`` for ``true``."""
    server.on("/changes", Reply(HEAD))
    rest.changes(NAME, ChangesQuery(0, None, 3, None, 6, True, True))
    rest.changes(NAME, ChangesQuery(None, "2022-01-01T00:00:00+02:00", None, "2023-01-01T00:00:00Z"))
    assert [a.query for a in server.asked] == [
        {
            "startingVersion": "0",
            "endingVersion": "3",
            "maxFiles": "6",
            "includeHistoricalMetadata": "true",
            "includeHistoricalProtocol": "true",
        },
        {"startingTimestamp": "2022-01-01T00:00:00+02:00", "endingTimestamp": "2023-01-01T00:00:00Z"},
    ]


def test_a_query_is_walked_page_by_page(server: ScriptedServer, rest: SharingRest) -> None:
    """The head is there at once; pages are fetched as they are asked for, with all parameters but the first page's."""
    server.on(
        "/query",
        Reply(
            [*HEAD, file_line("a"), end_line(nextPageToken="2", refreshToken="R", minUrlExpirationTimestamp=9)],
            headers=V7,
        ),
        Reply([*HEAD, file_line("b"), {"nextPageToken": "3", "minUrlExpirationTimestamp": 5}], headers=V7),
        Reply([file_line("c"), end_line(nextPageToken="")]),
    )
    response = rest.query(NAME, Query(limit_hint=5, max_files=1, include_refresh_token=True, refresh_token="OLD"))
    assert response.head.version == 7
    blocks = response.blocks()
    assert next(blocks).ids == ["a"]
    assert len(server.asked) == 1
    assert [name for block in blocks for name in block.ids] == ["b", "c"]
    assert (response.refresh_token, response.min_url_expiration) == ("R", 5)
    first, second, third = (a.json for a in server.asked)
    assert first == {"limitHint": 5, "maxFiles": 1, "includeRefreshToken": True, "refreshToken": "OLD"}
    assert second == {"limitHint": 5, "maxFiles": 1, "pageToken": "2"}
    assert third == second | {"pageToken": "3"}


def test_changes_are_walked_page_by_page(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/changes", Reply([*HEAD, end_line(nextPageToken="2")]), Reply([*HEAD, {"cdf": file_line("b")["file"]}]))
    response = rest.changes(NAME, ChangesQuery(starting_version=1))
    assert [name for block in response.blocks() for name in block.ids] == ["b"]
    assert server.asked[1].query == {"startingVersion": "1", "pageToken": "2"}


OTHER_SCHEMA = {"metaData": METADATA["metaData"] | {"schemaString": '{"type":"struct","fields":[]}'}}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Reply([*HEAD, file_line("b")], headers={"Delta-Table-Version": "8"}), "of version 8, the first of 7"),
        (Reply([*HEAD, file_line("b"), end_line(nextPageToken="2")]), "token came twice"),
        (Reply([DELTA_PROTOCOL, DELTA_METADATA]), "another response format"),
        (Reply([PROTOCOL, {"metaData": METADATA["metaData"] | {"id": "U"}}]), "another table"),
        (Reply([PROTOCOL, OTHER_SCHEMA]), "another schema"),
        (Reply([]), "empty"),
        (Reply([{"queryStatus": {"queryId": "q"}}]), "empty"),
    ],
)
def test_pages_that_do_not_fit_together(server: ScriptedServer, rest: SharingRest, second: Reply, message: str) -> None:
    """An answer without files where files were announced is an error, never fewer rows."""
    server.on("/query", Reply([*HEAD, file_line("a"), end_line(nextPageToken="2")], headers=V7), second)
    with pytest.raises(ResponseError, match=f"pages of sh.sch.t do not fit together.*{message}.*load the table again"):
        list(rest.query(NAME, Query()).blocks())


def test_history_over_pages(server: ScriptedServer, rest: SharingRest) -> None:
    """A later page that does not repeat the head begins with history; one that repeats it does not add to it."""

    def at_version(version: int) -> dict[str, Any]:
        return {"metaData": METADATA["metaData"] | {"version": version}}

    server.on(
        "/query",
        Reply(
            [PROTOCOL, at_version(1), at_version(2), end_line(nextPageToken="2")], headers={"Delta-Table-Version": "1"}
        ),
        Reply(
            [
                at_version(3),
                OTHER_SCHEMA | {"metaData": OTHER_SCHEMA["metaData"] | {"version": 4}},
                end_line(nextPageToken="3"),
            ]
        ),
        Reply([PROTOCOL, at_version(1), file_line("a")]),
    )
    response = rest.query(NAME, Query(starting_version=1, include_historical_metadata=True))
    assert [name for block in response.blocks() for name in block.ids] == ["a"]
    assert [version for version, _ in response.historical_metadata] == [2, 3, 4]


def test_historical_protocols_over_pages(server: ScriptedServer, rest: SharingRest) -> None:
    later = {"deltaProtocol": {"minReaderVersion": 3, "readerFeatures": ["columnMapping"]}, "version": 4}
    server.on(
        "/changes",
        Reply([DELTA_PROTOCOL, DELTA_METADATA, end_line(nextPageToken="2")], headers={"Delta-Table-Version": "1"}),
        Reply([{"protocol": later}, end_line(nextPageToken="3")]),
        Reply([DELTA_PROTOCOL, DELTA_METADATA, end_line(nextPageToken="4")]),
        Reply([{"protocol": {"deltaProtocol": later["deltaProtocol"]}}]),
    )
    response = rest.changes(NAME, ChangesQuery(starting_version=1, include_historical_protocol=True))
    with pytest.raises(ResponseError, match="another protocol"):
        list(response.blocks())
    assert response.historical_protocols == [(4, Protocol(3, ("columnMapping",)))]


def test_a_truncated_page_is_asked_for_again_whole(server: ScriptedServer, rest: SharingRest, clock: Clock) -> None:
    """Each page hands on its records only when it is complete: none twice, none missing."""
    second = [*HEAD, file_line("b"), file_line("c")]
    server.on(
        "/query",
        Reply([*HEAD, file_line("a"), end_line(nextPageToken="2")]),
        Reply(second, cut=5),
        Reply(second, cut=5, chunked=True),
        Reply(second, reset=True),
        refusal(503),
        Reply(second),
    )
    assert [name for block in rest.query(NAME, Query()).blocks() for name in block.ids] == ["a", "b", "c"]
    assert len(clock.slept) == 4


# Asynchronous queries


def status(**fields: Any) -> Reply:
    return Reply([{"queryStatus": fields}])


def test_an_asynchronous_query(server: ScriptedServer, rest: SharingRest, clock: Clock) -> None:
    """Submitted, polled, paged by polling; a status without ``status`` means pending."""
    server.on("/query", status(queryId="q/1", status="pending"))
    server.on(
        "/queries/q%2F1",
        status(queryId="q/1"),
        status(status="PENDING"),
        Reply([*HEAD, file_line("a"), end_line(nextPageToken="2")], headers=V7),
        Reply([*HEAD, file_line("b")], headers=V7),
    )
    response = rest.query(NAME, Query(max_files=1, limit_hint=3, idempotency_key="key"))
    assert (response.head.version, [name for block in response.blocks() for name in block.ids]) == (7, ["a", "b"])
    submit, *polls = server.asked
    assert submit.json == {"maxFiles": 1, "limitHint": 3, "idempotencyKey": "key"}
    assert [p.json for p in polls] == [{"maxFiles": 1}] * 3 + [{"maxFiles": 1, "pageToken": "2"}]
    assert clock.slept == [0.5, 1.0, 2.0]


def test_a_server_that_answers_at_once(server: ScriptedServer, rest: SharingRest) -> None:
    server.on("/query", Reply([*HEAD, file_line("a")]))
    assert [name for block in rest.query(NAME, Query(idempotency_key="key")).blocks() for name in block.ids] == ["a"]


@pytest.mark.parametrize("field", ["error", "errorMessage", "message"])
def test_a_failed_query_says_why_at_once(server: ScriptedServer, rest: SharingRest, field: str) -> None:
    """peers.md D6: the JVM client polls it for ten minutes."""
    server.on("/query", status(queryId="q"))
    server.on("/queries/q", status(queryId="q", status="failed", **{field: "out of memory"}))
    with pytest.raises(RequestRefusedError, match=r"sh.sch.t failed: out of memory.*asyncQuery=false"):
        rest.query(NAME, Query(idempotency_key="key"))
    assert len(server.asked) == 2


def test_queries_that_do_not_end_well(server: ScriptedServer, rest: SharingRest, clock: Clock) -> None:
    server.on("/query", status(queryId="q"))
    server.on("/queries/q", refusal(404))
    with pytest.raises(NotFoundError, match="expired on the server; load the table again"):
        rest.query(NAME, Query(idempotency_key="key"))
    server.on("/queries/q", status(queryId="q"))
    begin = clock()
    with pytest.raises(UnavailableError, match="still pending"):
        rest.query(NAME, Query(idempotency_key="key"))
    assert 600 <= clock() - begin < 620
    server.on("/query", status(status="pending"))
    with pytest.raises(ResponseError, match="without queryId"):
        rest.query(NAME, Query(idempotency_key="key"))


# Credentials


def test_credentials(server: ScriptedServer, rest: SharingRest) -> None:
    aws = {"accessKeyId": "AKIA-s3cret", "secretAccessKey": "s3cret", "sessionToken": "s3cret"}
    kinds = {"awsTempCredentials": aws, "azureUserDelegationSas": None, "gcpOauthToken": {"oauthToken": "s3cret"}}
    body = {"credentials": {"location": "s3://b/t", "expirationTime": "1700000000000", **kinds}}
    server.on("/temporary-table-credentials", Reply(body))
    answered = rest.credentials(NAME)
    rest.credentials(NAME, "s3://b/aux")
    assert (answered.location, answered.expiration_time) == ("s3://b/t", 1700000000000)
    assert answered.secrets == {"awsTempCredentials": aws, "gcpOauthToken": {"oauthToken": "s3cret"}}
    assert [(a.method, a.json) for a in server.asked] == [("POST", {}), ("POST", {"location": "s3://b/aux"})]
    assert "s3cret" not in repr(answered)
    server.on("/temporary-table-credentials", Reply({"credentials": "none"}))
    with pytest.raises(ResponseError, match=r"credentials of sh.sch.t"):
        rest.credentials(NAME)


# Errors


@pytest.mark.parametrize(
    "message",
    [
        "Reading table by version or timestamp is not supported because history sharing is not enabled on table: a.b.c",
        "cdf is not enabled on table s.s.t",
        "You can only query table data since version 1.",
        "Error getting change data for range [0, 5] as change data was not recorded for version [4]",
    ],
)
def test_refusals_carry_the_servers_words(server: ScriptedServer, rest: SharingRest, message: str) -> None:
    """T80: which table, which code, the server's message, and what next."""
    server.on("", refusal(400, "INVALID_PARAMETER_VALUE", message))
    with pytest.raises(RequestRefusedError) as caught:
        rest.query(NAME, Query(version=3))
    text = str(caught.value)
    assert (
        f"the query of sh.sch.t: the sharing server answered 400 INVALID_PARAMETER_VALUE: {message.rstrip('.')}; "
        in text
    )
    assert text.splitlines()[-1].endswith("(docs/features.md); ask the provider if both are right")
    assert (caught.value.status, caught.value.error_code) == (400, "INVALID_PARAMETER_VALUE")


def test_a_client_is_cheap_to_carry(server: ScriptedServer, rest: SharingRest) -> None:
    """Executors rebuild it from profile and settings; connections belong to the process."""
    from dataclasses import replace

    from delta_sharing_spark.network.http import NetworkSettings

    carried = pickle.loads(pickle.dumps(replace(rest, settings=NetworkSettings())))
    server.on("/version", Reply(headers=V7))
    assert carried.table_version(NAME) == 7
    assert len(pickle.dumps(carried)) < 2000


def test_concurrent_queries_do_not_mix(server: ScriptedServer, rest: SharingRest) -> None:
    """peers.md D5: the reference client keeps capabilities on its shared session."""
    from concurrent.futures import ThreadPoolExecutor

    def answer(asked: Asked) -> Reply:
        lines = HEAD if "delta" not in asked.headers["delta-sharing-capabilities"] else [DELTA_PROTOCOL, DELTA_METADATA]
        return Reply(lines, headers=V7)

    server.on("/metadata", answer)
    with ThreadPoolExecutor(8) as pool:
        asked = [("delta",), ("parquet",)] * 20
        answered = list(pool.map(lambda formats: rest.metadata(NAME, formats=formats).response_format, asked))
    assert answered == ["delta", "parquet"] * 20
