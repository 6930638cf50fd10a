"""What another user plants in a directory is neither gone on with nor written through, and what killed processes left goes."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.frames.export import whole_file
from delta_sharing_spark.storage.block_cache import BlockCache
from delta_sharing_spark.storage.own_files import hidden_name, make_beside, open_own, written
from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.server import SharingServer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="owners, links and pipes of POSIX")
STRANGER, USER = 12345, 12346
as_root = pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="needs a second user")


def _theirs(path: Path, outside: Path) -> None:
    path.write_bytes(b"planted")
    os.chown(path, STRANGER, STRANGER)


def _writable(path: Path, outside: Path) -> None:
    path.write_bytes(b"planted")
    path.chmod(0o666)


def _directory(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "in it").touch()


PLANTED = [
    pytest.param(_theirs, id="another user's file", marks=as_root),
    pytest.param(_writable, id="a file for all to write"),
    pytest.param(lambda path, outside: os.link(outside, path), id="a second link"),
    pytest.param(lambda path, outside: path.symlink_to(outside), id="a link"),
    pytest.param(lambda path, outside: path.symlink_to(outside.with_name("new")), id="a link to nothing"),
    pytest.param(lambda path, outside: os.mkfifo(path), id="a pipe"),
    pytest.param(_directory, id="a directory"),
]
Plant = Callable[[Path, Path], None]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A file of the user's elsewhere, which nobody changes."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "file").write_bytes(b"the user's")
    yield place / "file"
    assert (place / "file").read_bytes() == b"the user's"
    assert [path.name for path in place.iterdir()] == ["file"]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o777)
    return place


def _mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.mark.parametrize("plant", PLANTED)
def test_what_is_planted_is_not_gone_on_with(shared: Path, outside: Path, plant: Plant) -> None:
    path = shared / hidden_name("t", "arriving")
    plant(path, outside)
    descriptor, place = open_own(path)
    status = os.fstat(descriptor)
    assert (status.st_uid, status.st_nlink, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 1, 0o600)
    assert stat.S_ISREG(status.st_mode)
    assert status.st_size == 0
    assert (place == path) == (plant is not _directory)
    os.write(descriptor, b"arrived")
    os.close(descriptor)
    if place == path:
        descriptor, _ = open_own(path)
        assert os.read(descriptor, 99) == b"arrived", "its own is gone on with"
        os.close(descriptor)


def test_two_do_not_open_one_file(shared: Path) -> None:
    descriptor, _ = open_own(shared / "f.part")
    with pytest.raises(OSError, match="another process is writing it"):
        open_own(shared / "f.part")
    os.close(descriptor)


@as_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_in_a_directory_for_all_a_file_is_its_users(tmp_path: Path, mode: int) -> None:
    """Where another user's file cannot be removed, as in ``/tmp``, the user's has a fresh name."""
    for above in (*tmp_path.parents, tmp_path):
        if above.stat().st_uid == os.geteuid() and above != Path("/"):
            above.chmod(above.stat().st_mode | 0o111)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    path = shared / "f.part"
    path.write_bytes(b"planted")
    path.chmod(0o666)
    os.chown(path, STRANGER, STRANGER)
    child = os.fork()
    if not child:  # in a process of its own, for nobody becomes root again
        ended = 1
        with contextlib.suppress(BaseException):
            os.setgid(USER)
            os.setuid(USER)
            descriptor, place = open_own(path)
            fresh = mode == 0o1777
            assert (place != path) == fresh
            assert os.fstat(descriptor).st_uid == USER
            assert os.fstat(descriptor).st_size == 0
            ended = 0
        os._exit(ended)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_file_is_for_its_user_alone_until_it_is_whole(shared: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with written(shared / "t") as out:
            out.write(b"half")
            out.flush()
            (part,) = shared.iterdir()
            assert _mode(part) == 0o600
    finally:
        os.umask(before)
    assert _mode(shared / "t") == 0o666 & ~mask
    assert [path.name for path in shared.iterdir()] == ["t"]


def test_what_a_killed_export_leaves_is_removed_by_the_next(shared: Path, tmp_path: Path) -> None:
    target = shared / "t.csv"
    code = """
import os, pathlib, sys
from delta_sharing_spark.frames.export import whole_file
with whole_file(pathlib.Path(sys.argv[1]), replace=True) as out:
    out.write(b"half")
    out.flush()
    os.kill(os.getpid(), 9)
