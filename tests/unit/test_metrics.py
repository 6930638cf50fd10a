"""Hooks are told what the server itself saw, by table; what they raise changes nothing, and no URL or secret reaches them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark import metrics
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.metrics import METRICS, Hook, add_hook, remove_hook
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.access.object_server import ObjectServer, serving
from unit.access.shared_tables import upload

SCHEMA = pa.schema([("id", pa.int64())])
FILES = 4
TABLE = "s.d.t"


class Counters:
    """A hook that adds up."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[str, ...]] = Counter()

    def __call__(self, name: str, value: int, attributes: Mapping[str, str]) -> None:
        metric = next(metric for metric in METRICS if metric.name == name)
        assert tuple(attributes) == metric.attributes
        assert value > 0
        self.totals[(name.removeprefix("deltasharing."), *attributes.values())] += value


@pytest.fixture
def hooked() -> Iterator[Callable[[Hook], None]]:
    added: list[Hook] = []

    def hook(function: Hook) -> None:
        added.append(function)
        add_hook(function)

    yield hook
    for function in added:
        remove_hook(function)


@pytest.fixture
def counters(hooked: Callable[[Hook], None]) -> Counters:
    counters = Counters()
    hooked(counters)
    return counters


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    built = DeltaTableBuilder(tmp_path_factory.mktemp("metrics") / "t", SCHEMA)
    for number in range(FILES):
        built.append(pa.table({"id": [10 * number, 10 * number + 1]}, SCHEMA))
    return built


@pytest.fixture
def server(table: DeltaTableBuilder) -> Iterator[SharingServer]:
    with SharingServer({TABLE: table.path}) as server:
        server.settings.predicate_hints = "ignore"
        yield server


def _rest(server: SharingServer) -> int:
    return server.count() - server.count("data")


def test_a_load_is_counted_as_the_server_saw_it(server: SharingServer, counters: Counters) -> None:
    client = SharingClient(server.profile())
    assert client.table(TABLE).scan(where="id >= 20").to_arrow()["id"].to_pylist() == [20, 21, 30, 31]
    assert counters.totals == {
        ("requests", TABLE, "sharing"): _rest(server),
        ("requests", TABLE, "storage"): server.count("data"),
        ("bytes", TABLE): server.bytes_sent("data"),
        ("files.listed", TABLE): FILES,
        ("files.skipped", TABLE, "statistics"): FILES - 2,
    }


def test_what_is_asked_for_no_table_has_none(server: SharingServer, counters: Counters) -> None:
    client = SharingClient(server.profile())
    assert len(list(client.list_all_tables())) == 1
    assert client.table(TABLE).version() == FILES
    assert counters.totals == {
        ("requests", "", "sharing"): _rest(server) - server.count("version"),
        ("requests", TABLE, "sharing"): server.count("version"),
    }


def test_retries_and_renewals_are_counted(server: SharingServer, counters: Counters) -> None:
    server.faults.add("query", status=503, retry_after="0")
    server.faults.add("data", status=503, retry_after="0", times=2)
    server.faults.add("data", skip=4, call=server.expire_urls)
    assert SharingClient(server.profile()).table(TABLE).to_arrow().num_rows == 2 * FILES
    totals = counters.totals
    assert totals["retries", TABLE, "sharing"] == 1
    assert totals["retries", TABLE, "storage"] == 2
    assert totals["renewals", TABLE, "urls"] >= 1
    assert totals["requests", TABLE, "sharing"] == _rest(server)
    assert totals["requests", TABLE, "storage"] == server.count("data")


def test_tokens_are_counted(server: SharingServer, counters: Counters) -> None:
    server.identity.client_id, server.identity.client_secret = "me", "secret"
    SharingClient(server.profile("oauth_client_credentials")).table(TABLE).to_arrow()
    assert counters.totals["renewals", "", "token"] == server.identity.token_requests == 1
    assert sum(n for name, n in counters.totals.items() if name[0] == "requests") == server.count()


