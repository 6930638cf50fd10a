"""``PollFlightInfo`` by grpcio's client, rows by pyarrow's from the location of each endpoint, and the same answers by both servers."""

from __future__ import annotations

import argparse
import base64
import contextlib
import io
import json
import re
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.access.flight.connection import CANCEL, RENEW
from delta_sharing_spark.errors import ConfigError, UnavailableError
from delta_sharing_spark.flight import command_line, planning_server, polls
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.server import SharingServer
from support import HANGS
from support.refusals import not_refused
from unit.flight.calling import TOKEN, Caller
from unit.flight.polling import SERVICE, Poller
from unit.flight.test_connections import has_ended, wait_for

grpc = pytest.importorskip("grpc")
TABLE = {"table": "sh.sc.t"}
REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED)


def described(command: object = None) -> bytes:
    text = json.dumps(TABLE if command is None else command)
    return bytes(flight.FlightDescriptor.for_command(text).serialize())


def host(uri: str | None) -> str:
    assert uri is not None
    return uri.partition("://")[2]


def plans() -> list[threading.Thread]:
    """The threads that plan."""
    return [thread for thread in threading.enumerate() if thread.name == "delta-sharing-flight-plan"]


@pytest.fixture(autouse=True)
def ended_plans() -> Iterator[None]:
    """A plan ends with its gateway."""
    yield
    for plan in plans():
        plan.join(HANGS)
        assert not plan.is_alive()


@pytest.fixture
def polled_gateway(client: SharingClient) -> Iterator[FlightGateway]:
    with FlightGateway(client, GatewaySettings(tokens=(TOKEN, "another"), poll_port=0)) as running:
        yield running


@pytest.fixture
def poller(polled_gateway: FlightGateway) -> Iterator[Poller]:
    with grpc.insecure_channel(host(polled_gateway.poll_uri)) as channel:
        yield Poller(channel)


@pytest.fixture
def slow(built: Path) -> Iterator[tuple[SharingServer, FlightGateway, Poller]]:
    """A gateway whose sharing server answers queries when it is told to."""
    with SharingServer() as server:
        server.add_table("sh.sc.t", built, access_modes=("url", "dir"))
        server.settings.async_polls = 1 << 60
        client = SharingClient(server.profile(), accessMode="url", asyncQuery=True, maxSplitBytes="1k")
        settings = GatewaySettings(tokens=(TOKEN, "another"), poll_port=0)
        with FlightGateway(client, settings) as gateway, grpc.insecure_channel(host(gateway.poll_uri)) as channel:
            yield server, gateway, Poller(channel)


@pytest.mark.parametrize("command", [{}, {"where": "id >= 20"}, {"limit": 7}, {"changes": {"startingVersion": 1}}])
def test_polled_rows_come_from_pyarrows_port(
    polled_gateway: FlightGateway, poller: Poller, client: SharingClient, command: dict[str, Any]
) -> None:
    polled = poller.whole(described({**TABLE, **command}))
    assert polled.fields == {1, 3}, "a complete plan has neither a descriptor nor a time to poll until"
    with flight.connect(polled_gateway.uri) as connection:
        caller = Caller(connection, TOKEN)
        info = caller.info(json.dumps({**TABLE, **command}))
        rows = caller.rows(polled.info)
        assert rows.equals(caller.rows(info))
        (renewed,) = poller.stream(
            "DoAction", flight.Action(RENEW, messages.wrap(polled.info.endpoints[0].serialize())).serialize()
        )
        endpoint = flight.FlightEndpoint.deserialize(flight.Result.deserialize(renewed).body.to_pybytes())
        assert caller.read(endpoint.ticket).equals(caller.read(polled.info.endpoints[0].ticket))
    places = [location.uri.decode() for e in (*polled.info.endpoints, endpoint) for location in e.locations]
    assert places == [polled_gateway.uri] * (len(polled.info.endpoints) + 1)
    fields = attrgetter("schema", "descriptor", "total_records", "total_bytes", "ordered")
    assert fields(polled.info) == fields(info)