"""
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code, str(target)], check=False).returncode == -9
        assert len(list(shared.iterdir())) == 1
    mine = shared / f"{hidden_name('t.csv', 'part')[:-5]}.part.mine"  # of no name that a part has
    mine.write_bytes(b"mine")
    with whole_file(target, replace=True) as out, whole_file(target, replace=True) as other:
        assert len(list(shared.iterdir())) == 3, "what is being written is left alone"
        out.write(b"1")
        other.write(b"2")
    assert {path.name for path in shared.iterdir()} == {"t.csv", mine.name}


def test_files_of_others_are_not_removed_as_abandoned(shared: Path, outside: Path) -> None:
    path = shared / "f.part"
    (shared / "f.0a1b2c3d.part").symlink_to(outside)
    os.mkfifo(shared / "f.00000000.part")
    descriptor, fresh = make_beside(path)
    os.close(descriptor)
    assert len(list(shared.iterdir())) == 3
    assert fresh.exists()


def _export(target: Path) -> None:
    with whole_file(target, replace=True) as out:
        out.write(b"whole")


def _profile(target: Path) -> None:
    with SharingServer() as server:
        server.write_profile(target)


@as_root
@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize(("write", "mode"), [(_export, 0o644), (_profile, 0o600)])
def test_nothing_is_written_through_what_is_planted(
    shared: Path, outside: Path, plant: Plant, write: Callable[[Path], None], mode: int
) -> None:
    target = shared / "t.csv"
    plant(target, outside)
    if target.is_symlink():
        os.chown(target, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(ConfigError), whole_file(target, replace=False):
        pass
    if target.is_dir() or target.is_fifo():
        with pytest.raises((ConfigError, OSError), match=r"is a directory|a pipe|no file"):
            write(target)
    else:
        write(target)
        assert (target.is_file(), target.is_symlink(), _mode(target)) == (True, False, mode)
        assert target.stat().st_uid == os.geteuid()


def test_a_link_of_the_users_own_is_followed(shared: Path, tmp_path: Path) -> None:
    (shared / "link").symlink_to("next")
    (shared / "next").symlink_to(tmp_path / "file")
    with SharingServer() as server:
        assert server.write_profile(shared / "link") == str(shared / "link")
        assert server.token in (tmp_path / "file").read_text()
    assert (shared / "next").is_symlink()


BLOCK_NAME = "ab" + "0" * 62


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_block_is_not_read(tmp_path: Path, outside: Path, plant: Plant) -> None:
    root = tmp_path / "cache"
    cache = BlockCache(str(root), 1 << 20)
    cache.put(BLOCK_NAME, memoryview(b"right"))
    got = cache.get(BLOCK_NAME, 5)
    assert got is not None
    assert bytes(got) == b"right"
    path = root / BLOCK_NAME[:2] / BLOCK_NAME[2:]
    path.unlink()
    plant(path, outside)
    if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
        forged = b"wrong"
        path.write_bytes(forged + zlib.crc32(forged, zlib.crc32(BLOCK_NAME.encode())).to_bytes(4, "little"))
    assert cache.get(BLOCK_NAME, 5) is None
    cache.put(BLOCK_NAME, memoryview(b"right"))
    assert plant is _directory or bytes(cache.get(BLOCK_NAME, 5) or b"") == b"right"


def test_a_block_under_another_ones_name_is_not_read(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path / "cache"), 1 << 20)
    other = BLOCK_NAME[:-1] + "1"
    cache.put(BLOCK_NAME, memoryview(b"right"))
    os.rename(*(tmp_path / "cache" / name[:2] / name[2:] for name in (BLOCK_NAME, other)))
    assert cache.get(other, 5) is None


def test_a_cache_removes_nothing_but_its_blocks(tmp_path: Path) -> None:
    """Whoever names a directory that holds more keeps it."""
    root = tmp_path / "data"
    kept = [root / "ab" / "report.csv", root / "photos" / "a.jpg", root / "ab" / ".hidden", root / "cd" / ("0" * 61)]
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine" * 1000)
        os.utime(path, (1, 1))
    cache = BlockCache(str(root), 2000)
    for number in range(8):
        cache.put(f"ab{number:062x}", memoryview(bytes(500)))
    blocks = [path for path in (root / "ab").iterdir() if path not in kept]
    assert 1 <= len(blocks) <= 4
    assert all(path.read_bytes() == b"mine" * 1000 for path in kept)


@as_root
def test_a_cache_behind_another_users_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    link = tmp_path / "cache"
    link.symlink_to(tmp_path / "private")
    BlockCache(str(link), 1 << 20)
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(OptionError, match="cacheDir can be written by other users"):
        BlockCache(str(link), 1 << 20)


@pytest.mark.parametrize("plant", [_directory, *PLANTED[2:6]])
def test_what_workers_run_is_the_users(
    shared: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    home = shared / f"delta-sharing-spark-{os.getuid()}"
    plant(home, outside)
    if home.is_dir():
        home.chmod(0o777)
    script = Path(worker_python("/opt/my python/bin/python"))
    assert script.parent != home
    assert (_mode(script), _mode(script.parent)) == (0o700, 0o700)
    assert script.read_text().endswith("exec '/opt/my python/bin/python' \"$@\"\n")
