"""Tables of servers of OpenSharing: formats, features, credentials in every wrapping, Cloudflare R2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.directory.access import StorageToken, issue
from delta_sharing_spark.errors import (
    CredentialError,
    DeltaSharingError,
    NotFoundError,
    RequestRefusedError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.interop import hadoop_conf, storage_options
from delta_sharing_spark.sharing.wire_records import TemporaryCredentials
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer
from support.cloud_secrets import aws_session
from support.refusals import not_refused

SCHEMA = pa.schema([("id", pa.int64())])
CATALOG = "https://catalog.example/iceberg/"
R2_ROOT = "r2://lake@0123abc.r2.cloudflarestorage.com/t"
R2_KEYS = aws_session("AKIDVALUE", "SECRETVALUE", "SESSIONVALUE", "r2")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    builder = DeltaTableBuilder(tmp_path_factory.mktemp("t") / "t", SCHEMA)
    return str(builder.append(pa.table({"id": range(7)}, SCHEMA)).path)


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running
        assert not running.failures


def _client(server: SharingServer, **options: Any) -> SharingClient:
    catalog = {"icebergEndpoint": options.pop("catalog")} if "catalog" in options else {}
    return SharingClient({**server.profile(), **catalog}, retryTimeout="1", **options)


def _ids(client: SharingClient, name: str) -> list[int]:
    return sorted(client.table(name).to_arrow()["id"].to_pylist())


# Formats


@pytest.mark.parametrize("get_table", [True, False])
@pytest.mark.parametrize("modes", [None, ("dir",), ("url", "dir")])
@pytest.mark.parametrize("catalog", [None, CATALOG])
def test_an_iceberg_table_is_refused_by_name(
    server: SharingServer, tmp_path: Path, get_table: bool, modes: tuple[str, ...] | None, catalog: str | None
) -> None:
    server.settings.get_table = get_table
    server.add_table("s.d.berg", tmp_path, access_modes=modes, format="ICEBERG")
    client = _client(server, **({} if catalog is None else {"catalog": catalog, "accessMode": "url"}))
    where = r"https://catalog\.example/iceberg: set accessMode to auto or iceberg" if catalog else "does not have"
    for _ in range(2):
        with pytest.raises(UnsupportedFeatureError, match=f"s.d.berg.*Iceberg.*{where}"):
            client.table("s.d.berg").to_arrow()
    asked = [r for r in server.requests if r.kind == "table"]
    assert len(asked) == (2 if get_table else 1), "that a server lacks the call is remembered"
    assert not server.count("credentials"), "nothing is tried in the directory"


def test_a_directory_without_a_log_may_be_iceberg(server: SharingServer, tmp_path: Path) -> None:
    """A server that refuses the metadata in other words, and tells no format."""
    server.settings.get_table = False
    server.add_table("s.d.berg", tmp_path, access_modes=("dir",), format="iceberg")
    server.faults.add("metadata", status=501, body="not supported", times=None)
    with pytest.raises(UnsupportedFeatureError, match=r"no Delta log.*may be an Iceberg table.*https://catalog"):
        _client(server, catalog=CATALOG).table("s.d.berg").to_arrow()


@pytest.mark.parametrize(
    ("told", "says"), [("hudi", "'hudi'"), ("Iceberg, Hudi", "Iceberg and 'hudi'"), ("lance\n", "'lance'")]
)
def test_formats_that_nobody_here_reads(server: SharingServer, tmp_path: Path, told: str, says: str) -> None:
    server.add_table("s.d.t", tmp_path, format=told)
    with pytest.raises(UnsupportedFeatureError, match=f"s.d.t is shared in the format {says}"):
        _client(server).table("s.d.t").to_arrow()


@pytest.mark.parametrize("told", ["delta", "ICEBERG, Delta", "iceberg,delta,hudi"])
def test_a_table_that_is_also_delta_is_read(server: SharingServer, table: str, told: str) -> None:
    server.add_table("s.d.t", table, access_modes=("url", "dir"), format=told)
    client = _client(server)
    assert _ids(client, "s.d.t") == list(range(7))
    assert not server.count("table"), "nothing is asked of a table that the server describes"
    server.faults.add("metadata", status=400, body="too many features", times=None)
    assert _ids(client, "s.d.t") == list(range(7)), "by directory"


def test_a_missing_table_stays_missing(server: SharingServer, table: str) -> None:
    server.add_table("s.d.t", table)
    with pytest.raises(NotFoundError, match=r"did you mean 't'|it has 't'"):
        _client(server).table("s.d.tt").to_arrow()


# Reader features


def test_features_that_a_server_does_not_know_are_left_out(server: SharingServer, table: str) -> None:
    server.add_table("s.d.t", table)
    server.settings.known_features = ("deletionVectors", "columnMapping", "timestampNtz")
    client = _client(server)
    assert _ids(client, "s.d.t") == list(range(7))
    refused = sum(1 for request in server.requests if request.status == 400)
    server.reset_metrics()
    assert _ids(client, "s.d.t") == list(range(7))
    assert refused > 0
    assert [request.status for request in server.requests if request.status == 400] == [], "asked once of an endpoint"


def test_a_table_that_needs_a_feature_its_server_does_not_know(server: SharingServer, tmp_path: Path) -> None:
    builder = DeltaTableBuilder(tmp_path / "v", SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    builder.append([{"id": i} for i in range(5)])
    server.add_table("s.d.v", builder.path)
    server.settings.known_features = ("columnMapping",)
    with pytest.raises(DeltaSharingError, match=r"(?i)deletionVectors"):
        _client(server).table("s.d.v").to_arrow()


def test_other_refusals_are_not_asked_again_with_less(server: SharingServer, table: str) -> None:
    server.add_table("s.d.t", table)
    server.faults.add("metadata", status=400, body="the share is being moved", times=None)
    with pytest.raises(RequestRefusedError, match="being moved"):
        _client(server).table("s.d.t").to_arrow()
    assert server.count("metadata") == 1


# Credentials


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("located", [True, False])
@pytest.mark.parametrize("kind", ["file", "s3", "r2"])
def test_credentials_in_every_wrapping(table: str, wrapped: bool, located: bool, kind: str) -> None:
    with BucketServer() as server:
        server.settings.wrapped_credentials, server.settings.credential_location = wrapped, located
        server.vends_r2 = kind == "r2"
        if kind == "file":
            server.add_table("s.d.t", table, access_modes=("dir",))
        else:
            server.add_bucket_table("s.d.t", table)
        assert _ids(_client(server, storageEndpoint=server.storage_endpoint), "s.d.t") == list(range(7))
        assert not server.failures


def test_a_server_that_tells_no_end_is_asked_again_in_a_quarter_of_an_hour() -> None:
    keys = {"accessKeyId": "A", "secretAccessKey": "S", "sessionToken": "T"}
    token = issue(
        TemporaryCredentials(None, None, {"awsTempCredentials": keys}),
        parse_location("s3://b/t"),
        origin="",
        now=1000.0,
    )
    assert (token.expires, token.location) == (1900.0, parse_location("s3://b/t"))


def test_keys_without_a_session_token() -> None:
    keys = {"accessKeyId": "A", "secretAccessKey": "S"}
    token = issue(
        TemporaryCredentials(None, None, {"awsTempCredentials": keys}),
        parse_location("s3://b/t"),
        origin="",
        now=time.time(),
    )
    settings = StorageSettings(region="eu-west-1")
    sent = Storage(token.location, token.secret, settings)._cloud.headers("GET", "https://b.s3.amazonaws.com/t")  # type: ignore[union-attr]
    assert "x-amz-security-token" not in sent
    assert "x-amz-security-token" not in sent["Authorization"]
    assert storage_options(token, settings)["token"] is None
    uses = [partial(storage_options, token, settings, engine=engine) for engine in ("deltalake", "polars", "duckdb")]
    assert not_refused(CredentialError, "no session token", *uses, lambda: hadoop_conf([token], settings)) == []


# Cloudflare R2


def _r2_token(location: str) -> StorageToken:
    return StorageToken(parse_location(location), R2_KEYS, 0.0, 4e9, "")


@pytest.mark.parametrize(
    ("location", "option", "url"),
    [
        (R2_ROOT, None, "https://0123abc.r2.cloudflarestorage.com/lake/t/x"),
        (
            "r2://lake@0123ABC.eu.r2.cloudflarestorage.com/t",
            None,
            "https://0123abc.eu.r2.cloudflarestorage.com/lake/t/x",
        ),
        (R2_ROOT, "http://127.0.0.1:9000", "http://127.0.0.1:9000/lake/t/x"),
        (R2_ROOT, "https://s3.eu-west-1.amazonaws.com", "https://0123abc.r2.cloudflarestorage.com/lake/t/x"),
        ("s3://lake/t", "https://a.r2.cloudflarestorage.com", "https://a.r2.cloudflarestorage.com/lake/t/x"),
    ],
)
def test_where_r2s_keys_go(location: str, option: str | None, url: str) -> None:
    token, settings = _r2_token(location), StorageSettings(endpoint=option, region=None)
    cloud = Storage(token.location, token.secret, settings)._cloud
    assert cloud is not None
    asked = cloud.object_url(parse_location(location + "/x"))
    assert asked == url
    assert "/auto/s3/aws4_request" in cloud.headers("GET", asked)["Authorization"]
    endpoint = url.removesuffix("/lake/t/x")
    assert storage_options(token, settings)["endpoint_url"] == endpoint
    assert storage_options(token, settings, engine="deltalake")["aws_endpoint_url"] == endpoint
    conf = hadoop_conf([token], settings)
    assert (conf["fs.s3a.endpoint"], conf.location) == (endpoint, "s3a://lake/t")


@pytest.mark.parametrize(
    "option", [None, "https://s3.amazonaws.com", "https://bucket.vpce-1.s3.eu-west-1.vpce.amazonaws.com"]
)
@pytest.mark.parametrize(
    "use",
    [
        lambda token, settings: Storage(token.location, token.secret, settings),
        storage_options,
        lambda token, settings: hadoop_conf([token], settings),
    ],
    ids=["Storage", "storage_options", "hadoop_conf"],
)
@pytest.mark.parametrize("location", ["s3://lake/t", "s3a://lake/t", "r2://lake/t"])
def test_r2s_keys_never_go_to_amazon(location: str, use: Callable[..., object], option: str | None) -> None:
    with pytest.raises(CredentialError, match="storageEndpoint to https://<account>") as refusal:
        use(_r2_token(location), StorageSettings(endpoint=option))
    assert "VALUE" not in str(refusal.value)


@pytest.mark.parametrize(
    "location",
    [
        "r2://lake@evil.example/t",
        "r2://lake@r2.cloudflarestorage.com/t",
        "r2://lake@a.r2.cloudflarestorage.com.evil.example/t",
        "r2://lake@user:x@a.r2.cloudflarestorage.com/t",
        "r2://lake@a.r2.cloudflarestorage.com:8443/t",
        "r2://lake@evil.example#.r2.cloudflarestorage.com/t",
    ],
)
def test_hosts_that_are_not_r2s(location: str) -> None:
    with pytest.raises(CredentialError, match="cannot be used"):
        parse_location(location)


def test_keys_of_one_cloud_do_not_fit_the_other() -> None:
    with pytest.raises(CredentialError, match="takes r2"):
        StorageToken(parse_location(R2_ROOT), aws_session("A", "S", "T"), 0.0, 4e9, "")
    with pytest.raises(CredentialError, match="of kind r2"):
        StorageToken(parse_location("gs://b/t"), R2_KEYS, 0.0, 4e9, "")