def test_a_directory_is_counted_as_the_storage_saw_it(table: DeltaTableBuilder, counters: Counters) -> None:
    keys = {"accessKeyId": "A", "secretAccessKey": "hidden", "sessionToken": "hidden"}
    with serving(ObjectServer(upload(table.path, "bucket/t"))) as storage, SharingServer() as server:
        server.vendors["s3"] = lambda location, table: {"awsTempCredentials": keys, "expirationTime": 4_000_000_000_000}
        server.add_table(TABLE, table.path, access_modes=("url", "dir"), location="s3://bucket/t")
        client = SharingClient(server.profile(), accessMode="dir", storageEndpoint=storage.url)
        assert client.table(TABLE).to_arrow().num_rows == 2 * FILES
        totals = counters.totals
        assert totals["requests", TABLE, "storage"] == len(storage.seen)
        assert totals["requests", TABLE, "sharing"] == server.count()
        assert totals["renewals", TABLE, "credential"] == 1
        assert totals["files.listed", TABLE] == FILES
        sizes = sum(file.stat().st_size for file in Path(table.path).glob("*.parquet"))
        assert totals["bytes", TABLE] >= sizes


def test_a_hook_that_fails_is_logged_once_and_changes_nothing(
    server: SharingServer,
    hooked: Callable[[Hook], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(name: str, value: int, attributes: Mapping[str, str]) -> None:
        attributes.clear()  # type: ignore[attr-defined]
        raise RuntimeError("the collector is gone, token=abcdefghijklmnop")

    hooked(fails)
    counters = Counters()
    hooked(counters)
    with caplog.at_level(logging.WARNING, "delta_sharing_spark"):
        assert SharingClient(server.profile()).table(TABLE).to_arrow().num_rows == 2 * FILES
    (message,) = [record.getMessage() for record in caplog.records]
    assert "fails" in message
    assert "RuntimeError: the collector is gone" in message
    assert "abcdefghijklmnop" not in message
    assert counters.totals["requests", TABLE, "sharing"] == _rest(server)


def test_nothing_secret_and_no_address_is_handed_over(server: SharingServer, counters: Counters) -> None:
    server.faults.add("data", status=503, retry_after="0")
    SharingClient(server.profile()).table(TABLE).to_arrow()
    texts = [text for key in counters.totals for text in key]
    assert [
        text for text in texts if server.token in text or "/" in text or "?" in text or str(server.port) in text
    ] == []


def test_a_hook_that_is_gone_is_not_called(server: SharingServer) -> None:
    counters = Counters()
    add_hook(counters)
    remove_hook(counters)
    remove_hook(counters)
    SharingClient(server.profile()).table(TABLE).to_arrow()
    assert not counters.totals


_LOAD = """
import sys
from delta_sharing_spark.client import SharingClient
print(SharingClient(sys.argv[1]).table("s.d.t").to_arrow().num_rows)
"""


@pytest.mark.parametrize(
    "named", ["counting:record", "counting:absent", "nowhere:record", "counting", "counting:NUMBER"]
)
def test_the_environment_names_a_hook(named: str, server: SharingServer, tmp_path: Path) -> None:
    """As Spark's workers are told of one. A name that is none is logged, and rows come all the same."""
    (tmp_path / "counting.py").write_text(
        "NUMBER = 1\n"
        "def record(name, value, attributes):\n"
        "    with open('counted', 'a') as file:\n"
        "        file.write(f'{name} {value}\\n')\n"
    )
    environment = {**os.environ, metrics.ENVIRONMENT: named, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", _LOAD, json.dumps(server.profile())],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.split() == [str(2 * FILES)]
    if named == "counting:record":
        lines = (tmp_path / "counted").read_text().splitlines()
        assert sum(line.startswith("deltasharing.requests") for line in lines) == server.count()
    else:
        assert ended.stderr.count(f"{metrics.ENVIRONMENT}={named} names no hook") == 1
        assert not (tmp_path / "counted").exists()


def test_the_page_of_platforms_has_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "platforms.md").read_text(encoding="utf-8")
    attributes = {metric.name: ", ".join(f"`{name}`" for name in metric.attributes) for metric in METRICS}
    lines = [f"| `{m.name}` | `{m.unit}` | {attributes[m.name]} | {m.description} |\n" for m in METRICS]
    assert [line for line in lines if line not in page] == []
