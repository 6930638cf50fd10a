"""The client against the embedded server: the same answers however the server pages, wraps, delays or breaks off."""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.errors import NotFoundError, RequestRefusedError, ResponseError, UnauthenticatedError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.parallel_calls import DaemonPool
from delta_sharing_spark.sharing import query as pages_ahead
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import load_profile
from delta_sharing_spark.sharing.queries import ChangesQuery, Query
from delta_sharing_spark.sharing.query import QueryResponse
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.wire_lines import FileBlock
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.sharing.scripted_server import Clock

PLAIN, VECTORS = TableName("s.1", "default", "plain"), TableName("S.1", "DEFAULT", "Vectors")
SCHEMA = pa.schema([("id", pa.int64()), ("city", pa.string())])
T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``plain``: versions 0 to 3 with a change data feed; ``vectors``: with a deletion vector."""
    root = tmp_path_factory.mktemp("tables")
    times = (T0 + 1000 * n for n in itertools.count(-1))
    feed = {"delta.enableChangeDataFeed": "true"}
    plain = DeltaTableBuilder(root / "plain", SCHEMA, ["city"], feed, clock=lambda: next(times))
    plain.append([{"id": i, "city": "abc"[i % 3]} for i in range(9)])
    plain.delete(pc.field("id") == 3)
    plain.append([{"id": i, "city": None} for i in range(9, 12)])
    vectors = DeltaTableBuilder(root / "vectors", SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    vectors.append([{"id": i, "city": "x"} for i in range(10)], files=3)
    vectors.delete(pc.field("id") == 1, deletion_vectors=True)
    return {"plain": Path(plain.path), "vectors": Path(vectors.path)}


@pytest.fixture
def server(tables: dict[str, Path]) -> Iterator[SharingServer]:
    with SharingServer({"s.1": {"default": dict(tables), "empty": {}}}) as running:
        yield running
        assert list(running.failures) == []


@pytest.fixture
def rest(server: SharingServer, clock: Clock) -> SharingRest:
    return client(server, clock)


def client(server: SharingServer, clock: Clock, kind: str = "bearer_token") -> SharingRest:
    return SharingRest(load_profile(server.profile(kind)), NetworkSettings(sleep=clock.sleep, clock=clock))


def lasting(block: FileBlock) -> Iterator[str]:
    """What a block says of each file, but for what is drawn anew for each answer: URLs and their end."""
    for place, task in enumerate(block.tasks()):
        vector = task.deletion_vector and task.deletion_vector.cardinality
        values = (
            getattr(task, f.name) for f in fields(task) if f.name not in ("location", "expires_at", "deletion_vector")
        )
        yield json.dumps([block.kind, place in block.unchanged, vector, *values], sort_keys=True)


def told(response: QueryResponse) -> tuple[Any, ...]:
    records = sorted(text for block in response.blocks() for text in lasting(block))
    history = [version for version, _ in response.historical_metadata]
    return response.head.version, response.head.response_format, response.head.protocol, records, history


QUERIES = {
    "snapshot": (PLAIN, Query()),
    "version": (PLAIN, Query(version=1)),
    "timestamp": (PLAIN, Query(timestamp="2023-11-14T22:13:21Z")),
    "refresh": (PLAIN, Query(include_refresh_token=True)),
    "stream": (PLAIN, Query(starting_version=1, ending_version=3, include_historical_metadata=True)),
    "changes": (PLAIN, ChangesQuery(starting_version=1)),
    "history": (PLAIN, ChangesQuery(starting_version=0, include_historical_metadata=True)),
    "vectors": (VECTORS, Query()),
}


def ask(rest: SharingRest, name: str, formats: tuple[str, ...] = ("delta", "parquet")) -> tuple[Any, ...]:
    return told(answer(rest, *QUERIES[name], formats))


def answer(
    rest: SharingRest, table: TableName, query: Query | ChangesQuery, formats: tuple[str, ...] = ("delta", "parquet")
) -> QueryResponse:
    if isinstance(query, ChangesQuery):
        return rest.changes(table, query, formats=formats)
    return rest.query(table, query, formats=formats, reads_all=True)


#: How a server may shape its answers, and what may happen to them.
SHAPES = [
    dict(zip(("repeat_head", "bare_end_stream", "end_stream_action"), choices, strict=True))
    for choices in itertools.product((True, False), (False, True), (True, False))
]
FAULTS = [{"truncate": 300}, {"truncate": -5}, {"reset": True}, {"status": 503}, {"reset": True, "truncate": 99}]


@pytest.mark.parametrize(
    ("shape", "fault"), [*((shape, {}) for shape in SHAPES), *(({}, fault) for fault in FAULTS)], ids=str
)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("formats", [("delta", "parquet"), ("delta",)])
def test_the_same_files_however_they_come(
    server: SharingServer,
    rest: SharingRest,
    query: str,
    formats: tuple[str, ...],
    shape: dict[str, bool],
    fault: dict[str, Any],
) -> None:
    """In pages of one, with and without repeated heads, with the last line bare or only where it is needed, and with
    answers that break off anywhere."""
    expected = ask(rest, query, formats)
    assert len(expected[3]) >= 2
    settings = server.settings
    settings.page_size = 1
    for choice, value in shape.items():
        setattr(settings, choice, value)
    kind = "changes" if isinstance(QUERIES[query][1], ChangesQuery) else "query"
    hit = server.faults.add(kind, skip=1, **fault) if fault else None
    assert ask(rest, query, formats) == expected
    assert hit is None or hit.hits == 1


@pytest.mark.parametrize("held", [1 << 20, 10])
@pytest.mark.parametrize("is_asked", [True, False], ids=["maxFiles", "by-the-server"])
def test_the_next_page_is_asked_for_while_one_is_parsed(
    server: SharingServer, rest: SharingRest, is_asked: bool, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is longer than is held is parsed as it arrives, and nothing is asked for ahead of it."""
    expected, began = ask(rest, "vectors")[3], threading.Event()
    query = Query(max_files=1) if is_asked else Query()
    server.settings.page_size, requests = 1, 3
    submit = DaemonPool.submit
    monkeypatch.setattr(DaemonPool, "submit", lambda *asked: began.set() or submit(*asked))

    class Sink(list[FileBlock]):
        def append(self, block: FileBlock) -> None:
            waited.append(began.is_set())
            super().append(block)

    waited: list[bool] = []
    began.clear()
    server.reset_metrics()
    monkeypatch.setattr(pages_ahead, "_HELD_BYTES", held)
    answered = rest.query(VECTORS, query, sink=Sink, reads_all=True)
    assert told(answered)[3] == expected
    assert server.count("query") == requests
    ahead = held > 10
    assert waited == [ahead and is_asked, ahead, ahead], "known before the first record of a page is taken"


