"""Renewal beyond the matrix: which way it asks, how often, what it compares, and what it costs."""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from delta_sharing_spark.access.url import access
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import (
    ConfigError,
    CredentialError,
    DeltaSharingError,
    FileGoneError,
    NetworkError,
    TableChangedError,
)
from delta_sharing_spark.network import renewable
from delta_sharing_spark.scan.parallel import read_splits
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.sharing.queries import ChangesQuery
from delta_sharing_spark.sharing.query import QueryResponse
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.server.queries import TableQueries
from delta_sharing_spark.testing.tables import DeltaTableBuilder

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("n", pa.int32())])
FEATURES = {"delta.enableDeletionVectors": "true", "delta.enableChangeDataFeed": "true"}


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    return pa.table(
        {"id": ids, "p": [f"a b'{i % 4}" if i % 4 else None for i in ids], "n": [i % 3 for i in ids]}, SCHEMA
    )


@pytest.fixture
def own(tmp_path: Any, server: SharingServer) -> DeltaTableBuilder:
    """A partitioned table with deletion vectors, shared as ``s.d.own``."""
    made = DeltaTableBuilder(tmp_path / "own", SCHEMA, ["p", "n"], FEATURES).append(rows(0, 400), files=2)
    made.delete(pc.field("id") < 100, deletion_vectors=True)
    server.add_table("s.d.own", made.path)
    return made


def scan(server: SharingServer, **options: Any) -> Scan:
    load_options = {"retryTimeout": "3s", "maxSplitBytes": "1k"}
    return SharingClient(server.profile(), **load_options).table("s.d.own").scan(**options)


def splits_of(read: Scan) -> list[Split]:
    arrived: list[Split] = pickle.loads(pickle.dumps(read.plan().splits))
    return arrived


def ids(splits: list[Split], workers: int = 4) -> list[int]:
    return sorted(i for batch in read_splits(splits, workers) for i in batch.column("id").to_pylist())


