"""The gateway by pyarrow's own client: rows, tickets, renewal, cancellation, errors, and who may call."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.access.flight.connection import CANCEL, RENEW, GatewayAddress
from delta_sharing_spark.access.flight.table import FlightAccess
from delta_sharing_spark.errors import ConfigError, NetworkError, TicketError
from delta_sharing_spark.flight import answers, tickets
from delta_sharing_spark.flight.gateway import REUSE_CONNECTION, FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.flight.tickets import Seal, Ticket, shared_part
from delta_sharing_spark.scan.plan import ReadSpec, Split
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.server.queries import TableQueries
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from support.refusals import not_refused
from unit.flight.calling import TOKEN, Caller

TABLE = {"table": "sh.sc.t"}


@pytest.mark.parametrize(
    ("command", "scan"),
    [
        ({}, {}),
        (
            {"columns": ["note", "id"], "where": "id >= 20 AND day = 'a'"},
            {"columns": ["note", "id"], "where": "id >= 20 AND day = 'a'"},
        ),
        ({"limit": 7}, {"limit": 7}),
        ({"where": "id > 1000"}, {"where": "id > 1000"}),
        ({"version": 1}, {"version": 1}),
        ({"changes": {"startingVersion": 1}}, {"readChangeFeed": True, "startingVersion": 1}),
        (
            {"changes": {"startingVersion": 1, "endingVersion": 2}, "options": {"commitTimestampType": "long"}},
            {"readChangeFeed": True, "startingVersion": 1, "endingVersion": 2, "commitTimestampType": "long"},
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else None,
)
def test_rows_are_those_of_the_scan(
    client: SharingClient, caller: Caller, command: dict[str, Any], scan: dict[str, Any]
) -> None:
    info = caller.info(json.dumps({**TABLE, **command}))
    expected = client.table("sh.sc.t").scan(**scan).to_arrow()
    assert info.schema == expected.schema
    assert caller.rows(info).to_pylist() == expected.to_pylist()
    assert info.total_records in (-1, expected.num_rows)
    assert info.ordered == ("changes" in command)
    for endpoint in info.endpoints:
        assert [location.uri.decode() for location in endpoint.locations] == [REUSE_CONNECTION]


def test_a_plan_tells_what_it_knows(gateway: FlightGateway, caller: Caller, client: SharingClient) -> None:
    info = caller.connection.get_flight_info(flight.FlightDescriptor.for_path("sh", "sc", "t"), caller.options)
    assert info.total_records == 90
    assert len(info.endpoints) > 1
    assert info.total_bytes > 0
    about = json.loads(info.app_metadata)
    assert (about["version"], about["table"], about["accessMode"]) == (3, "sh.sc.t", client.options["accessMode"])
    schema = caller.connection.get_schema(flight.FlightDescriptor.for_path("sh", "sc", "t"), caller.options).schema
    assert schema == info.schema
    assert caller.act("TableVersion", json.dumps(TABLE).encode()) == b"3"
    in_zone = {**TABLE, "timestamp": "2020-01-01", "options": {"timeZone": "Asia/Tokyo"}}
    assert caller.act("TableVersion", json.dumps(in_zone).encode()) == b"0"
    committed = client.table("sh.sc.t").versions()[2].committed
    assert committed is not None
    within = {
        **TABLE,
        "timestamp": (committed + timedelta(microseconds=1)).isoformat(),
    }  # in its millisecond, but after it
    assert caller.act("TableVersion", json.dumps(within).encode()) == b"3"
    assert {action.type for action in caller.connection.list_actions(caller.options)} >= {RENEW, CANCEL}


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ("", ["sh.sc.other", "sh.sc.t", "sh2.sc.t"]),
        ("sh.", ["sh.sc.other", "sh.sc.t"]),
        ("*.t", ["sh.sc.t", "sh2.sc.t"]),
        ("no", []),
    ],
)
def test_listing(caller: Caller, criteria: str, expected: list[str]) -> None:
    flights = caller.connection.list_flights(criteria.encode(), caller.options)
    assert sorted(".".join(p.decode() for p in listed.descriptor.path) for listed in flights) == expected


def test_a_ticket_hides_what_it_holds(caller: Caller, server: SharingServer, built: Path) -> None:
    shown = b" ".join(endpoint.ticket.ticket for endpoint in caller.info(json.dumps(TABLE)).endpoints)
    secrets = (server.token, server.endpoint, str(built), "parquet", "sh.sc.t")
    assert [secret for secret in secrets if secret.encode() in shown] == []


@pytest.mark.parametrize(
    ("change", "token"),
    [(lambda data: data, "another"), (lambda data: data[:-1], TOKEN), (lambda data: b"", TOKEN)],
    ids=["another caller's", "cut", "empty"],
)
def test_tickets_are_refused_that_are_not_the_callers(
    caller: Caller, change: Callable[[bytes], bytes], token: str
) -> None:
    ticket = caller.info(json.dumps(TABLE)).endpoints[0].ticket
    with pytest.raises(flight.FlightUnauthorizedError) as refused:
        Caller(caller.connection, token).read(flight.Ticket(change(ticket.ticket)))
    assert json.loads(refused.value.extra_info)["error"] == "TicketError"
    assert caller.read(ticket).num_rows
    assert caller.read(ticket).num_rows, "repeatable"


_SEAL = Seal(b"k" * 32)
_SEALED = _SEAL.close(
    Ticket(
        "f",
        "me",
        "{}",
        0,
        1,
        (Split(0, ReadSpec("t", Struct(()), Struct(())), (), FlightAccess(GatewayAddress("grpc+tcp://nowhere:1"))),),
        0.0,
        1e12,
    )
)


@given(st.integers(0, len(_SEALED) - 1), st.integers(1, 255))
def test_a_ticket_that_was_touched_is_forged(position: int, bits: int) -> None:
    touched = bytearray(_SEALED)
    touched[position] ^= bits
    with pytest.raises(TicketError, match="not one of this gateway"):
        _SEAL.open(bytes(touched), "me")
    assert _SEAL.open(_SEALED, "me").flight == "f"


def test_what_tickets_of_a_flight_share_is_packed_once(client: SharingClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition of 9,000 ids was packed for each of a flight's endpoints: 25 s of the gateway."""
    packed: list[str] = []

    def noting(command: str, spec: ReadSpec) -> bytes:
        packed.append(command)
        return shared_part(command, spec)

    for module in (answers, tickets):
        monkeypatch.setattr(module, "shared_part", noting)
    with FlightGateway(client, GatewaySettings(tokens=(TOKEN,))) as gateway, flight.connect(gateway.uri) as connection:
        caller = Caller(connection, TOKEN)
        info = caller.info(json.dumps({**TABLE, "where": "id >= 0", "options": {"maxSplitBytes": "100"}}))
        assert len(info.endpoints) > 1
        assert len(packed) == 1
        assert caller.rows(info).num_rows == 90


