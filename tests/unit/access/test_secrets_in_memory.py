"""What a debugger, a notebook or a crash report shows of a process: the repr of each object, and the locals of each traceback."""

from __future__ import annotations

import base64
import gc
import json
import logging
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import TRACEBACK, DeltaSharingError
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.native.machines import ClusterGateway
from delta_sharing_spark.sharing import auth
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer

_PACKAGE = "delta_sharing_spark."
#: The server and its tables are no part of what a user's process holds.
_OTHERS = ("delta_sharing_spark.testing",)
_FLIGHT_TOKEN = "token-of-the-flight-gateway"
Opened = Callable[..., SharingClient]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BucketServer]:
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())])).append([{"id": n} for n in range(9)])
    with BucketServer() as running:
        identity = running.identity
        identity.client_id, identity.client_secret = "client-of-the-test", "secret-of-the-client-of-the-test"
        identity.username, identity.password = "user-of-the-test", "password-of-the-test"
        identity.check_assertion = lambda claims, text: True
        running.add_table("s.d.url", table.path)
        for scheme in ("s3", "gs", "abfss"):
            running.add_bucket_table(f"s.d.{scheme}", table.path, scheme=scheme)
        yield running


def clients(server: BucketServer, directory: Path) -> Iterator[tuple[SharingClient, list[str]]]:
    """A client for each kind of credential, and its secrets."""
    options: dict[str, Any] = {"storageEndpoint": server.storage_endpoint, "retryTimeout": "1s"}
    for kind in ("bearer_token", "oauth_client_credentials", "basic"):
        yield SharingClient(server.profile(kind), **options), []
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(key)
    signs = {"privateKeyFile": str(directory / "key.pem"), "keyId": "k", "algorithm": "RS256"}
    profile = {
        "shareCredentialsVersion": 2,
        "type": "oauth_jwt_bearer_private_key_jwt",
        "endpoint": server.endpoint,
        "auth": {
            "tokenEndpoint": server.token_endpoint,
            "issuer": f"http://{server.address}/issuer",
            "clientId": "client",
            "audience": "audience",
            "privateKey": signs,
        },
    }
    said = {
        "privateKeyFile": str(directory / "key.pem"),
        "privateKeyOrigin": f"http://{server.address}",
        "identityEndpoint": server.endpoint,
    }
    yield SharingClient(profile, **said, **options), [key.decode().splitlines()[1]]
    (directory / "token").write_text(server.token)
    yield SharingClient(bearerTokenFile=str(directory / "token"), identityEndpoint=server.endpoint, **options), []


def secrets_of(server: BucketServer) -> list[str]:
    identity = server.identity
    header = base64.b64encode(f"{identity.username}:{identity.password}".encode()).decode()
    drawn = [*server.issued, *identity.issued, server.token, identity.client_secret, identity.password, header]
    return [*drawn, "X-Amz-Signature=", _FLIGHT_TOKEN]


def objects() -> Iterator[object]:
    for held in gc.get_objects():
        module = str(type(held).__module__)  # of some classes it is no text
        if module.startswith(_PACKAGE) and not module.startswith(_OTHERS):
            yield held


def locals_of(error: BaseException) -> Iterator[tuple[str, object]]:
    """The locals of all frames of an error and of what it came of, as tools show them that print locals."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        if (one := waiting.pop()) is None or id(one) in seen:
            continue
        seen.add(id(one))
        waiting.append(one.__cause__ if one.__suppress_context__ else one.__context__)
        traceback: TracebackType | None = one.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_globals.get("__name__", "").startswith(_PACKAGE):
                for name, value in frame.f_locals.items():
                    yield (
                        f"{frame.f_code.co_qualname if hasattr(frame.f_code, 'co_qualname') else frame.f_code.co_name}.{name}",
                        value,
                    )
            traceback = traceback.tb_next


def shown(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # half made
        return reprlib.repr(error)


def test_no_repr_shows_a_secret(server: BucketServer, tmp_path: Path) -> None:
    """After loads with every kind of credential, of all that the process holds."""
    held: list[object] = []
    more: list[str] = []
    for client, own in clients(server, tmp_path):
        more += own
        for name in ("url", "s3", "gs", "abfss"):
            scan = client.table(f"s.d.{name}").scan()
            assert scan.to_arrow().num_rows == 9
            held += [client, scan, scan.plan(), *scan.plan().splits, scan.resolved(), scan.opened()]
    cluster = ClusterGateway(bind="127.0.0.1", host="127.0.0.1", port=0, driver_bytes=0)
    settings = GatewaySettings(tokens=(_FLIGHT_TOKEN,), key=b"key-of-the-tickets" + bytes(14))
    with FlightGateway(client, settings) as gateway:
        behind = SharingClient.over(gateway.uri, _FLIGHT_TOKEN)
        held += [behind, behind.table("s.d.url").scan().plan(), gateway, settings, cluster]
        assert behind.table("s.d.url").scan().to_arrow().num_rows == 9
        sought = [*secrets_of(server), *more, str(cluster.key_field), cluster.secret.hex(), "key-of-the-tickets"]
        assert len(server.issued) >= 12
        count = 0
        for one in objects():
            text, count = shown(one), count + 1
            for secret in sought:
                assert secret not in text, f"{type(one).__qualname__} shows {secret[:12]}"
        assert count > 200
    cluster.close()


@pytest.mark.parametrize("fault", ["storage", "server", "token"])
def test_no_traceback_holds_a_secret_in_its_locals(
    server: BucketServer, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of errors at each of three places, for every kind of credential; asked for all frames, they do, which the page says."""
    monkeypatch.delenv(TRACEBACK, raising=False)
    logging.getLogger("delta_sharing_spark").setLevel(logging.WARNING)
    for client, own in clients(server, tmp_path):
        auth._tokens.clear()
        for name in ("url", "s3", "gs", "abfss"):
            server.faults.clear()
            if fault == "storage":
                server.faults.add("data", times=None, status=403)
            elif fault == "server":
                server.faults.add("metadata", times=None, status=500)
                server.faults.add("query", times=None, status=500)
            else:
                server.faults.add("token", times=None, status=400, body='{"error": "invalid_client"}')
                server.faults.add("any", times=None, status=401)
            with pytest.raises(DeltaSharingError) as failed:
                client.table(f"s.d.{name}").scan().to_arrow()
            for place, value in locals_of(failed.value):
                for secret in [*secrets_of(server), *own]:
                    assert secret not in shown(value), f"{place} holds {secret[:12]} ({json.dumps(fault)})"