@pytest.mark.parametrize("pages", [None, 3])
@pytest.mark.parametrize("format_", ["delta", "parquet"])
@pytest.mark.parametrize("way", ["refresh token", "version", "same query"])
def test_ways_to_ask(server: SharingServer, own: DeltaTableBuilder, way: str, format_: str, pages: int | None) -> None:
    plain = format_ == "parquet"
    if plain:
        own = DeltaTableBuilder(own.path.with_name("plain"), SCHEMA, ["p", "n"]).append(rows(0, 400), files=2)
        server.add_table("s.d.own", own.path)
    server.settings.page_size = pages
    server.settings.prefer = format_  # type: ignore[assignment]
    expected = sorted(own.expected().column("id").to_pylist())
    splits = splits_of(scan(server, responseFormat=format_))
    assert len(splits) > 3
    if way != "refresh token":
        server.settings.refresh_token_ttl = 0
    if way == "same query":
        server.add_table("s.d.own", own.path, history=False)
    else:
        own.append(rows(900, 950))  # a newer version that the plan does not know
        own.delete(pc.field("id") < 130, deletion_vectors=not plain)
    server.expire_urls()
    server.reset_metrics()
    assert ids(splits) == expected
    files = sum(len(split.slices) for split in splits)
    first = 1 if way == "refresh token" else 2 if way == "version" else 3
    page_count = 1 if pages is None else -(-files // pages)
    assert server.count("query") == first - 1 + page_count
    server.expire_urls()
    server.reset_metrics()
    assert ids(splits) == expected
    assert server.count("query") <= page_count + 1, "a way that was refused is not tried at every expiry"


@pytest.mark.parametrize("change", ["append", "delete", "rewrite", "replace"])
def test_a_changed_table_is_an_error_or_the_same_rows(
    server: SharingServer, own: DeltaTableBuilder, change: str
) -> None:
    expected = sorted(own.expected().column("id").to_pylist())
    splits = splits_of(scan(server))
    server.settings.refresh_token_ttl = 0
    if change == "append":
        own.append(rows(900, 950))
    elif change == "delete":
        own.delete(pc.field("id") < 130, deletion_vectors=True)
    elif change == "rewrite":
        own.optimize()
    else:
        path = own.path.with_name("other")
        own = DeltaTableBuilder(path, SCHEMA, ["p", "n"], FEATURES).append(rows(0, 400))
    server.add_table("s.d.own", own.path, history=False)
    server.expire_urls()
    if change == "append":
        assert ids(splits) == expected
    else:
        with pytest.raises((TableChangedError, FileGoneError), match="load it again"):
            ids(splits)


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("change", ["append", "delete", "rewrite"])
def test_a_token_that_is_answered_with_a_newer_version(
    server: SharingServer, own: DeltaTableBuilder, change: str, history: bool
) -> None:
    """Delta Kernel ignores a token's version: the rows stay those of the plan, or the table has changed."""
    server.settings.engine = "reference"
    expected = sorted(own.expected().column("id").to_pylist())
    splits = splits_of(scan(server))
    if change == "append":
        own.append(rows(900, 950))
    elif change == "delete":
        own.delete(pc.field("id") < 130, deletion_vectors=True)
    else:
        own.optimize()
    server.add_table("s.d.own", own.path, history=history)
    for _ in range(2):
        server.expire_urls()
        if history or change == "append":
            assert ids(splits) == expected
        else:
            with pytest.raises((TableChangedError, FileGoneError), match="load it again"):
                ids(splits)


def test_another_size_under_the_same_id(server: SharingServer, own: DeltaTableBuilder) -> None:
    splits = splits_of(scan(server))

    def grown(line: dict[str, Any]) -> dict[str, Any]:
        text = pickle.loads(pickle.dumps(line))
        add = text.get("file", {}).get("deltaSingleAction", {}).get("add") or text.get("file")
        if add and "size" in add:
            add["size"] += 1
        return dict(text)

    server.settings.rewrite = grown
    server.expire_urls()
    with pytest.raises(TableChangedError, match=r"bytes now, planned were .* load it again"):
        ids(splits)


@pytest.mark.parametrize(
    "options",
    [{"where": "p = 'a b''1' AND n < 2"}, {"where": "p IS NULL"}, {"limit": 7}, {"version": 1}, {"columns": ["id"]}],
    ids=str,
)
def test_hints_are_repeated(server: SharingServer, own: DeltaTableBuilder, options: dict[str, Any]) -> None:
    splits = splits_of(scan(server, **{"columns": ["id"], **options}))
    expected = ids(splits)
    server.expire_urls()
    assert ids(splits) == expected
    assert server.count("query") <= 4


def test_change_feed(server: SharingServer, own: DeltaTableBuilder) -> None:
    own.update(pc.field("id") > 390, lambda live: live, deletion_vectors=True)
    read = SharingClient(server.profile()).table("s.d.own").changes(starting_version=1)
    splits = splits_of(read)
    expected = ids(splits)
    server.expire_urls()
    server.reset_metrics()
    assert ids(splits) == expected
    assert server.count("changes") == 1


def test_large_tables_are_narrowed_to_a_splits_partitions(
    server: SharingServer, own: DeltaTableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "NARROW_ABOVE_FILES", 1)
    expected = sorted(own.expected().column("id").to_pylist())
    splits = splits_of(scan(server))
    # No hint asks for a NULL partition.
    one = next([s] for s in splits if all(None not in part.task.partition_values.values() for part in s.slices))
    server.expire_urls()
    server.reset_metrics()
    assert ids(one) == [i for i in expected if i in set(ids(one))]
    narrow = server.bytes_sent("query")
    monkeypatch.setattr(access, "NARROW_ABOVE_FILES", 10**6)
    access._loads.clear()
    server.expire_urls()
    server.reset_metrics()
    ids(one)
    assert narrow < server.bytes_sent("query") / 2
    monkeypatch.setattr(access, "NARROW_ABOVE_FILES", 1)
    access._loads.clear()
    # A server that reads the hints otherwise and leaves the file out: the whole answer decides.
    server.faults.add("query", skip=0, times=1, status=400)
    server.expire_urls()
    assert ids(splits) == expected


def test_short_lived_urls_work_and_are_renewed_before_they_end(
    server: SharingServer, own: DeltaTableBuilder, pass_time: Callable[[float], None]
) -> None:
    server.settings.url_ttl = 1000.0
    splits = splits_of(scan(server))
    expected = ids(splits)
    assert server.count("query") == 1
    pass_time(950)
    server.reset_metrics()
    assert ids(splits) == expected
    assert server.count("query") == 1
    assert all(request.status < 400 for request in server.requests), "nobody had to refuse"


@pytest.mark.parametrize("style", ["s3", "azure"])
def test_the_urls_own_end_counts(
    server: SharingServer, own: DeltaTableBuilder, style: str, pass_time: Callable[[float], None]
) -> None:
    settings = server.settings
    settings.url_style, settings.expiration_timestamps, settings.min_url_expiration = style, False, False  # type: ignore[assignment]
    settings.url_ttl = 1000.0
    splits = splits_of(scan(server))
    pass_time(950)
    server.reset_metrics()
    ids(splits)
    assert all(request.status < 400 for request in server.requests)


def test_many_tasks_ask_once_and_share_a_failure(server: SharingServer, own: DeltaTableBuilder) -> None:
    splits = splits_of(scan(server))
    server.expire_urls()
    server.reset_metrics()
    rule = server.faults.add("query", times=None, delay=0.2, status=403)
    failures: list[DeltaSharingError] = []

    def read(split: Split) -> None:
        try:
            ids([split], 1)
        except DeltaSharingError as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(split,)) for split in splits[:6]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 6
    for failure in failures:
        told = r"the URL of file \w+ was refused \(HTTP 403.*\), and the sharing server gave no other: the query of s\.d\.own.* 403"
        assert re.search(told, str(failure))
        assert str(failure).count("gave no other") == 1
    assert rule.hits <= 9, "the refused ways once, not for every task"


