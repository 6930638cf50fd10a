"""Every fault, in both modes, before, during and between files: exact rows or the documented error, never others."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from object_server import ObjectServer, Seen, serving
from shared_tables import upload

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import CorruptFileError, FileError, FileGoneError, NetworkError
from delta_sharing_spark.scan.plan import Split
from delta_sharing_spark.scan.read import read_split
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

MOMENTS = ("before", "during", "between")
#: Options that keep the tests short: small windows, so that a file takes several requests.
QUICK = {"readTimeout": "1s", "connectTimeout": "1s", "retryTimeout": "4s", "memoryBudget": "1m"}

#: A fault of the data server, and the error it ends in (None: exact rows).
URL_FAULTS: dict[str, tuple[dict[str, Any], type[Exception] | None]] = {
    "reset": ({"reset": True, "times": 2}, None),
    "reset in the body": ({"reset": True, "truncate": 700, "times": 2}, None),
    "body cut short": ({"truncate": -1, "times": 2}, None),
    "429 with Retry-After": ({"status": 429, "retry_after": "0", "times": 2}, None),
    "503": ({"status": 503, "times": 2}, None),
    "silence in the body": ({"stall": 1.5, "stall_at": 100, "times": 1}, None),
    "200 for a range": ({"ignore_range": True, "times": None}, None),
    "another range": ({"shift_range": 3, "times": 2}, None),
    "no Content-Range": ({"headers": {"Content-Range": None}, "times": 1}, None),
    "403 once": ({"status": 403, "times": 1}, None),
    "503 for good": ({"status": 503, "times": None}, NetworkError),
    "another range for good": ({"shift_range": 3, "times": None}, FileError),
    "403 for good": ({"status": 403, "times": None}, FileError),
    "404": ({"status": 404, "times": None}, FileGoneError),
    "410": ({"status": 410, "times": None}, FileGoneError),
    "file grew": ({"ignore_range": True, "grow": 4, "times": None}, CorruptFileError),
    "corrupt byte": ({"corrupt": 500, "times": None}, CorruptFileError),
}


def planned(server: SharingServer, **options: str) -> Split:
    """One split over all files, as it arrives on an executor."""
    scan = SharingClient(server.profile(), **{**QUICK, **options}).table("s.d.t").scan(columns=["id", "text"])
    (split,) = scan.plan().splits
    assert len(split.slices) == 3
    arrived: Split = pickle.loads(pickle.dumps(split))
    return arrived


def outcome(split: Split, expected: pa.Table, between: Callable[[], object] = lambda: None) -> str:
    """``rows`` if they are exact, or the error's class. ``between`` is called after the first batch."""
    batches = []
    try:
        for batch in read_split(split):
            if not batches:
                between()
            batches.append(batch)
    except FileError as error:
        if not re.search(r"reload|load it again|ask the provider|look for", str(error)):
            return f"no next step: {error}"
        return type(error).__name__
    except Exception as error:
        return type(error).__name__
    assert pa.Table.from_batches(batches).sort_by("id").equals(expected), "other rows than the table has"
    return "rows"


def place(split: Split, moment: str) -> tuple[str | None, int]:
    """Which requests a moment means: the first of all, a row group of the second file, the footer of the third."""
    paths = [re.escape(urlsplit(piece.task.location).path) for piece in split.slices]
    return {"before": (None, 0), "during": (paths[1], 2), "between": (paths[2], 0)}[moment]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", URL_FAULTS)
def test_url(fault: str, moment: str, server: SharingServer, expected: pa.Table, cell: Callable[..., None]) -> None:
    what, error = URL_FAULTS[fault]
    split = planned(server)
    path, skip = place(split, moment)
    rule = server.faults.add("data", path, skip=skip, **what)
    came = outcome(split, expected)
    cell(fault, "url", moment, came)
    assert came == (error.__name__ if error else "rows")
    assert rule.hits, "the fault was never met"


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("style", ["s3", "s3-400", "azure", "gcs"])
def test_expiry(style: str, moment: str, server: SharingServer, expected: pa.Table, cell: Callable[..., None]) -> None:
    server.settings.expired_style = style  # type: ignore[assignment]
    split = planned(server)
    path, skip = place(split, moment)
    server.faults.add("data", path, skip=skip, call=server.expire_urls)
    came = outcome(split, expected)
    cell(f"URLs expire ({style})", "url", moment, came)
    assert came == "rows"
    assert server.count("query") == 2, "one renewal serves the whole process"


@pytest.mark.parametrize("moment", MOMENTS)
def test_etag_changes(moment: str, server: SharingServer, expected: pa.Table, cell: Callable[..., None]) -> None:
    split = planned(server)
    path, skip = place(split, moment)
    # The first answer for a file tells its ETag: a change shows with the next one.
    server.faults.add("data", path, skip=skip, times=1, headers={"ETag": '"other"'})
    came = outcome(split, expected)
    cell("ETag changes", "url", moment, came)
    assert came == "CorruptFileError"


