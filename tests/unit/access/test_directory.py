"""Directory mode end to end, over a real HTTP object server: log, files, refusals, renewals, what is checked."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.access.directory.table import DirectoryTable, open_directory
from delta_sharing_spark.errors import (
    AccessModeError,
    CredentialError,
    FileGoneError,
    LogError,
    NetworkError,
    TableChangedError,
)
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.access.issuing import CountingIssuer
from unit.access.object_server import ObjectServer, serving
from unit.access.shared_tables import (
    falling_back,
    head_of,
    negotiated,
    opened,
    rows,
    split_of,
    upload,
    whole_split,
)

LOCATION = "s3://bucket/table"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def _data(start: int, count: int) -> pa.Table:
    return pa.table({"id": range(start, start + count), "name": [f"n{i}" for i in range(start, start + count)]}, SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    built = DeltaTableBuilder(tmp_path / "table", SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    built.append(_data(0, 10), files=2).append(_data(10, 5))
    return built.delete(_three_and_twelve, deletion_vectors=True)


def _three_and_twelve(data: pa.Table) -> pa.BooleanArray:
    return pa.array([value in (3, 12) for value in data["id"].to_pylist()])


@pytest.fixture
def server(table: DeltaTableBuilder) -> Iterator[ObjectServer]:
    with serving(ObjectServer(upload(table.path, "bucket/table"), accepted=set())) as running:
        yield running


@pytest.fixture
def issuer(server: ObjectServer) -> CountingIssuer:
    return CountingIssuer(accepted=server.accepted)


def _ids(rows_read: list[dict[str, object]]) -> list[object]:
    return sorted(row["id"] for row in rows_read)  # type: ignore[type-var]


EXPECTED = [i for i in range(15) if i not in (3, 12)]


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_the_same_rows_with_and_without_listing(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, listing: bool, checkpoint: bool, scheme: str
) -> None:
    if checkpoint:
        table.checkpoint().append(_data(15, 1))
        server.files.update(upload(table.path, "bucket/table"))
    server.listing = listing
    head = head_of(table, LOCATION.replace("s3:", f"{scheme}:"))
    rows_read = rows(opened(head, endpoint=server.url, issuer=issuer))
    assert _ids(rows_read) == EXPECTED + ([15] if checkpoint else [])
    assert len(issuer.asked) == 1, "one credential for the one location"


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
@pytest.mark.parametrize("key", ["bucket//table", "bucket/table", "bucket///table"])
def test_a_location_with_an_empty_segment_is_read_where_its_log_is(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, key: str, listing: bool
) -> None:
    """Storages keep two slashes in a row in keys, and Hadoop leaves them out of what it writes."""
    server.files, server.listing = upload(table.path, key), listing
    named = "s3://" + ("bucket//table" if key == "bucket/table" else key)
    opened_table = opened(head_of(table, location=named), endpoint=server.url, issuer=issuer)
    assert _ids(rows(opened_table)) == EXPECTED


def test_local_files(table: DeltaTableBuilder) -> None:
    assert _ids(rows(opened(head_of(table, table.path.as_uri()), issuer=CountingIssuer()))) == EXPECTED


def test_local_files_are_read_only_for_a_server_on_this_machine(table: DeltaTableBuilder) -> None:
    with pytest.raises(AccessModeError, match="local path"):
        opened(
            head_of(table, table.path.as_uri()), issuer=CountingIssuer(), profile=Profile("https://share.example.com")
        )


def test_time_travel(table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer) -> None:
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    assert _ids(rows(directory, version=1)) == list(range(10))
    assert _ids(rows(directory, version=2)) == list(range(15))


def test_a_small_file_costs_at_most_two_requests(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    split = whole_split(directory, version=2)
    server.seen.clear()
    assert sum(batch.num_rows for batch in read_split(split)) == 15
    assert len(server.seen) <= 2 * len(split.slices)


def test_an_expired_token_is_renewed_on_the_executor_once_for_many_tasks(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    snapshot = directory.read_snapshot(lambda snapshot: snapshot)
    tasks = list(directory.checked(snapshot.tasks()))
    splits = [split_of(directory, snapshot, [task]) for task in tasks]
    server.accepted -= set(issuer.keys)  # announced as valid for an hour, and late already
    asked_before, got = len(issuer.asked), []

    def run(split) -> None:
        got.extend(row for batch in read_split(split) for row in batch.to_pylist())

    threads = [threading.Thread(target=run, args=(split,)) for split in splits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _ids(got) == EXPECTED
    assert len(issuer.asked) == asked_before + 1


def test_a_token_is_renewed_before_it_expires(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, pass_time: Callable[[float], None]
) -> None:
    issuer.lifetime = 1000.0
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    split = whole_split(directory)
    pass_time(950)
    assert _ids([row for batch in read_split(split) for row in batch.to_pylist()]) == EXPECTED
    # While one reader asks, others go on with the key that works for 50 seconds more: no request is refused.
    assert len(issuer.asked) == 2
    assert issuer.keys[1] in server.seen[-1].headers["authorization"]


def test_a_renewal_that_does_not_help_is_a_clear_error(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    split = whole_split(directory)
    issuer.accepted = None
    server.accepted -= set(issuer.keys)
    with pytest.raises(CredentialError, match="also with a new credential") as caught:
        list(read_split(split))
    assert "secret-in-text" not in str(caught.value)
    assert "session-token-text" not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_without_the_profile_expiry_is_an_error_that_says_so(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, pass_time: Callable[[float], None]
) -> None:
    issuer.lifetime = 100.0
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer, carryProfile="false")
    split = whole_split(directory)
    assert split.access.issuer is None
    assert b"sharing-token-text" not in pickle.dumps(split)
    pass_time(100)
    with pytest.raises(CredentialError, match=r"expired at .* carryProfile=false"):
        list(read_split(split))


def test_without_the_profile_a_refusal_is_an_error_that_says_so(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer, carryProfile="false")
    split = whole_split(directory)
    server.accepted -= set(issuer.keys)
    with pytest.raises(CredentialError, match=r"refused.*carryProfile=false"):
        list(read_split(split))


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
def test_a_vacuumed_file_says_to_reload(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, listing: bool
) -> None:
    server.listing = listing
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    split = whole_split(directory)
    data = [name for name in server.files if name.endswith(".parquet")]
    gone = f"bucket/table/{split.slices[0].task.id}"
    del server.files[gone]
    scope = "" if listing else ".*scope of the credential.*ask the provider"
    with pytest.raises(FileGoneError, match=rf"(no longer (has it|there)).*reload it{scope}"):
        list(read_split(split))
    for name in data:
        server.files.pop(name, None)
    # Where nothing else reads either, a credential that may not list shows a scope and a vacuum alike: both are told.
    with pytest.raises(FileGoneError if listing else CredentialError, match="reload"):
        list(read_split(split))


def test_passing_faults_of_the_storage_are_repeated(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    server.failures = [503, 500, 503, 500]
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer, retry_seconds=60)
    assert _ids(rows(directory)) == EXPECTED


@pytest.mark.parametrize("has_fallback", [False, True])
def test_a_storage_that_is_busy_for_long(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, has_fallback: bool
) -> None:
    """It outlasts the time for the decision: waited for where there is no other way, given up where there is one."""
    head = head_of(table, LOCATION)
    how = {"endpoint": server.url, "issuer": issuer, "retry_seconds": 60, "fallback": "url" if has_fallback else None}
    # It asks for a longer wait than the 48 s in which 120 s allow another try: given up at once, on any machine.
    server.failures = [(503, 50), 503, 503]
    if has_fallback:
        with pytest.raises(NetworkError, match="goes on answering that it is not ready") as caught:
            opened(head, **how)
        assert caught.value.busy
    else:
        assert _ids(rows(opened(head, **how))) == EXPECTED
        assert not server.failures


@pytest.mark.parametrize(("has_fallback", "least", "most"), [(False, 7, 15), (True, 0, 3)])
def test_how_long_a_storage_that_cannot_be_reached_is_tried(
    table: DeltaTableBuilder, issuer: CountingIssuer, has_fallback: bool, least: float, most: float
) -> None:
    waits: list[float] = []
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        settings = StorageSettings(
            endpoint=f"http://127.0.0.1:{nobody.getsockname()[1]}",
            sleep=waits.append,
            clock=lambda: sum(waits),
        )
        with pytest.raises(NetworkError, match="could not be reached"):
            open_directory(
                negotiated(head_of(table, LOCATION), fallback="url" if has_fallback else None),
                settings=settings,
                issuer=issuer,
            )
    assert least <= sum(waits) <= most


def test_expired_while_planning_is_renewed_on_the_driver(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    server.accepted -= set(issuer.keys)
    server.listing = False
    assert directory.read_snapshot(lambda snapshot: snapshot).version == table.version
    assert len(issuer.asked) == 2


# What the sharing server said is checked


def test_the_log_of_another_table(table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer) -> None:
    head = head_of(table, LOCATION)
    head = replace(head, metadata=replace(head.metadata, id="another"))
    with pytest.raises(TableChangedError, match="id another"):
        opened(head, endpoint=server.url, issuer=issuer).read_snapshot(lambda snapshot: snapshot)


def test_a_log_behind_what_the_server_said(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    head = head_of(table, LOCATION, version=table.version + 1)
    with pytest.raises(TableChangedError, match=f"said {table.version + 1}"):
        opened(head, endpoint=server.url, issuer=issuer).read_snapshot(lambda snapshot: snapshot)


def test_no_location(table: DeltaTableBuilder) -> None:
    with pytest.raises(AccessModeError, match="no location"):
        opened(head_of(table, ""), issuer=CountingIssuer())


def test_a_log_without_a_hint_or_its_beginning_is_read_by_the_servers_word(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    table.checkpoint().append(_data(20, 1))
    server.files.update(upload(table.path, "bucket/table"))
    del server.files["bucket/table/_delta_log/_last_checkpoint"]
    for version in range(table.version - 1):
        del server.files[f"bucket/table/_delta_log/{version:020d}.json"]
    server.listing = False
    assert _ids(rows(opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer))) == [*EXPECTED, 20]


def test_a_hole_in_the_log_is_not_fewer_rows(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    del server.files[f"bucket/table/_delta_log/{1:020d}.json"]
    directory = opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer)
    with pytest.raises(LogError):
        directory.read_snapshot(lambda snapshot: snapshot)


# Several locations


@pytest.fixture
def spread(table: DeltaTableBuilder, server: ObjectServer) -> DeltaTableBuilder:
    """The table with its third commit's file moved to an auxiliary location."""
    name = f"bucket/table/_delta_log/{2:020d}.json"
    lines = [json.loads(line) for line in server.files[name].splitlines()]
    for line in lines:
        if "add" in line:
            path = line["add"]["path"]
            server.files[f"other/aux/{path}"] = server.files.pop(f"bucket/table/{path}")
            line["add"]["path"] = moved = f"s3://other/aux/{path}"
    server.files[name] = "\n".join(map(json.dumps, lines)).encode()
    later = f"bucket/table/_delta_log/{3:020d}.json"
    server.files[later] = server.files[later].replace(f'"{path}"'.encode(), f'"{moved}"'.encode())
    return table


