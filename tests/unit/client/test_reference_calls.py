"""Code of the reference Python client goes on: what it writes, against the embedded server."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import delta_sharing_spark
from delta_sharing_spark import Profile, Schema, Share, SharingClient, Table, functions
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.schema.table_records import Protocol
from delta_sharing_spark.sharing.wire_records import parse_metadata, parse_protocol
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

HINTS = json.dumps(
    {
        "op": "equal",
        "children": [
            {"op": "column", "name": "n", "valueType": "long"},
            {"op": "literal", "value": "1", "valueType": "long"},
        ],
    }
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    table = DeltaTableBuilder(
        tmp_path_factory.mktemp("tables") / "t",
        pa.schema([("n", pa.int64())]),
        (),
        {"delta.enableChangeDataFeed": "true"},
    )
    table.append([{"n": 1}, {"n": 2}]).append([{"n": 3}])
    with SharingServer() as running:
        running.add_table("s.d.t", table.path)
        yield running


@pytest.fixture(scope="module")
def profile(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.write_profile(tmp_path_factory.mktemp("profile") / "p.share")


@pytest.mark.parametrize(
    "source",
    [
        Path,
        lambda path: Path(path).open(encoding="utf-8"),  # noqa: SIM115 - as people write it
        lambda path: Path(path).open("rb"),  # noqa: SIM115 - as people write it
        lambda path: io.StringIO(Path(path).read_text(encoding="utf-8")),
        lambda path: io.BytesIO(Path(path).read_bytes()),
        Profile.read_from_file,
        lambda path: Profile.from_json(Path(path).read_text(encoding="utf-8")),
        lambda path: Profile.from_json(json.loads(Path(path).read_bytes())),
    ],
)
def test_a_client_of_any_profile(source: Callable[[str], Any], profile: str) -> None:
    given = source(profile)
    client = SharingClient(given)
    assert [table.name for table in client.list_all_tables()] == ["t"]
    assert client.list_tables(client.list_schemas(Share("s"))[0]) == client.list_tables(Schema("d", "s"))
    if hasattr(given, "close"):
        given.close()
    assert client.table(Table("t", "s", "d")).count() == 3


def test_an_open_file_is_its_path_to_spark(profile: str) -> None:
    with open(profile, encoding="utf-8") as file:
        client = SharingClient(file)
    assert client.options_for(client.table("s.d.t").name) == {"path": f"{profile}#s.d.t"}, "no secret in Spark's plan"


def test_a_table_as_the_reference_client_has_it(profile: str) -> None:
    table = SharingClient(profile).table("s.d.t")
    assert (table.table.name, table.table.share, table.table.schema) == ("t", "s", "d")
    assert table.metadata() == table.metadata == functions.get_table_metadata(f"{profile}#s.d.t")
    assert (table.metadata().format.provider, table.metadata().format.options) == ("parquet", {})
    assert table.protocol(use_delta_format=False) == table.protocol
    assert table.snapshot(use_delta_format=True).count() == 3
    assert len(table.snapshot(version=1, limit=1).to_pandas(convert_in_batches=True)) == 1
    assert len(table.to_pandas(True)) == 3
    assert sum(batch.num_rows for batch in table.snapshot().to_record_batches()) == 3
    assert len(table.changes(starting_version=2, use_delta_format=True).to_pandas(convert_in_batches=True)) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda profile: delta_sharing_spark.load_as_arrow(f"{profile}#s.d.t", None, None, None, HINTS, None),
        lambda profile: SharingClient(profile).table("s.d.t").snapshot(jsonPredicateHints=HINTS).to_arrow(),
    ],
    ids=["function", "snapshot"],
)
def test_hints_are_sent_and_filter_no_row(server: SharingServer, profile: str, call: Callable[[str], pa.Table]) -> None:
    server.reset_metrics()
    assert sorted(call(profile)["n"].to_pylist()) == [1, 2], "the file of 1 holds 2 as well"
    (asked,) = [request for request in server.requests if request.kind == "query"]
    assert json.loads(json.loads(asked.body)["jsonPredicateHints"]) == json.loads(HINTS)


def test_a_profile_beside_a_url(server: SharingServer, profile: str) -> None:
    theirs = SimpleNamespace(
        share_credentials_version=1,
        endpoint=server.endpoint,
        bearer_token=server.token,
        type=None,
        scope=None,
        token_endpoint=None,
    )
    profiles = (Profile.read_from_file(profile), theirs)
    assert [functions._table("s.d.t", None, either).count() for either in profiles] == [3, 3]
    with pytest.raises(ConfigError, match=r"a profile is given twice.*write 's.d.t' beside the latter"):
        delta_sharing_spark.load_as_spark(f"{profile}#s.d.t", delta_sharing_profile=theirs)  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "known"), [(5, 5), ("soon", None), (None, None)])
def test_what_reading_needs_not_refuses_nothing(told: object, known: int | None) -> None:
    metadata = parse_metadata({"id": "i", "schemaString": "{}", "createdTime": told}, "s.d.t")
    assert metadata.created_time == known
    line = {"minReaderVersion": 1, "minWriterVersion": told, "writerFeatures": told}
    protocol, _, _ = parse_protocol({"deltaProtocol": line}, "s.d.t")
    assert (protocol.min_writer_version, protocol.writer_features) == (known, ())
    assert protocol == Protocol(1), "rows do not depend on it"