@pytest.mark.parametrize("moment", MOMENTS)
def test_file_gone_at_renewal(
    moment: str, server: SharingServer, expected: pa.Table, cell: Callable[..., None]
) -> None:
    split = planned(server)
    path, skip = place(split, moment)
    server.faults.drop_file(split.slices[1].task.id)
    server.faults.add("data", path, skip=skip, call=server.expire_urls)
    came = outcome(split, expected)
    cell("expired, and no longer listed", "url", moment, came)
    # Of a file that was read to its end already no URL is needed.
    assert came == "FileGoneError" or (moment == "between" and came == "rows")


# --- directory mode: an object store over HTTP, and local files ----------------------------------------------------------


@dataclass
class FaultyObjects(ObjectServer):
    """Objects, and what goes wrong with those under a path after some requests."""

    path: str = ""
    skip: int = 0
    times: int = 0
    spoil: Callable[[int, dict[str, str], bytes], tuple[int, dict[str, str], bytes]] | None = None
    hits: int = field(default=0)
    count: int = field(default=0)

    def answer(self, request: Seen) -> tuple[int, dict[str, str], bytes]:
        status, headers, body = super().answer(request)
        if self.spoil is None or not self.path or self.path not in request.path or status >= 400:
            return status, headers, body
        self.count += 1
        if self.count <= self.skip or self.hits >= self.times:
            return status, headers, body
        self.hits += 1
        return self.spoil(status, headers, body)


def _status(status: int, code: str) -> Callable[..., tuple[int, dict[str, str], bytes]]:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    return lambda *_: (status, {"Content-Type": "application/xml"}, body)


def _flipped(status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    return status, headers, body[:500] + bytes([body[500] ^ 255]) + body[501:]


DIR_FAULTS: dict[str, tuple[Callable[..., Any], int, str]] = {
    "503": (_status(503, "SlowDown"), 2, "rows"),
    "503 for good": (_status(503, "SlowDown"), 10**6, "NetworkError"),
    "credential expires": (_status(400, "ExpiredToken"), 1, "rows"),
    "403 once": (_status(403, "AccessDenied"), 1, "rows"),
    "403 for good": (_status(403, "AccessDenied"), 10**6, "FileGoneError|CredentialError"),
    "404": (_status(404, "NoSuchKey"), 10**6, "FileGoneError"),
    "corrupt byte": (_flipped, 10**6, "CorruptFileError"),
}


@contextmanager
def shared_by_directory(server: SharingServer, table: DeltaTableBuilder) -> Iterator[FaultyObjects]:
    objects = FaultyObjects(upload(table.path, "bucket/t"))
    with serving(objects):
        keys = iter(range(10**6))

        def vend(location: str, _: object) -> dict[str, Any]:
            aws = {"accessKeyId": f"AK{next(keys)}", "secretAccessKey": "s", "sessionToken": "t"}
            return {"awsTempCredentials": aws, "expirationTime": 4_000_000_000_000}

        server.vendors["s3"] = vend
        server.add_table("s.d.t", table.path, access_modes=("dir",), location="s3://bucket/t")
        yield objects


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("fault", DIR_FAULTS)
def test_directory(
    fault: str,
    moment: str,
    server: SharingServer,
    table: DeltaTableBuilder,
    expected: pa.Table,
    cell: Callable[..., None],
) -> None:
    with shared_by_directory(server, table) as objects:
        split = planned(server, storageEndpoint=objects.url)
        names = [urlsplit(piece.task.location).path.rpartition("/")[2] for piece in split.slices]
        objects.spoil, objects.times, wanted = DIR_FAULTS[fault]
        objects.path, objects.skip = {"before": (".parquet", 0), "during": (names[1], 2), "between": (names[2], 0)}[
            moment
        ]
        came = outcome(split, expected)
        cell(fault, "dir", moment, came)
        assert came in wanted.split("|")
        assert objects.hits


@pytest.mark.parametrize("fault", ["404", "corrupt byte", "file grew", "body cut short"])
def test_local_files(
    fault: str, server: SharingServer, table: DeltaTableBuilder, expected: pa.Table, tmp_path: Any
) -> None:
    """The files of a table change under a plan: what a local directory can do."""
    import shutil

    copy = tmp_path / "t"
    shutil.copytree(table.path, copy)
    server.add_table("s.d.t", copy, access_modes=("dir",))
    split = planned(server)
    assert outcome(split, expected) == "rows"
    victim = copy / urlsplit(split.slices[1].task.location).path.rpartition("/")[2]
    data = victim.read_bytes()
    victim.unlink()
    if fault == "corrupt byte":
        victim.write_bytes(data[:500] + bytes([data[500] ^ 255]) + data[501:])
    elif fault == "file grew":
        victim.write_bytes(data + bytes(8))
    elif fault == "body cut short":
        victim.write_bytes(data[:-100])
    came = outcome(split, expected)
    # Bytes after the planned end are never asked for: the rows are still those that were planned.
    assert came == {"404": "FileGoneError", "file grew": "rows"}.get(fault, "CorruptFileError")


def test_task_repeats_exactly(server: SharingServer) -> None:
    split = planned(server)
    first = [batch.to_pylist() for batch in read_split(split)]
    server.faults.add("data", times=3, reset=True, truncate=900)
    server.faults.add("data", skip=5, call=server.expire_urls)
    assert [batch.to_pylist() for batch in read_split(replace(split))] == first
