"""Tokens in other engines' words: exact keys, engines that take them, and engines that cannot."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.access.directory.access import StorageToken
from delta_sharing_spark.errors import CredentialError, OptionError
from delta_sharing_spark.interop import create_secret, hadoop_conf, storage_options
from delta_sharing_spark.storage.clouds.contract import Secret
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.cloud_secrets import aws_session, azure_sas, gcp_bearer, no_secret
from unit.access.loopback import Answer, Request, answering
from unit.access.object_server import ObjectServer, serving
from unit.access.shared_tables import upload

AWS, SAS, BEARER = aws_session("AKID", "SECRETKEY", "SESSION"), azure_sas("sv=1&sig=SIG%3D"), gcp_bearer("ya29.TOKEN")
S3A = "s3a://bucket/t"
ABFSS, WASBS = "abfss://cont@acct.dfs.core.windows.net/t", "wasbs://cont@acct.blob.core.windows.net/t"
REGION = StorageSettings(region="eu-west-1")
LOCAL = StorageSettings(region="eu-west-1", endpoint="http://127.0.0.1:9000")
EXPIRES = 1_800_000_000.0


def _token(location: str, secret: Secret) -> StorageToken:
    return StorageToken(parse_location(location), secret, 1_700_000_000.0, EXPIRES, "test", uuid="u")


DELTALAKE = {
    "aws_access_key_id": "AKID",
    "aws_secret_access_key": "SECRETKEY",
    "aws_session_token": "SESSION",
    "aws_region": "eu-west-1",
}
CONNECTION = "BlobEndpoint=https://acct.blob.core.windows.net;SharedAccessSignature=sv=1&sig=SIG%3D"


@pytest.mark.parametrize(
    ("location", "secret", "settings", "engine", "expected"),
    [
        (S3A, AWS, REGION, "deltalake", DELTALAKE),
        (S3A, AWS, REGION, "polars", DELTALAKE),
        (
            S3A,
            AWS,
            LOCAL,
            "deltalake",
            {**DELTALAKE, "aws_endpoint_url": "http://127.0.0.1:9000", "aws_allow_http": "true"},
        ),
        (
            S3A,
            AWS,
            REGION,
            "fsspec",
            {"key": "AKID", "secret": "SECRETKEY", "token": "SESSION", "client_kwargs": {"region_name": "eu-west-1"}},
        ),
        (
            S3A,
            AWS,
            LOCAL,
            "duckdb",
            {
                "TYPE": "s3",
                "KEY_ID": "AKID",
                "SECRET": "SECRETKEY",
                "SESSION_TOKEN": "SESSION",
                "REGION": "eu-west-1",
                "SCOPE": "s3://bucket/t",
                "ENDPOINT": "127.0.0.1:9000",
                "URL_STYLE": "path",
                "USE_SSL": "false",
            },
        ),
        *[
            (
                address,
                SAS,
                REGION,
                engine,
                {"azure_storage_account_name": "acct", "azure_storage_sas_token": "sv=1&sig=SIG%3D"},
            )
            for address in (ABFSS, WASBS)
            for engine in ("deltalake", "polars")
        ],
        (WASBS, SAS, REGION, "fsspec", {"account_name": "acct", "connection_string": CONNECTION}),
        *[
            (
                address,
                SAS,
                REGION,
                "duckdb",
                {
                    "TYPE": "azure",
                    "CONNECTION_STRING": f"AccountName=acct;DfsEndpoint=https://acct.dfs.core.windows.net;{CONNECTION}",
                    "SCOPE": ABFSS,
                },
            )
            for address in (ABFSS, WASBS)
        ],
        ("file:///tmp/t", no_secret(), REGION, "deltalake", {}),
    ],
)
def test_the_exact_keys(
    location: str, secret: Secret, settings: StorageSettings, engine: str, expected: dict[str, object]
) -> None:
    options = storage_options(_token(location, secret), settings, engine=engine)  # type: ignore[arg-type]
    assert dict(options) == expected
    assert options.expires == EXPIRES
    assert options.location in ("s3://bucket/t", ABFSS, "file:///tmp/t")


@pytest.mark.parametrize("engine", ["deltalake", "polars", "duckdb"])
def test_engines_that_would_pass_over_a_gcs_token_are_refused(engine: str) -> None:
    with pytest.raises(CredentialError, match=rf"{engine} cannot take a GCS OAuth token") as caught:
        storage_options(_token("gs://bucket/t", BEARER), engine=engine)  # type: ignore[arg-type]
    assert "TOKEN" not in str(caught.value)


@pytest.mark.parametrize("secret", [AWS, SAS, BEARER])
def test_an_engine_that_is_not_known_is_refused(secret: Secret) -> None:
    """It was given the keys in another engine's words."""
    location = {"aws": "s3://bucket/t", "azure": ABFSS, "gcp": "gs://bucket/t"}[secret.kind]
    with pytest.raises(OptionError, match="engine='spark' is not known; use one of fsspec, deltalake, polars, duckdb"):
        storage_options(_token(location, secret), engine="spark")  # type: ignore[arg-type]


def test_a_gcs_token_for_fsspec_is_an_object_without_an_expiry() -> None:
    token = storage_options(_token("gs://bucket/t", BEARER))["token"]
    assert (token.token, token.expiry) == ("ya29.TOKEN", None)


S3A_CONF = {
    "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "fs.s3a.access.key": "AKID",
    "fs.s3a.secret.key": "SECRETKEY",
    "fs.s3a.session.token": "SESSION",
}


