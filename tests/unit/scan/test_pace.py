"""What is asked of a storage, by how it answered before."""

from __future__ import annotations

import io
import itertools
import statistics
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import CorruptFileError
from delta_sharing_spark.scan import fetching
from delta_sharing_spark.scan.pace import CONNECTIONS, LayoutHistory, Pace
from delta_sharing_spark.scan.plan import FileSlice, FileTask, Split
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.storage.block_cache import BlockCache, CachedSource
from delta_sharing_spark.storage.ranges import Range, coalesce
from support import HANGS
from unit.scan.local_access import Bytes, LocalAccess, parquet, read, spec_of

KIB, MIB = 1 << 10, 1 << 20


def storage(latency: float, rate: float) -> Pace:
    pace = Pace()
    for length in (64 * KIB, 4 * MIB, 64 * KIB):
        pace.learn(length, latency + length / rate)
    return pace


@pytest.mark.parametrize(
    ("latency", "rate", "least", "most"),
    [
        (0.04, 30e6, 0.8e6, 1.4e6),
        (0.15, 10e6, 1e6, 1.7e6),
        (0.0002, 1e6, 4096, 70e3),
        (0.15, 100e6, 12e6, 16e6),
    ],
)
def test_a_gap_is_worth_what_comes_while_a_request_waits(
    latency: float, rate: float, least: float, most: float
) -> None:
    assert least <= storage(latency, rate).gap <= most


@given(st.lists(st.tuples(st.integers(0, 3 * MIB), st.integers(1, MIB)), min_size=1, max_size=12))
def test_what_is_wanted_is_fetched_and_never_as_much_again(spans: list[tuple[int, int]]) -> None:
    position, wanted = 0, []
    for gap, length in spans:
        wanted.append(Range(position + gap, position + gap + length))
        position += gap + length
    pace = storage(0.04, 30e6)
    asked = pace.merged(reversed(wanted))
    assert all(any(a.start <= w.start and w.end <= a.end for a in asked) for w in wanted)
    assert len(asked) <= len(coalesce(wanted, 0))
    assert sum(a.length for a in asked) < 2 * sum(w.length for w in wanted)
    assert all(after.start - before.end > 0 for before, after in itertools.pairwise(asked))
    near = [Range(i * 120 * KIB, i * 120 * KIB + 100 * KIB) for i in range(20)]
    assert len(pace.merged(near)) == 1


@pytest.mark.parametrize("pace", [storage(0.04, 30e6), storage(0.0001, 20e6)], ids=["far", "near"])
def test_a_file_is_fetched_whole_where_nothing_is_saved_by_parts(pace: Pace) -> None:
    assert pace.is_worth_whole(64 * KIB, 0), "nothing is saved"
    assert not pace.is_worth_whole(65 * KIB, 0)
    assert not pace.is_worth_whole(MIB, 0.5), "twice what is wanted"
    assert pace.is_worth_whole(4 * MIB, 1.0)
    assert not pace.is_worth_whole(5 * MIB, 1.0)
    assert not pace.is_worth_whole(MIB, 0), "it is not known what is wanted of it"
    assert pace.is_worth_whole(200 * KIB, 0, spare=256 * KIB) == (pace.gap >= 200 * KIB)
    assert not pace.is_worth_whole(MIB, 0.5, spare=256 * KIB)


def test_a_small_file_is_fetched_whole_where_its_footer_would_cost_more() -> None:
    far, near = storage(0.04, 30e6), storage(0.0001, 20e6)
    assert (far.is_far, near.is_far, Pace().is_far) == (True, False, False)
    assert far.is_worth_whole(MIB, 0.6)
    assert not near.is_worth_whole(MIB, 0.6)
    assert far.is_worth_whole(MIB, 0.8, spare=256 * KIB)
    assert far.is_worth_whole(250 * KIB, 0.1, spare=256 * KIB), "sooner than a second answer"
    assert not near.is_worth_whole(250 * KIB, 0.1, spare=256 * KIB)
    assert (far.spare, storage(0.0001, 1e9).spare) == (256 * KIB, 0)


@pytest.mark.parametrize(("latency", "rate"), [(0.04, 30e6), (0.15, 10e6), (0.005, 2e6)])
def test_small_files_tell_latency_and_bandwidth(latency: float, rate: float) -> None:
    """No request is for a mebibyte: what the requests for footers and for columns or whole files differ by."""
    pace = Pace()
    for length in (2 * KIB, 240 * KIB, 100 * KIB, 240 * KIB, 240 * KIB):
        pace.learn(length, latency + length / rate)
    assert 0.9 * latency * rate <= pace.gap <= 1.3 * latency * rate


