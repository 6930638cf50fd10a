"""Iceberg tables on S3, Azure and GCS, with what a catalog vends in its own words for each, in each of its places."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.testing.server import SharingServer
from emulators.clouds import Cloud
from support.buckets import properties_of
from support.written_iceberg import catalog_at, metadata_file

pytestmark = pytest.mark.emulators

ROWS = pa.table({"id": range(60), "part": [("plain", "with space", "per%cent", "ünï", None)[n % 5] for n in range(60)]})


@dataclass
class Lake:
    """A table on a cloud, and what was vended for it."""

    cloud: Cloud
    location: str
    server: SharingServer
    lifetime: float = 3600.0
    vended: list[dict[str, str]] = field(default_factory=list)

    def properties(self) -> dict[str, str]:
        credentials = self.cloud.vend(self.location, lifetime=self.lifetime, listing=False)["credentials"]
        self.vended.append(properties_of(credentials))
        return self.vended[-1]

    @property
    def client(self) -> SharingClient:
        return SharingClient(self.server.profile(), storageEndpoint=self.cloud.endpoint, retryTimeout="5s")


@pytest.fixture(params=["config", "prefixes"])
def lake(cloud: Cloud, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    name = f"lake{uuid.uuid4().hex[:8]}"
    catalog = catalog_at(cloud.location(name), tmp_path / name)
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "part"), PartitionField(1, 1001, BucketTransform(2), "bucket")
    )
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    table.append(ROWS.slice(0, 30))
    table.append(ROWS.slice(30))
    for path in sorted((tmp_path / name).rglob("*")):
        if path.is_file():
            cloud.put(f"{name}/{path.relative_to(tmp_path / name).as_posix()}", path.read_bytes())
    with SharingServer() as server:
        made = Lake(cloud, table.location(), server)
        shared = server.iceberg.add("s.db.t", metadata_file(table, catalog), table.metadata_location)
        if request.param == "config":
            shared.config = made.properties
        else:  # the longest prefix that covers a file is its own
            nowhere = {
                "prefix": f"{made.location}/elsewhere",
                "config": dict.fromkeys(made.properties(), "sv=1&sig=wrong"),
            }
            shared.storage_credentials = [{"prefix": made.location, "config": made.properties}, nowhere]
        server.add_table("s.db.t", tmp_path, format="iceberg")
        yield made
        assert not server.failures


def test_the_same_rows(lake: Lake) -> None:
    table = lake.client.table("s.db.t")
    assert table.to_arrow().sort_by("id").equals(ROWS)
    found = table.scan(where="part = 'per%cent' AND id IN (2, 7, 8)").to_arrow()
    assert sorted(found["id"].to_pylist()) == [2, 7]
    assert table.scan().count() == 60


def test_credentials_that_end_after_the_plan_are_asked_for_again(lake: Lake) -> None:
    plan = lake.client.table("s.db.t").scan().plan()
    before = len(lake.vended)
    lake.cloud.expire_all()
    rows = pa.Table.from_batches([batch for split in plan.splits for batch in read_split(split)])
    assert rows.sort_by("id").equals(ROWS)
    assert len(lake.vended) > before


def test_what_a_refusal_says(lake: Lake) -> None:
    """Credentials that never work are told as such, and shown nowhere."""
    lake.lifetime = -60.0
    with pytest.raises(CredentialError) as refused:
        lake.client.table("s.db.t").to_arrow()
    text = str(refused.value)
    assert "\n" not in text
    for vended in lake.vended:
        assert not any(secret in text for name, secret in vended.items() if "expires" not in name)
