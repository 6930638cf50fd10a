"""A cloud is one file and one line of the registry: a fourth one is read, listed and renewed as the others are."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.storage.clouds import registry
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from support.toy_cloud import ToyServer

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SharingServer, ToyServer]]:
    """A sharing server with a table in the toy cloud, which is registered for the test alone."""
    monkeypatch.setitem(registry.CLOUDS, "toy", registry.Entry("support.toy_cloud:Toy", ("toy",), "toyWord"))
    table = DeltaTableBuilder(tmp_path / "t", SCHEMA)
    for start in range(0, 50, 10):
        table.append(pa.table({"id": range(start, start + 10)}, SCHEMA))
    numbers = itertools.count()

    def vend(location: str, _: Any) -> dict[str, Any]:
        word = f"WORD{next(numbers)}"
        cloud.words.add(word)
        return {"toyWord": {"word": word}, "expirationTime": 4_000_000_000_000}

    with SharingServer() as server, ToyServer(tmp_path) as cloud:
        server.vendors["toy"] = vend
        server.add_table("s.d.t", table.path, access_modes=("dir",), location="toy://box/t")
        yield server, cloud


def read(server: SharingServer, cloud: ToyServer) -> list[int]:
    client = SharingClient(server.profile(), storageEndpoint=cloud.url)
    return sorted(client.table("s.d.t").scan().to_arrow()["id"].to_pylist())


def test_a_table_of_a_fourth_cloud(toys: tuple[SharingServer, ToyServer]) -> None:
    server, cloud = toys
    assert read(server, cloud) == list(range(50))
    paths = [path for _, path, _ in cloud.asked]
    assert sum("after=t%2F" in path for path in paths) >= 1, "its pages are followed"
    assert {status for *_, status in cloud.asked} <= {200, 206, 404}
    assert server.count("credentials") == 1


def test_its_credential_is_renewed_and_shown_nowhere(toys: tuple[SharingServer, ToyServer]) -> None:
    """By what its file says of its answers: the code is no other cloud's."""
    server, cloud = toys
    loaded = SharingClient(server.profile(), storageEndpoint=cloud.url).table("s.d.t")
    split = loaded.scan().plan().splits[0]
    cloud.words.clear()
    from delta_sharing_spark.scan.split_reader import read_split

    arrived = pickle.loads(pickle.dumps(split))
    assert sum(batch.num_rows for batch in read_split(arrived)) > 0
    assert server.count("credentials") == 2
    assert "WORD" not in repr(arrived)


@pytest.mark.parametrize("engine", ["fsspec", "deltalake", "polars", "duckdb"])
def test_engines_cannot_take_its_credential(toys: tuple[SharingServer, ToyServer], engine: Any) -> None:
    server, cloud = toys
    table = SharingClient(server.profile(), storageEndpoint=cloud.url).table("s.d.t")
    with pytest.raises(CredentialError, match=rf"{engine} cannot take the credential for toy://box/t"):
        table.storage_options(engine=engine)


def test_its_locations_and_its_secret_are_checked(toys: tuple[SharingServer, ToyServer]) -> None:
    server, cloud = toys
    server.vendors["toy"] = lambda *_: {"toyWord": {"word": "two words"}}
    with pytest.raises(CredentialError, match=r"toyWord\.word has characters that cannot stand there"):
        read(server, cloud)
    with pytest.raises(CredentialError, match=r"expected toy://<bucket>/<path>"):
        registry.parse_location("toy://a b/t")


@pytest.mark.parametrize("location", ["s3://b/t", "gs://b/t", "abfss://c@a.dfs.core.windows.net/t", "file:///t"])
def test_one_cloud_loads_no_other(location: str) -> None:
    code = (
        "import sys\nfrom delta_sharing_spark.access.directory import table\n"
        f"from delta_sharing_spark.storage.clouds.registry import parse_location\nparse_location({location!r})\n"
        "print(*sorted(m.rpartition('.')[2] for m in sys.modules if m.startswith('delta_sharing_spark.storage.clouds.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS, check=True)
    own = {"s3": ["s3"], "gs": ["gcs"], "abfss": ["azure"], "file": []}[location.partition(":")[0]]
    assert done.stdout.split() == sorted(["contract", "registry", *own])
