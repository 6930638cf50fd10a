"""What a gateway sends fits the 4 MiB that gRPC takes in a message by default, whatever the columns, condition or splits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.flight import messages
from delta_sharing_spark.access.flight.connection import RENEW
from delta_sharing_spark.flight.flights import MESSAGE_BYTES, _messages
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle
from unit.flight.calling import TOKEN, Caller

WIDE = pa.schema([("id", pa.int64()), *((f"c{i}", pa.float64()) for i in range(59))])
ROWS = 30_000


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SharingClient, Caller]]:
    """A table of 60 columns behind a gateway, and a caller with gRPC's default limit."""
    style = FileStyle(row_group_size=ROWS, keep_rows=False)
    table = DeltaTableBuilder(tmp_path_factory.mktemp("wide"), WIDE, style=style)
    for first in (0, ROWS):
        columns = [
            pa.array(range(first, first + ROWS)),
            *(pa.nulls(ROWS, pa.float64()).fill_null(1.5) for _ in range(59)),
        ]
        table.append(pa.table(columns, schema=WIDE))
    with SharingServer() as server:
        server.add_table("sh.sc.wide", Path(table.path), access_modes=("url",))
        client = SharingClient(server.profile())
        with FlightGateway(client, GatewaySettings(tokens=(TOKEN,))) as gateway:
            limit = [("grpc.max_receive_message_length", 4 << 20)]
            with flight.connect(gateway.uri, generic_options=limit) as connection:
                yield client, Caller(connection, TOKEN)


def test_a_wide_table(limited: tuple[SharingClient, Caller]) -> None:
    rows = limited[1].rows(limited[1].info('{"table": "sh.sc.wide"}'))
    assert sorted(rows["id"].to_pylist()) == list(range(2 * ROWS))


def test_a_long_condition_and_many_splits(
    limited: tuple[SharingClient, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delta_sharing_spark.flight.answers.MESSAGE_BYTES", 300_000)  # as 15,000 ids would in 4 MiB
    client, caller = limited
    where = f"id IN ({', '.join(str(i * 4_999) for i in range(1_000))})"
    command = {"table": "sh.sc.wide", "columns": ["id"], "where": where, "options": {"maxSplitBytes": "1"}}
    info = caller.info(json.dumps(command))
    assert len(info.serialize()) < 300_000
    assert 8 <= len(info.endpoints) < len(client.table("sh.sc.wide").scan(maxSplitBytes="1").plan().splits)
    assert sorted(caller.rows(info)["id"].to_pylist()) == [i * 4_999 for i in range(13)]
    first = info.endpoints[0]  # renewed by its place among as many endpoints
    renewed = flight.FlightEndpoint.deserialize(caller.act(RENEW, messages.wrap(first.serialize())))
    assert caller.read(renewed.ticket) == caller.read(first.ticket)


def test_a_message_has_one_row_at_least() -> None:
    values = ["x" * size for size in (1, 5_000_000, 2, 3, 1_500_000, 1_500_000, 1_500_000, 4, 5)]
    batch = pa.record_batch({"s": values, "b": [[True] * 3] * len(values)})
    pieces = list(_messages(batch))
    assert pa.Table.from_batches(pieces).to_pylist() == batch.to_pylist()
    for piece in pieces:
        assert piece.num_rows == 1 or pa.ipc.get_record_batch_size(piece) <= MESSAGE_BYTES
    assert [*_messages(batch.slice(0, 0))] == [batch.slice(0, 0)]
