"""Queries, streams and change feeds as the server answers them, against what the builder says of its tables."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import requests

from delta_sharing_spark.schema.types import Field, Primitive
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from unit.testing.plain_http import Asker, files, lines, refused

DELTA = "responseformat=delta;readerfeatures=deletionvectors,columnmapping"
BOTH = "responseformat=delta,parquet;readerfeatures=deletionvectors,columnmapping"


def read(url: str) -> pa.Table:
    return pq.read_table(io.BytesIO(requests.get(url, timeout=HANGS).content))


def ids(bodies: list[dict[str, Any]]) -> list[int]:
    """The column ``id`` of parquet-format file lines."""
    return sorted(i for body in bodies for i in read(body["url"])["id"].to_pylist())


def expected_ids(table: DeltaTableBuilder, version: int | None = None) -> list[int]:
    return sorted(table.expected(version)["id"].to_pylist())


def test_snapshot_in_parquet_format(ask: Asker, plain: DeltaTableBuilder) -> None:
    response = ask.query()
    assert response.headers["content-type"] == "application/x-ndjson; charset=utf-8"
    assert response.headers["delta-table-version"] == "4"
    listed = files(response)
    assert ids(listed) == expected_ids(plain)
    by_path = {f.add["path"]: f.add for f in plain.files}
    for body in listed:
        (path,) = (p for p in by_path if hashlib.md5(p.encode()).hexdigest() == body["id"])
        assert (body["size"], body["stats"]) == (by_path[path]["size"], by_path[path]["stats"])
        assert body["partitionValues"] == by_path[path]["partitionValues"]
        assert body["expirationTimestamp"] > 0
        assert "version" not in body


def test_time_travel(server: SharingServer, ask: Asker, plain: DeltaTableBuilder) -> None:
    answers = [ask.query({"version": version}) for version in range(5)]
    assert [ids(files(answer)) for answer in answers] == [expected_ids(plain, version) for version in range(5)]
    assert [answer.headers["delta-table-version"] for answer in answers] == ["0", "1", "2", "3", "4"]
    assert all(body["version"] == version for version, answer in enumerate(answers) for body in files(answer))
    assert ids(files(ask.query({"timestamp": "2023-11-14T22:13:21.5Z"}))) == expected_ids(plain, 1)
    both = {"version": 1, "timestamp": "2023-11-14T22:13:21.5Z"}
    assert refused(ask.query(both), 400) == "Please only provide one of: version,timestamp,startingVersion"
    assert refused(ask.query({"version": -1}), 400) == "table version cannot be negative."
    refused(ask.query({"version": 99}), 400)
    server.add_table("s.default.plain", plain.path, start_version=2)
    assert refused(ask.query({"version": 1}), 400) == "You can only query table data since version 2."
    server.add_table("s.default.plain", plain.path, history=False)
    assert refused(ask.query({"version": 1}), 400).endswith("not enabled on table: s.default.plain")


def test_version_advances_while_it_runs(ask: Asker, plain: DeltaTableBuilder) -> None:
    for number in range(20, 24):
        plain.append([{"id": number, "city": "new"}])
        assert ids(files(ask.query())) == expected_ids(plain)


@pytest.mark.parametrize(
    ("table", "capabilities", "outcome"),
    [
        ("plain", None, "parquet"),
        ("plain", "responseformat=delta", "delta"),
        ("plain", BOTH, "parquet"),
        ("vectors", None, "deletionVectors"),
        ("vectors", "responseformat=parquet;readerfeatures=deletionvectors,columnmapping", "columnMapping"),
        ("vectors", "responseformat=delta;readerfeatures=columnmapping", "deletionVectors"),
        ("vectors", "responseFormat=Delta;readerFeatures=DeletionVectors,ColumnMapping", "delta"),
        ("vectors", BOTH, "delta"),
    ],
)
def test_format_chosen(server: SharingServer, table: str, capabilities: str | None, outcome: str) -> None:
    response = Asker(server, f"s.default.{table}").query(capabilities=capabilities)
    if outcome not in ("parquet", "delta"):
        assert outcome in refused(response, 400)
        return
    assert ("deltaProtocol" in lines(response)[0]["protocol"]) == (outcome == "delta")
    assert response.headers["delta-sharing-capabilities"] == f"responseformat={outcome}"


def test_old_server(server: SharingServer, ask: Asker) -> None:
    server.settings.capabilities = False
    response = ask.query(capabilities=DELTA + ";includeEndStreamAction=true")
    assert list(lines(response)[0]["protocol"]) == ["minReaderVersion"]
    assert "delta-sharing-capabilities" not in response.headers


def test_kernel_reads_delta_format(server: SharingServer, vectors: DeltaTableBuilder, tmp_path: Path) -> None:
    """As the reference client does: the answer becomes the log of a local table."""
    from support.rust_kernel import kernel_rows

    protocol, metadata, *rest = lines(Asker(server, "s.default.vectors").query(capabilities=DELTA))
    actions = [{"protocol": protocol["protocol"]["deltaProtocol"]}, {"metaData": metadata["metaData"]["deltaMetadata"]}]
    actions += [line["file"]["deltaSingleAction"] for line in rest]
    log = tmp_path / "fake" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020d}.json").write_text("".join(json.dumps(a) + "\n" for a in actions))
    assert sorted(kernel_rows(log.parent)["id"].to_pylist()) == expected_ids(vectors) == [0, 2, 3, 4, 5, 6, 7, 9]


def test_ids(server: SharingServer, vectors: DeltaTableBuilder) -> None:
    ask = Asker(server, "s.default.vectors")
    delta = files(ask.query(capabilities=DELTA))
    assert {len(b["id"]) for b in delta} == {64}
    hashed = ask.query(capabilities=DELTA, fileidhash="PARQUET")
    assert hashed.headers["fileidhash"] == "parquet"
    assert {len(b["id"]) for b in files(hashed)} == {32}
    stored = [b for b in delta if b["deltaSingleAction"]["add"].get("deletionVector", {}).get("storageType") == "p"]
    assert len(stored) == 1
    assert len(stored[0]["deletionVectorFileId"]) == 64
    assert "Unsupported fileidhash" in refused(ask.query(capabilities=DELTA, fileidhash="crc"), 400)


def test_pages(server: SharingServer, ask: Asker, plain: DeltaTableBuilder) -> None:
    body: dict[str, Any] = {"maxFiles": 2}
    first = ask.query(body)
    token = lines(first)[-1]["endStreamAction"]["nextPageToken"]
    plain.append([{"id": 77}])  # later pages stay with the first one's version
    second = ask.query(body | {"pageToken": token})
    assert second.headers["delta-table-version"] == "4"
    assert ids(files(first) + files(second)) == expected_ids(plain, 4)
    assert "protocol" in lines(second)[0]
    assert "endStreamAction" not in lines(second)[-1]
    mismatch = {"maxFiles": 2, "limitHint": 1, "pageToken": token}
    assert refused(ask.query(mismatch), 400) == "Query parameter mismatch detected for the next page query."
    late = body | {"pageToken": token, "includeRefreshToken": True}
    assert refused(ask.query(late), 400) == "includeRefreshToken must be used in the first page request."
    fresh = lines(ask.query(body | {"includeRefreshToken": True}))[-1]["endStreamAction"]
    assert fresh["refreshToken"]
    assert len(files(ask.query(body | {"pageToken": fresh["nextPageToken"]}))) == 2
    assert refused(ask.query({"maxFiles": 0}), 400) == "maxFiles must be positive."
    assert "decoding" in refused(ask.query({"pageToken": "nonsense"}), 400)
    server.settings.page_token_ttl = -1
    assert refused(ask.query(body | {"pageToken": token}), 400).startswith("The page token has expired.")


def test_end_stream_action(server: SharingServer, ask: Asker) -> None:
    asked = "responseformat=parquet;includeEndStreamAction=true"
    response = ask.query(capabilities=asked)
    assert "includeEndStreamAction=true" in response.headers["delta-sharing-capabilities"]
    assert lines(response)[-1]["endStreamAction"]["minUrlExpirationTimestamp"] > 0
    assert "endStreamAction" not in lines(ask.query())[-1]
    server.settings.bare_end_stream = True
    assert list(lines(ask.query(capabilities=asked))[-1]) == ["minUrlExpirationTimestamp"]
    server.settings.end_stream_action = False
    assert "includeEndStreamAction" not in ask.query(capabilities=asked).headers["delta-sharing-capabilities"]


def test_refresh_token(server: SharingServer, ask: Asker, plain: DeltaTableBuilder) -> None:
    token = lines(ask.query({"includeRefreshToken": True}))[-1]["endStreamAction"]["refreshToken"]
    plain.append([{"id": 77}])
    pinned = ask.query({"refreshToken": token})
    assert pinned.headers["delta-table-version"] == "4"
    assert ids(files(pinned)) == expected_ids(plain, 4)
    asked = {"includeRefreshToken": True, "refreshToken": token}
    texts = [refused(ask.query({key: value, "version": 1}), 400) for key, value in asked.items()]
    assert texts == [f"{key} cannot be used when querying a specific version." for key in asked]
    server.settings.refresh_token_ttl = -1
    assert refused(ask.query({"refreshToken": token}), 400).startswith("The refresh token has expired.")


def test_stream(ask: Asker, plain: DeltaTableBuilder) -> None:
    plain.add_column(Field("extra", Primitive("string"))).append([{"id": 50}])
    response = ask.query({"startingVersion": 1})
    listed = lines(response)
    assert listed[1]["metaData"]["version"] == 1
    kinds = [next(iter(line)) for line in listed]
    assert kinds.count("metaData") == 2
    later = next(line["metaData"] for line in listed[2:] if "metaData" in line)
    assert later["version"] == 5
    assert "extra" in later["schemaString"]
    versions = [next(iter(line.values()))["version"] for line in listed[2:]]
    assert versions == sorted(versions)
    assert {"add", "remove"} <= set(kinds)
    assert "cdf" not in kinds
    assert ids(files(ask.query({"startingVersion": 3, "endingVersion": 3}), "add")) == [10, 11, 12]
    text = refused(ask.query({"startingVersion": 3, "endingVersion": 2}), 400)
    assert text == "startingVersion(3) must be smaller than or equal to endingVersion(2)."
    pages: list[dict[str, Any]] = []
    token = None
    while token is not False:
        body = {"startingVersion": 1, "maxFiles": 2} | ({"pageToken": token} if token else {})
        page = lines(ask.query(body))
        assert sum("protocol" in line for line in page) == 1
        pages += page[2:]
        token = pages.pop()["endStreamAction"]["nextPageToken"] if "endStreamAction" in pages[-1] else False
    assert [strip(line) for line in pages] == [strip(line) for line in listed[2:]]


def strip(line: dict[str, Any]) -> Any:
    """A line without what differs from answer to answer."""
    return {k: {n: v for n, v in b.items() if n not in ("url", "expirationTimestamp")} for k, b in line.items()}


@pytest.mark.parametrize(("start", "end"), [(0, 4), (1, 1), (2, 3), (4, 4)])
def test_changes(ask: Asker, plain: DeltaTableBuilder, start: int, end: int) -> None:
    rows = []
    for line in lines(ask.get(f"changes?startingVersion={start}&endingVersion={end}"))[2:]:
        ((kind, body),) = line.items()
        for row in read(body["url"]).to_pylist():
            change = row.get("_change_type") or {"add": "insert", "remove": "delete"}[kind]
            rows.append(repr((body["version"], change, row["id"], row["n"], body["timestamp"])))
    truth = plain.expected_changes(start, end).to_pylist()
    names = ("_commit_version", "_change_type", "id", "n", "_commit_timestamp")
    expected = [[row[name] for name in names] for row in truth]
    assert sorted(rows) == sorted(repr((*values, round(at.timestamp() * 1000))) for *values, at in expected)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("", "No startingVersion or startingTimestamp provided for CDF read."),
        (
            "startingVersion=1&startingTimestamp=2023-11-14T22:13:20Z",
            "Multiple starting arguments provided for CDF read",
        ),
        (
            "startingVersion=2&endingVersion=1",
            "CDF range from start 2 to end 1 was invalid. End cannot be before start.",
        ),
        ("startingVersion=x", "startingVersion is not a valid number."),
    ],
)
def test_changes_refused(ask: Asker, parameters: str, text: str) -> None:
    assert refused(ask.get(f"changes?{parameters}"), 400) == text


def test_changes_not_recorded(server: SharingServer, vectors: DeltaTableBuilder) -> None:
    ask = Asker(server, "s.default.vectors")
    assert refused(ask.get("changes?startingVersion=0", DELTA), 400) == "cdf is not enabled on table s.default.vectors"
    vectors.set_properties(**{"delta.enableChangeDataFeed": "true"}).append([{"id": 5}])
    text = refused(ask.get("changes?startingVersion=3", DELTA), 400)
    assert text.endswith("[3, 5] as change data was not recorded for version [3]")
    assert len(files(ask.get("changes?startingVersion=4", DELTA))) == 1


def test_changes_with_history(ask: Asker, plain: DeltaTableBuilder) -> None:
    plain.add_column(Field("extra", Primitive("string")))
    head, later = (
        line["metaData"]
        for line in lines(ask.get("changes?startingVersion=2&includeHistoricalMetadata=true"))
        if "metaData" in line
    )
    assert (head["version"], later["version"]) == (2, 5)
    (only,) = (b["metaData"] for b in lines(ask.get("changes?startingVersion=2")) if "metaData" in b)
    assert "extra" in only["schemaString"]
    asked = "changes?startingVersion=2&includeHistoricalProtocol=true"
    protocols = [b["protocol"] for b in lines(ask.get(asked, DELTA)) if "protocol" in b]
    assert "version" in protocols[0]


def test_asynchronous(server: SharingServer, ask: Asker, plain: DeltaTableBuilder) -> None:
    key = {"idempotencyKey": "k1", "maxFiles": 1}
    assert len(files(ask.query(key, "asyncquery=true"))) == 1  # unknown to this server: answered at once
    server.settings.async_polls = 2
    (status,) = lines(ask.query(key, "responseformat=parquet;asyncquery=true"))
    query_id = status["queryStatus"]["queryId"]
    assert lines(ask.query(key, "asyncquery=true"))[0]["queryStatus"]["queryId"] == query_id
    assert "idempotency_key" in refused(ask.query({}, "asyncquery=true"), 400)
    path = f"queries/{query_id}"
    for _ in range(2):
        assert lines(ask.query(path=path))[0]["queryStatus"]["status"] == "pending"
    listed, token = [], None
    while token is not False:
        page = lines(ask.query({"maxFiles": 2} | ({"pageToken": token} if token else {}), path=path))
        listed += [line["file"] for line in page if "file" in line]
        token = page[-1]["endStreamAction"]["nextPageToken"] if "endStreamAction" in page[-1] else False
    assert ids(listed) == expected_ids(plain)
    server.settings.async_error = "out of luck"
    assert lines(ask.query(path=path))[0]["queryStatus"] == {
        "queryId": query_id,
        "status": "failed",
        "errorMessage": "out of luck",
    }
    server.expire_queries()
    refused(ask.query(path=path), 404)


def column(name: str, kind: str) -> dict[str, Any]:
    return {"op": "column", "name": name, "valueType": kind}


def compare(op: str, name: str, kind: str, value: str) -> dict[str, Any]:
    return {"op": op, "children": [column(name, kind), {"op": "literal", "value": value, "valueType": kind}]}


def test_hints(server: SharingServer, ask: Asker, plain: DeltaTableBuilder) -> None:
    def cities(**hints: Any) -> list[str | None]:
        listed = files(ask.query({k: json.dumps(v) if isinstance(v, dict) else v for k, v in hints.items()}))
        return sorted((b["partitionValues"]["city"] for b in listed), key=str)

    a = compare("equal", "city", "string", "a")
    assert cities(jsonPredicateHints=a) == ["a"]
    assert cities(jsonPredicateHints={"op": "not", "children": [a]}) == [None, "b"]
    assert cities(jsonPredicateHints={"op": "isNull", "children": [column("city", "string")]}) == [None]
    assert cities(jsonPredicateHints=compare("greaterThan", "n", "int", "100")) == [None, "a"]  # no statistics: kept
    assert cities(jsonPredicateHints=compare("lessThan", "id", "long", "1")) == ["a"]
    either = {"op": "or", "children": [a, compare("equal", "id", "long", "11")]}
    assert cities(jsonPredicateHints=either) == [None, "a"]
    assert cities(predicateHints=["city = 'b'"]) == ["b"]
    assert cities(predicateHints=["city is not null", "city <> 'b'"]) == ["a"]
    every = [None, "a", "b"]
    assert cities(predicateHints=["id = 0", "city = 'a' OR TRUE"]) == every
    assert cities(jsonPredicateHints={"op": "huh"}) == every
    # A file with NaN-free statistics of n in 0..8 can hold rows that are not >= 7, whatever a naive server says.
    not_large = {"op": "not", "children": [compare("greaterThanOrEqual", "n", "int", "7")]}
    assert cities(jsonPredicateHints=not_large) == every
    server.settings.predicate_hints = "naive"
    assert cities(jsonPredicateHints=not_large) != every
    server.settings.predicate_hints = "ignore"
    assert cities(jsonPredicateHints=a) == every
    server.settings.predicate_hints = "over-return"
    assert set(cities(jsonPredicateHints=a)) > {"a"}
    assert len(files(ask.query({"limitHint": 1}))) == 1
    server.settings.limit_hints = False
    assert len(files(ask.query({"limitHint": 1}))) == 3


def test_rewritten_lines(server: SharingServer, ask: Asker) -> None:
    def newer(line: dict[str, Any]) -> dict[str, Any] | None:
        if "protocol" in line:
            return {"protocol": {"minReaderVersion": 9}}
        return None if "file" in line else line

    server.settings.rewrite = newer
    assert [next(iter(line)) for line in lines(ask.query())] == ["protocol", "metaData"]
    assert lines(ask.get("metadata"))[0]["protocol"]["minReaderVersion"] == 9


def test_broken_requests(ask: Asker) -> None:
    for body in (b"{", b"[]", b"7"):
        response = requests.post(f"{ask.base}/query", data=body, headers=ask.headers, timeout=HANGS)
        refused(response, 400)
    refused(ask.get("query"), 405)


def test_paths_and_absolute_vectors(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    vectors = {"delta.enableDeletionVectors": "true"}
    table = DeltaTableBuilder(tmp_path / "a é%20", schema, ["p"], vectors)
    table.append([{"id": i, "p": p} for i, p in enumerate(["a/b", "%2F", "é ", "x=y?#", None, ""] * 3)])
    table.delete(pc.field("id") == 0, deletion_vectors=True, storage="p")
    with SharingServer({"s.d.t": table.path}) as server:
        listed = files(Asker(server, "s.d.t").query(capabilities=DELTA))
        actions = [b["deltaSingleAction"]["add"] for b in listed]
        assert sorted(i for a in actions for i in read(a["path"])["id"].to_pylist()) == list(range(18))
        (vector,) = (a["deletionVector"] for a in actions if "deletionVector" in a)
        content = requests.get(vector["pathOrInlineDv"], timeout=HANGS).content
        assert content[0] == 1
        assert len(content) == vector["offset"] + vector["sizeInBytes"] + 8
