"""What a debugger, a notebook or a crash report shows of a process: the repr of each object, and the locals of each traceback."""

from __future__ import annotations

import gc
import json
import logging
import reprlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import TRACEBACK, DeltaSharingError
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.native.machines import ClusterGateway
from delta_sharing_spark.sharing import auth
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.buckets import BucketServer
from support.recipients import RECIPIENTS, Recipients

_PACKAGE = "delta_sharing_spark."
#: The server and its tables are no part of what a user's process holds.
_OTHERS = ("delta_sharing_spark.testing",)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BucketServer]:
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())])).append([{"id": n} for n in range(9)])
    with BucketServer() as running:
        running.add_table("s.d.url", table.path)
        for scheme in ("s3", "gs", "abfss"):
            running.add_bucket_table(f"s.d.{scheme}", table.path, scheme=scheme)
        yield running


def clients(server: BucketServer, recipients: Recipients) -> Iterator[SharingClient]:
    """A client for each kind of credential."""
    for kind in RECIPIENTS:
        if kind != "flight":
            profile, options = recipients.asks(kind)
            given = {"storageEndpoint": server.storage_endpoint, "retryTimeout": "1ms", **options}
            yield SharingClient(profile, **given)


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
    recipients = Recipients(server, tmp_path)
    names = [f"s.d.{name}" for name in ("url", "s3", "gs", "abfss")]
    scans = [client.table(name).scan() for client in clients(server, recipients) for name in names]
    assert [scan.to_arrow().num_rows for scan in scans] == [9] * len(scans)
    held += [[scan, scan.plan(), *scan.plan().splits, scan.resolved(), scan.opened()] for scan in scans]
    cluster = ClusterGateway(bind="127.0.0.1", host="127.0.0.1", port=0, driver_bytes=0)
    settings = GatewaySettings(tokens=("token-of-another-gateway",), key=b"key-of-the-tickets" + bytes(14))
    with recipients.gateway({}) as gateway:
        behind = SharingClient(**recipients.asks("flight", gateway)[1])
        held += [behind, behind.table("s.d.url").scan().plan(), gateway, settings, cluster]
        assert behind.table("s.d.url").scan().to_arrow().num_rows == 9
        sought = [*recipients.secrets, str(cluster.key_field), cluster.secret.hex(), *map(repr, settings.tokens or ())]
        sought += ["key-of-the-tickets", repr(bytes(range(32)))[2:-1]]
        assert len(server.issued) >= 12
        texts = [(type(one).__qualname__, shown(one)) for one in objects()]
        assert [(kind, secret[:12]) for kind, text in texts for secret in sought if secret in text] == []
        assert len(texts) > 200
    cluster.close()


@pytest.mark.parametrize("fault", ["storage", "server", "token"])
def test_no_traceback_holds_a_secret_in_its_locals(
    server: BucketServer,
    tmp_path: Path,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of errors at each of three places, for every kind of credential; asked for all frames, they do, which the page says."""
    monkeypatch.delenv(TRACEBACK, raising=False)
    monkeypatch.setattr("delta_sharing_spark.access.directory.access.SETTLING", 0.0)
    monkeypatch.setattr("delta_sharing_spark.storage.presigned.SETTLING", 0.0)
    caplog.set_level(logging.WARNING, "delta_sharing_spark")
    recipients = Recipients(server, tmp_path)
    for client in clients(server, recipients):
        auth._tokens.clear()
        # Of a server or token that fails no storage comes to know.
        for name in ("url", "s3", "gs", "abfss") if fault == "storage" else ("url",):
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
                for secret in recipients.secrets:
                    assert secret not in shown(value), f"{place} holds {secret[:12]} ({json.dumps(fault)})"
