"""Directory access with the embedded sharing server: real requests for credentials, and what is pickled of them."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.access.directory.access import SharingIssuer, TokenCache
from delta_sharing_spark.access.directory.table import DirectoryTable, open_directory
from delta_sharing_spark.errors import CredentialError, RequestRefusedError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.server import SharedTable, SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.access.object_server import ObjectServer, serving
from unit.access.shared_tables import negotiated, split_of, upload

SCHEMA = pa.schema([("id", pa.int64())])
TOKEN = "sharing-token-text"
NAME = TableName("s", "d", "t")
BOTH = ("url", "dir")


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    return DeltaTableBuilder(tmp_path / "t", SCHEMA).append(pa.table({"id": range(7)}, SCHEMA))


@pytest.fixture
def objects(table: DeltaTableBuilder) -> Iterator[ObjectServer]:
    with serving(ObjectServer(upload(table.path, "bucket/t"), accepted=set())) as running:
        yield running


class Vendor:
    """Vends session credentials that the object server accepts."""

    def __init__(self, objects: ObjectServer) -> None:
        self.objects, self.asked = objects, []
        self.change: dict[str, Any] = {}

    def __call__(self, location: str, table: SharedTable) -> dict[str, Any]:
        self.asked.append(location)
        key = f"AKIDVENDED{len(self.asked)}"
        assert self.objects.accepted is not None
        self.objects.accepted.add(key)
        aws = {"accessKeyId": key, "secretAccessKey": "vended-secret-key", "sessionToken": "vended-session"}
        return {"awsTempCredentials": aws, "expirationTime": 4_000_000_000_000, **self.change}


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with SharingServer(token=TOKEN) as running:
        yield running
        assert not running.failures


def _open(server: SharingServer, settings: StorageSettings | None = None, **options: str) -> DirectoryTable:
    profile = Profile(f"http://127.0.0.1:{server.port}/delta-sharing", bearer_token=TOKEN)
    transport = NetworkSettings(retry_seconds=1)
    head = SharingRest(profile, transport).metadata(NAME)
    return open_directory(negotiated(head, profile, transport, name=NAME, **options), settings=settings)


def _read(directory: DirectoryTable) -> list[int]:
    snapshot = directory.read_snapshot(lambda snapshot: snapshot)
    split = split_of(directory, snapshot, list(directory.checked(snapshot.tasks())))
    return sorted(row["id"] for batch in read_split(split) for row in batch.to_pylist())


def test_local_files(server: SharingServer, table: DeltaTableBuilder) -> None:
    server.add_table(str(NAME), table.path, access_modes=BOTH)
    assert _read(_open(server)) == list(range(7))
    assert sum(request.kind == "credentials" for request in server.requests) == 1


def test_s3_and_its_renewal_by_the_sharing_server(
    server: SharingServer, table: DeltaTableBuilder, objects: ObjectServer, caplog: pytest.LogCaptureFixture
) -> None:
    vendor = Vendor(objects)
    server.vendors["s3"] = vendor
    server.add_table(str(NAME), table.path, access_modes=BOTH, location="s3://bucket/t/")
    with caplog.at_level(logging.DEBUG, logger="delta_sharing_spark"):
        directory = _open(server, settings=StorageSettings(endpoint=objects.url, retry_seconds=1))
        snapshot = directory.read_snapshot(lambda snapshot: snapshot)
        split = pickle.loads(pickle.dumps(split_of(directory, snapshot, list(directory.checked(snapshot.tasks())))))
        assert objects.accepted is not None
        objects.accepted.clear()
        rows = [row["id"] for batch in read_split(split) for row in batch.to_pylist()]
    assert sorted(rows) == list(range(7))
    assert len(vendor.asked) == 2, "once to open, once for the refusal"
    for secret in (TOKEN, "vended-secret-key", "vended-session", "AKIDVENDED"):
        assert secret not in caplog.text
        assert secret not in repr(split)


def test_what_the_server_must_not_say(server: SharingServer, table: DeltaTableBuilder, objects: ObjectServer) -> None:
    vendor = Vendor(objects)
    server.vendors["s3"] = vendor
    server.add_table(str(NAME), table.path, access_modes=BOTH, location="s3://bucket/t")
    vendor.change = {"gcpOauthToken": {"oauthToken": "ya29.x"}}
    with pytest.raises(CredentialError, match="exactly one kind"):
        _open(server)
    vendor.change = {"location": "s3://bucket/elsewhere"}
    with pytest.raises(CredentialError, match="does not cover"):
        _open(server)


def test_a_server_that_issues_none(server: SharingServer, table: DeltaTableBuilder) -> None:
    server.add_table(str(NAME), table.path, access_modes=BOTH, location="gs://bucket/t")
    with pytest.raises(RequestRefusedError, match="not supported"):
        _open(server)


def test_the_profile_stays_on_the_driver_if_asked(server: SharingServer, table: DeltaTableBuilder) -> None:
    server.add_table(str(NAME), table.path, access_modes=BOTH)
    carried, kept = (_open(server, carryProfile=carry).renewed_access() for carry in ("true", "false"))
    assert TOKEN.encode() in pickle.dumps(carried)
    assert TOKEN.encode() not in pickle.dumps(kept)
    assert TOKEN not in repr(carried)


def test_two_recipients_in_one_process_share_no_token(table: DeltaTableBuilder, server: SharingServer) -> None:
    server.add_table(str(NAME), table.path, access_modes=BOTH)
    url, transport = f"http://127.0.0.1:{server.port}/delta-sharing", NetworkSettings(retry_seconds=0)
    root = parse_location(table.path.as_uri())
    one = SharingIssuer(Profile(url, bearer_token=TOKEN), transport, NAME, root)
    same = SharingIssuer(Profile(url, bearer_token=TOKEN), NetworkSettings(retry_seconds=9), NAME, root)
    other = SharingIssuer(Profile(url, bearer_token="wrong"), transport, NAME, root)
    cache = TokenCache()
    assert cache.get(one, root) == cache.get(same, root)
    with pytest.raises(Exception, match=r"token|401|Unauth"):
        cache.get(other, root)


def test_many_threads_ask_the_server_once(server: SharingServer, table: DeltaTableBuilder) -> None:
    server.add_table(str(NAME), table.path, access_modes=BOTH)
    profile = Profile(f"http://127.0.0.1:{server.port}/delta-sharing", bearer_token=TOKEN)
    root = parse_location(table.path.as_uri())
    issuer, cache = SharingIssuer(profile, NetworkSettings(), NAME, root), TokenCache()
    threads = [threading.Thread(target=cache.get, args=(issuer, root)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(request.kind == "credentials" for request in server.requests) == 1


_PLAN = """
import json, sys
from delta_sharing_spark.access.open import resolve
from delta_sharing_spark.access.plan import plan
from delta_sharing_spark.options.declared import parse_options
found = plan(resolve(parse_options(json.loads(sys.argv[1]))))
print(found.report.mode, sum(len(split.slices) for split in found.splits), *{"pandas"} & set(sys.modules))
"""


@pytest.mark.parametrize("where", [None, "id > 3"])
def test_planning_by_directory_imports_no_pandas(tmp_path: Path, server: SharingServer, where: str | None) -> None:
    built = DeltaTableBuilder(tmp_path / "v", SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    built.append(pa.table({"id": range(7)}, SCHEMA)).append(pa.table({"id": range(7)}, SCHEMA))
    built.delete(lambda t: pa.array([i == 5 for i in t["id"].to_pylist()]), deletion_vectors=True)
    server.add_table("s.d.v", built.path, access_modes=BOTH)
    options = {"path": "s.d.v", "endpoint": server.endpoint, "bearerToken": TOKEN, "shareCredentialsVersion": "1"}
    options |= {"accessMode": "dir"} | ({"where": where} if where else {})
    done = subprocess.run(
        [sys.executable, "-c", _PLAN, json.dumps(options)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["dir", "2"]
