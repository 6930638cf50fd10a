"""Directory access on each cloud: every step of a read meets every fault, and every cell of docs/faults-inside.md is tried."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.access.asking import storage_settings
from delta_sharing_spark.access.directory import table as directory_table
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import CredentialError, FileError, NetworkError
from delta_sharing_spark.network.retry import retry_after
from delta_sharing_spark.storage.clouds.contract import Secret
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.clouds.s3 import S3
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from support.buckets import BucketServer
from support.certificates import context_of
from support.cloud_secrets import aws_session, azure_sas, gcp_bearer
from support.refusals import not_refused

CLOUDS = ("s3", "gs", "abfss")
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
#: The steps of a read, by the paths that are asked for; the first, the listing, is opening's. Where it works, the log has
#: a checkpoint near its end, and ``_last_checkpoint`` is not asked for.
STEPS = {
    "listing": r"^/s-d-\w+/?$|/o$",
    "_last_checkpoint": "_last_checkpoint",
    "checkpoint": r"checkpoint\.[0-9a-f-]+\.(json|parquet)$",
    "sidecar": r"_sidecars",
    "commit": r"0+3\.json$",
    "vector": r"deletion_vector",
    "data": r"part-.*parquet$",
}
BUSY = {"status": 503, "times": 1}
#: What a storage or the way to it does at a step, and what is seen of it: the waits before the next request, and how
#: often a credential is asked for anew.
FAULTS: dict[str, tuple[dict[str, Any], int, int]] = {
    "ended": ({}, 0, 1),
    "revoked": ({}, 0, 1),
    "ended in the body": ({"truncate": -1}, 1, 1),
    "503": (BUSY, 1, 0),
    "503 with Retry-After": ({**BUSY, "retry_after": "7"}, 1, 0),
    "429 with Retry-After": ({"status": 429, "times": 1, "retry_after": "7"}, 1, 0),
    "body cut": ({"truncate": -1}, 1, 0),
    "reset": ({"reset": True}, 1, 0),
    "reset in the body": ({"reset": True, "truncate": -1}, 1, 0),
    "stall": ({"stall": 1.0, "stall_at": 20}, 1, 0),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    """Two files, one of them with deleted rows, in a log with a checkpoint of sidecars and commits after it."""
    path = tmp_path_factory.mktemp("clouds") / "t"
    made = DeltaTableBuilder(path, SCHEMA, properties={"delta.enableDeletionVectors": "true"})
    for start in (0, 100):
        made.append(pa.table({"id": range(start, start + 100), "text": ["x" * 40] * 100}, SCHEMA))
    made.checkpoint("v2-json")
    made.delete(lambda rows: pa.array([i % 9 == 0 for i in rows["id"].to_pylist()]), deletion_vectors=True)
    return made.append(pa.table({"id": [1000], "text": ["late"]}, SCHEMA))


class Waits(list[float]):
    """Notes how long it should have waited. Of a test alone: what it leaves behind goes on to ask for a while."""

    def wait(self, seconds: float) -> None:
        self.append(seconds)
        time.sleep(0.01)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, waits: Waits) -> Iterator[BucketServer]:
    is_silent = request.node.callspec.params.get("fault") == "stall" if hasattr(request.node, "callspec") else False

    def noting(*asked: Any) -> StorageSettings:
        silence = 0.4 if is_silent else 30.0  # a busy machine is silent for half a second, too
        return replace(storage_settings(*asked), sleep=waits.wait, read_timeout=silence, retry_seconds=30)

    monkeypatch.setattr(directory_table, "storage_settings", noting)
    with BucketServer() as running:
        running.lists = CLOUDS
        yield running
        assert not running.failures


def read(server: BucketServer, **options: Any) -> list[int]:
    client = SharingClient(server.profile(), storageEndpoint=server.storage_endpoint, **options)
    return sorted(client.table("s.d.t").scan().to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    ("fault", "listing"),
    [*((fault, True) for fault in FAULTS), *((fault, False) for fault in ("ended", "revoked", "503"))],
)
def test_every_step(
    server: BucketServer, table: DeltaTableBuilder, waits: Waits, cloud: str, fault: str, listing: bool
) -> None:
    """The rows, after as many waits and renewals as the fault costs: none is dearer at one step than at another."""
    what, expected_waits, renewals = FAULTS[fault]
    server.ended_as = "revoked" if fault == "revoked" else "ended"
    server.lists = CLOUDS if listing else ()
    expected = sorted(table.expected()["id"].to_pylist())

    def cost(step: str) -> tuple[int, int, int]:
        """How often the fault was met, waits and credentials."""
        in_body = "body" in fault or fault == "stall"
        server.faults.clear()
        server.add_bucket_table("s.d.t", table.path, scheme=cloud)
        server.expire_credentials()
        server.reset_metrics()
        waits.clear()
        # A sidecar's size is asked for first, of S3 and Azure by a HEAD, whose answer has no body.
        skip = 1 if in_body and step == "sidecar" and cloud != "gs" else 0
        rule = server.faults.add("any", STEPS[step], **{"times": 1, "skip": skip, **what})
        if renewals:
            server.faults.add("any", STEPS[step], skip=skip + in_body, call=server.expire_credentials)
        assert read(server) == expected, step
        assert "retry_after" not in what or all(7 <= waited <= 7.7 for waited in waits[:1]), step
        assert {request.status for request in server.requests if request.status >= 500} <= {what.get("status")}, step
        return rule.hits, len(waits), server.count("credentials")

    costs = dict.fromkeys(STEPS, (1, expected_waits, 1 + renewals))
    if listing:
        del costs["_last_checkpoint"]
    else:
        costs |= dict.fromkeys(("checkpoint", "sidecar"), (0, 0, 1))  # names that only a listing tells
    assert {step: cost(step) for step in costs} == costs


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(
    ("scope", "listing", "words"),
    [
        (
            "part-.*parquet",
            True,
            r"file part-.* of s\.d\.t .*scope of the credential .*ask the provider for a credential",
        ),
        (
            "part-.*parquet",
            False,
            r"file part-.* of s\.d\.t .*scope of the credential .*ask the provider for a credential",
        ),
        ("deletion_vector", True, r"scope of the credential .*ask the provider for a credential"),
        ("_delta_log", True, r"refuses to read .*s\.d\.t.*(ask the provider|check that the credential covers)"),
        ("_delta_log", False, r"refuses to read .*s\.d\.t.*(ask the provider|check that the credential covers)"),
    ],
)
def test_a_scope_that_is_too_narrow(
    server: BucketServer, table: DeltaTableBuilder, cloud: str, scope: str, listing: bool, words: str
) -> None:
    server.add_bucket_table("s.d.t", table.path, scheme=cloud)
    server.lists, server.out_of_scope = CLOUDS if listing else (), scope
    with pytest.raises(CredentialError, match=words) as caught:
        read(server)
    assert "no longer there" not in str(caught.value)
    assert not any(secret in str(caught.value) for secret in server.issued)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_data_that_is_refused_with_401(server: BucketServer, table: DeltaTableBuilder, cloud: str) -> None:
    server.add_bucket_table("s.d.t", table.path, scheme=cloud)
    server.faults.add("data", r"part-.*parquet$", times=None, status=401)
    with pytest.raises(CredentialError, match=r"HTTP 401.*scope of the credential .*ask the provider"):
        read(server)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_credential_that_ends_and_is_not_replaced(server: BucketServer, table: DeltaTableBuilder, cloud: str) -> None:
    """The error says that it ended, and what the sharing server answered."""
    server.add_bucket_table("s.d.t", table.path, scheme=cloud)

    def end() -> None:
        server.expire_credentials()
        server.faults.add("credentials", times=None, status=403)

    server.faults.add("any", STEPS["data"], times=1, call=end)
    words = {"s3": "has expired", "gs": "is not valid, or no longer", "abfss": "has expired"}[cloud]
    with pytest.raises(Exception, match=rf"credential for .* of s\.d\.t was refused .*{words}.* gave no other: .*403"):
        read(server)


class _Nothing(set[str]):
    def add(self, element: str) -> None:
        """Accept no credential any more."""


@pytest.mark.parametrize("how", ["ended", "revoked"])
@pytest.mark.parametrize("step", ["_last_checkpoint", "listing", "checkpoint", "sidecar", "commit", "vector", "data"])
@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_log_is_never_read_up_to_the_end_of_a_credential(
    server: BucketServer, table: DeltaTableBuilder, cloud: str, listing: bool, step: str, how: str
) -> None:
    """New credentials are refused as well: an error of the credential, and never an older version of the table."""
    if step in (("_last_checkpoint",) if listing else ("checkpoint", "sidecar")):
        pytest.skip("not asked for, or a name that only a listing tells")
    server.add_bucket_table("s.d.t", table.path, scheme=cloud)
    server.ended_as, server.lists = how, CLOUDS if listing else ()
    server.faults.add("any", STEPS[step], call=lambda: setattr(server, "_accepted", _Nothing()))
    with pytest.raises(CredentialError, match=r"also with a new credential|refuses to read") as caught:
        read(server)
    message = str(caught.value)
    assert "s.d.t" in message
    if how == "revoked":
        assert {"s3": "403 AccessDenied", "abfss": "403 AuthorizationFailure", "gs": "401 authError"}[cloud] in message
        assert ("firewall" in message) == (cloud == "abfss")
    else:
        # Google does not say which.
        assert f"the credential {'has expired' if cloud != 'gs' else 'is not valid, or no longer'}" in message


def test_an_error_of_the_log_names_the_table(server: BucketServer, table: DeltaTableBuilder) -> None:
    server.add_bucket_table("s.d.t", table.path)
    server.faults.add("any", STEPS["listing"], times=None, status=412)
    with pytest.raises(FileError, match=r"^s\.d\.t: listing _delta_log: the storage answered HTTP 412"):
        read(server)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_credential_that_had_ended_by_this_machines_clock(
    server: BucketServer, table: DeltaTableBuilder, cloud: str
) -> None:
    """The storage's clock decides, as by URL; only where it refuses the two times are told."""
    server.add_bucket_table("s.d.t", table.path, scheme=cloud)
    server.settings.credential_ttl = -60
    assert read(server) == sorted(table.expected()["id"].to_pylist())
    assert server.count("credentials") == 1
    server.faults.add("any", STEPS["data"], call=lambda: setattr(server, "_accepted", _Nothing()))
    with pytest.raises(
        CredentialError, match=r"also with a new credential .*had ended when it was issued.* check the clock"
    ):
        read(server)


