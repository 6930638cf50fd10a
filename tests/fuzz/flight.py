"""The surface of Arrow Flight: commands, tickets and messages at a gateway, and gateways that answer to harm."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.access.flight.connection import CANCEL, DESCRIBE, RENEW, VERSION
from delta_sharing_spark.access.flight.messages import from_status
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.server import SharingServer
from fuzz import mutations
from fuzz.surface import Case, Surface
from fuzz.tables import Rows, rows_of, table

NAME = "share.default.t"
_COMMAND = {
    "table": NAME, "columns": ["id", "n.a"], "where": "id > 3", "limit": 5, "version": 1,
    "changes": {"startingVersion": 1, "endingVersion": 2}, "stream": {"first": 1, "last": 2, "feed": False},
    "options": {"timeZone": "UTC", "maxSplitBytes": "1k", "commitTimestampType": "long"},
}  # fmt: skip


class _Between(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow is untyped
    """Passes calls on to a gateway and damages what comes back, as ``damage`` says by the kind of answer."""

    def __init__(self, uri: str) -> None:
        self._behind = flight.connect(uri)
        self.damage: dict[str, Callable[[Any], Any]] = {}
        super().__init__("grpc+tcp://127.0.0.1:0")

    def _damaged(self, kind: str, value: Any) -> Any:
        return self.damage[kind](value) if kind in self.damage else value

    def get_flight_info(self, context: Any, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        info = self._behind.get_flight_info(descriptor)
        endpoints = [
            flight.FlightEndpoint(
                self._damaged("ticket", e.ticket.ticket),
                self._damaged("locations", list(e.locations)),
                self._damaged("expires", e.expiration_time),
                self._damaged("endpoint", e.app_metadata),
            )
            for e in info.endpoints
        ]
        endpoints = self._damaged("endpoints", endpoints)
        records, size = self._damaged("counts", (info.total_records, info.total_bytes))
        about = self._damaged("info", info.app_metadata)
        return flight.FlightInfo(info.schema, descriptor, endpoints, records, size, info.ordered, about)

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        for result in self._behind.do_action(action):
            yield self._damaged("action", result.body.to_pybytes())

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        rows = self._behind.do_get(ticket).read_all()
        self._damaged("status", None)
        return flight.RecordBatchStream(self._damaged("rows", rows))


class Flights(Surface):
    """Either side is the one that does harm."""

    name = "flight"

    @cached_property
    def _servers(self) -> tuple[SharingServer, FlightGateway, _Between]:
        server = SharingServer()
        server.start()
        server.add_table(NAME, table().path, history=True)
        gateway = FlightGateway(SharingClient(server.profile(), maxSplitBytes="1k"), GatewaySettings(tokens=()))
        self._caller = flight.connect(gateway.uri)
        return server, gateway, _Between(gateway.uri)

    @cached_property
    def _rows(self) -> Rows:
        return self._read()

    def _read(self) -> Rows:
        client = SharingClient.over(
            f"grpc+tcp://127.0.0.1:{self._servers[2].port}", None, retryTimeout="1s", connectTimeout="2s"
        )
        return rows_of(client.table(NAME).scan().to_arrow().to_batches())

    @cached_property
    def _info(self) -> flight.FlightInfo:
        return self._caller.get_flight_info(flight.FlightDescriptor.for_command(json.dumps({"table": NAME})))

    def draw(self, draw: random.Random) -> Case:
        _ = self._rows, self._info
        return self._asked(draw) if draw.random() < 0.5 else self._answered(draw)

    def _asked(self, draw: random.Random) -> Case:
        """A gateway is asked what it does not expect."""
        kept = draw.sample(sorted(_COMMAND), draw.randrange(4))
        tree, _ = mutations.json_value({"table": NAME, **{name: _COMMAND[name] for name in kept}}, draw)
        command = (
            json.dumps(tree).encode() if draw.random() < 0.8 else mutations.byte(json.dumps(tree).encode(), draw)[0]
        )
        endpoint = draw.choice(self._info.endpoints)
        message = mutations.byte(messages.wrap(endpoint.serialize()), draw)[0]
        caller, descriptor = self._caller, flight.FlightDescriptor.for_command(command)
        ask: Callable[[], Any] = draw.choice(
            [
                lambda: caller.get_flight_info(descriptor),
                lambda: caller.get_flight_info(descriptor),
                lambda: caller.get_schema(descriptor),
                lambda: caller.get_flight_info(
                    flight.FlightDescriptor.for_path(*draw.choice([[], [b"\xff"] * 3, ["a"]]))
                ),
                lambda: list(caller.list_flights(command)),
                lambda: caller.do_get(flight.Ticket(mutations.byte(endpoint.ticket.ticket, draw)[0])).read_all(),
                lambda: list(caller.do_action(flight.Action(draw.choice([RENEW, CANCEL]), message))),
                lambda: list(caller.do_action(flight.Action(draw.choice([VERSION, DESCRIBE, "x", ""]), command))),
            ]
        )

        def case() -> tuple[Rows, bool]:
            try:
                ask()
            except (pa.ArrowException, OSError, KeyError) as error:
                text = str(error)
                assert "InternalError" not in text, text[:300]
                assert "Traceback" not in text, text[:300]
                raise from_status(error, "here") from None
            return [], False

        return case

    def _answered(self, draw: random.Random) -> Case:
        """A gateway answers what nobody expects."""

        def value(data: bytes) -> bytes:
            if draw.random() < 0.3:
                return mutations.byte(data, draw)[0]
            return json.dumps(mutations.json_value(json.loads(data or b"{}"), draw)[0]).encode()

        def rows(whole: pa.Table) -> pa.Table:
            kind, name = draw.randrange(5), draw.choice(whole.schema.names)
            if kind == 0:
                return whole.drop_columns([name])
            if kind == 1:
                return whole.rename_columns([draw.choice(["", "id", "ID", "x"]) for _ in whole.schema.names])
            if kind == 2:
                index = whole.schema.names.index(name)
                types = [pa.int64(), pa.string(), pa.binary(), pa.list_(pa.int64()), pa.null(), pa.decimal128(38, 10)]
                return whole.set_column(index, name, pa.nulls(len(whole), draw.choice(types)))
            return whole.slice(draw.randrange(len(whole) + 1)) if kind == 3 else pa.concat_tables([whole, whole])

        def status(_: None) -> None:
            details = {"error": draw.choice([*dir(pa), "KeyError", "DeltaSharingError", "TicketError", "FileError"])}
            details[draw.choice(["file", "column", "status", "reason", "x"])] = draw.choice(mutations.HOSTILE)
            info = draw.choice([json.dumps(details).encode(), b"[" * 20_000, b"\xff", b"[]", b""])
            kinds = [flight.FlightInternalError, flight.FlightUnauthorizedError, flight.FlightCancelledError]
            raise draw.choice(kinds)(draw.choice(["x", "\x1b[2J", "\u202e"]), extra_info=info)

        damage: dict[str, Callable[[Any], Any]] = {
            "ticket": lambda ticket: mutations.byte(ticket, draw)[0],
            "locations": lambda _: [draw.choice(["", "x", "grpc+tcp://127.0.0.1:1", "http://[", "\u202e"])],
            "expires": lambda _: pa.scalar(draw.choice([0, -(2**60), 2**62]), pa.timestamp("ns", "UTC")),
            "endpoint": value,
            "endpoints": lambda endpoints: draw.choice([[], endpoints * 2, endpoints[::-1], endpoints[:1]]),
            "counts": lambda _: (draw.choice([-1, -5, 0, 1, 2**62]), draw.choice([-7, 2**62])),
            "info": value,
            "action": value,
            "rows": rows,
            "status": status,
        }
        kind = draw.choice(sorted(damage))
        between = self._servers[2]

        def case() -> tuple[Rows, bool]:
            between.damage = {kind: damage[kind]}
            try:
                return self._read(), False
            finally:
                between.damage = {}

        return case

    def expected(self) -> Rows:
        return self._rows

    def close(self) -> None:
        """Stop what was started."""
        server, gateway, between = self._servers
        between.shutdown()
        gateway.shutdown()
        server.close()
