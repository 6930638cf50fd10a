"""SharingClient's way to Spark, classic and Connect: a path stays a path, a dict becomes inline options."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient, load_as_spark, load_table_changes_as_spark
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

pytestmark = pytest.mark.connect


@pytest.fixture
def table(server: SharingServer, tmp_path: Any) -> str:
    built = DeltaTableBuilder(
        tmp_path / "t", pa.schema([("n", pa.int64())]), (), {"delta.enableChangeDataFeed": "true"}
    )
    built.append([{"n": i} for i in range(10)]).append([{"n": 10}])
    name = "share.client.t"
    server.add_table(name, built.path)
    return name


# Over Connect, inline credentials come with a warning: its event log holds options in clear.
@pytest.mark.filterwarnings("ignore:Spark Connect writes options:UserWarning")
@pytest.mark.parametrize("inline", [False, True])
def test_to_spark(spark: Any, server: SharingServer, profile: str, table: str, inline: bool) -> None:
    client = SharingClient(server.profile() if inline else profile)
    frame = client.table(table).scan(where="n > 6", columns=["n"]).to_spark(spark)
    assert sorted(row.n for row in frame.collect()) == [7, 8, 9, 10]
    assert client.table(table).scan(version=1).to_spark(spark).count() == 10


@pytest.mark.parametrize("engine", ["python", "auto"])
def test_a_load_narrows_what_its_client_asks_of_every_load(
    spark: Any, profile: str, table: str, engine: str, tmp_path: Any
) -> None:
    client = SharingClient(profile, engine, where="n > 6", limit="3")
    scans = (client.table(table).scan(where="n < 9"), client.table(table).where("n < 9").limit(5))
    assert [sorted(row.n for row in scan.to_spark(spark).collect()) for scan in scans] == [[7, 8], [7, 8]]
    assert client.table(table).scan(limit=30).to_spark(spark).count() == 3
    assert client.sql(spark, f"SELECT n FROM {table} WHERE n <> 7").count() == 2


def test_functions(spark: Any, profile: str, table: str) -> None:
    url = f"{profile}#{table}"
    assert load_as_spark(url, where="n < 2", spark=spark).count() == 2
    assert load_as_spark(url).count() == 11
    assert load_table_changes_as_spark(url, starting_version=2).count() == 1