@pytest.mark.parametrize("step", ["listing", "commit", "data"])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_credential_that_is_not_known_everywhere_yet(
    server: BucketServer, table: DeltaTableBuilder, waits: Waits, cloud: str, step: str
) -> None:
    """It is refused when it is new, and again: the third request comes two seconds later, with the same one."""
    server.add_bucket_table("s.d.t", table.path, scheme=cloud)
    is_known = threading.Event()

    class Late(set[str]):
        def __contains__(self, key: object) -> bool:
            return is_known.is_set() and super().__contains__(key)

    def pause(seconds: float) -> None:
        waits.append(seconds)
        is_known.set()

    waits.wait = pause  # type: ignore[method-assign]
    server.faults.add("any", STEPS[step], call=lambda: setattr(server, "_accepted", Late()))
    assert read(server) == sorted(table.expected()["id"].to_pylist())
    assert set(waits) == {2.0}
    assert server.count("credentials") <= 5, "each of the files that begin meanwhile asks for one"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_new_credential_that_ends_at_once_is_renewed_too(
    server: BucketServer, table: DeltaTableBuilder, waits: Waits, cloud: str
) -> None:
    """As where the sharing server keeps credentials, and hands one out just before its end."""
    server.add_bucket_table("s.d.t", table.path, scheme=cloud)

    class NotTheFirst(set[str]):
        is_first = True

        def add(self, key: str) -> None:
            if not self.is_first:
                super().add(key)
            self.is_first = False

    server.faults.add("any", STEPS["data"], call=lambda: setattr(server, "_accepted", NotTheFirst()))
    assert read(server) == sorted(table.expected()["id"].to_pylist())
    assert set(waits) <= {2.0}
    assert server.count("credentials") == 3