def test_expired_tickets_are_refused_and_renewed(client: SharingClient) -> None:
    settings = GatewaySettings(tokens=(TOKEN,), ticket_seconds=0.0)
    with FlightGateway(client, settings) as gateway, flight.connect(gateway.uri) as connection:
        caller = Caller(connection, TOKEN)
        info = caller.info(json.dumps(TABLE))
        with pytest.raises(flight.FlightUnavailableError, match="renew its endpoint") as expired:
            caller.read(info.endpoints[0].ticket)
        assert json.loads(expired.value.extra_info) == {"error": "TicketError", "reason": "expired"}
        gateway._answers.planner._ticket_seconds = 60.0
        rows = 0
        for endpoint in info.endpoints:
            renewed = flight.FlightEndpoint.deserialize(caller.act(RENEW, messages.wrap(endpoint.serialize())))
            assert renewed.expiration_time.as_py() > endpoint.expiration_time.as_py()
            rows += caller.read(renewed.ticket).num_rows
        assert rows == 90


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_renewed_flight_is_of_the_versions_that_were_planned(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was committed meanwhile, also where the command names an end that lies in the future."""
    schema, properties = pa.schema([("id", pa.int64())]), {"delta.enableChangeDataFeed": "true"}
    table = DeltaTableBuilder(tmp_path / "t", schema, (), properties)
    table.append([{"id": 1}]).append([{"id": 2}])
    future = "2100-01-01T00:00:00Z"
    commands: list[dict[str, Any]] = [
        {},
        {"where": "id < 9"},
        {"version": 2},
        {"changes": {"startingVersion": 1}},
        {"changes": {"startingVersion": 1, "endingVersion": 2}},
        {"changes": {"startingVersion": 1, "endingVersion": 900}},
        {"changes": {"startingVersion": 1, "endingTimestamp": future}},
        {"changes": {"startingTimestamp": "2001-01-01T00:00:00Z", "endingTimestamp": future}, "where": "id < 9"},
        {"changes": {"startingVersion": 3, "endingTimestamp": future}},
        {"stream": {"first": 1, "last": 2}},
        {"stream": {"first": 1, "last": 2, "feed": True}},
        {"stream": {"snapshot": 2}},
    ]
    if mode == "url":  # a server may answer a moment after the newest version with that
        ask = TableQueries._asked_version
        monkeypatch.setattr(
            TableQueries,
            "_asked_version",
            lambda self, table, asked: None if asked.get("timestamp") == future else ask(self, table, asked),
        )
        commands.append({"timestamp": future})
    with SharingServer() as server:
        server.add_table("sh.sc.t", table.path, access_modes=("url", "dir"))
        client = SharingClient(server.profile(), accessMode=mode)
        settings = GatewaySettings(tokens=(TOKEN,))
        with FlightGateway(client, settings) as gateway, flight.connect(gateway.uri) as connection:
            caller = Caller(connection, TOKEN)
            infos = [caller.info(json.dumps({**TABLE, **command})) for command in commands]
            expected = [caller.rows(info) for info in infos]
            table.add_column(Field("more", Primitive("string"))).append([{"id": 3, "more": "x"}])
            for command, info, rows in zip(commands, infos, expected, strict=True):
                for endpoint in info.endpoints:
                    renewed = flight.FlightEndpoint.deserialize(caller.act(RENEW, messages.wrap(endpoint.serialize())))
                    assert caller.read(renewed.ticket).equals(caller.read(endpoint.ticket)), command
                assert caller.rows(info).equals(rows), command
            assert [rows.num_rows for rows in expected] == [2] * 8 + [0] + [2] * (len(commands) - 9)


def test_cancelling_ends_reads_and_refuses_tickets(server: SharingServer, tmp_path: Path) -> None:
    client = SharingClient(server.profile())
    with FlightGateway(client, GatewaySettings(tokens=(TOKEN,))) as gateway, flight.connect(gateway.uri) as connection:
        caller = Caller(connection, TOKEN)
        info = caller.info(json.dumps(TABLE))
        assert caller.act(CANCEL, messages.wrap(info.serialize())) == b"\x08\x01"
        for endpoint in info.endpoints:
            with pytest.raises(flight.FlightUnauthorizedError, match="was cancelled"):
                caller.read(endpoint.ticket)
            with pytest.raises(flight.FlightUnauthorizedError, match="was cancelled"):
                caller.act(RENEW, messages.wrap(endpoint.serialize()))
        again = caller.info(json.dumps(TABLE))
        assert caller.rows(again).num_rows == 90, "another flight of the same table is none of its business"
        stranger = Caller(connection, "another")
        with pytest.raises(flight.FlightUnauthenticatedError):
            stranger.act(CANCEL, messages.wrap(again.serialize()))


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    [
        (b"{}", pa.ArrowInvalid, "names no table"),
        (b"not json", pa.ArrowInvalid, "is not JSON"),
        (b'{"table": "sh.sc.t", "where": "id > 5", "where": "id < 9"}', pa.ArrowInvalid, "has the field 'where' twice"),
        (b'{"where": 1' + b', "where": 1' * 20_000 + b"}", pa.ArrowInvalid, "has the field 'where' twice"),
        (b'{"table": "sh.sc.t", "colums": []}', pa.ArrowInvalid, "unknown field 'colums'"),
        (b'{"table": "sh.sc.t", "options": {"bearerToken": "x"}}', pa.ArrowInvalid, "unknown field 'bearerToken'"),
        (b'{"table": "sh.sc.t", "where": "nope = 1"}', pa.ArrowInvalid, "no column 'nope'"),
        (b'{"table": "sh.sc.t", "columns": ["nope"]}', pa.ArrowInvalid, "nope"),
        (b'{"table": "sh.sc.t", "columns": ["id,note"]}', pa.ArrowInvalid, "no column 'id,note'"),
        (b'{"table": "sh.sc.t", "columns": ["`id`,`note`"]}', pa.ArrowInvalid, "no column"),
        (b'{"table": "sh.sc.t", "columns": []}', pa.ArrowInvalid, "the command's 'columns' is an empty list"),
        (b'{"table": "sh.sc.t", "columns": [""]}', pa.ArrowInvalid, "the command's 'columns' is not a list of names"),
        (
            b"\n@type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery\x12\x0a\x0a\x08SELECT 1",
            pa.ArrowNotImplementedError,
            "does not speak Flight SQL",
        ),
        (b'{"table": "sh.sc.t", "where": "%s"}' % (b"x" * (1 << 18)), pa.ArrowInvalid, "at most 262144 are read"),
        (b'{"table": "sh.sc.none"}', pa.ArrowKeyError, "none"),
        (b'{"table": "sh.sc.t", "version": 77}', pa.ArrowKeyError, "the newest is 3"),
    ],
)
def test_refusals_have_their_status_and_no_traceback(
    caller: Caller, command: bytes, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as refused:
        caller.info(command)
    text = str(refused.value)
    assert "Traceback" not in text
    assert "delta_sharing_spark" not in text
    assert words in str(messages.from_status(refused.value, "here"))


def test_a_read_only_gateway_refuses_data(caller: Caller) -> None:
    descriptor = flight.FlightDescriptor.for_path("sh", "sc", "t")
    writer, _ = caller.connection.do_put(descriptor, pa.schema([("a", pa.int64())]), caller.options)
    with pytest.raises(pa.ArrowNotImplementedError, match="read-only") as refused:
        writer.close()
    assert "Traceback" not in str(refused.value)
    exchange, reader = caller.connection.do_exchange(descriptor, caller.options)
    with pytest.raises(pa.ArrowNotImplementedError, match="read-only"):
        reader.read_chunk()
    with pytest.raises(pa.ArrowNotImplementedError, match="read-only"):
        exchange.close()
    with pytest.raises(pa.ArrowNotImplementedError, match="no action 'Drop'"):
        caller.act("Drop", b"")
    with pytest.raises(pa.ArrowNotImplementedError, match="no action 'CreatePreparedStatement'"):
        caller.act("CreatePreparedStatement", b"")


def test_tokens_handshakes_and_strangers(gateway: FlightGateway) -> None:
    with flight.connect(gateway.uri) as connection:
        header = connection.authenticate_basic_token("anyone", TOKEN)
        assert list(connection.list_flights(b"", flight.FlightCallOptions(headers=[header])))
        with pytest.raises(flight.FlightUnauthenticatedError):
            connection.authenticate_basic_token("anyone", "wrong")

        def actions(*headers: tuple[bytes, bytes]) -> list[Any]:
            return list(connection.list_actions(flight.FlightCallOptions(headers=list(headers))))

        # One of three lengths of a user needs no padding, which arrow-go and ADBC leave out.
        basic = [base64.b64encode(f"{user}:{TOKEN}".encode()) for user in ("", "a", "ab")]
        basic += [value.rstrip(b"=") for value in basic]
        assert [value for value in basic if not actions((b"authorization", b"Basic " + value))] == []
        wrong = [(b"authorization", value) for value in (b"Bearer wrong", TOKEN.encode())]
        strangers = (actions, *(partial(actions, header) for header in wrong))
        assert not_refused(flight.FlightUnauthenticatedError, "authorization: Bearer", *strangers) == []


def test_gateways_with_one_key_serve_each_others_tickets(server: SharingServer) -> None:
    settings = GatewaySettings(tokens=(TOKEN,), key=b"k" * 32)
    with FlightGateway(SharingClient(server.profile()), settings) as first:
        advertised = replace(settings, advertised=(first.uri,))
        with (
            FlightGateway(SharingClient(server.profile()), advertised) as second,
            flight.connect(second.uri) as connection,
        ):
            info = Caller(connection, TOKEN).info(json.dumps(TABLE))
        assert {location.uri.decode() for e in info.endpoints for location in e.locations} == {first.uri}
        with flight.connect(first.uri) as connection:
            assert Caller(connection, TOKEN).rows(info).num_rows == 90


def test_mutual_tls(server: SharingServer, certificate: Path) -> None:
    settings = GatewaySettings(
        "grpc+tls://127.0.0.1:0",
        certificate=certificate,
        private_key=certificate,
        client_authority=certificate,
    )
    pem, key = certificate.read_bytes(), certificate.read_bytes()
    with FlightGateway(SharingClient(server.profile()), settings) as gateway:
        assert gateway.settings.tokens == ()
        with flight.connect(gateway.uri, tls_root_certs=pem, cert_chain=pem, private_key=key) as connection:
            info = connection.get_flight_info(flight.FlightDescriptor.for_path("sh", "sc", "t"))
            assert sum(connection.do_get(e.ticket).read_all().num_rows for e in info.endpoints) == 90
        with flight.connect(gateway.uri, tls_root_certs=pem) as stranger, pytest.raises(flight.FlightUnavailableError):
            list(stranger.list_flights())


@pytest.mark.parametrize(
    ("listens", "scheme", "options", "words"),
    [
        ("grpc+tls", "grpc+tls", {}, "certificate verify failed: self.signed certificate; set the option caBundle"),
        ("grpc+tls", "grpc+tcp", {}, r"check its address \(grpc\+tls:// if it listens with TLS\)"),
        ("grpc+tcp", "grpc+tls", {}, r"it listens without TLS: write grpc\+tcp://"),
        ("mutual", "grpc+tls", {"caBundle": "right"}, "whether it wants a certificate of its callers"),
        ("grpc+tls", "grpc+tls", {"caBundle": "empty"}, "set the option caBundle"),
        ("grpc+tls", "grpc+tls", {"caBundle": "text"}, "caBundle, gatewayCertificate and gatewayKey are PEM"),
    ],
)
def test_a_gateway_that_cannot_be_spoken_with_is_told_with_what_to_do(
    server: SharingServer,
    certificate: Path,
    tmp_path: Path,
    listens: str,
    scheme: str,
    options: dict[str, str],
    words: str,
) -> None:
    files = {"right": certificate, "empty": tmp_path / "empty.pem", "text": tmp_path / "text.pem"}
    files["empty"].touch()
    files["text"].write_text("no certificate")
    settings = GatewaySettings(tokens=(TOKEN,))
    if listens != "grpc+tcp":
        authority = certificate if listens == "mutual" else None
        settings = GatewaySettings("grpc+tls://127.0.0.1:0", (TOKEN,), certificate, certificate, authority)
    with FlightGateway(SharingClient(server.profile()), settings) as gateway:
        address = f"{scheme}://{gateway.uri.partition('://')[2]}"
        named = {name: str(files[value]) for name, value in options.items()}
        with pytest.raises(NetworkError, match=words) as caught:
            SharingClient.over(address, token=TOKEN, retryTimeout="1s", **named).table("sh.sc.t").scan().to_arrow()
        assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (GatewaySettings("grpc+tcp://0.0.0.0:0"), "grpc\\+tls://0.0.0.0:0 with --cert"),
        (GatewaySettings("grpc+tls://0.0.0.0:0"), "--cert"),
        (GatewaySettings("grpc+tls://0.0.0.0:0", (), Path("c"), Path("k")), "--token-file"),
        (GatewaySettings("http://127.0.0.1:1"), "write grpc\\+tcp"),
        (GatewaySettings("grpc+tcp://127.0.0.1"), "write grpc\\+tcp"),
        (GatewaySettings("grpc+tls://127.0.0.1:0", None, Path("/nowhere/c"), Path("/nowhere/k")), "cannot be read"),
        (GatewaySettings(key=b"short"), "32"),
        (GatewaySettings(tokens=("good", "g\u00fcltig")), "openssl rand"),
        (GatewaySettings(tokens=("",)), "openssl rand"),
    ],
)
def test_settings_that_would_open_the_share_are_refused(
    server: SharingServer, settings: GatewaySettings, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        FlightGateway(SharingClient(server.profile()), settings)


@pytest.mark.parametrize("how", ["cancelled", "gone"])
def test_a_read_that_waits_for_a_silent_storage_ends(server: SharingServer, how: str) -> None:
    client = SharingClient(server.profile(), accessMode="url")
    with FlightGateway(client, GatewaySettings(tokens=(TOKEN,))) as gateway, flight.connect(gateway.uri) as connection:
        caller = Caller(connection, TOKEN)
        info = caller.info(json.dumps(TABLE))
        silent = server.faults.add("data", times=None, stall=60.0)
        try:
            reader = connection.do_get(info.endpoints[0].ticket, caller.options)
            until = time.monotonic() + HANGS
            while not silent.hits and time.monotonic() < until:
                time.sleep(0.05)
            if how == "cancelled":
                caller.act(CANCEL, messages.wrap(info.serialize()))
                with pytest.raises(flight.FlightCancelledError, match="was cancelled while it was read"):
                    reader.read_chunk()
            else:
                reader.cancel()
            until = time.monotonic() + HANGS
            while gateway._answers.flights._reads and time.monotonic() < until:
                time.sleep(0.05)
            assert not gateway._answers.flights._reads
        finally:
            server.faults.clear()


def test_many_clients_and_a_slow_one(server: SharingServer) -> None:
    with FlightGateway(SharingClient(server.profile()), GatewaySettings(tokens=(TOKEN,))) as gateway:
        slow = flight.connect(gateway.uri)
        ticket = Caller(slow, TOKEN).info(json.dumps(TABLE)).endpoints[0].ticket
        stream = slow.do_get(ticket, Caller(slow, TOKEN).options)
        counted: list[int] = []

        def read() -> None:
            with flight.connect(gateway.uri) as connection:
                caller = Caller(connection, TOKEN)
                counted.append(caller.rows(caller.info(json.dumps(TABLE))).num_rows)

        threads = [threading.Thread(target=read) for _ in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted == [90] * 64
        assert stream.read_all().num_rows
        slow.close()
    for thread in [t for t in threading.enumerate() if t.name.startswith("delta-sharing-fetch")]:
        thread.join(HANGS)
        assert not thread.is_alive()


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize(
    ("options", "hour"), [({}, 12), ({"timeZone": "America/New_York"}, 17), ({"timeZone": None}, None)], ids=str
)
def test_times_without_a_zone_are_in_utc_unless_the_command_says_that_none_is_known(
    options: dict[str, str | None], hour: int | None, mode: str, tmp_path: Path
) -> None:
    """Null is what a Spark job sends that does not know its session's zone: its other modes refuse such times."""
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    noon = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)
    table = DeltaTableBuilder(tmp_path / "t", schema, ["at"]).append([{"id": 1, "at": noon}])
    log = table.path / "_delta_log" / f"{table.version:020d}.json"
    text = re.sub(r'"2024-01-01[T ]12:00:00[.0]*Z?"', '"2024-01-01 12:00:00"', log.read_text())
    assert '"2024-01-01 12:00:00"' in text
    log.write_text(text)
    command = json.dumps({"table": "sh.sc.t", "options": options})
    with SharingServer() as server:
        server.add_table("sh.sc.t", table.path, access_modes=("url", "dir"))
        client = SharingClient(server.profile(), accessMode=mode)
        with FlightGateway(client, GatewaySettings(tokens=(TOKEN,))) as gateway, flight.connect(gateway.uri) as at:
            caller = Caller(at, TOKEN)
            if hour is None:
                with pytest.raises(pa.ArrowInvalid, match=r"names no time zone.*set the option timeZone"):
                    caller.rows(caller.info(command))
            else:
                (row,) = caller.rows(caller.info(command)).to_pylist()
                assert row["at"] == noon.replace(hour=hour)