@pytest.mark.parametrize(
    ("location", "secret", "settings", "written", "expected"),
    [
        ("s3://bucket/t", AWS, StorageSettings(), S3A, S3A_CONF),
        (
            S3A,
            AWS,
            LOCAL,
            S3A,
            {
                **S3A_CONF,
                "fs.s3a.endpoint.region": "eu-west-1",
                "fs.s3a.endpoint": "http://127.0.0.1:9000",
                "fs.s3a.path.style.access": "true",
            },
        ),
        (
            ABFSS,
            SAS,
            StorageSettings(),
            ABFSS,
            {
                "fs.azure.account.auth.type.acct.dfs.core.windows.net": "SAS",
                "fs.azure.sas.token.provider.type.acct.dfs.core.windows.net": (
                    "org.apache.hadoop.fs.azurebfs.sas.FixedSASTokenProvider"
                ),
                "fs.azure.sas.fixed.token.acct.dfs.core.windows.net": "sv=1&sig=SIG%3D",
            },
        ),
        (WASBS, SAS, StorageSettings(), WASBS, {"fs.azure.sas.cont.acct.blob.core.windows.net": "sv=1&sig=SIG%3D"}),
    ],
)
def test_hadoop_configuration(
    location: str, secret: Secret, settings: StorageSettings, written: str, expected: dict[str, str]
) -> None:
    conf = hadoop_conf([_token(location, secret)], settings)
    assert dict(conf) == expected
    assert (conf.location, conf.expires) == (written, EXPIRES)


def test_hadoop_configuration_for_gcs_needs_a_provider() -> None:
    with pytest.raises(CredentialError, match="gcs_token_provider"):
        hadoop_conf([_token("gs://bucket/t", BEARER)])
    assert dict(hadoop_conf([_token("gs://bucket/t", BEARER)], gcs_token_provider="a.Provider")) == {
        "fs.gs.auth.type": "ACCESS_TOKEN_PROVIDER",
        "fs.gs.auth.access.token.provider": "a.Provider",
        "fs.gs.auth.access.token.credential": "ya29.TOKEN",
        "fs.gs.auth.access.token.expiration": "1800000000000",
    }


def test_hadoop_configuration_cannot_hold_two_credentials_of_one_kind() -> None:
    other = aws_session("AKID2", "SECRETKEY2", "SESSION2")
    with pytest.raises(CredentialError, match=r"fs\.s3a\.access\.key would need two values") as caught:
        hadoop_conf([_token("s3://bucket/t", AWS), _token("s3://other/aux", other)])
    assert "AKID" not in str(caught.value)
    both = hadoop_conf([_token("s3://bucket/t", AWS), _token(ABFSS, SAS)])
    assert len(both) == 7


def test_options_show_their_keys_only() -> None:
    options = storage_options(_token(S3A, AWS), REGION, engine="deltalake")
    assert repr(options) == str(options) == f"{options}"
    assert "aws_session_token" in repr(options)
    assert "SECRETKEY" not in repr(options)
    assert "SESSION'" not in repr(options)
    assert "2027-01-15" in repr(options), "the expiry is shown"
    copy = pickle.loads(pickle.dumps(options))
    assert (dict(copy), copy.location, copy.expires) == (dict(options), options.location, options.expires)


def test_duckdb_statement_is_quoted() -> None:
    options = storage_options(_token(S3A, aws_session("AK'ID", "S", "T")), REGION, engine="duckdb")
    statement = create_secret(options, 'my"secret')
    assert statement.startswith("CREATE OR REPLACE SECRET \"my\"\"secret\" (TYPE 's3', KEY_ID 'AK''ID', ")


@pytest.fixture
def served(tmp_path: Path):
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())])).append(pa.table({"id": [1, 2, 3]}))
    with serving(ObjectServer(upload(table.path, "bucket/t"), accepted={"AKID"})) as server:
        yield server


def test_deltalake_reads_with_them(served: ObjectServer) -> None:
    deltalake = pytest.importorskip("deltalake")
    settings = StorageSettings(endpoint=served.url)
    options = storage_options(_token(S3A, AWS), settings, engine="deltalake")
    rows_read = deltalake.DeltaTable(options.location, storage_options=options).to_pyarrow_table()
    assert sorted(rows_read["id"].to_pylist()) == [1, 2, 3]
    assert {seen.headers.get("x-amz-security-token") for seen in served.seen} == {"SESSION"}


def test_fsspec_reads_with_them(served: ObjectServer) -> None:
    import fsspec

    options = storage_options(_token(S3A, AWS), StorageSettings(endpoint=served.url))
    fs = fsspec.filesystem("s3", skip_instance_cache=True, **options)
    names = fs.ls("bucket/t/_delta_log")
    assert len(fs.cat_file(sorted(names)[0])) > 0


def test_polars_takes_a_gcs_token_by_the_way_that_its_refusal_names() -> None:
    polars = pytest.importorskip("polars")
    seen: list[str | None] = []

    def absent(request: Request) -> Answer:
        seen.append(request.headers.get("authorization"))
        return 404, {}, b""

    options = storage_options(_token("gs://bucket/t", BEARER))
    bearer = {"bearer_token": options["token"].token}
    with answering(absent) as url:
        rows_read = polars.scan_parquet(
            "gs://bucket/t/x.parquet",
            credential_provider=lambda: (bearer, int(options.expires)),
            storage_options={"google_base_url": url, "allow_http": "true"},
        )
        with pytest.raises(FileNotFoundError):
            rows_read.collect()
    assert set(seen) == {"Bearer ya29.TOKEN"}


def test_expiry_is_in_the_future_for_a_fresh_token() -> None:
    token = StorageToken(parse_location(S3A), AWS, time.time(), time.time() + 60, "test")
    assert storage_options(token, REGION).expires > time.time()
