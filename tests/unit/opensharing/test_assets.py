"""Volumes, models and agent skills: what there is, their files, and that nothing outside their place can be named."""

from __future__ import annotations

import errno
import io
import json
import os
import pickle
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests

from delta_sharing_spark import SharingClient
from delta_sharing_spark.assets import download
from delta_sharing_spark.assets.asset import Asset
from delta_sharing_spark.assets.download import Downloaded
from delta_sharing_spark.cli.main import main
from delta_sharing_spark.errors import (
    AccessModeError,
    AddressError,
    ConfigError,
    CredentialError,
    DeltaSharingError,
    FileError,
    NetworkError,
    NoSuchFileError,
    NotFoundError,
    ResponseError,
)
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.sharing import assets as calls
from delta_sharing_spark.storage.own_files import HAS_DIRECTORIES, hidden_name
from support import HANGS
from support.buckets import BucketServer
from support.refusals import not_refused

FILES = {
    "README": b"read me\n",
    "raw/a.csv": b"id,city\n1,Bern\n2,Thun\n",
    "raw/b 1%2F#?.json": b'{"id": 1}\n',
    "raw/deep/er/c.bin": bytes(range(256)) * 40,
    "raw/empty": b"",
}


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an endpoint does not know is remembered; ports of servers come again."""
    monkeypatch.setattr(calls, "_unknown_kinds", ProcessCache(8))
    monkeypatch.setattr(calls, "_model_credentials", ProcessCache(8))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    root = tmp_path / "shared"
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    pq.write_table(pa.table({"id": range(5)}), root / "t.parquet")
    return root


@pytest.fixture
def server() -> Iterator[BucketServer]:
    with BucketServer() as running:
        running.lists = ("s3", "gs", "abfss")
        yield running
        assert not running.failures


def _client(server: BucketServer, **options: Any) -> SharingClient:
    options = {"storageEndpoint": server.storage_endpoint, "retryTimeout": "2", **options}
    return SharingClient(server.profile(), **options)


def _volume(server: BucketServer, root: Path, kind: str = "s3") -> Asset:
    """A volume in a bucket, or of local files (``file``)."""
    server.vends_r2 = kind == "r2"
    location = str(root) if kind == "file" else server.bucket("bucket", root, "s3" if kind == "r2" else kind)
    server.add_volume("s.d.v", location)
    return _client(server).volume("s.d.v")


def _on_disk(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# Files


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("kind", ["s3", "gs", "abfss", "r2", "file"])
def test_files_of_a_volume(server: BucketServer, files: Path, tmp_path: Path, kind: str, wrapped: bool) -> None:
    server.settings.wrapped_assets, server.page = wrapped, 2
    volume = _volume(server, files, kind)
    sizes = {name: len(data) for name, data in _on_disk(files).items()}
    assert {file.path: file.size for file in volume.files()} == sizes
    assert [file.path for file in volume.files("raw/deep")] == ["raw/deep/er/c.bin"]
    assert [(file.path, file.size) for file in volume.files("README")] == [("README", 8)]
    missing = [partial(volume.files, name) for name in ("row", "README/x", "raw/deep/er/c")]
    assert not_refused(NoSuchFileError, r"has no file or directory '(row|README/x|raw/deep/er/c)'", *missing) == []
    fs = volume.fs()
    assert sorted(fs.ls("", detail=False)) == ["README", "raw", "t.parquet"]
    assert sorted(fs.ls("opensharing://raw/", detail=False)) == [
        "raw/a.csv",
        "raw/b 1%2F#?.json",
        "raw/deep",
        "raw/empty",
    ]
    assert sorted(fs.glob("raw/*.*")) == ["raw/a.csv", "raw/b 1%2F#?.json"]
    assert sorted(fs.glob("**/*.bin")) == ["raw/deep/er/c.bin"]
    assert fs.isdir("raw/deep")
    assert fs.isfile("README")
    assert not fs.exists("raw/d")
    with volume.open("raw/deep/er/c.bin") as file:
        file.seek(5000)
        assert file.read(7) == FILES["raw/deep/er/c.bin"][5000:5007]
    with volume.open("raw/b 1%2F#?.json", "r") as text:
        assert text.read() == '{"id": 1}\n'
    assert fs.cat_file("raw/empty") == b""
    assert fs.cat_file("README", -3) == b"me\n"
    told = volume.download(to=tmp_path / "to")
    assert told == Downloaded(str(tmp_path / "to"), len(sizes), sum(sizes.values()))
    assert _on_disk(tmp_path / "to") == _on_disk(files)
    assert volume.download(to=tmp_path / "to").present == len(sizes)


def test_other_libraries_open_the_files(server: BucketServer, files: Path) -> None:
    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds

    volume = _volume(server, files)
    assert pd.read_csv(volume.open("raw/a.csv")).city.tolist() == ["Bern", "Thun"]
    assert pd.read_parquet("t.parquet", filesystem=volume.fs()).id.tolist() == list(range(5))
    assert ds.dataset("t.parquet", filesystem=volume.fs()).count_rows() == 5
    assert pl.read_parquet(volume.open("t.parquet"))["id"].to_list() == list(range(5))
    with duckdb.connect() as connection:
        connection.register_filesystem(volume.fs())
        assert connection.sql("select count(*) from read_parquet('opensharing://*.parquet')").fetchall() == [(5,)]
    assert pickle.loads(pickle.dumps(volume.fs())).cat_file("README") == FILES["README"]


def test_the_file_system_is_read_only(server: BucketServer, files: Path) -> None:
    fs = _volume(server, files).fs()
    changes = (
        lambda: fs.open("new", "wb"),
        lambda: fs.rm("README"),
        lambda: fs.mkdir("x"),
        lambda: fs.makedirs("x/y"),
        lambda: fs.mv("README", "x"),
        lambda: fs.pipe_file("x", b""),
        lambda: fs.touch("x"),
        lambda: fs.put_file(__file__, "x"),
    )
    assert not_refused(OSError, rf"\[Errno {errno.EROFS}\] .*read-only", *changes) == []


# Nothing outside


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "raw/../../secret",
        "/etc/passwd",
        "//etc/passwd",
        "file:///etc/passwd",
        "s3://b/k",
        ".",
        "raw//a.csv",
        "raw/./a.csv",
        "a\0b",
    ],
)
@pytest.mark.parametrize("kind", ["s3", "file"])
def test_what_lies_outside_cannot_be_named(
    server: BucketServer, files: Path, tmp_path: Path, path: str, kind: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    volume = _volume(server, files, kind)
    volume.files()
    server.reset_metrics()
    uses = (volume.open, volume.files, lambda path: volume.download(path, tmp_path / "to"), volume.fs().exists)
    assert not_refused(AddressError, r"is no path within volume s.d.v", *(partial(use, path) for use in uses)) == []
    assert not server.requests


def test_links_of_a_local_place_are_not_followed(server: BucketServer, files: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (files / "link").symlink_to(tmp_path / "outside")
    volume = _volume(server, files, "file")
    uses = (lambda: volume.open("link/secret"), volume.files, lambda: volume.files("link"))
    assert not_refused(FileError, "links are not followed", *uses) == []


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("../escaped", "would leave the directory"),
        ("raw/../../escaped", "would leave the directory"),
        ("/escaped", "would leave the directory"),
        ("raw//escaped", "would leave the directory"),
        ("README/escaped", "two files that would be one"),
        (f"{hidden_name('README', 'arriving')}", "two files that would be one"),
    ],
)
def test_keys_that_a_listing_answers_do_not_leave_the_directory(
    server: BucketServer, files: Path, tmp_path: Path, key: str, why: str
) -> None:
    server.more_keys = (key,)
    volume = _volume(server, files)
    assert key in [file.path for file in volume.files()]
    to = tmp_path / "down" / "to"
    with pytest.raises(FileError, match=why):
        volume.download(to=to)
    with pytest.raises((DeltaSharingError, ValueError, OSError)):  # fsspec itself looks, since 2026
        volume.fs().get("", str(to), recursive=True)
    assert not list(tmp_path.rglob("escaped"))
    if "README" not in key and not key.startswith("."):
        volume.download("raw/a.csv", tmp_path / "a.csv")
        assert (tmp_path / "a.csv").read_bytes() == FILES["raw/a.csv"]


def test_a_listing_of_another_place_is_refused(
    server: BucketServer, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = _volume(server, files)
    volume.place.lease.current()._cloud.list_url = lambda location, *_, **__: (
        f"{server.storage_endpoint}/bucket/?prefix="
    )  # type: ignore[union-attr]
    with pytest.raises(FileError, match="which lies elsewhere"):
        volume.files("raw/deep")


def test_links_on_disk_are_not_written_through(server: BucketServer, files: Path, tmp_path: Path) -> None:
    to, outside = tmp_path / "to", tmp_path / "outside"
    to.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("kept")
    volume = _volume(server, files)
    (to / "raw").symlink_to(outside)
    with pytest.raises(FileError, match="is a link or a file where a directory has to be"):
        volume.download(to=to)
    (to / "raw").unlink()
    (to / "README").symlink_to(outside / "kept")
    with pytest.raises(ConfigError, match="README exists and differs"):
        volume.download(to=to)
    volume.download(to=to, replace=True)
    assert (outside / "kept").read_text() == "kept"
    assert _on_disk(to) == _on_disk(files)


@pytest.mark.skipif(not HAS_DIRECTORIES, reason="the system opens nothing by a directory's descriptor")
def test_a_directory_that_becomes_a_link_is_not_written_through(
    server: BucketServer, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody moves a directory away while its first file arrives, and puts a link in its place."""
    to, outside = tmp_path / "to", tmp_path / "outside"
    outside.mkdir()
    monkeypatch.setattr(download, "AT_ONCE", 1)

    def swap() -> None:
        (to / "raw").rename(to / "moved")
        (to / "raw").symlink_to(outside)

    volume = _volume(server, files)
    server.faults.add("data", r"/raw/", times=1, call=swap)
    with pytest.raises(FileError, match=f"{to}/raw is a link or a file where a directory has to be, and is not"):
        volume.download(to=to)
    assert list(outside.iterdir()) == []
    (first,) = [path for path in (to / "moved").iterdir() if path.is_file()]
    assert first.read_bytes() == (files / "raw" / first.name).read_bytes()


