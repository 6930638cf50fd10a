"""A query's lines to records: both formats, the last line, what is broken off and what is malformed."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import (
    DeltaSharingError,
    ForbiddenError,
    RequestRefusedError,
    ResponseError,
    ServerError,
    UnavailableError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.network.retry import RetryableError
from delta_sharing_spark.scan.plan import DeletionVector, FileTask
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.sharing.response import Page, line_blocks, parse_page
from delta_sharing_spark.sharing.wire_records import EndStreamAction
from unit.sharing.scripted_server import (
    DELTA_METADATA,
    DELTA_PROTOCOL,
    HEAD,
    METADATA,
    PROTOCOL,
    SCHEMA_STRING,
    end_line,
    file_line,
    ndjson,
)

T = "s.d.t"


VECTOR = {"storageType": "p", "pathOrInlineDv": "https://h/v", "offset": 1, "sizeInBytes": 40, "cardinality": 2}


def parse(*lines: Any, expects_end: bool = False) -> Page:
    return parse_page(line_blocks([ndjson(lines)]), T, expects_end=expects_end)


def files(page: Page) -> list[FileTask]:
    return [task for block in page.blocks for task in block.tasks()]  # type: ignore[attr-defined]


def kinds(page: Page) -> list[str]:
    return [block.kind for block in page.blocks for _ in block.ids]  # type: ignore[attr-defined]


def error_of(*lines: Any, expects_end: bool = False) -> DeltaSharingError:
    """What the user would see, and that it is not worth a retry."""
    with pytest.raises(DeltaSharingError) as caught:
        parse(*lines, expects_end=expects_end)
    return caught.value


def wrapped(action: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {"file": {"id": "F", "deltaSingleAction": action, **outer}}


def test_the_parquet_format() -> None:
    metadata = {
        "id": "T",
        "name": "n",
        "description": "d",
        "format": {"provider": "Parquet"},
        "schemaString": SCHEMA_STRING,
        "partitionColumns": ["p"],
        "configuration": {"k": "v"},
        "numFiles": 2,
        "size": 20,
        "version": 7,
        "location": "s3://b/t",
        "auxiliaryLocations": ["s3://c"],
        "accessModes": ["URL", "dir"],
    }
    stats = '{"numRecords":1}'
    page = parse(
        PROTOCOL,
        {"metaData": metadata},
        file_line(
            "a", stats=stats, partitionValues={"p": "1", "q": None}, expirationTimestamp=5, version=3, timestamp=4
        ),
        {"add": file_line("b", version=1, timestamp=2)["file"]},
        {"cdf": file_line("c", version=1, timestamp=2)["file"]},
        {"remove": file_line("d", version=1, timestamp=2)["file"]},
    )
    assert page.protocol == Protocol(1)
    assert page.response_format == "parquet"
    assert page.metadata == Metadata(
        "T",
        SCHEMA_STRING,
        ("p",),
        "Parquet",
        "n",
        "d",
        {"k": "v"},
        2,
        20,
        7,
        "s3://b/t",
        ("s3://c",),
        ("url", "dir"),
    )
    url = "https://store/a?sig=s3cret"
    first, *others = files(page)
    assert replace(first, rows=None) == FileTask(
        "a", url, 10, {"p": "1", "q": None}, commit_version=3, commit_timestamp=4, expires_at=0.005, stats=stats
    )
    assert kinds(page) == ["add", "add", "cdf", "remove"]
    assert [(f.id, f.commit_version, f.commit_timestamp) for f in others] == [("b", 1, 2), ("c", 1, 2), ("d", 1, 2)]


def test_the_delta_format() -> None:
    vector = {
        "storageType": "p",
        "pathOrInlineDv": "https://store/dv",
        "offset": 1,
        "sizeInBytes": 34,
        "cardinality": 2,
    }
    add = {"path": "https://store/f", "size": 9, "partitionValues": {"p": ""}, "stats": "{}", "dataChange": False}
    page = parse(
        DELTA_PROTOCOL,
        DELTA_METADATA,
        wrapped({"add": add | {"deletionVector": vector}}, deletionVectorFileId="V", expirationTimestamp=5, version=1),
        wrapped({"cdc": add}, timestamp=8),
        wrapped({"remove": add, "add": None}),
        wrapped({"txn": {"appId": "x"}}),
    )
    assert page.protocol == Protocol(3, ("deletionVectors",))
    assert page.response_format == "delta"
    assert page.metadata is not None
    assert (page.metadata.size, page.metadata.num_files, page.metadata.id) == (7, 1, "T")
    located = DeletionVector("p", "https://store/dv", 1, 34, 2, "V@1", "V")
    first, *others = files(page)
    assert first == FileTask(
        "F",
        "https://store/f",
        9,
        {"p": ""},
        deletion_vector=located,
        commit_version=1,
        expires_at=0.005,
        stats="{}",
    )
    assert page.blocks[0].unchanged == {0}  # type: ignore[attr-defined]
    assert kinds(page) == ["add", "cdf", "remove"]
    assert [f.commit_timestamp for f in others] == [8, None]


@pytest.mark.parametrize("last", [end_line(nextPageToken="N", refreshToken="", x=1), {"nextPageToken": "N", "y": 2}])
def test_the_last_line_wrapped_or_bare(last: dict[str, Any]) -> None:
    """The reference Python client fails with ``KeyError: 'file'`` on it (peers.md D1)."""
    page = parse(*HEAD, file_line("a"), last, expects_end=True)
    assert page.end == EndStreamAction(next_page_token="N")
    assert len(files(page)) == 1


def test_what_is_unknown_or_null_is_ignored() -> None:
    page = parse(
        {"protocol": {"minReaderVersion": 1, "new": 1}, "more": 2},
        METADATA,
        {"novel": {"action": 1}},
        b"",
        b"  ",
        {"file": None, "add": None, "remove": file_line("r", novel=1)["file"], "protocol": None},
        {"endStreamAction": None},
    )
    assert [r.id for r in files(page)] == ["r"]


def test_numbers_as_text_and_a_line_end_of_windows() -> None:
    lines = [json.dumps(line).encode() + b"\r" for line in (*HEAD, file_line("a", size="12", version="3"))]
    record = files(parse(*lines))[0]
    assert (record.size, record.commit_version) == (12, 3)


@pytest.mark.parametrize(
    ("size", "read"), [(12.0, 12), ("12.0", 12), (12.5, None), (1e300, None), (float("nan"), None)]
)
def test_a_whole_number_that_is_written_as_a_fraction(size: Any, read: int | None) -> None:
    lines = (*HEAD, file_line("a", size=size))
    if read is not None:
        assert files(parse(*lines))[0].size == read
        return
    with pytest.raises(ResponseError, match=r"the size of a file is '.*', not a whole number"):
        parse(*lines)


@pytest.mark.parametrize("version", [5, "5"])
def test_history_is_told_from_the_head(version: int | str) -> None:
    """Later lines with a version are historical, in both formats."""
    newer = {"metaData": METADATA["metaData"] | {"version": 4}}
    page = parse(PROTOCOL, METADATA, newer, METADATA)
    assert page.historical_metadata == [(4, Metadata("T", SCHEMA_STRING, (), version=4))]
    later = {"protocol": {"deltaProtocol": {"minReaderVersion": 2}, "version": version}}
    page = parse(DELTA_PROTOCOL, DELTA_METADATA, later, DELTA_PROTOCOL)
    assert page.historical_protocols == [(5, Protocol(2))]


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_an_answer_that_breaks_off_is_tried_again(cut: int) -> None:
    """T58: the reference fails at once; here it is worth another try, and says the same in the end."""
    body = ndjson([*HEAD, file_line("a")]).rstrip()
    with pytest.raises(RetryableError) as caught:
        parse_page(line_blocks([body[:-cut]]), T)
    assert isinstance(caught.value.error, ResponseError)
    assert "likely caused by a request timeout" in str(caught.value)


@pytest.mark.parametrize(
    "lines",
    [
        [*HEAD, file_line("a")],
        [*HEAD],
        [],
        [*HEAD, end_line(), file_line("a")],
        [*HEAD, {"endStreamAction": None}],
    ],
)
def test_a_promised_last_line_that_is_missing(lines: list[Any]) -> None:
    """T55: with the header it is a truncation, without it it is not missed."""
    with pytest.raises(RetryableError, match="truncated"):
        parse(*lines, expects_end=True)
    parse(*lines)


@pytest.mark.parametrize(
    ("fields", "kind", "again"),
    [
        ({"errorMessage": "boom"}, RequestRefusedError, False),
        ({"errorMessage": "boom", "httpStatusErrorCode": 403}, ForbiddenError, False),
        ({"errorMessage": "boom", "httpStatusErrorCode": 429}, UnavailableError, True),
        ({"errorMessage": "boom", "httpStatusErrorCode": 500}, UnavailableError, True),
        ({"errorMessage": "", "httpStatusErrorCode": 400}, RequestRefusedError, False),
    ],
)
@pytest.mark.parametrize("bare", [False, True])
def test_an_error_in_the_last_line_fails_the_query(
    fields: dict[str, Any], kind: type[ServerError], again: bool, bare: bool
) -> None:
    with pytest.raises((ServerError, RetryableError)) as caught:
        parse(*HEAD, file_line("a"), fields if bare else end_line(**fields), expects_end=True)
    error = caught.value.error if isinstance(caught.value, RetryableError) else caught.value
    assert isinstance(caught.value, RetryableError) == again
    assert type(error) is kind
    assert fields["errorMessage"] in str(error)
    assert error.status == fields.get("httpStatusErrorCode")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"errorCode": "INTERNAL_ERROR", "message": "disk full"}, "INTERNAL_ERROR: disk full"),
        ({"error_code": "INTERNAL_ERROR"}, "INTERNAL_ERROR"),
        ({"error": {"reason": "disk full"}}, "disk full"),
        ({"errorMessage": {"reason": "disk full"}}, "disk full"),
        (end_line(errorMessage=["disk full"]), "disk full"),
    ],
)
def test_an_error_body_after_or_for_lines_is_no_end_of_the_rows(body: dict[str, Any], text: str) -> None:
    """A server that fails once it has begun to answer can only add its error, with the status 200."""
    answers = ([*HEAD, file_line("a"), body], [body], [*HEAD, body, file_line("a")])
    errors = [error_of(*lines) for lines in answers]
    assert [error for error in errors if not isinstance(error, RequestRefusedError) or text not in str(error)] == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"protocol": 5}], "'protocol' is not an object"),
        ([{"protocol": {}}], "no minReaderVersion"),
        ([{"protocol": {"minReaderVersion": "x"}}], "minReaderVersion is 'x'"),
        ([{"protocol": {"minReaderVersion": True}}], "minReaderVersion is 'True'"),
        ([{"protocol": {"deltaProtocol": 3}}], "'deltaProtocol' is not an object"),
        ([{"metaData": {"id": "x"}}], "no schemaString"),
        ([{"metaData": {"deltaMetadata": []}}], "'deltaMetadata' is not an object"),
        ([{"file": {}}], "lacks its url or id"),
        ([{"file": {"url": "u", "id": "i", "size": -1}}], "size of a file is -1"),
        ([file_line("a", size=4 * 10**18)], "size of a file is 4000000000000000000, and must be"),
        ([file_line("a", size=10**15)], "size of a file is 1000000000000000"),
        ([file_line("a", size=1 << 14_000)], "a number of 14001 bits"),
        ([file_line("a", version=1 << 63)], "version is 9223372036854775808"),
        ([file_line("a", expirationTimestamp=10**400)], "expirationTimestamp is a number of"),
        ([file_line("a", timestamp=1 << 60)], "timestamp is"),
        ([file_line("a", partitionValues={"p": "\ud800"})], "not Unicode"),
        ([file_line("a", partitionValues={"\ud800": "x"})], "not Unicode"),
        ([{"protocol": {"minReaderVersion": 1e999}}], "minReaderVersion is 'inf'"),
        (
            [{"protocol": {"minReaderVersion": 3, "readerFeatures": "deletionVectors"}}],
            "readerFeatures is 'deletionVectors', not a list",
        ),
        ([{"protocol": {"minReaderVersion": 3, "readerFeatures": [1]}}], "readerFeatures.0. is '1', not text"),
        ([{"metaData": {**METADATA["metaData"], "partitionColumns": "p"}}], "partitionColumns is 'p', not a list"),
        ([{"metaData": {**METADATA["metaData"], "configuration": []}}], "configuration is not an object"),
        ([{"metaData": {**METADATA["metaData"], "format": {"provider": 1}}}], "format.provider is '1', not text"),
        ([wrapped({"add": {"path": "p", "size": 1, "dataChange": "false"}})], "dataChange is 'false'"),
        (
            [wrapped({"add": {"path": "p", "size": 1, "deletionVector": VECTOR | {"sizeInBytes": 1 << 40}}})],
            "sizeInBytes is",
        ),
        ([wrapped({"add": {"path": "p", "size": 1, "deletionVector": VECTOR | {"offset": -1}}})], "offset is -1"),
        ([wrapped({"add": {"path": "p", "size": 1, "deletionVector": VECTOR | {"offset": "x"}}})], "offset is 'x'"),
        (
            [wrapped({"add": {"path": "p", "size": 1, "deletionVector": VECTOR | {"cardinality": []}}})],
            "cardinality is not a whole number",
        ),
        (
            [wrapped({"add": {"path": "p", "size": 1, "deletionVector": VECTOR | {"pathOrInlineDv": 5}}})],
            "pathOrInlineDv is '5', not text",
        ),
        (
            [wrapped({"add": {"path": "p", "size": 1, "deletionVector": VECTOR | {"storageType": "x"}}})],
            "of the unknown storage type 'x'",
        ),
        ([{"file": {"url": "u", "id": "i"}}], "no size"),
        ([file_line("a", size="1e3")], "size of a file is '1e3'"),
        ([file_line("a", size=1.5)], "size of a file is '1.5'"),
        ([file_line("a", partitionValues={"p": 1})], "partitionValues"),
        ([file_line("a", partitionValues=[1])], "partitionValues"),
        ([wrapped(5)], "file.deltaSingleAction is '5', not an object"),  # type: ignore[arg-type]
        ([wrapped({"add": "x"})], "file.deltaSingleAction.add is 'x', not an object"),
        ([wrapped({"add": {"size": 1}})], "lacks its path or id"),
        ([wrapped({"add": {"path": "p", "size": 1, "deletionVector": {}}})], "storageType"),
        ([{"file": {"deltaSingleAction": {"add": {"path": "p", "size": 1}}}}], "lacks its path or id"),
        ([end_line(minUrlExpirationTimestamp="soon")], "minUrlExpirationTimestamp"),
        # What would be left out of the rows.
        *(
            ([*HEAD, end_line(nextPageToken=token)], "nextPageToken is not text")
            for token in (5, 0, False, [], {"a": 1})
        ),
        ([*HEAD, end_line(refreshToken=["r"])], "refreshToken is not text"),
        ([*HEAD, end_line(nextPageToken="n"), end_line()], "more than one endStreamAction"),
        ([*HEAD, {**file_line("a"), "add": file_line("b")["file"]}], "file and add"),
        ([{**PROTOCOL, **METADATA}], "protocol and metaData"),
        ([*HEAD, {**file_line("a"), **end_line(nextPageToken="n")}], "file and endStreamAction"),
        ([wrapped({"add": {"path": "p", "size": 1}, "remove": {"path": "q", "size": 1}})], "add and remove"),
        ([*HEAD, {"metaData": {**METADATA["metaData"], "partitionColumns": ["id"]}}], "two metaData lines"),
        ([*HEAD, {"protocol": {"minReaderVersion": 2}}], "two protocol lines"),
        ([*HEAD, DELTA_PROTOCOL], "two protocol lines"),
    ],
)
def test_what_breaks_the_protocol(lines: list[Any], message: str) -> None:
    """No line that cannot be understood is left out in silence."""
    error = error_of(*lines)
    assert type(error) is ResponseError
    assert re.search(message, str(error))
    assert T in str(error)


@pytest.mark.parametrize("metadata", [METADATA, DELTA_METADATA])
def test_another_provider_is_refused_by_name(metadata: dict[str, Any]) -> None:
    text = json.dumps(metadata).replace('"provider": "parquet"', '"provider": "avro"')
    error = error_of(json.loads(text))
    assert isinstance(error, UnsupportedFeatureError)
    assert error.features == ("avro",)


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_lines_do_not_depend_on_chunks(body: bytes, cuts: list[int]) -> None:
    """Blocks hold whole lines: each but the last ends with one."""
    edges = [0, *sorted(min(c, len(body)) for c in cuts), len(body)]
    blocks = list(line_blocks([body[a:b] for a, b in pairwise(edges)]))
    assert b"".join(blocks) == body
    assert all(block.endswith(b"\n") for block in blocks[:-1])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
WHOLE = [
    PROTOCOL,
    METADATA,
    DELTA_PROTOCOL,
    DELTA_METADATA,
    file_line("a", stats="{}"),
    wrapped({"add": {"path": "p", "size": 1, "deletionVector": {"storageType": "u", "pathOrInlineDv": "x"}}}),
    wrapped({"remove": {"path": "p", "size": 1}}),
    {"cdf": file_line("a")["file"]},
    end_line(nextPageToken="n", errorMessage="e", httpStatusErrorCode=1),
    {"queryStatus": {"queryId": "q"}},
]


def _paths(tree: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    return [path, *(p for k, v in tree.items() for p in _paths(v, (*path, k)))] if isinstance(tree, dict) else [path]


def _spoilt(tree: Any, path: tuple[str, ...], value: Any) -> Any:
    return value if not path else {**tree, path[0]: _spoilt(tree[path[0]], path[1:], value)}


@given(st.data())
def test_any_spoilt_line_is_read_or_an_error_of_ours(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.sampled_from(WHOLE), min_size=1, max_size=5))
    index = data.draw(st.integers(0, len(lines) - 1))
    path = data.draw(st.sampled_from(_paths(lines[index])))
    lines[index] = _spoilt(lines[index], path, data.draw(JSON))
    _harmless(ndjson(lines), data.draw(st.booleans()))


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_read_or_an_error_of_ours(body: bytes, expects_end: bool) -> None:
    _harmless(body, expects_end)
    _harmless(ndjson(HEAD) + body, expects_end)


def test_deep_nesting_and_huge_numbers() -> None:
    _harmless(b"[" * 200_000, False)
    _harmless(b'{"protocol":{"minReaderVersion":' + b"9" * 5000 + b"}}\n{}", False)
    _harmless(b'{"protocol":{"minReaderVersion":"' + b"9" * 5000 + b'"}}', False)


def _harmless(body: bytes, expects_end: bool) -> None:
    with suppress(DeltaSharingError, RetryableError):
        parse_page(line_blocks([body]), T, expects_end=expects_end)