def test_both_servers_give_the_same_answers(polled_gateway: FlightGateway, poller: Poller) -> None:
    """Whatever plans: to pyarrow's client, and to grpcio's by the bytes."""
    with (
        grpc.insecure_channel(host(polled_gateway.uri)) as channel,
        flight.connect(polled_gateway.poll_uri) as connection,
    ):
        other = Poller(channel)
        criteria = (b"", b"\x0a\x03sh.", b"\x0a\x03*.t")
        ours, theirs = ([sorted(one.stream("ListFlights", text)) for text in criteria] for one in (poller, other))
        assert ours == theirs
        assert poller.stream("ListActions", b"") == other.stream("ListActions", b"")
        assert poller.unary("GetSchema", described()) == other.unary("GetSchema", described())
        actions = [flight.Action(name, json.dumps(TABLE).encode()) for name in ("TableVersion", "DescribeTable")]
        ours, theirs = ([one.stream("DoAction", action.serialize()) for action in actions] for one in (poller, other))
        assert ours == theirs
        header = connection.authenticate_basic_token("anyone", TOKEN)
        assert header == (b"authorization", f"Bearer {TOKEN}".encode())
        caller = Caller(connection, TOKEN)
        info = caller.info(json.dumps(TABLE))
        with flight.connect(info.endpoints[0].locations[0]) as rows:
            assert Caller(rows, TOKEN).rows(info).num_rows == 90
        with pytest.raises(pa.ArrowNotImplementedError, match="sends no rows.*" + re.escape(polled_gateway.uri)):
            caller.rows(info)
        assert caller.act(CANCEL, messages.wrap(info.serialize())) == b"\x08\x01"
        with flight.connect(polled_gateway.uri) as rows, pytest.raises(flight.FlightUnauthorizedError):
            Caller(rows, TOKEN).rows(info)


def _refusal(call: Any) -> tuple[Any, str, dict[str, Any]]:
    with pytest.raises(grpc.RpcError) as refused:
        call()
    error = refused.value
    return error.code(), error.details(), dict(error.trailing_metadata())


@pytest.mark.parametrize(
    "descriptor",
    [
        described({}),
        described({**TABLE, "colums": []}),
        described({**TABLE, "where": "nope = 1"}),
        described({"table": "sh.sc.none"}),
        described({**TABLE, "version": 77}),
        flight.FlightDescriptor.for_command(b"\x0a@/arrow.flight.protocol.sql.Command").serialize(),
        flight.FlightDescriptor.for_path("one").serialize(),
    ],
)
def test_refusals_are_pyarrows(polled_gateway: FlightGateway, poller: Poller, descriptor: bytes) -> None:
    with grpc.insecure_channel(host(polled_gateway.uri)) as channel:
        expected = _refusal(lambda: Poller(channel).unary("GetFlightInfo", descriptor))
    assert _refusal(lambda: poller.unary("GetFlightInfo", descriptor)) == expected
    assert _refusal(lambda: poller.whole(descriptor)) == expected


@pytest.mark.parametrize("method", ["GetFlightInfo", "PollFlightInfo", "GetSchema"])
@pytest.mark.parametrize("request_bytes", [b"", b"\xff\xff", b"\x0a\x7f"])
def test_what_is_no_descriptor_is_an_invalid_argument(poller: Poller, request_bytes: bytes, method: str) -> None:
    code, details, _ = _refusal(lambda: poller.unary(method, request_bytes))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "FlightDescriptor" in details


def test_no_request_is_a_defect(poller: Poller) -> None:
    """Whatever a byte of a descriptor, an action or criteria is turned into."""
    action = flight.Action(CANCEL, messages.wrap(messages.listed_info(described(), b'{"flight": "x"}'))).serialize()
    calls = [("PollFlightInfo", described()), ("DoAction", action), ("ListFlights", b"\x0a\x03sh.")]
    codes = {}
    for method, request in calls:
        for position in range(len(request)):
            for bits in (0x01, 0x80):
                touched = bytearray(request)
                touched[position] ^= bits
                try:
                    poller.stream(method, bytes(touched))
                except grpc.RpcError as error:
                    codes[method, bytes(touched)] = error.code()
    assert codes
    assert {request: code for request, code in codes.items() if code not in REFUSALS} == {}


def test_who_may_call_is_the_same(polled_gateway: FlightGateway) -> None:
    """A stranger is told before its message has come; the basic handshake has the token in its answer's header."""
    with (
        grpc.insecure_channel(host(polled_gateway.poll_uri)) as ours,
        grpc.insecure_channel(host(polled_gateway.uri)) as theirs,
    ):

        def refusals(channel: Any) -> list[Any]:
            strangers = [Poller(channel, token) for token in (None, "wrong")]
            return [_refusal(partial(one.unary, "GetFlightInfo", described())) for one in strangers]

        assert refusals(ours) == refusals(theirs)
        assert [code for code, _, _ in refusals(ours)] == [grpc.StatusCode.UNAUTHENTICATED] * 2
        encoded = base64.b64encode(f"x:{TOKEN}".encode()).decode()
        answers = []
        for channel in (ours, theirs):
            call = channel.stream_stream(SERVICE + "Handshake")(
                iter([b""]), metadata=[("authorization", f"Basic {encoded}")]
            )
            answers.append((list(call), dict(call.initial_metadata())))
        assert answers[0] == answers[1]
        silent = threading.Event()
        call = ours.stream_stream(SERVICE + "PollFlightInfo")(iter(lambda: silent.wait(HANGS), True))
        try:
            assert _refusal(lambda: list(call))[0] is grpc.StatusCode.UNAUTHENTICATED
        finally:
            silent.set()


