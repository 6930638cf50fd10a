"""A caller of a gateway."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.flight as flight

TOKEN = "a-token-of-the-gateway"


class Caller:
    """A Flight client with its token in every call."""

    def __init__(self, connection: flight.FlightClient, token: str) -> None:
        self.connection = connection
        self.options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])

    def info(self, command: str | bytes) -> flight.FlightInfo:
        return self.connection.get_flight_info(flight.FlightDescriptor.for_command(command), self.options)

    def rows(self, info: flight.FlightInfo) -> pa.Table:
        parts = [self.read(endpoint.ticket) for endpoint in info.endpoints]
        return pa.concat_tables(parts) if parts else info.schema.empty_table()

    def read(self, ticket: flight.Ticket) -> pa.Table:
        return self.connection.do_get(ticket, self.options).read_all()

    def act(self, action: str, body: bytes) -> bytes:
        (result,) = self.connection.do_action(flight.Action(action, body), self.options)
        return bytes(result.body)
