"""Lists what a gateway shares, as a sharing server lists it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from delta_sharing_spark.access.flight.connection import DESCRIBE, VERSION, GatewayConnection
from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.wire_records import Metadata, Protocol, Schema, Share, Table, TableSnapshotHead


class FlightCatalog:
    """The listings and descriptions of ``SharingRest``, by the calls of a gateway.

    Args:
        connection: The connection to the gateway; its errors pass through.
    """

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    def list_shares(self) -> Iterator[Share]:
        """All shares that have tables."""
        yield from (Share(name) for name in dict.fromkeys(share for share, _, _ in self._connection.flights()))

    def list_schemas(self, share: str) -> Iterator[Schema]:
        """All schemas of a share that have tables."""
        names = (schema for of, schema, _ in self._connection.flights(f"{share}.") if of == share)
        yield from (Schema(name, share) for name in dict.fromkeys(names))

    def list_tables(self, share: str, schema: str) -> Iterator[Table]:
        """All tables of a schema."""
        yield from (table for table in self.list_all_tables(share) if table.schema == schema)

    def list_all_tables(self, share: str) -> Iterator[Table]:
        """All tables of a share."""
        for of, schema, name in self._connection.flights(f"{share}."):
            if of == share:
                yield Table(name, schema, of)

    def table_version(self, table: TableName, starting_timestamp: str | None = None) -> int:
        """The table's version; with a timestamp (ISO-8601 with zone) the earliest at or after it."""
        command = {"table": str(table), "timestamp": starting_timestamp}
        version = self._connection.ask(VERSION, command)
        if not isinstance(version, int):
            raise self._unreadable(table)
        return version

    def metadata(self, table: TableName) -> TableSnapshotHead:
        """Version, id and schema; the gateway passes on nothing else of what the share states about a table."""
        tree = self._connection.ask(DESCRIBE, {"table": str(table)})
        if not isinstance(tree, dict) or not isinstance(tree.get("schema"), dict):
            raise self._unreadable(table)
        metadata = Metadata(str(tree.get("id") or ""), json.dumps(tree["schema"]), ())
        version = tree.get("version")
        return TableSnapshotHead(version if isinstance(version, int) else None, "delta", Protocol(1), metadata)

    def _unreadable(self, table: TableName) -> ResponseError:
        uri = self._connection.address.uri
        return ResponseError(
            f"the Flight gateway {uri} describes {table} as this client cannot read; check its version"
        )