def test_the_first_request_for_a_footer_is_as_long_as_those_before() -> None:
    pace = Pace()
    assert pace.tail_bytes(MIB) == 64 * KIB
    assert pace.tail_bytes(160 * KIB) == 20 * KIB
    assert pace.tail_bytes(KIB) == KIB
    pace.learn_footer(6000)
    assert 6000 < pace.tail_bytes(MIB) < 9000
    pace.learn_footer(300 * KIB)
    assert pace.tail_bytes(MIB) > 300 * KIB
    for _ in range(60):
        pace.learn_footer(6000)
    assert pace.tail_bytes(MIB) < 9000, "one file of another kind is forgotten"


@pytest.mark.parametrize("ahead", [1, 200 * KIB, 64 * MIB])
def test_a_file_stays_open_until_its_last_row_group_is_decoded(ahead: int) -> None:
    """Also where the budget has its row groups fetched one after the other."""

    closed: set[Bytes] = set()

    class Closing(Bytes):
        def read(self, start: int, length: int) -> memoryview:
            if self in closed:
                raise CorruptFileError(f"file {self.name} is closed", file=self.name)
            return super().read(start, length)

        def close(self) -> None:
            closed.add(self)

    class Access(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            return Closing(task.id, self.files[task.id])

    rows = 120_000
    data = parquet(pa.table({"i": range(rows)}), row_group_size=20_000, compression="none", use_dictionary=False)
    schema = Struct((Field("i", Primitive("long")),))
    got = read(spec_of(schema, is_projected=True, fetch_ahead=ahead), Access({"f": data, "g": data}))
    assert got.column("i").to_pylist() == [*range(rows), *range(rows)]


class _Slow(LocalAccess):
    """A storage that answers after a while; of a file in ``together`` not before so many requests for it are under way."""

    def __init__(self, files: dict[str, bytes], seconds: float) -> None:
        super().__init__(files)
        self.seconds, self.together = seconds, 1
        self.begun, self.late, self.arrived = Counter[str](), 0, threading.Condition()

    def open(self, task: FileTask) -> Bytes:
        access, inner = self, super().open(task)

        class Source(Bytes):
            def read(self, start: int, length: int) -> memoryview:
                with access.arrived:
                    access.begun[self.name] += 1
                    access.arrived.notify_all()
                    access.late += not access.arrived.wait_for(lambda: access.begun[self.name] >= access.together, 0.5)
                time.sleep(access.seconds)
                return super().read(start, length)

        return Source(inner.name, inner.data, inner.log)


#: Of one file, at most, where what lies between columns may not all be fetched.
REQUESTS = {"abc": 2.1, "j": 1.3, "aj": 2.1, "bfi": 3.1}


@pytest.mark.parametrize("columns", ["abc", "c", "j", "aj", "bfi"])
@pytest.mark.parametrize("seconds", [0.0, 0.015], ids=["near", "far"])
def test_columns_of_small_files_cost_less_than_twice_their_bytes_and_one_wait(
    columns: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of 40 to 160 kB whose columns differ in width: their footers and the columns' bytes, each byte once.

    They stand for larger ones, of which more is not wanted than may be spared. Far away, what one file has told is asked for of the next together with its footer: a full scan waits as often.
    """
    monkeypatch.setattr("delta_sharing_spark.scan.pace.SPARE", 0)
    draw = np.random.default_rng(1)
    widths = dict(zip("abcdefghij", [8, 2, 1, 8, 4, 8, 2, 8, 8, 1], strict=True))
    files, needed = {}, 0
    for number in range(40):
        rows = int(draw.integers(1000, 4000))
        table = pa.table({n: draw.integers(0, 1 << (8 * w - 1), rows) for n, w in widths.items()})
        data = files[f"{number}"] = parquet(table, use_dictionary=False, compression="snappy")
        metadata = pq.read_metadata(io.BytesIO(data))
        chunks = [metadata.row_group(0).column("abcdefghij".index(name)) for name in columns]
        needed += metadata.serialized_size + 8 + sum(chunk.total_compressed_size for chunk in chunks)
    access = _Slow(files, seconds)
    # What a request takes on a busy machine would make the storage farther than it is.
    learn = Pace.learn
    monkeypatch.setattr(Pace, "learn", lambda pace, length, _: learn(pace, length, seconds + 1e-4 + length / 1e9))
    spec = replace(
        spec_of(Struct(tuple(Field(name, Primitive("long")) for name in columns)), is_projected=True),
        table=f"{columns} at {seconds}",
    )
    requests: list[int] = []
    for scan in range(7):
        again = scan > 1  # what the first footers cost besides is made up for in the second
        access.reads.clear()
        access.begun.clear()
        access.together = 2 if scan == 2 and seconds and columns != "j" else 1  # j lies beside the footer
        assert read(spec, access).num_rows == sum(pq.read_metadata(io.BytesIO(d)).num_rows for d in files.values())
        fetched = [end - start for ranges in access.reads.values() for start, end in ranges]
        tails = 0 if again else sum(max(8 * KIB, len(data) // 8) for data in files.values())
        assert sum(fetched) < 2 * needed + tails, "before the first footer tails are guessed"
        assert access.late < len(files) // 4, "one after the other"
        assert len(fetched) <= (1.2 if again else 2) * (1 + len(columns)) * len(files)
        requests.append(len(fetched))
        for ranges in access.reads.values():
            assert all(a.start - b.end >= 0 for b, a in itertools.pairwise(Range(*r) for r in sorted(ranges)))
    if columns in REQUESTS:  # a single scan may take more: what its files spare depends on which are under way together
        assert statistics.median(requests[2:]) < REQUESTS[columns] * len(files)


@pytest.mark.parametrize("is_alike", [True, False])
def test_what_one_file_left_of_twice_its_bytes_goes_to_another(is_alike: bool) -> None:
    """Three of nine columns as in benchmarks/reading.py: whole, a file is three times their bytes; by two requests, 2.1 times.

    Where no file is like the one before, nothing is guessed for long.
    """
    wanted, footer, size = [Range(4, 45_000), Range(90_000, 146_800), Range(221_000, 228_600)], 1178, 369_786
    needed = sum(part.length for part in wanted) + footer
    history = LayoutHistory(pace := Pace())
    pace.learn_footer(footer)
    requests = fetched = 0
    for number in range(400):
        prefetch = history.prefetch(size, footer_only=False)
        history.take(prefetch)
        by = 120_000 * (not is_alike and number % 2)
        moved = [Range(a + by, b + by) for a, b in wanted]
        lacking = [w for w in moved if not any(a <= w.start and w.end <= b for a, b in prefetch.ranges)]
        taken = sum(part.length for part in [*prefetch.ranges, *lacking])
        history.learn(size, footer, moved, prefetch, taken)
        requests, fetched = requests + len(prefetch.ranges) + len(lacking), fetched + taken
    assert fetched < 1.95 * 400 * needed
    assert not is_alike or requests < 2.4 * 400


def test_small_files_are_asked_for_as_often_as_their_answers_take() -> None:
    """Nearby one after the other, without another thread; also where every request is for a whole file.

    A busy machine does not make a storage far: many threads that wait for each other would make it look farther still.
    """
    pace = Pace()
    assert pace.files_at_once(24) == 24, "nothing is known"

    def after(answers: int, seconds: float) -> tuple[str, bool]:
        for _ in range(answers):
            pace.learn(300 * KIB, seconds)
        at_once = pace.files_at_once(24)
        return "some" if 8 <= at_once <= 12 else str(at_once), pace.spare > 0

    states = [after(20, 0.005), after(300, 0.04), after(1, 0.0008), after(40, 0.006), after(200, 0.006)]
    assert states == [("some", True), ("24", True), ("1", False), ("1", False), ("some", True)]


def test_what_a_cache_on_disk_has_does_not_make_a_storage_look_near(tmp_path: Path) -> None:
    pace, cache, file = Pace(), BlockCache(str(tmp_path / "cache"), 1 << 30), Bytes("f", b"x" * 200 * KIB)
    sources = [CachedSource(file, cache, "f") for _ in range(3)]
    reads = [(pace.read(source, 0, file.size), source.requests_made, pace.answers) for source in sources]
    assert reads == [(file.data, requests, 1) for requests in (1, 0, 0)]
    pace.read(file, 0, 0)
    assert pace.answers == 1, "no request was made for no bytes"
    pace.read(file, 0, 1)
    assert pace.answers == 2


def test_the_first_rows_of_a_near_storage_wait_for_one_file() -> None:
    files = {str(n): parquet(pa.table({"i": np.arange(20_000) * n})) for n in range(12)}
    spec = replace(spec_of(Struct((Field("i", Primitive("long")),))), table="near and whole")
    access = LocalAccess(files)
    read(spec, access)
    access.reads.clear()
    slices = tuple(FileSlice(FileTask(name, name, len(data))) for name, data in files.items())
    batches = read_split(Split(0, spec, slices, access))
    next(batches)
    assert len(access.reads) <= 2
    batches.close()


@pytest.mark.parametrize("is_near", [True, False])
def test_what_a_first_answer_tells_is_known_before_many_files_are_asked_for(
    is_near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A near storage is not asked for a dozen files at once; one that does not answer soon is."""
    files = {str(n): parquet(pa.table({"i": np.arange(2_000) * n})) for n in range(30)}
    spec = replace(spec_of(Struct((Field("i", Primitive("long")),))), table=f"near is {is_near}")
    dozen = threading.Barrier(12)

    class Storage(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            threads.add(threading.current_thread())
            if not is_near and len(opened) < 12:
                opened.append(task.id)
                dozen.wait(HANGS)
            return super().open(task)

    threads, opened = set[threading.Thread](), list[str]()
    if is_near:
        monkeypatch.setattr(fetching, "_GLIMPSE", 20)
    assert read(spec, Storage(files)).num_rows == 60_000
    assert (len(threads) <= 3) == is_near


def test_large_files_are_opened_a_few_ahead_and_their_row_groups_fetched_over_more_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were footers fetched over all connections, a few rows of many files would cost as many requests."""
    for name in ("split_reader.WHOLE_FILE", "pace.WHOLE_FILE", "pace._ALWAYS_WHOLE"):
        monkeypatch.setattr(f"delta_sharing_spark.scan.{name}", 0)
    files = {str(n): parquet(pa.table({"i": np.arange(2_000) + n}), row_group_size=100) for n in range(30)}
    changed, footers, under_way, most = threading.Condition(), set[str](), set[str](), [0]

    class Slow(Bytes):
        def read(self, start: int, length: int) -> memoryview:
            is_footer = start + length == self.size
            with changed:
                (footers if is_footer else under_way).add(self.name if is_footer else f"{self.name} {start}")
                changed.notify_all()
                if is_footer and len(footers) <= 8:
                    assert changed.wait_for(lambda: len(footers) >= 8, 60)
                    changed.wait_for(lambda: len(footers) > 8, 0.2)  # those too many would come now
                    most[0] = max(most[0], len(footers))
                elif not is_footer:
                    assert changed.wait_for(lambda: len(under_way) >= CONNECTIONS, 60)
            return super().read(start, length)

    class Storage(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            return Slow(task.id, files[task.id])

    spec = replace(spec_of(Struct((Field("i", Primitive("long")),))), table="large")
    assert read(spec, Storage(files)).num_rows == 60_000
    assert most[0] == 8


def test_all_of_a_row_group_of_a_far_storage_is_under_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first read too, two waits come before the first row: one for the footer, one for all requests of the row group."""
    rows, clock = MIB, itertools.count()
    monkeypatch.setattr("delta_sharing_spark.scan.pace.time", SimpleNamespace(monotonic=lambda: next(clock) * 0.04))
    data = parquet(pa.table({"i": np.random.default_rng(1).integers(0, 1 << 62, rows)}), compression="none")
    columns, changed = list[int](), threading.Condition()

    class Far(Bytes):
        def read(self, start: int, length: int) -> memoryview:
            if start + length < self.size:
                with changed:
                    columns.append(length)
                    changed.notify_all()
                    assert changed.wait_for(lambda: sum(columns) >= 8 * rows, HANGS)
            return super().read(start, length)

    class Storage(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            return Far(task.id, self.files[task.id])

    spec = replace(spec_of(Struct((Field("i", Primitive("long")),))), table="far and large")
    assert read(spec, Storage({"f": data})).num_rows == rows
    assert len(columns) >= 8


def test_a_small_file_of_a_far_storage_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("delta_sharing_spark.scan.pace.time", SimpleNamespace(monotonic=lambda: next(clock) * 0.04))
    tables = [pa.table({"i": np.random.default_rng(rows).integers(0, 1 << 62, rows)}) for rows in (9_000, 400_000)]
    access = LocalAccess({str(len(t)): parquet(t, compression="none", use_dictionary=False) for t in tables})
    spec = replace(spec_of(Struct((Field("i", Primitive("long")),))), table="far and small")
    assert read(spec, access).num_rows == 409_000
    assert {name: len(ranges) for name, ranges in access.reads.items()} == {"9000": 1, "400000": 1}