def test_a_refresh_token_pins_the_snapshot_over_pages(
    server: SharingServer, rest: SharingRest, tables: dict[str, Path]
) -> None:
    """The token belongs to the first page only, as on the reference server."""
    first = rest.query(PLAIN, Query(include_refresh_token=True))
    expected = sorted(name for block in first.blocks() for name in block.ids)
    assert first.refresh_token
    assert first.min_url_expiration
    server.settings.page_size = 1
    again = rest.query(PLAIN, Query(refresh_token=first.refresh_token))
    assert sorted(name for block in again.blocks() for name in block.ids) == expected
    assert server.count("query") == 1 + len(expected)


@pytest.mark.parametrize("status", [True, False])
def test_asynchronous_queries(server: SharingServer, rest: SharingRest, status: bool) -> None:
    expected = told(rest.query(PLAIN, Query()))
    server.settings.async_polls, server.settings.async_status, server.settings.page_size = 2, status, 1
    assert told(rest.query(PLAIN, Query(idempotency_key="k1"))) == expected
    server.settings.async_error = "the warehouse is gone"
    with pytest.raises(RequestRefusedError, match="the warehouse is gone"):
        rest.query(PLAIN, Query(idempotency_key="k2"))
    server.settings.async_polls = None
    assert told(rest.query(PLAIN, Query(idempotency_key="k3"))) == expected, "a server that does not know of it"


@pytest.mark.parametrize("all_tables", [True, False], ids=["all-tables", ""])
@pytest.mark.parametrize("missing_items", [False, True], ids=["", "no items"])
@pytest.mark.parametrize("page_size", [500, 1])
def test_browsing(
    server: SharingServer, rest: SharingRest, page_size: int, missing_items: bool, all_tables: bool
) -> None:
    settings = server.settings
    settings.list_page_size, settings.missing_items, settings.all_tables = page_size, missing_items, all_tables
    assert [s.name for s in rest.list_shares()] == ["s.1"]
    assert {s.name for s in rest.list_schemas("s.1")} <= {"default", "empty"}
    assert [(t.share, t.schema, t.name) for t in rest.list_tables("s.1", "default")] == [
        ("s.1", "default", "plain"),
        ("s.1", "default", "vectors"),
    ]
    assert [t.name for t in rest.list_all_tables("s.1")] == ["plain", "vectors"]
    with pytest.raises(NotFoundError):
        list(rest.list_all_tables("nobody"))


