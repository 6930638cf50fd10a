"""Every table that there is, through a gateway: the rows, types and errors of the scan, and the change feeds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.server import SharingServer
from unit.flight.calling import TOKEN

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS.parents[1] / "shared" / "golden"
ROOTS = {"golden": GOLDEN, "ours": TESTS / "data" / "delta_spark"}
TABLES = {
    f"{root}.{log.parent.relative_to(path)}": log.parent
    for root, path in ROOTS.items()
    if path.is_dir()
    for log in sorted(path.rglob("_delta_log"))
}
NAMES = {name: f"sh.sc.t{number}" for number, name in enumerate(TABLES)}


@pytest.fixture(scope="module")
def clients() -> Iterator[dict[str, tuple[SharingClient, SharingClient]]]:
    """By access mode: without the gateway, and through it."""
    with SharingServer() as server, ExitStack() as gateways:
        for name, path in TABLES.items():
            server.add_table(NAMES[name], path, access_modes=("url", "dir"))
        made = {}
        for mode in ("url", "dir"):
            client = SharingClient(server.profile(), accessMode=mode, retryTimeout="1s")
            gateway = gateways.enter_context(FlightGateway(client, GatewaySettings(tokens=(TOKEN,))))
            made[mode] = client, SharingClient.over(gateway.uri, TOKEN, retryTimeout="1s")
        yield made


@pytest.mark.parametrize(("name", "mode"), list(zip(TABLES, itertools.cycle(["url", "dir"]), strict=False)))
def test_rows_types_and_errors(name: str, mode: str, clients: dict[str, tuple[SharingClient, SharingClient]]) -> None:
    """In one mode each: what the gateway sends of a table does not hang on the mode behind it (``test_reading.py``)."""
    ways: list[dict[str, Any]] = [{}]
    expected = TABLES[name] / "expected.json"
    feeds = json.loads(expected.read_text(encoding="utf-8")).get("changes", {}) if expected.is_file() else {}
    for span in list(feeds)[:1]:
        first, last = (int(number) for number in span.split("-"))
        ways.append({"readChangeFeed": True, "startingVersion": first, "endingVersion": last})
    for scan in ways:
        direct, through = (_outcome(client, name, scan) for client in clients[mode])
        assert through == direct


def _outcome(client: SharingClient, name: str, scan: dict[str, Any]) -> Any:
    try:
        table = client.table(NAMES[name]).scan(**scan).to_arrow()
    except DeltaSharingError as error:
        return type(error).__name__
    return table.schema, str(table.to_pylist())  # as text: NaN equals itself