# Downloads


def test_a_name_of_its_own_and_a_directory(server: BucketServer, files: Path, tmp_path: Path) -> None:
    volume = _volume(server, files)
    assert volume.download("raw/a.csv", tmp_path / "new.csv").to == str(tmp_path / "new.csv")
    assert volume.download("raw/a.csv", tmp_path).to == str(tmp_path / "a.csv")
    assert volume.download("raw/a.csv", f"{tmp_path}/in/").to == str(tmp_path / "in" / "a.csv")
    volume.download("raw/deep", tmp_path / "d")
    assert list(_on_disk(tmp_path / "d")) == ["er/c.bin"]
    with pytest.raises(NoSuchFileError, match="has no file or directory 'raw/x'"):
        volume.download("raw/x", tmp_path)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of many pieces."""
    monkeypatch.setattr(download, "PIECE", 10_000)
    root = tmp_path / "shared"
    root.mkdir()
    (root / "large").write_bytes(os.urandom(200_001))
    return root


def test_credentials_end_and_connections_break_in_the_middle(server: BucketServer, large: Path, tmp_path: Path) -> None:
    volume = _volume(server, large)
    data = (large / "large").read_bytes()
    server.faults.add("log", skip=4, times=1, call=server.expire_credentials)
    server.faults.add("log", skip=8, times=3, truncate=300)
    server.faults.add("log", skip=14, times=1, reset=True)
    volume.download("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == data
    assert server.count("volume-credentials") == 2
    with volume.open("large", block_size=10_000) as file:
        assert file.read(50_000) == data[:50_000]
        server.expire_credentials()
        file.seek(150_000)
        assert file.read() == data[150_000:]
    assert server.count("volume-credentials") == 3
    server.ended_as = "revoked"
    server.expire_credentials()
    assert len(volume.files()) == 1


def test_a_download_that_was_cut_goes_on(
    server: BucketServer, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, to = _volume(server, large), tmp_path / "to"
    fault = server.faults.add("log", skip=12, times=None, status=503)
    with pytest.raises(NetworkError, match=r"large of volume s.d.v"):
        volume.download(to=to)
    assert sorted(path.name for path in to.iterdir()) == sorted(
        [hidden_name("large", "arriving"), hidden_name("large", "arriving-journal")]
    )
    server.faults.remove(fault)
    server.reset_metrics()
    volume.download(to=to)
    assert _on_disk(to) == _on_disk(large)
    assert server.bytes_sent("log") < 150_000
    # A file that has changed begins anew, and one that is on its way tells.
    server.faults.add("log", skip=8, times=None, status=503)
    to = tmp_path / "anew"
    with pytest.raises(NetworkError):
        volume.download(to=to)
    server.faults.clear()
    (large / "large").write_bytes(os.urandom(200_001))
    volume.download(to=to)
    assert _on_disk(to) == _on_disk(large)


@pytest.mark.parametrize("lost", ["part", "journal's end"])
def test_a_download_goes_on_only_from_what_is_there(
    server: BucketServer, large: Path, tmp_path: Path, lost: str
) -> None:
    volume, to = _volume(server, large), tmp_path / "to"
    fault = server.faults.add("log", skip=12, times=None, status=503)
    with pytest.raises(NetworkError):
        volume.download(to=to)
    server.faults.remove(fault)
    part = to / hidden_name("large", "arriving")
    if lost == "part":
        part.unlink()
    else:  # "1" of the "19" that the process was writing, while piece 1 has not arrived
        journal = part.with_name(part.name + "-journal")
        head, *_ = journal.read_text().splitlines()
        journal.write_text(f"{head}\n0\n1")
        with part.open("r+b") as file:
            file.seek(10_000)
            file.write(bytes(10_000))
    volume.download(to=to)
    assert _on_disk(to) == _on_disk(large)


def _as_a_strangers(path: Path) -> None:
    os.chown(path, 12345, 12345)


def _as_a_second_link(path: Path) -> None:
    os.link(path, path.parents[1] / "other")


@pytest.mark.skipif(os.name == "nt", reason="owners, links and pipes of POSIX")
@pytest.mark.parametrize("hidden", ["arriving", "arriving-journal"])
@pytest.mark.parametrize("plant", [_as_a_strangers, _as_a_second_link, lambda path: path.chmod(0o666)])
def test_a_download_goes_on_from_nothing_that_others_can_write(
    server: BucketServer, large: Path, tmp_path: Path, hidden: str, plant: Callable[[Path], None]
) -> None:
    if plant is _as_a_strangers and os.geteuid() != 0:
        pytest.skip("needs a second user")
    volume, to = _volume(server, large), tmp_path / "to"
    fault = server.faults.add("log", skip=12, times=None, status=503)
    with pytest.raises(NetworkError):
        volume.download(to=to)
    server.faults.remove(fault)
    assert {path.stat().st_mode & 0o777 for path in to.iterdir()} == {0o600}
    part = to / hidden_name("large", "arriving")
    with part.open("r+b") as file:  # the planter's bytes, for which the journal has arrived
        file.write(bytes(120_000))
    plant(to / hidden_name("large", hidden))
    volume.download(to=to)
    assert _on_disk(to) == _on_disk(large)
    status = (to / "large").stat()
    assert (status.st_uid, status.st_nlink, status.st_mode & 0o777) == (os.geteuid(), 1, 0o644)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs a second user")
def test_another_users_file_is_not_taken_for_a_download(server: BucketServer, files: Path, tmp_path: Path) -> None:
    volume = _volume(server, files)
    volume.download("README", tmp_path / "README")
    assert volume.download("README", tmp_path / "README").present == 1
    _as_a_strangers(tmp_path / "README")
    with pytest.raises(ConfigError, match="README belongs to another user"):
        volume.download("README", tmp_path / "README")
    volume.download("README", tmp_path / "README", replace=True)
    assert (tmp_path / "README").stat().st_uid == os.geteuid()
    (tmp_path / "to").symlink_to(tmp_path)
    os.chown(tmp_path / "to", 12345, 12345, follow_symlinks=False)
    with pytest.raises(FileError, match="to is another user's link"):
        volume.download(to=tmp_path / "to", replace=True)


def test_a_file_that_changes_under_a_download(server: BucketServer, large: Path, tmp_path: Path) -> None:
    volume = _volume(server, large)
    stat = os.stat(large / "large")

    def change() -> None:
        fresh = tmp_path / "fresh"  # in one step: the file is read meanwhile
        fresh.write_bytes(os.urandom(200_001))
        os.utime(fresh, ns=(stat.st_mtime_ns + 1, stat.st_mtime_ns + 1))
        fresh.replace(large / "large")

    server.faults.add("log", skip=9, times=1, call=change)
    with pytest.raises(FileError, match="its ETag changed between two ranges; read it again"):
        volume.download(to=tmp_path / "to")
    volume.download(to=tmp_path / "to")
    assert _on_disk(tmp_path / "to") == _on_disk(large)


def test_a_disk_that_is_full(
    server: BucketServer, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume, to = _volume(server, large), tmp_path / "to"
    written, write = 0, os.write

    def full(descriptor: int, data: Any) -> int:
        nonlocal written
        if len(data) > 9_000:
            written += 1
            if written > 5:
                raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(FileError, match=r"the disk is full; make room for 200,001 bytes and download again"):
            volume.download(to=to)
    server.reset_metrics()
    volume.download(to=to)
    assert _on_disk(to) == _on_disk(large)
    assert server.bytes_sent("log") < 190_000, "pieces that had arrived were fetched anew"
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100})())
        with pytest.raises(FileError, match=r"200,001 bytes of volume s.d.v do not fit the disk, which has 100 free"):
            volume.download(to=tmp_path / "other")


def test_credentials_that_do_not_cover_a_file(server: BucketServer, files: Path) -> None:
    server.out_of_scope = "a.csv"
    with pytest.raises(
        CredentialError, match=r"refuses .*a.csv of volume s.d.v, also with a new credential"
    ) as refused:
        _volume(server, files).open("raw/a.csv").read()
    assert "accessMode" not in str(refused.value)
    assert not any(secret in str(refused.value) for secret in server.issued)


# What there is


@pytest.mark.parametrize("path", [None, 5, b"README"], ids=repr)
def test_what_is_no_text_or_number_names_nothing(server: BucketServer, files: Path, tmp_path: Path, path: Any) -> None:
    volume = _volume(server, files)
    uses = (volume.open, volume.files, lambda path: volume.download(path, tmp_path / "to"), volume.spark_path)
    no_text = r"is no text; write a path within volume s\.d\.v"
    assert not_refused(AddressError, no_text, *(partial(use, path) for use in uses)) == []
    model = _client(server).model("s.d.m")
    with pytest.raises(AddressError, match="no text; write the alias's name"):
        model.alias(path)
    with pytest.raises(AddressError, match=r"is no number of a version; write one of versions\(\)"):
        model.version("2" if path == 5 else path)
    with pytest.raises(ConfigError, match="is no client; write FlightGateway"):
        FlightGateway(path)


def test_models_have_versions_and_aliases(server: BucketServer, files: Path) -> None:
    root = server.bucket("bucket", files)
    server.add_model("s.d.m", root, 1, comment="the first", runId="r", source="x")
    server.add_model("s.d.m", f"{root}/raw", 2, aliases=("champion",))
    server.add_model("s.d.m", root, 3, status="PENDING_REGISTRATION", aliases=("next",))
    client = _client(server)
    (model,) = client.models("s", "d")
    opened = client.model(model)
    assert [(version.version, version.status) for version in opened.versions()] == [(1, "READY"), (2, "READY")]
    assert "the first" in repr(opened.versions())
    assert opened.alias("champion").files("") == opened.latest().files("")
    assert opened.version(2).open("a.csv").read() == FILES["raw/a.csv"]
    assert client.model("s.d.m").version(1).record.comment == "the first"  # type: ignore[union-attr]
    pending = (opened.version(3).files, opened.alias("next").files)
    assert not_refused(CredentialError, "version 3 of model s.d.m is PENDING_REGISTRATION, not READY", *pending) == []
    with pytest.raises(NotFoundError, match=r"model s.d.m has no version 9; its versions that are ready: 1, 2"):
        opened.version(9).files()
    with pytest.raises(NotFoundError, match=r"model s.d.m has no alias 'chimp'; its versions that are ready: 1, 2"):
        opened.alias("chimp")
    assert "the first" in opened._repr_html_()
    assert server.count("model-credentials") == 1


def test_both_ways_to_a_models_credentials(server: BucketServer, files: Path) -> None:
    server.settings.unknown_calls = ("temporary-model-version-credentials",)
    server.add_model("s.d.m", server.bucket("bucket", files))
    assert _client(server).model("s.d.m").version(1).files()
    server.expire_credentials()
    assert _client(server).model("s.d.m").version(1).files()
    asked = [request.path.rpartition("/")[2] for request in server.requests if request.kind == "model-credentials"]
    assert asked == ["temporary-model-version-credentials", *["temporary-model-credentials"] * 2]


def test_skills_are_data(server: BucketServer, tmp_path: Path) -> None:
    root = tmp_path / "pdf-forms"
    (root / "scripts").mkdir(parents=True)
    (root / "SKILL.md").write_text("---\nname: pdf-forms\n---\n")
    (root / "scripts" / "run.py").write_text("raise SystemExit('run')")
    (root / "scripts" / "run.py").chmod(0o777)
    server.add_skill(
        "s.d.pdf-forms", root, "Fills forms", license="MIT", allowedTools="Read Bash", metadata={"by": "us"}
    )
    client = _client(server)
    (skill,) = client.skills("s")
    assert (skill.description, skill.license, skill.allowed_tools, skill.metadata) == (
        "Fills forms",
        "MIT",
        "Read Bash",
        {"by": "us"},
    )
    assert "Fills forms" in client.skills()._repr_html_()  # type: ignore[attr-defined]
    client.skill(skill).download(to=tmp_path / "to")
    assert not os.access(tmp_path / "to" / "scripts" / "run.py", os.X_OK)
    html = client.skill("s.d.pdf-forms")._repr_html_()
    assert "SKILL.md" in html
    assert "Fills forms" in html


def test_listings_of_short_and_empty_pages(server: BucketServer, files: Path) -> None:
    for number in range(7):
        server.add_volume(f"s.{'d' if number % 2 else 'e'}.v{number}", files)
    server.settings.list_page_size, server.settings.empty_pages = 2, True
    client = _client(server)
    listings = (client.volumes(), client.volumes("s"), [*client.volumes("s", "d"), *client.volumes("s", "e")])
    names = [sorted(volume.name for volume in listed) for listed in listings]
    assert names == [[f"v{number}" for number in range(7)]] * 3
    server.settings.unknown_calls = ("all-volumes",)
    assert len(client.volumes("s")) == 7
    assert [volume.name for volume in client.volumes(client.list_schemas("s")[0])] == ["v0", "v2", "v4", "v6"]


def test_a_server_that_shares_tables_only_is_asked_once(server: BucketServer, files: Path) -> None:
    server.settings.assets = False
    server.catalog.add_schema("s", "d")
    client = _client(server)
    uses = (client.volumes, lambda: client.volumes("s"), lambda: client.volume("s.d.v").files())
    assert not_refused(NotFoundError, "shares tables only, as far as volumes go", *uses) == []
    assert server.count("all-volumes") == 1
    with pytest.raises(NotFoundError, match="shares tables only, as far as models go"):
        client.model("s.d.m").latest()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("share.deep.picturs", "share.deep has no volume 'picturs'; did you mean 'pictures'"),
        ("share.deeq.pictures", "share has no schema 'deeq'; did you mean 'deep'"),
        ("shore.deep.pictures", "the profile has no share 'shore'; did you mean 'share'"),
        ("share.deep.t", r"it is a table: client.table\('share.deep.t'\)"),
    ],
)
def test_names_that_there_are_not(server: BucketServer, files: Path, name: str, why: str) -> None:
    server.add_volume("share.deep.pictures", files)
    server.add_table("share.deep.t", files)
    with pytest.raises(NotFoundError, match=why):
        _client(server).volume(name).files()
    share, schema, _ = name.split(".")
    if (share, schema) != ("share", "deep"):
        with pytest.raises(NotFoundError, match=why):
            _client(server).volumes(share, schema)


def test_a_table_that_is_a_volume(server: BucketServer, files: Path) -> None:
    server.add_volume("s.d.v", files)
    with pytest.raises(NotFoundError, match=r"it is a volume: client.volume\('s.d.v'\)"):
        _client(server).table("s.d.v").to_arrow()


def test_a_name_of_a_table_and_a_volume(server: BucketServer, files: Path) -> None:
    server.add_volume("s.d.t", files)
    server.add_table("s.d.t", files)
    client = _client(server)
    assert client.volume("S.D.T").open("README").read() == FILES["README"]
    assert [table.name for table in client.list_tables("s.d")] == [volume.name for volume in client.volumes("s", "d")]


@pytest.mark.parametrize(
    ("location", "error", "why"),
    [
        (None, ResponseError, "names no storageLocation"),
        ("hdfs://host/x", AccessModeError, "whose scheme 'hdfs' is not read"),
        ("s3://bucket/../x", CredentialError, "has . or .. segments"),
    ],
)
def test_places_that_are_not_read(server: BucketServer, location: str | None, error: type[Exception], why: str) -> None:
    server._add_asset("volumes", "s.d.v", location, {})
    with pytest.raises(error, match=why):
        _client(server).volume("s.d.v").files()


def test_local_places_of_remote_servers_are_not_read(server: BucketServer, files: Path) -> None:
    server.add_volume("s.d.v", files)
    client = _client(server)
    (record,) = client.volumes()
    remote = SharingClient({**server.profile(), "endpoint": "https://sharing.example/x"})
    with pytest.raises(AccessModeError, match="a local path, which is read only for a sharing server on this machine"):
        remote.volume(record).files()


def test_a_flight_gateway_gives_no_files() -> None:
    with pytest.raises(AccessModeError, match="make a client of the profile itself"):
        SharingClient.over("grpc+tcp://127.0.0.1:1", "token").volume("s.d.v")


def test_text_modes_close_what_they_open(server: BucketServer, files: Path) -> None:
    with _volume(server, files).open("raw/a.csv", "r", encoding="utf-8", newline="") as text:
        assert isinstance(text, io.TextIOWrapper)
        assert text.readline() == "id,city\n"


# Through the gateway, as Spark's readers ask it


def test_the_gateway_lists_and_sends_files_and_nothing_else(server: BucketServer, files: Path) -> None:
    data = os.urandom(3 << 20)
    (files / "large").write_bytes(data)
    ended = False
    gateway = Gateway()
    try:
        place = _volume(server, files).place
        address = gateway.share(place, lambda: ended)
        assert gateway.share(place, lambda: ended) == address
        base = address.replace("webhdfs://", "http://").replace(f":{gateway.port}/", f":{gateway.port}/webhdfs/v1/")

        def ask(path: str, operation: str, offset: int = 0) -> requests.Response:
            return requests.get(f"{base}/{quote(path)}", params={"op": operation, "offset": offset}, timeout=HANGS)

        listed = ask("raw", "LISTSTATUS").json()["FileStatuses"]["FileStatus"]
        assert [one["pathSuffix"] for one in listed] == ["a.csv", "b 1%2F#?.json", "empty", "deep"]
        server.reset_metrics()
        assert ask("raw/a.csv", "GETFILESTATUS").json()["FileStatus"]["length"] == len(FILES["raw/a.csv"])
        assert ask("raw/empty", "OPEN").content == b""
        assert not server.requests, "what was listed is known for a while"
        assert ask("raw/b 1%2F#?.json", "OPEN").content == FILES["raw/b 1%2F#?.json"]
        assert ask("large", "OPEN").content == data
        server.expire_credentials()
        assert ask("large", "OPEN", 1 << 20).content == data[1 << 20 :]
        (files / "raw" / "a.csv").write_bytes(b"changed since it was listed")
        told = ask("raw/a.csv", "OPEN")
        assert (told.status_code, "a.csv of volume s.d.v is not the one that was planned" in told.text) == (403, True)
        assert ask("raw/a.csv", "OPEN").content == b"changed since it was listed"
        assert ask("raw/none", "GETFILESTATUS").status_code == 404
        assert requests.put(f"{base}/x?op=CREATE", timeout=HANGS).status_code == 403
        assert requests.get(f"{base[:-1]}/README?op=OPEN", timeout=HANGS).status_code == 403
        ended = True
        for _ in range(100):
            if gateway.is_closed:
                break
            time.sleep(0.1)
        assert gateway.is_closed
    finally:
        gateway.close()


# From a terminal


def test_commands(
    server: BucketServer,
    files: Path,
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.add_volume("s.d.v", files)
    server.add_model("s.d.m", files, 3, aliases=("best",))
    server.add_skill("s.d.both", files, "One of two")
    server.add_volume("s.d.both", files)
    profile = server.write_profile(tmp_path / "p#1.share")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        told = capfdbinary.readouterr()
        return code, told.out.decode(), told.err.decode()

    def names(*arguments: str) -> list[str]:
        code, out, err = run("ls", "--json", *arguments)
        assert code == 0, err
        return [item.get("path") or item.get("version") or item["name"] for item in json.loads(out)]

    assert sorted(names(f"{profile}#s.d")) == ["both", "both", "m", "v"]
    assert "\nvolumes\n" in run("ls", f"{profile}#s.d")[1]
    monkeypatch.setattr(server.settings, "unknown_calls", ("models",))
    assert sorted(names(f"{profile}#s.d")) == ["both", "both", "v"], "a kind that is not known hides no other"
    monkeypatch.undo()
    assert names(f"{profile}#s.d.v/") == names(f"{profile}#s.d.v") == ["README", "raw/", "t.parquet"]
    assert "raw/deep/er/c.bin" in names("-R", f"{profile}#s.d.v/raw")
    assert names(f"{profile}#s.d.v/README") == ["README"]
    assert names(f"{profile}#s.d.m/") == [3]
    assert names(f"{profile}#s.d.m/3/raw/deep") == names(f"{profile}#s.d.m/best/raw/deep") == ["raw/deep/er/"]
    assert run("cat", f"{profile}#s.d.v/raw/b 1%2F#?.json") == (0, '{"id": 1}\n', "")
    monkeypatch.setenv("DELTA_SHARING_PROFILE", profile)
    monkeypatch.chdir(tmp_path)
    assert run("cat", "s.d.m/best/README") == (0, "read me\n", "")
    assert run("download", "s.d.v/README")[1] == "README: 1 file, 8 B\n"
    assert run("download", "s.d.v/raw/deep", "-O", "x")[0] == 0
    assert list(_on_disk(tmp_path / "x")) == ["er/c.bin"]
    assert json.loads(run("download", "--json", "--kind", "skill", "s.d.both/")[1])["files"] == 6
    refused = {
        ("ls", "s.d.both/"): (2, "s.d.both is a volume and a skill: say which with --kind"),
        ("cat", "s.d.m/"): (2, "write s.d.m/VERSION/PATH"),
        ("cat", "s.d.v"): (2, "names no file of a volume, model or skill"),
        ("cat", "s.d.v/../x"): (2, "is no path within volume s.d.v"),
        ("cat", "s.d.v/nothing"): (1, "volume s.d.v has no file or directory 'nothing'"),
        ("cat", "s.d.v/raw"): (1, "raw of volume s.d.v is a directory"),
        ("download", "s.d.v/", "--limit", "3"): (2, "--limit is for tables"),
        ("ls", "s.d.w"): (1, "s.d.w"),
        ("ls", "--kind", "model", f"s.d.m/{'9' * 5000}"): (2, "alias name has 5000 characters"),
    }
    runs = {words: run(*words) for words in refused}
    assert {
        words: told for words, told in runs.items() if told[0] != refused[words][0] or refused[words][1] not in told[2]
    } == {}
