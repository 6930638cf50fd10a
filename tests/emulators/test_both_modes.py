"""The whole way on each cloud: the embedded sharing server offers both modes, and both give the same rows."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec import get_filesystem_class

from delta_sharing_spark.access.open import resolve
from delta_sharing_spark.access.plan import plan
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import CredentialError, LogError
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.testing.server import SharedTable, SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from emulators.clouds import Cloud, put_table

pytestmark = pytest.mark.emulators

TOKEN = "sharing-token-text"
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("text", pa.string())])


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with SharingServer(token=TOKEN) as running:
        yield running
        assert not running.failures


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    path = tmp_path_factory.mktemp("delta") / "t"
    mapped = {"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"}
    built = DeltaTableBuilder(path, SCHEMA, ["part"], mapped)
    ids = list(range(40))
    built.append(pa.table({"id": ids, "part": [f"p {i % 3}%" for i in ids], "text": [f"t{i}" for i in ids]}, SCHEMA))
    built.delete(lambda t: pa.array([i % 9 == 0 for i in t["id"].to_pylist()]), deletion_vectors=True)
    return built.rename_column("text", "words")


def _vending(cloud: Cloud, listing: bool, lifetime: float = 3600):
    def vend(location: str, table: SharedTable) -> dict[str, Any]:
        body: dict[str, Any] = cloud.vend(location, lifetime=lifetime, listing=listing)["credentials"]
        return body

    return vend


def _share(server: SharingServer, cloud: Cloud, table: DeltaTableBuilder, listing: bool, **fields: Any) -> str:
    location = put_table(cloud, table.path, f"t{uuid.uuid4().hex[:8]}")
    server.vendors[location.partition(":")[0]] = _vending(cloud, listing)
    server.add_table("s.d.t", table.path, access_modes=("url", "dir"), location=location, **fields)
    return location


def _options(server: SharingServer, cloud: Cloud, **options: str) -> dict[str, str]:
    return {
        "path": "s.d.t",
        "endpoint": f"http://127.0.0.1:{server.port}/delta-sharing",
        "bearerToken": TOKEN,
        "shareCredentialsVersion": "1",
        "storageEndpoint": cloud.endpoint,
        **options,
    }


def _rows(server: SharingServer, cloud: Cloud, **options: str) -> list[dict[str, object]]:
    scan_plan = plan(resolve(parse_options(_options(server, cloud, **options))))
    rows = [row for split in scan_plan.splits for batch in read_split(split) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["id"])  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
def test_both_modes_give_the_same_rows(
    server: SharingServer, cloud: Cloud, table: DeltaTableBuilder, listing: bool
) -> None:
    _share(server, cloud, table, listing)
    loads = ({}, {"where": "id > 11 and part = 'p 2%'"}, {"columns": "words, id"}, {"versionAsOf": "1"})
    by_dir, by_url = ([_rows(server, cloud, accessMode=mode, **one) for one in loads] for mode in ("dir", "url"))
    assert by_dir == by_url
    assert all(by_dir)
    assert len(_rows(server, cloud, accessMode="dir")) == 35


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_log_that_can_neither_be_listed_nor_has_a_hint(
    server: SharingServer, cloud: Cloud, tmp_path: Path, checkpointed: bool
) -> None:
    schema = pa.schema([("id", pa.int64())])
    built = DeltaTableBuilder(tmp_path / "t", schema)
    for i in range(20):
        built.append(pa.table({"id": [i]}, schema))
        if i == 11 and checkpointed:
            built.checkpoint()
    for name in ("_last_checkpoint", *(f"{v:020d}.json" for v in range(12 if checkpointed else 0))):
        (built.path / "_delta_log" / name).unlink(missing_ok=True)
    location = put_table(cloud, built.path, f"t{uuid.uuid4().hex[:8]}")
    server.vendors[location.partition(":")[0]] = _vending(cloud, listing=False)
    server.add_table("s.d.t", built.path, access_modes=("dir",), location=location)
    assert [row["id"] for row in _rows(server, cloud)] == list(range(20))


def test_options_for_other_engines_through_the_table(
    server: SharingServer, cloud: Cloud, table: DeltaTableBuilder
) -> None:
    location = _share(server, cloud, table, True)
    profile = {"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": TOKEN}
    shared = SharingClient(profile, storageEndpoint=cloud.endpoint).table("s.d.t")
    scheme = location.partition(":")[0]
    system = shared.storage_options()
    # fsspec's class for gs asks Google by gRPC first.
    kind = pytest.importorskip("gcsfs.core").GCSFileSystem if scheme == "gs" else get_filesystem_class(scheme)
    name = f"{system.location.rstrip('/')}/_delta_log/{0:020d}.json"
    assert b'"protocol"' in kind(skip_instance_cache=True, **system).cat_file(name)
    assert location in repr(system)
    if scheme == "gs":
        with pytest.raises(CredentialError, match="gcs_token_provider"):
            shared.hadoop_conf()
    else:
        conf = shared.hadoop_conf()
        assert all(key.startswith(("fs.s3a.", "fs.azure.")) for key in conf)
        assert conf.expires == pytest.approx(time.time() + 3600, abs=600)


def test_many_files_are_read_by_directory_unless_it_cannot_be(
    server: SharingServer, cloud: Cloud, table: DeltaTableBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    _share(server, cloud, table, True)

    def many(line: dict[str, Any]) -> dict[str, Any]:
        body = line.get("metaData")
        return line if body is None else {"metaData": {**body, "numFiles": 5000}}

    server.settings.rewrite = many
    with caplog.at_level(logging.INFO, logger="delta_sharing_spark"):
        scan_plan = plan(resolve(parse_options(_options(server, cloud))))
        assert scan_plan.report.mode == "dir"
        _share(server, cloud, table, True)  # another location, for which nobody vends
        server.vendors.clear()
        by_url = plan(resolve(parse_options(_options(server, cloud))))
    assert by_url.report.mode == "url"
    assert "falling back from access mode dir to url" in caplog.text


def test_a_wrong_location_is_an_error_in_dir_mode(
    server: SharingServer, cloud: Cloud, table: DeltaTableBuilder, tmp_path: Path
) -> None:
    location = cloud.location(f"nothing{uuid.uuid4().hex[:6]}")
    server.vendors[location.partition(":")[0]] = _vending(cloud, True)
    server.add_table("s.d.t", table.path, access_modes=("dir",), location=location)
    with pytest.raises((LogError, CredentialError), match=r"no Delta log|no object"):
        _rows(server, cloud)