def test_a_slow_plan_completes_under_polls(
    slow: tuple[SharingServer, FlightGateway, Poller], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, gateway, poller = slow
    first = poller.poll(described())
    assert first.fields == {1, 2, 3, 4}
    assert first.descriptor is not None
    assert not first.info.endpoints
    assert first.info.descriptor.serialize() == described()
    with monkeypatch.context() as patched:
        patched.setattr(planning_server, "_LONG_POLL", 2 * HANGS)
        patched.setattr(planning_server, "_SHARE_OF_DEADLINE", 0.1 / HANGS)
        again = poller.poll(first.descriptor, timeout=HANGS)
    assert again.descriptor == first.descriptor, "a poll ends before its caller's deadline"
    assert _refusal(lambda: Poller(poller.channel, "another").poll(first.descriptor))[0] is grpc.StatusCode.NOT_FOUND
    server.settings.async_polls = 0
    whole = poller.whole(first.descriptor)
    assert whole.fields == {1, 3}
    assert poller.poll(first.descriptor).sent == whole.sent, "an answer that was lost is given again"
    assert json.loads(whole.info.app_metadata)["flight"] == json.loads(first.info.app_metadata)["flight"]
    with flight.connect(whole.info.endpoints[0].locations[0]) as connection:
        assert Caller(connection, TOKEN).rows(whole.info).num_rows == 90
    assert not gateway._answers.polls._under_way


@pytest.mark.parametrize("by", ["poll port", "pyarrow's port"])
def test_cancelling_ends_a_plan(slow: tuple[SharingServer, FlightGateway, Poller], by: str) -> None:
    _, gateway, poller = slow
    first = poller.poll(described())
    assert first.descriptor is not None
    assert Poller(poller.channel, "another").cancel(first.sent) == b"\x08\x03", "another caller cannot"
    (plan,) = plans()
    waiting: list[Any] = []
    polling = threading.Thread(target=lambda: waiting.append(_refusal(lambda: poller.poll(first.descriptor))))
    polling.start()
    if by == "poll port":
        assert poller.cancel(first.sent) == b"\x08\x01"
    else:
        with flight.connect(gateway.uri) as connection:
            assert Caller(connection, TOKEN).act(CANCEL, messages.wrap(first.sent)) == b"\x08\x01"
    polling.join(HANGS)
    assert waiting[0][0] is grpc.StatusCode.CANCELLED
    assert waiting[0] == _refusal(lambda: poller.poll(first.descriptor))
    plan.join(HANGS)
    assert not plan.is_alive(), "the share is asked no more"


def test_cancelling_ends_a_plan_that_waits_for_a_silent_server(built: Path) -> None:
    with SharingServer() as server:
        server.add_table("sh.sc.t", built, access_modes=("dir",))
        silent = server.faults.add("credentials", times=None, stall=HANGS)
        client = SharingClient(server.profile(), accessMode="dir")
        settings = GatewaySettings(tokens=(TOKEN,), poll_port=0)
        try:
            with FlightGateway(client, settings) as gateway, grpc.insecure_channel(host(gateway.poll_uri)) as channel:
                poller = Poller(channel)
                first = poller.poll(described())
                (poll,) = gateway._answers.polls._under_way.values()
                (plan,) = plans()
                wait_for(lambda: silent.hits > 0)
                assert poller.cancel(first.sent) == b"\x08\x01"
                plan.join(HANGS / 2)
                assert not plan.is_alive()
                assert poll.error is not None
        finally:
            server.faults.clear()


def test_a_plan_that_fails_fails_its_poll(slow: tuple[SharingServer, FlightGateway, Poller]) -> None:
    server, _, poller = slow
    first = poller.poll(described())
    server.settings.async_error, server.settings.async_polls = "the warehouse is gone", 0
    code, details, _ = _refusal(lambda: poller.whole(first.descriptor))
    assert "the warehouse is gone" in details
    assert code is grpc.StatusCode.INTERNAL


def test_an_expired_descriptor_is_not_found_and_its_plan_ends(
    slow: tuple[SharingServer, FlightGateway, Poller],
) -> None:
    _, gateway, poller = slow
    first = poller.poll(described())
    held = gateway._answers.polls
    (poll,) = held._under_way.values()
    end = poll.expires + 1
    held._clock = lambda: end
    code, details, _ = _refusal(lambda: poller.poll(first.descriptor))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "poll again with the descriptor of the rows" in details
    assert poll.canceller.is_broken
    assert not held._under_way


def test_plans_under_way_are_bounded_and_end_with_the_gateway() -> None:
    held, release = polls.Polls(), threading.Event()

    def plan(poll: polls.Poll) -> bytes:
        release.wait(HANGS)
        return b"info"

    begun = [held.begin("me", b"", plan) for _ in range(polls._MOST_UNDER_WAY)]
    with pytest.raises(UnavailableError, match="plans under way"):
        held.begin("me", b"", plan)
    held.close()
    assert all(poll.canceller.is_broken for poll in begun)
    with pytest.raises(UnavailableError, match="shutting down"):
        held.begin("me", b"", plan)
    release.set()


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the system lists no descriptors")
def test_silent_connections_are_bounded(
    polled_gateway: FlightGateway, poller: Poller, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    assert polled_gateway._planning is not None
    newcomers = polled_gateway._planning._connections.newcomers
    with contextlib.ExitStack() as opened:
        assert poller.stream("ListActions", b"")
        address = ("127.0.0.1", polled_gateway._planning.port)
        strangers = [opened.enter_context(socket.create_connection(address)) for _ in range(10)]
        wait_for(lambda: len(newcomers) > 0)
        late = newcomers._clock() + 60
        monkeypatch.setattr(newcomers, "_clock", lambda: late)
        wait_for(lambda: all(map(has_ended, strangers)))
        assert poller.stream("ListActions", b"")


def test_mutual_tls(server: SharingServer, certificate: Path) -> None:
    """A caller is the same by its certificate on both ports, so that its tickets are."""
    pem = certificate.read_bytes()
    settings = GatewaySettings(
        "grpc+tls://127.0.0.1:0",
        certificate=certificate,
        private_key=certificate,
        client_authority=certificate,
        poll_port=0,
    )
    with FlightGateway(SharingClient(server.profile()), settings) as gateway:
        credentials = grpc.ssl_channel_credentials(pem, pem, pem)
        with grpc.secure_channel(host(gateway.poll_uri), credentials) as channel:
            polled = Poller(channel, None).whole(described())
        with flight.connect(gateway.uri, tls_root_certs=pem, cert_chain=pem, private_key=pem) as connection:
            assert sum(connection.do_get(e.ticket).read_all().num_rows for e in polled.info.endpoints) == 90
        with grpc.secure_channel(host(gateway.poll_uri), grpc.ssl_channel_credentials(pem)) as channel:
            assert _refusal(lambda: Poller(channel, None).poll(described()))[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("listen", "port", "words"),
    [
        ("grpc+unix:///tmp/nowhere.sock", 0, "has no ports"),
        ("grpc+tcp://127.0.0.1:0", 70_000, "0 to 65535"),
        ("grpc+tls://0.0.0.0:0", 0, "--advertise"),
        ("grpc+tls://[::]:0", 0, "--advertise"),
    ],
)
def test_ports_that_cannot_answer_polls_are_refused(
    server: SharingServer, certificate: Path, listen: str, port: int, words: str
) -> None:
    pem = (certificate, certificate) if "tls" in listen else (None, None)
    with pytest.raises(ConfigError, match=words):
        FlightGateway(SharingClient(server.profile()), GatewaySettings(listen, (TOKEN,), *pem, poll_port=port))


def test_a_port_in_use_and_a_missing_package_are_told(
    gateway: FlightGateway, client: SharingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra all else stays as it is."""
    assert gateway.poll_uri is None
    with pytest.raises(ConfigError, match="another port"):
        FlightGateway(client, GatewaySettings(tokens=(TOKEN,), poll_port=gateway.port))
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"\[flight-poll\]"):
        FlightGateway(client, GatewaySettings(tokens=(TOKEN,), poll_port=0))


def test_the_command_tells_where_polls_are_answered(server: SharingServer, tmp_path: Path) -> None:
    parser, out = argparse.ArgumentParser(), io.StringIO()
    command_line.add_arguments(parser)
    profile = tmp_path / "config.share"
    server.write_profile(profile)
    arguments = parser.parse_args([str(profile), "--token", TOKEN, "--poll-port", "0"])

    def wait() -> None:
        told = re.search(r"It answers polls on grpc\+tcp://(\S+)\n", out.getvalue())
        assert told is not None
        with grpc.insecure_channel(told[1]) as channel:
            assert Poller(channel).whole(described()).info.total_records == 90

    command_line.run(arguments, {}, out, wait)


def test_a_gateway_ends_its_polls_with_itself(server: SharingServer) -> None:
    """Be it left as a context: neither port is listened on, and no thread of it is left."""
    before = set(threading.enumerate())
    with FlightGateway(SharingClient(server.profile()), GatewaySettings(tokens=(TOKEN,), poll_port=0)) as gateway:
        ports = gateway.port, int(str(gateway.poll_uri).rpartition(":")[2])
    calls = [partial(socket.create_connection, ("127.0.0.1", port), timeout=30) for port in ports]
    assert not_refused(OSError, "refused", *calls) == []
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("delta-sharing-flight"):
            thread.join(HANGS)
            assert not thread.is_alive(), thread.name