def test_s3_tells_its_time(server: BucketServer, table: DeltaTableBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is two hours late: what S3 refuses is signed anew with S3's time; no credential is asked for."""
    server.add_bucket_table("s.d.t", table.path)
    made = S3.__init__

    def late(self: S3, secret: Secret, settings: StorageSettings) -> None:
        made(self, secret, settings, clock=lambda: 1000.0)

    monkeypatch.setattr(S3, "__init__", late)
    server.faults.add("any", r"0+4\.json$", times=1, status=403, headers={"Date": "Tue, 24 Nov 2026 00:00:00 GMT"})
    assert read(server) == sorted(table.expected()["id"].to_pylist())
    assert server.count("credentials") == 1
    assert retry_after("Tue, 24 Nov 2026 00:00:00 GMT", now=lambda: 0.0) == 300.0


SECRETS: dict[str, Secret] = {
    "s3": aws_session("id", "key", "token"),
    "gs": gcp_bearer("token"),
    "abfss": azure_sas("sv=1&sig=x"),
}


def storage_at(cloud: str, endpoint: str, waits: Waits, **settings: Any) -> Storage:
    root = {"abfss": "abfss://c@a.dfs.core.windows.net/t"}.get(cloud, f"{cloud}://bucket/t")
    settings = {"sleep": waits.wait, "retry_seconds": 5, **settings}
    return Storage(parse_location(root), SECRETS[cloud], StorageSettings(endpoint=endpoint, **settings))


def asked_of(storage: Storage) -> list[Callable[[], object]]:
    location = parse_location(f"{storage.location}/f")
    return [
        lambda: storage.get(location),
        lambda: storage.get(location, 0, 10),
        lambda: storage.info(location),
        lambda: storage.list_from(storage.location, ""),
    ]


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[tuple[int, list[int]]]:
    """A port on loopback, each of whose connections is given to ``answer``; and how many there were."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                connections.append(1)
                with accepted, suppress(OSError):
                    answer(accepted)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], connections
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(HANGS)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_certificate_that_is_not_trusted(cloud: str, certificate: Path, waits: Waits) -> None:
    """An error at once, which names caBundle."""
    context = context_of(certificate)
    with listening(lambda accepted: context.wrap_socket(accepted, server_side=True).close()) as (port, connections):
        actions = asked_of(storage_at(cloud, f"https://127.0.0.1:{port}", waits))
        assert not_refused(NetworkError, r"certificate verify failed.*option caBundle", *actions) == []
        assert len(connections) == len(actions)
    assert waits == []


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("status", [403, 407])
@pytest.mark.parametrize("scheme", ["https", "http"])
def test_a_proxy_that_refuses(cloud: str, status: int, scheme: str, waits: Waits) -> None:
    """It is told as the proxy's, and not repeated; no other credential would help. A plain 403 could be the storage's."""
    if (scheme, status) == ("http", 403):
        pytest.skip("over plain http a proxy's 403 cannot be told from the storage's")

    def refuse(accepted: socket.socket) -> None:
        accepted.recv(65536)
        accepted.sendall(
            f"HTTP/1.1 {status} {http.client.responses[status]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )

    with listening(refuse) as (port, connections):
        storage = storage_at(cloud, f"{scheme}://storage.example", waits, proxy=f"http://127.0.0.1:{port}")
        why = rf"proxy on the way to .* refused to connect \({status}.*option proxy"
        assert not_refused(NetworkError, why, *asked_of(storage)) == []
        assert len(connections) == len(asked_of(storage))
    assert waits == []


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_proxy_that_is_busy_is_asked_again(cloud: str, waits: Waits) -> None:
    def busy(accepted: socket.socket) -> None:
        accepted.recv(65536)
        accepted.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with listening(busy) as (port, connections):
        storage = storage_at(
            cloud, "https://storage.example", waits, proxy=f"http://127.0.0.1:{port}", retry_seconds=0.9
        )
        with pytest.raises(NetworkError, match=r"proxy on the way to storage\.example did not connect: 503"):
            asked_of(storage)[0]()
    assert len(connections) > 1


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize("status", [401, 403, 503])
def test_words_of_an_answer_decide_nothing_by_themselves(cloud: str, status: int, waits: Waits) -> None:
    """gcsfs took every error with "invalid" in its text for a final one."""

    def answer(accepted: socket.socket) -> None:
        accepted.recv(65536)
        body = b'{"error": {"message": "Invalid argument: invalid"}}'
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        accepted.sendall(head.encode() + body)

    with listening(answer) as (port, _):
        storage = storage_at(cloud, f"http://127.0.0.1:{port}", waits, retry_seconds=0.9)
        kind = NetworkError if status == 503 else PermissionError
        assert not_refused(kind, f"HTTP {status}", *asked_of(storage)) == []