@pytest.mark.parametrize("by_get", [True, False])
def test_versions(server: SharingServer, rest: SharingRest, by_get: bool) -> None:
    server.settings.version_by_get = by_get
    assert rest.table_version(PLAIN) == 3
    with pytest.raises(NotFoundError, match=r"version of s\.1\.default\.nothing"):
        rest.table_version(TableName("s.1", "default", "nothing"))


def test_metadata_at_a_version(rest: SharingRest) -> None:
    assert rest.metadata(PLAIN).version == 3
    assert rest.metadata(PLAIN, version=1).version == 1
    assert rest.metadata(PLAIN, timestamp="2023-11-14T22:13:21Z").version == 1
    assert rest.table_version(PLAIN, "2023-11-14T22:13:21.500Z") == 2


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (Query(version=1, timestamp="2023-11-14T22:13:21Z"), "Please only provide one of: version,timestamp"),
        (Query(version=-1), "negative"),
        (Query(version=1, include_refresh_token=True), "includeRefreshToken cannot be used when querying a specific"),
        (Query(starting_version=3, ending_version=2), "startingVersion"),
        (ChangesQuery(), "No startingVersion or startingTimestamp provided for CDF read"),
        (ChangesQuery(starting_version=2, ending_version=1), "CDF range from start 2 to end 1 was invalid"),
        (Query(starting_version=0, max_files=-1), "maxFiles must be positive"),
        (Query(file_id_hash="md5"), "fileidhash"),
    ],
)
def test_refusals(rest: SharingRest, query: Query | ChangesQuery, words: str) -> None:
    """T80: the server's own words reach the user, with the table's name."""
    with pytest.raises(RequestRefusedError) as caught:
        answer(rest, PLAIN, query)
    assert words in str(caught.value)
    assert "s.1.default.plain" in str(caught.value)
    assert caught.value.status == 400


@pytest.mark.parametrize("hash_of", ["parquet", "delta"])
def test_ids_under_one_hash_do_not_depend_on_the_format(rest: SharingRest, hash_of: str) -> None:
    responses = [rest.query(PLAIN, Query(file_id_hash=hash_of), formats=(name,)) for name in ("parquet", "delta")]
    asked = [(response.head.response_format, response.file_id_hash) for response in responses]
    assert asked == [("parquet", hash_of), ("delta", hash_of)]
    ours, theirs = (sorted(name for block in response.blocks() for name in block.ids) for response in responses)
    assert ours == theirs


def test_an_old_server(server: SharingServer, rest: SharingRest) -> None:
    """One that knows no capabilities answers in parquet, without a last line."""
    server.settings.capabilities = False
    assert rest.query(PLAIN, Query(), formats=("delta",)).head.response_format == "parquet"
    with pytest.raises(RequestRefusedError):
        rest.query(VECTORS, Query())


def test_a_server_whose_pages_change_under_way(server: SharingServer, rest: SharingRest) -> None:
    server.settings.page_size = 1
    server.settings.rewrite = lambda line: (
        line
        if "metaData" not in line or server.count("query") < 2
        else {"metaData": line["metaData"] | {"id": "other"}}
    )
    with pytest.raises(ResponseError, match="another table"):
        list(rest.query(PLAIN, Query(), formats=("parquet",)).blocks())


@pytest.mark.parametrize("kind", ["basic", "oauth_client_credentials"])
def test_other_identities(server: SharingServer, clock: Clock, kind: str) -> None:
    identity = server.identity
    identity.username, identity.password, identity.client_id, identity.client_secret = "u", "p", "c", "s"
    rest = client(server, clock, kind)
    assert rest.table_version(PLAIN) == 3
    identity.revoke()
    assert rest.table_version(PLAIN) == 3
    assert identity.token_requests == (2 if kind.startswith("oauth") else 0)
    identity.password = identity.client_secret = "other"
    identity.revoke()
    with pytest.raises(UnauthenticatedError):
        rest.table_version(PLAIN)


def test_a_signed_assertion(server: SharingServer, clock: Clock, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    from unit.sharing.test_authentication import consent_to, jwt_of, write_key

    key = write_key(tmp_path / "key.pem", "rsa")

    def check(claims: dict[str, Any], raw: str) -> bool:
        signed, _, signature = raw.rpartition(".")
        decoded = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
        key.public_key().verify(decoded, signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return bool(claims["iss"] == "me")

    server.identity.check_assertion = check
    profile = jwt_of(server, tmp_path / "key.pem", "RS256", tokenEndpoint=server.token_endpoint)  # type: ignore[arg-type]
    consent = consent_to(server, tmp_path / "key.pem")  # type: ignore[arg-type]
    profile["endpoint"] = server.endpoint
    rest = SharingRest(load_profile(profile, key=consent), NetworkSettings(sleep=clock.sleep))
    assert rest.table_version(PLAIN) == 3