def test_an_outage_is_not_waited_out_while_urls_still_work(
    server: SharingServer, own: DeltaTableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.settings.url_ttl = 3600.0
    splits = splits_of(SharingClient(server.profile(), retryTimeout="60s").table("s.d.own").scan())
    expected = ids(splits)
    # By the URLs' own end: a busy machine may have taken its time since they were made.
    ends = min(split.access.ends(part.task) or 0.0 for split in splits for part in split.slices)
    began, later, patience = ends - 3600.0, [0.0], []

    def down(self: SharingRest, *_: Any, **__: Any) -> None:
        patience.append(self.settings.retry_seconds)
        raise NetworkError("the server does not answer")

    monkeypatch.setattr(SharingRest, "query", down)
    for module in (access, renewable):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: began + later[0]))

    def read_at(seconds: float) -> list[int]:
        later[0] = seconds
        return ids(splits, 1)

    assert [read_at(seconds) for seconds in (3580.0, 3580.1, 3596.0)] == [expected] * 3
    assert patience == [pytest.approx(5.0), pytest.approx(4.0, abs=0.5)], "once, and once again after a pause"
    later[0] = 3601.0
    with pytest.raises(NetworkError):
        ids(splits, 1)
    assert set(patience[2:]) == {60.0}, "as long as the options say, whichever files ask"


