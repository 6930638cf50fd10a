"""Directory access with the embedded sharing server: real requests for credentials, and what is pickled of them."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.access.directory.access import SharingIssuer, TokenCache
from delta_sharing_spark.access.directory.table import DirectoryTable, open_directory
from delta_sharing_spark.errors import RequestRefusedError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.access.shared_tables import negotiated, rows

SCHEMA = pa.schema([("id", pa.int64())])
TOKEN = "sharing-token-text"
NAME = TableName("s", "d", "t")
BOTH = ("url", "dir")


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    return DeltaTableBuilder(tmp_path / "t", SCHEMA).append(pa.table({"id": range(7)}, SCHEMA))


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with SharingServer(token=TOKEN) as running:
        yield running
        assert not running.failures


def _open(server: SharingServer, **options: str) -> DirectoryTable:
    profile = Profile(f"http://127.0.0.1:{server.port}/delta-sharing", bearer_token=TOKEN)
    transport = NetworkSettings(retry_seconds=1)
    head = SharingRest(profile, transport).metadata(NAME)
    return open_directory(negotiated(head, profile, transport, name=NAME, **options))


def test_local_files(server: SharingServer, table: DeltaTableBuilder) -> None:
    server.add_table(str(NAME), table.path, access_modes=BOTH)
    assert sorted(row["id"] for row in rows(_open(server))) == list(range(7))
    assert sum(request.kind == "credentials" for request in server.requests) == 1


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
