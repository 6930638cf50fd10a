"""No identity of the machine ever stands in for the one given: environment, files, metadata services, configuration.

Two servers listen: the storage, and a trap that everything ambient points to. Requests must reach the storage alone,
and carry the given credential alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.storage.clouds.contract import Secret
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from support import HANGS
from support.cloud_secrets import aws_session, azure_sas, gcp_bearer
from unit.access.object_server import ObjectServer, serving

LOCATIONS = {
    "aws": "s3://bucket/table",
    "azure": "abfss://bucket@acct.dfs.core.windows.net/table",
    "gcp": "gs://bucket/table",
}
#: How each storage shows which credential came: the given one's mark in headers or query.
MARKS = {"aws": "Credential=AKIDTEST/", "azure": "sig=c2lnbmF0dXJl", "gcp": "Bearer ya29.bearer-token-text"}


@pytest.fixture
def storage_server() -> Iterator[ObjectServer]:
    with serving(ObjectServer()) as server:
        yield server


@pytest.fixture
def trap() -> Iterator[ObjectServer]:
    with serving(ObjectServer()) as server:
        yield server


def _ambient(trap: ObjectServer, home: Path) -> dict[str, str]:
    """Everything by which a machine lends its identity, pointing to the trap."""
    aws, key = home / "aws", home / "key.json"
    aws.write_text(
        f"[default]\naws_access_key_id=AMBIENT\naws_secret_access_key=AMBIENT\nendpoint_url={trap.url}\n"
        f"[profile other]\nregion=eu-west-1\naws_access_key_id=AMBIENT\naws_secret_access_key=AMBIENT\n"
    )
    (home / ".netrc").write_text("machine 127.0.0.1 login AMBIENT password AMBIENT\n")
    (home / ".netrc").chmod(0o600)
    key.write_text(json.dumps({"type": "authorized_user", "client_id": "AMBIENT", "client_secret": "AMBIENT"}))
    config = home / ".config" / "fsspec"
    config.mkdir(parents=True)
    settings = {
        "s3": {"endpoint_url": trap.url, "anon": True},
        "gs": {"endpoint_url": trap.url, "token": "anon"},
        "abfs": {"connection_string": f"BlobEndpoint={trap.url}/acct;SharedAccessSignature=sig=AMBIENT"},
    }
    (config / "conf.json").write_text(json.dumps(settings))
    host = trap.url.removeprefix("http://")
    return {
        "HOME": str(home),
        "NETRC": str(home / ".netrc"),
        "AWS_ACCESS_KEY_ID": "AMBIENT",
        "AWS_SECRET_ACCESS_KEY": "AMBIENT",
        "AWS_SESSION_TOKEN": "AMBIENT",
        "AWS_PROFILE": "no-such-profile",
        "AWS_CONFIG_FILE": str(aws),
        "AWS_SHARED_CREDENTIALS_FILE": str(aws),
        "AWS_ENDPOINT_URL": trap.url,
        "AWS_ENDPOINT_URL_S3": trap.url,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": trap.url,
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": trap.url,
        "AWS_REGION": "eu-north-1",
        "AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint={trap.url}/acct;SharedAccessSignature=sig=AMBIENT",
        "AZURE_STORAGE_ACCOUNT_NAME": "ambient",
        "AZURE_STORAGE_ACCOUNT_KEY": "QU1CSUVOVA==",
        "AZURE_STORAGE_SAS_TOKEN": "sig=AMBIENT",
        "AZURE_STORAGE_CLIENT_ID": "AMBIENT",
        "AZURE_STORAGE_CLIENT_SECRET": "AMBIENT",
        "AZURE_STORAGE_TENANT_ID": "AMBIENT",
        "AZURE_CLIENT_ID": "AMBIENT",
        "AZURE_STORAGE_ANON": "true",
        "IDENTITY_ENDPOINT": trap.url,
        "IDENTITY_HEADER": "AMBIENT",
        "GOOGLE_APPLICATION_CREDENTIALS": str(key),
        "GCE_METADATA_HOST": host,
        "STORAGE_EMULATOR_HOST": trap.url,
        "GOOGLE_CLOUD_UNIVERSE_DOMAIN": "ambient.example",
        "GOOGLE_API_USE_CLIENT_CERTIFICATE": "true",
        "GCSFS_DEFAULT_PROJECT": "ambient",
        "FSSPEC_S3_ENDPOINT_URL": trap.url,
        "FSSPEC_S3": json.dumps({"endpoint_url": trap.url, "key": "AMBIENT", "profile": "other"}),
        "FSSPEC_GS_ENDPOINT_URL": trap.url,
        "FSSPEC_ABFS_CONNECTION_STRING": f"BlobEndpoint={trap.url}/acct;SharedAccessSignature=sig=AMBIENT",
    }


_READ = """
import sys
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.clouds.registry import parse_location
sys.path.insert(0, sys.argv[3])
from unit.access.issuing import secret_for
at = parse_location(sys.argv[1] + "/part.bin")
storage = Storage(parse_location(sys.argv[1]), secret_for(at), StorageSettings(endpoint=sys.argv[2], retry_seconds=0))
for action in (lambda: storage.get(at), lambda: storage.get(at, 1, 3), lambda: storage.info(at)):
    try:
        action()
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("kind", LOCATIONS)
def test_only_the_given_credential_is_sent(
    kind: str, storage_server: ObjectServer, trap: ObjectServer, tmp_path: Path
) -> None:
    """In a process of its own: the libraries read much of their environment when they are imported."""
    endpoint = storage_server.url + ("/acct" if kind == "azure" else "")
    done = subprocess.run(
        [sys.executable, "-c", _READ, LOCATIONS[kind], endpoint, str(Path(__file__).parents[2])],
        env={**os.environ, **_ambient(trap, tmp_path)},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert trap.seen == []
    assert len(storage_server.seen) >= 3
    for request in storage_server.seen:
        everything = f"{request.path} {request.headers}"
        assert MARKS[kind] in everything
        assert "AMBIENT" not in everything
        assert "ambient" not in everything
        assert "QU1CSUVO" not in everything
        assert "Basic" not in request.headers.get("authorization", "")
    if kind == "aws":
        assert all(r.headers["x-amz-security-token"] == "session-token-text" for r in storage_server.seen)


@pytest.mark.parametrize(
    ("kind", "secret"),
    [
        ("aws", aws_session("", "secret", "token")),
        ("aws", aws_session("key", "", "token")),
        ("aws", aws_session("key", "secret", "")),
        ("azure", azure_sas("")),
        ("gcp", gcp_bearer("")),
        ("gcp", aws_session("key", "secret", "token")),
        ("aws", gcp_bearer("token")),
    ],
)
def test_an_empty_or_foreign_secret_is_an_error_before_anything_is_sent(kind: str, secret: Secret) -> None:
    with pytest.raises(CredentialError):
        Storage(parse_location(LOCATIONS[kind]), secret, StorageSettings())