def test_a_renewal_asks_for_the_version_that_a_moment_meant(
    server: SharingServer, own: DeltaTableBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a server that answers a moment which is still to come: it means another version after each commit."""
    asked_version, changes, asked = TableQueries._asked_version, SharingRest.changes, []

    def lenient(self: TableQueries, table: Any, parameters: Any) -> int | None:
        is_late = parameters.get("timestamp") is not None
        return self._logs.latest(table) if is_late else asked_version(self, table, parameters)

    def noted(self: SharingRest, table: Any, query: ChangesQuery, **more: Any) -> QueryResponse:
        asked.append((query.starting_version, query.ending_version))
        return changes(self, table, query, **more)

    monkeypatch.setattr(TableQueries, "_asked_version", lenient)
    monkeypatch.setattr(SharingRest, "changes", noted)
    own.update(pc.field("id") > 390, lambda live: live, deletion_vectors=True)
    tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
    table = SharingClient(server.profile(), retryTimeout="3s").table("s.d.own")
    reads = [
        table.scan(timestamp=tomorrow),
        table.changes(starting_version=1, ending_timestamp=tomorrow),
        table.changes(starting_timestamp="2020-01-01T00:00:00Z"),
    ]
    planned = [splits_of(read) for read in reads]
    expected = [ids(splits) for splits in planned]
    own.delete(pc.field("id") < 130, deletion_vectors=True).optimize()
    access._loads.clear()
    server.expire_urls()
    server.reset_metrics()
    asked.clear()
    assert [ids(splits) for splits in planned] == expected
    assert server.count("query") == 1
    assert asked == [(1, 3), (1, 3)], "the versions that were planned"


def test_carry_profile_false(server: SharingServer, own: DeltaTableBuilder) -> None:
    splits = splits_of(scan(server, carryProfile=False))
    assert server.token.encode() not in pickle.dumps(splits)
    server.settings.url_ttl = 0.0
    expected = sorted(own.expected().column("id").to_pylist())
    assert ids(splits) == expected
    server.expire_urls()
    with pytest.raises(CredentialError, match=r"carryProfile=false .* load the table again"):
        ids(splits)


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_carry_profile_token(
    server: SharingServer, own: DeltaTableBuilder, mode: str, pass_time: Callable[[float], None]
) -> None:
    """Executors renew with the access token alone; once it has ended the error says so, and what to set."""
    server.add_table("s.d.own", own.path, access_modes=("url", "dir"))
    server.identity.client_id, server.identity.client_secret = "a-client", "secret-of-the-client"
    expected = sorted(own.expected().column("id").to_pylist())
    load_options = {"retryTimeout": "3s", "maxSplitBytes": "1k", "accessMode": mode}

    def planned(carry: str) -> list[Split]:
        shared = SharingClient(server.profile("oauth_client_credentials"), **load_options).table("s.d.own")
        return splits_of(shared.scan(carryProfile=carry))

    server.settings.credential_ttl = 100.0
    assert b"secret-of-the-client" in pickle.dumps(planned("true"))
    splits = planned("token")
    assert b"secret-of-the-client" not in pickle.dumps(splits)
    pass_time(100)
    server.expire_urls()
    server.reset_metrics()
    assert ids(splits) == expected
    assert server.count("query" if mode == "url" else "credentials"), "it was renewed"
    server.identity.client_id, server.identity.token_ttl = "another-client", 100.0
    splits = planned("token")
    pass_time(100)
    server.expire_urls()
    with pytest.raises(
        CredentialError, match=r"access token that the plan carries .* ended at .* carryProfile to true"
    ):
        ids(splits)
    server.identity.username, server.identity.password = "u", "p"
    by_password = SharingClient(server.profile("basic"), **load_options).table("s.d.own")
    with pytest.raises(ConfigError, match="signs in with a password"):
        by_password.scan(carryProfile="token").plan()


def test_credentials_of_a_directory_expire(
    server: SharingServer, own: DeltaTableBuilder, pass_time: Callable[[float], None]
) -> None:
    server.add_table("s.d.own", own.path, access_modes=("dir",))
    server.settings.credential_ttl = 100.0
    splits = splits_of(scan(server))
    expected = ids(splits)
    pass_time(100)
    server.reset_metrics()
    assert ids(splits) == expected
    assert server.count("credentials") == 1


def test_cost_of_compact_answers(note: Callable[[str], None]) -> None:
    """A hundred thousand URLs of 1.2 KB, kept."""
    import tracemalloc

    from delta_sharing_spark.access.url.file_columns import FileColumns
    from delta_sharing_spark.access.url.signed_urls import fresh_file
    from delta_sharing_spark.sharing.wire_lines import blocks_of

    token = "IQoJb3JpZ2luX2Vj" * 60
    tracemalloc.start()
    page = FileColumns()
    for number in range(20_000):
        url = f"https://bucket.s3.amazonaws.com/t/part-{number:05}-{hash(number * 7):x}.parquet?X-Amz-Security-Token={token}&X-Amz-Signature={hash(str(number)) & (2**63 - 1):032x}"
        for block in blocks_of({"id": f"{number:064x}", "url": url, "size": number}, "file", "t"):
            page.append(block)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    fresh = fresh_file([page], f"{777:064x}")
    assert fresh is not None
    assert fresh.size == 777
    assert fresh_file([page], "absent") is None
    note(f"renewal: {held / 20_000:.0f} bytes kept of each URL of {len(url)} bytes")
    assert held / 20_000 < 400
