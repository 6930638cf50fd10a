"""Reading through a gateway: the rows, types and versions of the modes behind it, and what ends a gateway's tickets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.flight import table as flight_table
from delta_sharing_spark.access.flight.connection import Endpoint, GatewayAddress, GatewayConnection
from delta_sharing_spark.access.flight.table import FlightAccess, _task
from delta_sharing_spark.access.plan import spec_of, splits_of
from delta_sharing_spark.access.planned_files import FileList
from delta_sharing_spark.errors import (
    DeltaSharingError,
    NetworkError,
    NotFoundError,
    OptionError,
    ProfileError,
    ResponseError,
    TableChangedError,
    UnauthenticatedError,
)
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.metrics import add_hook, remove_hook
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.spark.session_settings import session_options
from delta_sharing_spark.table import SharedTable
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from unit.flight.calling import TOKEN


@pytest.fixture
def behind(gateway: FlightGateway) -> SharingClient:
    """A client that knows the gateway alone."""
    return SharingClient.over(gateway.uri, TOKEN, retryTimeout="5s")


@pytest.mark.parametrize(
    "scan",
    [
        {},
        {"columns": ["note", "id"], "where": "id >= 20 AND day = 'a'"},
        {"limit": 7},
        {"where": "id > 1000"},
        {"version": 1},
        {"readChangeFeed": True, "startingVersion": 1, "endingVersion": 2},
        {"readChangeFeed": True, "startingVersion": 2, "commitTimestampType": "long", "where": "id < 5"},
        {"readChangeFeed": True, "startingVersion": 9_000_000},
        {"version": 77},
        {"where": "nope = 1"},
        {"columns": ["nope"]},
    ],
    ids=str,
)
def test_a_scan_is_that_of_the_mode_behind(client: SharingClient, behind: SharingClient, scan: dict[str, Any]) -> None:
    expected, through = (outcome(c.table("sh.sc.t"), scan) for c in (client, behind))
    if isinstance(expected, pa.Table):
        assert isinstance(through, pa.Table), through
        assert through.schema == expected.schema
        assert through.to_pylist() == expected.to_pylist()
        assert behind.table("sh.sc.t").scan(**scan).count() == expected.num_rows
    else:
        assert type(through) is type(expected), through


def test_commands_narrow_the_loads_of_the_gateways_own_client(server: SharingServer) -> None:
    own = SharingClient(server.profile(), where="id >= 20", limit="25")
    with FlightGateway(own, GatewaySettings(tokens=(TOKEN,))) as gateway:
        table = SharingClient.over(gateway.uri, TOKEN, where="id <> 22").table("sh.sc.t")
        assert sorted(table.where("id < 24").to_arrow()["id"].to_pylist()) == [20, 21, 23]
        assert (table.scan().to_arrow().num_rows, table.limit(3).count(), table.limit(30).count()) == (25, 3, 25)


def outcome(table: SharedTable, scan: dict[str, Any]) -> pa.Table | DeltaSharingError:
    try:
        return table.scan(**scan).to_arrow()
    except DeltaSharingError as error:
        return error


def test_listings_and_descriptions(client: SharingClient, behind: SharingClient) -> None:
    assert [share.name for share in behind.list_shares()] == [share.name for share in client.list_shares()]
    assert [schema.name for schema in behind.list_schemas("sh")] == ["sc"]
    assert {table.name for table in behind.list_tables("sh.sc")} == {"t", "other"}
    assert {(t.share, t.name) for t in behind.list_all_tables()} == {("sh", "t"), ("sh", "other"), ("sh2", "t")}
    table = behind.table("sh.sc.t")
    assert (table.version(), table.schema) == (3, client.table("sh.sc.t").schema)
    with pytest.raises(NotFoundError):
        behind.table("sh.sc.none").scan().to_arrow()


def test_odd_names_and_names_in_another_case_are_listed_and_read(built: Path) -> None:
    names = ("`a b`.`c.d`.`t#/x`", "a*[b]?.sc.t", "dot.ted.sc.t")
    with SharingServer() as server:
        for name in names:
            server.add_table(name, built)
        direct = SharingClient(server.profile())
        with FlightGateway(direct, GatewaySettings(tokens=(TOKEN,))) as gateway:
            behind = SharingClient.over(gateway.uri, TOKEN)
            listed = behind.list_all_tables()
            assert {str(behind.table(one)) for one in listed} == set(names)
            assert [behind.table(one).count() for one in listed] == [90] * 3
            assert [schema.name for schema in behind.list_schemas("A B")] == ["c.d"]
            assert [table.name for table in behind.list_tables("DOT.ted.SC")] == ["t"]
        assert not server.failures


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("change", ["exchanged", "widened", "replaced"])
def test_a_table_that_has_changed_is_read_as_it_was_resolved_or_refused(
    tmp_path: Path, change: str, history: bool
) -> None:
    """A server that shares no history lists the newest version alone."""
    schema = pa.schema([("id", pa.int32()), ("a", pa.string()), ("b", pa.string())])
    properties = {"delta.columnMapping.mode": "name", "delta.enableTypeWidening": "true"}
    table = DeltaTableBuilder(tmp_path / "t", schema, properties=properties).append([{"id": 1, "a": "x", "b": "y"}])
    with SharingServer() as server:
        server.add_table("sh.sc.t", table.path, history=history)
        with FlightGateway(SharingClient(server.profile()), GatewaySettings(tokens=(TOKEN,))) as gateway:
            scan = SharingClient.over(gateway.uri, TOKEN).table("sh.sc.t").scan()
            rows = scan.to_arrow()
            assert rows["a"].to_pylist() == ["x"]
            table.append([{"id": 2, "a": "more", "b": "y"}])
            assert scan.count() == (1 if history else 2)
            if change == "exchanged":
                table.rename_column("a", "c").rename_column("b", "a").rename_column("c", "b")
            elif change == "widened":
                table.widen("id", "long")
            else:
                server.add_table("sh.sc.t", DeltaTableBuilder(tmp_path / "other", schema).path)
            if history and change != "replaced":
                assert scan.to_arrow() == rows
            else:
                with pytest.raises(TableChangedError, match=r"sh\.sc\.t has changed since it was loaded"):
                    scan.to_arrow()


def test_expired_tickets_are_renewed_while_they_are_read(client: SharingClient) -> None:
    settings = GatewaySettings(tokens=(TOKEN,), ticket_seconds=0.0)
    with FlightGateway(client, settings) as gateway:
        splits = SharingClient.over(gateway.uri, TOKEN).table("sh.sc.t").scan().plan().splits
        gateway._answers.planner._ticket_seconds = 60.0
        assert sum(batch.num_rows for split in splits for batch in read_split(split)) == 90


def test_a_gateway_that_was_restarted_is_one_retry(client: SharingClient) -> None:
    settings = GatewaySettings(tokens=(TOKEN,), key=b"k" * 32)
    with FlightGateway(client, settings) as gateway:
        scan = SharingClient.over(gateway.uri, TOKEN, retryTimeout="20s").table("sh.sc.t").scan()
        batches = [read_split(split) for split in scan.plan().splits]
        rows = next(batches[0]).num_rows
        listen = gateway.uri
    with FlightGateway(client, replace(settings, listen=listen)):
        assert rows + sum(batch.num_rows for each in batches for batch in each) == 90


def test_a_gateway_that_is_gone_is_one_error(client: SharingClient) -> None:
    with FlightGateway(client, GatewaySettings(tokens=(TOKEN,))) as gateway:
        uri = gateway.uri
        splits = SharingClient.over(uri, TOKEN, retryTimeout="1s").table("sh.sc.t").scan().plan().splits
    began = time.monotonic()
    with pytest.raises(NetworkError, match=uri.replace("+", "\\+")):
        list(read_split(splits[0]))
    assert time.monotonic() - began < 20
    with pytest.raises(NetworkError):
        SharingClient.over(uri, TOKEN).table("sh.sc.t").scan().to_arrow()


@pytest.mark.parametrize(("token", "why"), [(None, "none was sent"), ("wrong", "does not know the token")])
def test_who_is_not_known_is_told_so(gateway: FlightGateway, token: str | None, why: str) -> None:
    with pytest.raises(UnauthenticatedError, match=f"{why}.*gatewayTokenFile.*DELTA_SHARING_FLIGHT_TOKEN"):
        SharingClient.over(gateway.uri, token).table("sh.sc.t").scan().to_arrow()


def test_a_token_beyond_ascii_is_refused(gateway: FlightGateway) -> None:
    with pytest.raises(ProfileError, match="beyond ASCII"):
        SharingClient.over(gateway.uri, "g\u00fcltig").table("sh.sc.t").scan().to_arrow()


def test_splits_of_a_gateway_hold_nothing_of_the_share(behind: SharingClient, server: SharingServer) -> None:
    import pickle

    for split in behind.table("sh.sc.t").scan().plan().splits:
        assert TOKEN not in repr(split)
        pickled = pickle.dumps(split)
        assert [one for one in (server.token, server.endpoint, "parquet?") if one.encode() in pickled] == []


@pytest.mark.parametrize(
    "options",
    [
        {"accessMode": "dir"},
        {"cacheDir": "/tmp/x"},
        {"bearerToken": "x"},
        {"proxy": "http://p:1"},
        {"callerOrg": "a"},
        {"storageRegion": "r"},
    ],
    ids=str,
)
def test_options_that_do_not_go_with_a_gateway(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="does not go with 'gateway'"):
        SharingClient.over("grpc+tcp://127.0.0.1:1", **options)


def test_settings_of_a_session_for_the_sharing_server_are_none_of_a_gateway_s_load() -> None:
    """A session has them for its other loads, so that they are left out, and not refused."""

    class Session:
        def __init__(self) -> None:
            sharing = "spark.delta.sharing.network."
            proxy = {f"{sharing}proxyHost": "h", f"{sharing}proxyPort": "80", f"{sharing}maxRetryDuration": "5000"}
            self.settings = {"spark.sql.session.timeZone": "UTC", f"{sharing}useAsyncQuery": "true", **proxy}
            self.conf = SimpleNamespace(get=self.settings.__getitem__, getAll=self.settings)

    session: Any = Session()
    added = session_options(session, {})
    through = session_options(session, {"Gateway": "grpc://h:1"})
    assert {"proxy", "asyncQuery"} <= added.keys()
    assert through == {"timeZone": "UTC", "retryTimeout": "5000ms"}
    parse_options({"path": "s.d.t", "gateway": "grpc://h:1", **through})


@pytest.mark.parametrize("size", [2**70, -5, 0.5, "x", None])
def test_an_endpoint_of_no_plausible_size_is_planned_as_one_of_unknown_size(size: object) -> None:
    assert _task(Endpoint("dGlja2V0", about={"bytes": size}), "endpoint 0").size == 0


def test_an_endpoint_is_read_by_one_task_however_large_it_is(behind: SharingClient) -> None:
    scan = behind.table("sh.sc.t").scan(maxSplitBytes="1k").resolved()
    endpoints = FileList(_task(Endpoint("", about={"bytes": size}), str(size)) for size in (0, 10, 2_000, 900_000))
    splits = splits_of(endpoints, FlightAccess(GatewayAddress("grpc+tcp://127.0.0.1:1")), scan, spec_of(scan))
    read = [[(piece.task.id, piece.start, piece.end) for piece in split.slices] for split in splits]
    assert read == [[("0", 0, None), ("10", 0, None)], [("2000", 0, None)], [("900000", 0, None)]]
    assert [split.index for split in splits] == [0, 1, 2]


class _Sender(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow is untyped
    """A gateway that answers every ticket with the same stream."""

    def __init__(self, stream: Callable[[], flight.FlightDataStream]) -> None:
        self._stream = stream
        super().__init__("grpc+tcp://127.0.0.1:0")

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        return self._stream()


def rows_with(notes: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(range(len(notes)), pa.int64()), "note": notes, "day": ["a"] * len(notes)})


@pytest.mark.parametrize("offset", [2_000_000_000, -2_000_000_000, 5])
def test_offsets_that_point_elsewhere_are_refused_before_they_are_followed(behind: SharingClient, offset: int) -> None:
    """Arrow ends the process, or shows its memory, where it follows one; 5 is that of a later value."""
    notes = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, offset, 2, 3], np.int32)), pa.py_buffer(b"abcdef")]
    )
    with _Sender(lambda: flight.GeneratorStream(rows_with(notes).schema, iter([rows_with(notes)]))) as server:
        split = behind.table("sh.sc.t").scan().plan().splits[0]
        split = replace(split, access=FlightAccess(GatewayAddress(f"grpc+tcp://127.0.0.1:{server.port}")))
        with pytest.raises(ResponseError, match=r"damaged rows of sh\.sc\.t \(column 'note'"):
            list(read_split(split))


def test_another_try_may_have_other_columns(behind: SharingClient) -> None:
    """As of a gateway of another version: by name, whatever their order."""
    first = rows_with(pa.array(["x", "y"]))

    def breaking_off() -> Any:
        yield first
        raise flight.FlightUnavailableError("gone")

    streams = [
        flight.GeneratorStream(first.schema, breaking_off()),
        flight.RecordBatchStream(
            pa.Table.from_batches([first, rows_with(pa.array(["z", None]))]).select(["day", "note", "id"])
        ),
    ]
    with _Sender(lambda: streams.pop(0)) as server:
        split = behind.table("sh.sc.t").scan().plan().splits[0]
        split = replace(split, access=FlightAccess(GatewayAddress(f"grpc+tcp://127.0.0.1:{server.port}")))
        rows = pa.Table.from_batches(read_split(split))
    assert rows["note"].to_pylist() == ["x", "y", "z", None]
    assert rows["id"].to_pylist() == [0, 1, 0, 1]


def test_a_stream_that_breaks_off_is_resumed_however_long_it_had_been_read(
    behind: SharingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for retries is that of one batch, not of the endpoint; and they are told apart from the share's."""
    batches, now, counted = [rows_with(pa.array([note])) for note in "xyz"], [0.0], Counter[tuple[str, ...]]()
    settings = partial(flight_table._RetrySettings, clock=lambda: now[0])
    monkeypatch.setattr(flight_table, "_RetrySettings", settings)

    def breaking_off() -> Any:
        yield from batches[:2]
        raise flight.FlightUnavailableError("gone")

    def count(name: str, value: int, attributes: Mapping[str, str]) -> None:
        counted[(name, *attributes.values())] += value

    streams = [
        flight.GeneratorStream(batches[0].schema, breaking_off()),
        flight.GeneratorStream(batches[0].schema, iter(batches)),
    ]
    add_hook(count)
    try:
        with _Sender(lambda: streams.pop(0)) as server:
            split = behind.table("sh.sc.t").scan().plan().splits[0]
            split = replace(split, access=FlightAccess(GatewayAddress(f"grpc+tcp://127.0.0.1:{server.port}")))
            counted.clear()
            notes: list[str] = []
            for batch in read_split(split):
                notes += batch.column("note").to_pylist()
                now[0] += 1000.0
    finally:
        remove_hook(count)
    assert notes == ["x", "y", "z"]
    assert counted == {("deltasharing.retries", "sh.sc.t", "gateway"): 1}


