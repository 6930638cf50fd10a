"""The cache of file bytes: whatever is damaged, evicted or written by others, the bytes read are the file's."""

from __future__ import annotations

import multiprocessing
import os
import random
import stat
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark import SharingClient
from delta_sharing_spark.access.cached_access import table_namespace
from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.storage.block_cache import BLOCK, BlockCache, CachedSource
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.drawing import cases
from unit.scan.local_access import Bytes

DATA = random.Random(1).randbytes(3 * BLOCK + 12_345)


def source(data: bytes = DATA) -> Bytes:
    return Bytes("f", data)


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


@cases(60)
@given(st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 2 * BLOCK)), max_size=6), st.integers(0, 5 * BLOCK))
def test_reads_are_the_files_bytes(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, int]], room: int
) -> None:
    root = tmp_path_factory.mktemp("cache")
    cache = BlockCache(str(root), room)
    for start, length in asked:
        length = min(length, len(DATA) - start)
        assert bytes(CachedSource(source(), cache, "k").read(start, length)) == DATA[start : start + length]
        assert sum(path.stat().st_size for path in files(root)) <= room


def test_a_second_reader_asks_for_nothing(tmp_path: Path) -> None:
    first, second = source(), source()
    CachedSource(first, BlockCache(str(tmp_path / "new"), 1 << 30), "k").read(0, len(DATA))
    assert first.log == [(0, len(DATA))], "missing neighbours are one request"
    again = CachedSource(second, BlockCache(str(tmp_path / "new"), 1 << 30), "k")
    assert bytes(again.read(5, BLOCK)) == DATA[5 : BLOCK + 5]
    assert second.log == []
    for path in files(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = source(DATA[:-1])
    CachedSource(other, BlockCache(str(tmp_path / "new"), 1 << 30), "k").read(0, 10)
    assert other.log, "a file of another size is another file"


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b"", lambda b: b + b"x"]
)
def test_damaged_blocks_are_fetched_anew(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    cache = BlockCache(str(tmp_path), 1 << 30)
    CachedSource(source(), cache, "k").read(0, len(DATA))
    for path in files(tmp_path):
        path.write_bytes(damage(path.read_bytes()))
    file = source()
    assert bytes(CachedSource(file, cache, "k").read(0, len(DATA))) == DATA
    assert file.log
    assert bytes(CachedSource(source(b"\0" * len(DATA)), cache, "k").read(0, len(DATA))) == DATA


def test_the_longest_unused_goes_first(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 4 * BLOCK + 4096)
    file = CachedSource(source(), cache, "k")
    for number, start in enumerate((0, BLOCK, 2 * BLOCK)):
        file.read(start, 1)
        for path in files(tmp_path):
            if path.stat().st_mtime > 10**6:
                os.utime(path, (number + 1, number + 1))
    file.read(0, 1)  # used again
    for name in "abc":
        CachedSource(source(), cache, name).read(0, 1)
    counted = source()
    again = CachedSource(counted, cache, "k")
    again.read(0, 1)
    assert counted.log == []
    again.read(BLOCK, 1)
    assert counted.log, "the second block had not been used for longest"


def test_an_unusable_directory_costs_nothing_but_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    cache = BlockCache(str(tmp_path / "file"), 1 << 30)
    for _ in range(2):
        assert bytes(CachedSource(source(), cache, "k").read(7, 99)) == DATA[7:106]
    assert len(caplog.records) == 1


def _hammer(root: str, seed: int, failures: object) -> None:
    noise, cache = random.Random(seed), BlockCache(root, 5 * BLOCK)
    for _ in range(60):
        key = noise.choice("xyz")
        start = noise.randrange(len(DATA))
        length = min(noise.randrange(2 * BLOCK), len(DATA) - start)
        if bytes(CachedSource(source(), cache, key).read(start, length)) != DATA[start : start + length]:
            failures.put(seed)  # type: ignore[attr-defined]


def test_processes_and_threads_share_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    failures = context.Queue()
    processes = [context.Process(target=_hammer, args=(str(tmp_path), seed, failures)) for seed in range(2)]
    threads = [threading.Thread(target=_hammer, args=(str(tmp_path), seed, failures)) for seed in range(7, 9)]
    for worker in (*processes, *threads):
        worker.start()
    for worker in (*processes, *threads):
        worker.join()
    assert failures.empty()
    assert [process.exitcode for process in processes] == [0, 0]
    assert not [path for path in files(tmp_path) if path.name.startswith(".")], "no partial file is left"
    failures.close()


@pytest.mark.parametrize("parents", [1, 3])
def test_the_directory_and_its_missing_parents_are_for_their_owner_only(tmp_path: Path, parents: int) -> None:
    root = tmp_path.joinpath(*(str(number) for number in range(parents)))
    before = os.umask(0)
    try:
        CachedSource(source(), BlockCache(str(root), 1 << 30), "k").read(0, 10)
    finally:
        os.umask(before)
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(made) == parents + 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in made} == {0o700}


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    root.chmod(mode)
    with pytest.raises(OptionError, match=r"cacheDir can be written by other users.*chmod 700"):
        BlockCache(str(root), 1 << 30)


def test_the_same_ids_on_another_server_or_for_another_recipient_are_other_tables(tmp_path: Path) -> None:
    """Two servers share different bytes under equal table ids, file names and sizes."""
    blocks = {}
    builder = [DeltaTableBuilder(tmp_path / name, pa.schema([("n", pa.int64())])) for name in "ab"]
    for number, table in enumerate(builder):
        table.append([{"n": number}])
    ids = [table.table_id for table in builder]
    for number, table in enumerate(builder):
        for path in (table.path / "_delta_log").iterdir():
            path.write_text(path.read_text().replace(ids[number], ids[0]))
    files = [sorted(table.path.glob("*.parquet"))[0] for table in builder]
    files[1].rename(files[1].with_name(files[0].name))
    for path in (builder[1].path / "_delta_log").iterdir():
        path.write_text(path.read_text().replace(files[1].name, files[0].name))
    for mode in ("url", "dir"):
        options = {"cacheDir": str(tmp_path / mode), "accessMode": mode}
        for number, table in enumerate(builder):
            with SharingServer() as server:
                server.add_table("sh.sc.t", table.path, access_modes=("url", "dir"))
                for _ in range(2):
                    rows = SharingClient(server.profile(), **options).table("sh.sc.t").scan().to_arrow()
                    blocks[mode, number] = rows["n"].to_pylist()
    assert blocks == {(mode, number): [number] for mode in ("url", "dir") for number in (0, 1)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Profile("https://a", bearer_token="t"), Profile("https://b", bearer_token="t")),
        (Profile("https://a", bearer_token="t"), Profile("https://a", bearer_token="u")),
        (Profile("https://a", "basic", username="u", password="p"), Profile("https://a", "basic", username="v")),
    ],
)
def test_namespaces_part_servers_recipients_and_tables(one: Profile, other: Profile) -> None:
    name = TableName("s", "s", "t")
    assert table_namespace(one, name, "id") == table_namespace(one, name, "id")
    assert table_namespace(one, name, "id") != table_namespace(other, name, "id")
    assert table_namespace(one, name, "id") != table_namespace(one, TableName("s", "s", "u"), "id")
    assert table_namespace(one, name, "id") != table_namespace(one, name, "replaced")