def test_a_credential_for_each_location(
    spread: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    directory = opened(head_of(spread, LOCATION, auxiliary=("s3://other/aux/",)), endpoint=server.url, issuer=issuer)
    assert _ids(rows(directory)) == EXPECTED
    assert sorted(map(str, issuer.asked)) == ["s3://bucket/table", "s3://other/aux"]
    snapshot = directory.read_snapshot(lambda snapshot: snapshot)
    tasks = list(directory.checked(snapshot.tasks()))
    here = [task for task in tasks if task.location.startswith(LOCATION) and task.deletion_vector is None]
    carried = split_of(directory, snapshot, here).access.tokens
    assert [str(token.location) for token in carried] == [LOCATION], "a split carries what its files need"


def test_a_file_outside_every_location(spread: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer) -> None:
    directory = opened(head_of(spread, LOCATION), endpoint=server.url, issuer=issuer)
    with pytest.raises(CredentialError, match=r"s3://other/aux/.* lies outside"):
        list(directory.checked(directory.read_snapshot(lambda snapshot: snapshot).tasks()))


def test_a_refused_auxiliary_location_shows_on_the_driver(
    spread: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    server.refused_prefixes = ("other/",)
    directory = opened(head_of(spread, LOCATION, auxiliary=("s3://other/aux",)), endpoint=server.url, issuer=issuer)
    with pytest.raises(CredentialError, match=r"scope of the credential .* all objects under s3://other/aux"):
        list(directory.checked(directory.read_snapshot(lambda snapshot: snapshot).tasks()))


def test_a_refused_root_is_a_credential_error(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer
) -> None:
    server.refused_prefixes, server.listing = ("bucket/",), False
    with pytest.raises(CredentialError, match="refuses to read the log"):
        opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer).read_snapshot(lambda snapshot: snapshot)
    assert len(issuer.asked) <= 3


@pytest.mark.parametrize("suffix", ["json", "checkpoint.parquet"])
def test_a_refused_file_of_the_log_is_named(
    table: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, suffix: str
) -> None:
    table.checkpoint().append(_data(15, 1))
    server.files.update(upload(table.path, "bucket/table"))
    name = f"_delta_log/{table.version - (suffix != 'json'):020d}.{suffix}"
    server.refused_prefixes = (f"bucket/table/{name}",)
    with pytest.raises(CredentialError, match=name):
        opened(head_of(table, LOCATION), endpoint=server.url, issuer=issuer).read_snapshot(lambda snapshot: snapshot)


# Falling back within ten seconds


def _black_hole() -> tuple[socket.socket, list[socket.socket], str]:
    """A host that answers nothing: a listener whose queue is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    waiting = []
    for _ in range(6):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        waiting.append(one)
    return listener, waiting, f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    "location",
    ["s3://bucket/t", "gs://bucket/t", "abfss://c@account.dfs.core.windows.net/t"],
    ids=["s3", "gs", "abfss"],
)
def test_an_unreachable_storage_is_given_up_in_the_time_allowed(
    table: DeltaTableBuilder, location: str, caplog: pytest.LogCaptureFixture
) -> None:
    listener, waiting, url = _black_hole()
    opener = falling_back(lambda: opened(head_of(table, location), endpoint=url, issuer=CountingIssuer(), seconds=2))
    start = time.monotonic()  # a connection alone would be given longer than this test allows
    try:
        with caplog.at_level(logging.WARNING):
            chosen = opener.run(lambda table: table)
    finally:
        for one in (listener, *waiting):
            one.close()
    assert chosen == "by url"
    assert time.monotonic() - start < 30
    assert "falling back" in caplog.text


@pytest.mark.parametrize("hangs", ["_last_checkpoint", "list-type", f"{4:020d}.json", "checkpoint.parquet", "other/"])
def test_a_storage_that_falls_silent_while_the_log_is_read_is_given_up_for_url(
    spread: DeltaTableBuilder, server: ObjectServer, issuer: CountingIssuer, hangs: str
) -> None:
    if hangs != "other/":
        spread.checkpoint().append(_data(20, 1)).append(_data(21, 1))
        server.files.update(upload(spread.path, "bucket/table"))
    server.hangs = hangs
    head = head_of(spread, LOCATION, auxiliary=("s3://other/aux",))
    if hangs == "_last_checkpoint":  # which is asked for where no version is known
        head = replace(head, version=None)
    settings = StorageSettings(endpoint=server.url)  # a minute for each answer, two for retries

    def by_directory(seconds: float = 2) -> DirectoryTable:
        return open_directory(negotiated(head, fallback="url"), settings=settings, seconds=seconds, issuer=issuer)

    def count(table: DirectoryTable | str) -> str:
        return (
            table
            if isinstance(table, str)
            else str(len(list(table.checked(table.read_snapshot(lambda snapshot: snapshot).tasks()))))
        )

    start = time.monotonic()
    assert falling_back(by_directory).run(count) == "by url"
    assert time.monotonic() - start < 30
    server.hangs = None
    assert falling_back(lambda: by_directory(30)).run(count) != "by url"


def test_a_server_that_does_not_answer_is_given_up(table: DeltaTableBuilder) -> None:
    with pytest.raises(NetworkError, match="within 1 s"):
        opened(head_of(table, LOCATION), issuer=CountingIssuer(delay=5), seconds=0.4)