@pytest.mark.parametrize(
    ("gateway", "location", "words"),
    [
        ("grpc+tls://127.0.0.1:9", "grpc+tcp://127.0.0.1:1", "without the TLS"),
        ("grpc+tls://127.0.0.1:9", "grpc+tls://127.0.0.1:1", None),
        ("grpc+tls://g.example:9", "grpc+tls://H.example:1", None),
        ("grpc+tcp://g.example:9", "grpc+tcp://10.0.0.7:1", None),
        ("grpc+tls://g.example:9", "grpc+tls://127.0.0.1:1", "is this machine or its network"),
        ("grpc+tls://g.example:9", "grpc+tls://[64:ff9b::a9fe:a9fe]:1", "is this machine or its network"),
        ("grpc+tls://g.example:9", "grpc+tls://localhost:1", "is this machine or its network"),
        ("grpc+tls://g.example:9", "grpc+tls://user@h.example:1", "what is no address: it names a user"),
        ("grpc+tls://g.example:9", "grpc+tls://2130706433:1", "what is no address: its host is a number"),
        ("grpc+tls://g.example:9", "grpc+unix:///run/other.sock", "what is no address"),
        ("grpc+tls://g.example:9", "https://h.example:1", "what is no address"),
        ("grpc+tls://g.example:9", "grpc+tls://h.example", "what is no address"),
    ],
)
def test_a_gateway_hands_its_callers_token_to_none_that_is_less_safe(
    gateway: str, location: str, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = flight.FlightEndpoint(b"ticket", [location, "arrow-flight-reuse-connection://?"])
    info = flight.FlightInfo(pa.schema([]), flight.FlightDescriptor.for_command(b"{}"), [endpoint])

    class Named:
        def get_flight_info(self, *_: object) -> flight.FlightInfo:
            return info

    monkeypatch.setattr(GatewayConnection, "_client", lambda self: Named())
    connection = GatewayConnection(GatewayAddress(gateway, "token"))
    if words is None:
        assert connection.flight({}).endpoints[0].locations == (location.lower(),)
    else:
        with pytest.raises(ResponseError, match=words):
            connection.flight({})


@pytest.mark.parametrize("profile", ["", "/nowhere/none.share"])
def test_a_gateway_among_the_options_needs_no_profile(
    gateway: FlightGateway, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Nor is one of the environment taken for the tables behind it."""
    monkeypatch.setenv("DELTA_SHARING_PROFILE", profile)
    client = SharingClient(Gateway=gateway.uri, gatewayToken=TOKEN)  # type: ignore[call-arg]  # names are free of case
    assert client.table("sh.sc.t").scan(limit=3).to_arrow().num_rows == 3
    loaded = client.options_for(client.table("sh.sc.t").name)
    assert loaded == {"Gateway": gateway.uri, "gatewayToken": TOKEN, "path": "sh.sc.t"}


@pytest.mark.parametrize(
    "use", [lambda table: table.scan().to_arrow(), lambda table: table.metadata], ids=["scan", "metadata"]
)
@pytest.mark.parametrize("version", ["7", True, -1, 1.5])
def test_a_version_that_is_none_is_not_taken_for_an_unknown_one(
    behind: SharingClient, monkeypatch: pytest.MonkeyPatch, use: Callable[[SharedTable], object], version: object
) -> None:
    own = GatewayConnection.ask
    monkeypatch.setattr(GatewayConnection, "ask", lambda *asked: {**own(*asked), "version": version})
    with pytest.raises(ResponseError, match=f"{version!r} is not a version or a count"):
        use(behind.table("sh.sc.t"))


FORKED = """
import multiprocessing, sys
from delta_sharing_spark import SharingClient
def count():
    try:
        print(table.count(), flush=True)
    except Exception as error:
        print(error, flush=True)
table = SharingClient.over(*sys.argv[1:]).table("sh.sc.t")
for turn in range(2):
    child = multiprocessing.get_context("fork").Process(target=count)
    child.start()
    child.join()
    count()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_fork_of_a_process_that_has_asked_is_refused(gateway: FlightGateway) -> None:
    """gRPC waited there without end, as in the workers of a data loader."""
    command = [sys.executable, "-c", FORKED, gateway.uri, TOKEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=True)
    first, here, refused, again = done.stdout.splitlines()
    assert (first, here, again) == ("90", "90", "90")
    assert re.search("cannot be asked by this process: it was forked .* 'spawn'", refused)
