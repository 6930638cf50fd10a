"""Splits read from real Parquet: which bytes, which rows, in which order, and what damage does."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.errors import CorruptFileError, DeltaSharingError, FileError
from delta_sharing_spark.predicates.tree import Column, Compare, Literal
from delta_sharing_spark.scan import fetching, pace, row_group_reader, split_reader
from delta_sharing_spark.scan.fetching import BufferedRanges, RangeFile, SlidingRanges
from delta_sharing_spark.scan.pace import Pace
from delta_sharing_spark.scan.plan import MAX_SLICES_PER_FILE, MAX_SPLITS, FileSlice, FileTask, Split, pack
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.schema.partition_values import partition_keys
from delta_sharing_spark.schema.types import Array, Decimal, Field, Primitive, Struct
from delta_sharing_spark.storage.ranges import Range, coalesce, cut
from support import HANGS
from support.drawing import cases, drawn, one_of
from unit.scan.local_access import Bytes, LocalAccess, parquet, read, read_one, spec_of, vector_of

LONG, STRING = Primitive("long"), Primitive("string")
SCHEMA = Struct((Field("i", LONG), Field("s", STRING)))
NARROW = Struct((Field("i", LONG),))


def numbers(rows: int, seed: int = 0, width: int = 20) -> pa.Table:
    noise = random.Random(seed)
    return pa.table({"i": range(rows), "s": [noise.randbytes(width).hex() for _ in range(rows)]})


@pytest.fixture(autouse=True)
def _knowing_nothing() -> None:
    """Other tests' files of the same name are no habit of this one's."""
    pace._paces.clear()
    split_reader._habits.clear()


def ids(table: pa.Table) -> list[int]:
    return table.column("i").to_pylist()


# --- splits and row groups ------------------------------------------------------------------------------------------


def file_sizes(random: random.Random) -> list[tuple[int, int]]:
    """Rows of a file and of its row groups."""
    return [(random.choice([0, random.randint(1, 200)]), random.randint(1, 60)) for _ in range(random.randint(1, 4))]


@cases(30)
@given(drawn(file_sizes, lambda random: random.randint(2_000, 20_000), one_of(False, True), one_of(1 << 10, 64 << 20)))
def test_splits_cover_each_row_exactly_once_and_repeat(case: tuple[list[tuple[int, int]], int, bool, int]) -> None:
    files, most, narrow, ahead = case
    data = {
        f"f{n}": parquet(numbers(rows, n), row_group_size=group, compression="none")
        for n, (rows, group) in enumerate(files)
    }
    tasks = [FileTask(name, name, len(raw)) for name, raw in data.items()]
    spec = spec_of(NARROW if narrow else SCHEMA, is_projected=narrow, fetch_ahead=ahead)
    bins = pack(tasks, most)
    assert pack(reversed(tasks), most) == bins
    per_file: dict[str, list[int]] = {name: [] for name in data}
    for slices in bins:
        for part in slices:
            per_file[part.task.id] += ids(read(spec, LocalAccess(data), slices=(part,)))
    assert per_file == {f"f{n}": [*range(rows)] for n, (rows, _) in enumerate(files)}
    whole = [i for slices in bins for i in ids(read(spec, LocalAccess(data), slices=slices))]
    assert sorted(whole) == sorted(i for rows, _ in files for i in range(rows))


@pytest.mark.parametrize("ahead", [1, 1 << 20])
def test_a_split_reads_its_files_in_order_however_the_bytes_arrive(ahead: int) -> None:
    data = {f"f{n}": parquet(pa.table({"i": range(n * 100, n * 100 + 100)}), row_group_size=30) for n in range(20)}
    noise = random.Random(3)

    class Uneven(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            time.sleep(noise.random() / 100)
            return super().open(task)

    assert ids(read(spec_of(NARROW, fetch_ahead=ahead), Uneven(data))) == [*range(2000)]


# --- which bytes ---------------------------------------------------------------------------------------------------


def spans(data: bytes, leaf: int, groups: list[int] | None = None) -> list[Range]:
    metadata = pq.read_metadata(pa.BufferReader(data))
    ranges = []
    for g in range(metadata.num_row_groups) if groups is None else groups:
        chunk = metadata.row_group(g).column(leaf)
        first = chunk.dictionary_page_offset or chunk.data_page_offset
        ranges.append(Range(first, first + chunk.total_compressed_size))
    return ranges


def test_projection_fetches_the_columns_wanted_and_no_more() -> None:
    table = pa.table({n: np.random.default_rng(0).integers(0, 1 << 60, 200_000) for n in "abcd"})
    data = parquet(table, row_group_size=100_000, compression="none", use_dictionary=False)
    access = LocalAccess({"f": data})
    got = read(spec_of(Struct((Field("c", LONG),)), is_projected=True), access)
    assert got.column("c").combine_chunks().equals(table.column("c").combine_chunks())
    fetched = coalesce([Range(*r) for r in access.reads["f"]], 0)
    needed = sum(r.length for r in spans(data, 2))
    assert sum(r.length for r in fetched) <= needed + (64 << 10), "the columns and the footer"
    assert sum(e - s for s, e in access.reads["f"]) == sum(r.length for r in fetched), "no byte twice"


def test_only_partition_columns_fetch_the_footer_alone() -> None:
    data = parquet(numbers(50_000), row_group_size=9000)
    access = LocalAccess({"f": data})
    schema = Struct((Field("p", Decimal(5, 2)),))
    task = FileTask("f", "f", len(data), {"p": "1.50"})
    got = read(spec_of(schema, partition_columns=("p",), is_projected=True), access, [task])
    assert got.num_rows == 50_000
    assert set(map(str, got.column("p").unique().to_pylist())) == {"1.50"}
    ((start, end),) = access.reads["f"]
    assert len(data) - (64 << 10) <= start < end == len(data)


def test_a_small_file_is_one_request() -> None:
    access = LocalAccess({"f": parquet(numbers(1000), row_group_size=100)})
    assert read(spec_of(SCHEMA), access).num_rows == 1000
    assert access.reads["f"] == [(0, len(access.files["f"]))]


def test_a_footer_larger_than_the_first_guess_costs_one_more_request() -> None:
    table = pa.table({f"c{i}": [i] for i in range(1500)})
    data = parquet(table, compression="none")
    assert int.from_bytes(data[-8:-4], "little") > 64 << 10
    access = LocalAccess({"f": data})
    got = read(spec_of(Struct((Field("C7", LONG),)), is_projected=True), access)
    assert got.to_pylist() == [{"C7": 7}]
    assert len(access.reads["f"]) == 3


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("pages", ["1.0", "2.0"])
def test_windows_give_the_same_rows_as_buffers(codec: str, pages: str) -> None:
    table = numbers(60_000, width=40)
    data = parquet(table, row_group_size=60_000, compression=codec, data_page_version=pages, data_page_size=20_000)
    buffered, windowed = LocalAccess({"f": data}), LocalAccess({"f": data})
    # Both read a projection, so that the file is not fetched whole.
    schema = Struct((Field("s", STRING), Field("i", LONG)))
    whole = read(spec_of(schema, is_projected=True), buffered)
    slow = read(spec_of(schema, is_projected=True, fetch_ahead=256 << 10), windowed)
    assert whole.equals(slow)
    assert whole.column("i").to_pylist() == [*range(60_000)]
    assert max(e - s for s, e in windowed.reads["f"]) <= 128 << 10
    assert len(windowed.reads["f"]) > len(buffered.reads["f"])


@cases(100)
@given(drawn(lambda random: random))
def test_any_read_of_fetched_ranges_gives_the_file(case: tuple[random.Random]) -> None:
    (draw,) = case
    raw = bytes(range(256)) * 4
    points = sorted(draw.choices(range(len(raw) + 1), k=draw.randint(2, 8)))
    chunks = [Range(a, b) for a, b in zip(points[::2], points[1::2], strict=False) if b > a]
    if not chunks:
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "_LEAST_WINDOW", 1)
        source = Bytes("f", raw)
        window = draw.randint(1, 300)
        pace = Pace()
        pace.request_bytes = window
        ranges = BufferedRanges(source, pool, pace)
        if draw.random() < 0.5:
            ranges = SlidingRanges(source, pool, pace, chunks, window)
        else:
            added = [*chunks, *draw.choices(chunks, k=draw.randint(0, 4))]
            draw.shuffle(added)
            for some in (added[:2], added[2:]):
                ranges.add(some)
                assert not ranges.missing(some)
            fetched = list(source.log)  # to which threads still add
            assert len(fetched) == len(set(fetched)), "each byte is fetched once"
            assert ranges.held_bytes == sum(part.length for part in coalesce(chunks, 0))
        file = RangeFile(ranges, len(raw))
        for _ in range(draw.randint(1, 8)):
            start = draw.randint(0, len(raw))
            length = draw.randint(0, 400)
            file.seek(start)
            assert bytes(file.read(length)) == raw[start : start + length]
        ranges.close()


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 100))), st.integers(0, 50), st.integers(1, 60))
def test_coalesced_and_cut_ranges_cover_the_same_bytes(ranges: list[tuple[int, int]], gap: int, limit: int) -> None:
    asked = [Range(s, s + n) for s, n in ranges]
    joined = coalesce(asked, gap)
    needed = {b for r in asked for b in range(r.start, r.end)}
    got = [b for r in joined for b in range(r.start, r.end)]
    assert needed <= set(got)
    assert len(got) == len(set(got))
    assert all(b.start - a.end > gap for a, b in itertools.pairwise(joined))
    pieces = [p for r in joined for p in cut(r, limit)]
    assert [b for p in pieces for b in range(p.start, p.end)] == got
    assert all(0 < p.length <= limit for p in pieces)


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize(("key", "is_shared"), [("delta.mark", False), ("iceberg.mark", False), ("comment", True)])
def test_what_was_learned_of_columns_serves_no_others_that_look_alike(
    key: str, is_shared: bool, is_nested: bool
) -> None:
    """Schemas are equal whatever their metadata, and a table feature may say there how files hold a column."""

    def habits(metadata: dict[str, str]) -> object:
        marked = Field("s", STRING, metadata=metadata)
        schema = Struct((Field("l", Array(Struct((marked,)), True)) if is_nested else marked,))
        return split_reader._habits_of(Split(0, spec_of(schema), (), LocalAccess({})))

    assert (habits({}) is habits({key: "true"})) == is_shared
    assert habits({key: "true"}) is habits({key: "true"})


def test_memory_held_ahead_is_bounded_whatever_the_number_of_files() -> None:
    one = parquet(numbers(10_000))  # about 500 KB
    opened: list[str] = []
    lock = threading.Lock()

    class Counting(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            with lock:
                opened.append(task.id)
            return super().open(task)

    access = Counting({f"f{n:03}": one for n in range(100)})
    tasks = [FileTask(n, n, len(one)) for n in access.files]
    spec = spec_of(SCHEMA, fetch_ahead=4 * len(one))
    batches = read_split(Split(0, spec, tuple(FileSlice(t) for t in tasks), access))
    for taken in range(1, 30):
        next(batches)
        time.sleep(0.01)
        # Eight being opened, four within the budget, and one in hand.
        assert len(opened) <= taken + 8 + 4 + 2
    batches.close()


# --- deletion vectors, limits --------------------------------------------------------------------------------------


@cases(40)
@given(drawn(lambda random: random))
def test_deletion_vectors_under_splits_and_projection(case: tuple[random.Random]) -> None:
    (draw,) = case
    rows = draw.randint(1, 300)
    deleted, excluded = (sorted(draw.sample(range(rows), draw.choice([0, draw.randint(0, rows)]))) for _ in range(2))
    invert, with_deleted, with_excluded = draw.choices([False, True], k=3)
    vectors, named = {}, {}
    for name, is_needed, marked in (("d", with_deleted, deleted), ("e", with_excluded, excluded)):
        if is_needed:
            named[name], vectors[name] = vector_of(name, marked)
    raw = parquet(numbers(rows), row_group_size=draw.randint(1, 80))
    task = FileTask(
        "f",
        "f",
        len(raw),
        {"p": "x"},
        deletion_vector=named.get("d"),
        invert_deletion_vector=invert and with_deleted,
        excluded=named.get("e"),
    )
    expected = [
        r
        for r in range(rows)
        if (not with_deleted or (r in deleted) == invert) and not (with_excluded and r in excluded)
    ]
    access = LocalAccess({"f": raw}, vectors)
    bins = pack([task], draw.randint(len(raw) // 8 + 1, len(raw) + 1))
    limit = draw.choice([None, draw.randint(0, rows)])
    got = [i for b in bins for i in ids(read(spec_of(NARROW, is_projected=True), access, slices=b))]
    assert got == expected
    partition = Struct((Field("p", STRING),))
    counted = sum(read(spec_of(partition, partition_columns=("p",)), access, slices=b).num_rows for b in bins)
    assert counted == len(expected)
    cut_off = ids(read(spec_of(NARROW, limit=limit), access, [task]))
    assert cut_off == expected[:limit]


@pytest.mark.parametrize(
    ("positions", "fits"), [([3, 49], True), ([3, 50], False), ([1 << 40], False), ([], True)], ids=str
)
@pytest.mark.parametrize("part", ["deletion_vector", "excluded"])
def test_a_vector_that_marks_rows_the_file_does_not_have_is_an_error(
    part: str, positions: list[int], fits: bool
) -> None:
    """It belongs to another file: applied all the same, it would leave wrong rows out."""
    raw = parquet(numbers(50), row_group_size=20)
    vector, data = vector_of("v", positions)
    task = FileTask("f", "f", len(raw), **{part: vector})
    access = LocalAccess({"f": raw}, {"v": data})
    if fits:
        assert ids(read(spec_of(SCHEMA), access, [task])) == [i for i in range(50) if i not in positions]
    else:
        with pytest.raises(CorruptFileError, match=r"of f .*marks row .*has 50 rows"):
            read(spec_of(SCHEMA), access, [task])


def test_limit_stops_early() -> None:
    data = {f"f{n:03}": parquet(numbers(10_000)) for n in range(60)}
    access = LocalAccess(data)
    assert ids(read(spec_of(SCHEMA, limit=5, fetch_ahead=1 << 20), access)) == [0, 1, 2, 3, 4]
    assert len(access.reads) < 20
    assert read(spec_of(SCHEMA, limit=0), LocalAccess(data)).num_rows == 0


@pytest.mark.parametrize("rows", [200, 100_000])  # small files, and such whose row groups are fetched one by one
def test_of_a_reader_that_may_have_enough_one_row_group_is_fetched_first(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(split_reader.time, "sleep", waits.append)
    monkeypatch.setattr(split_reader, "_MOMENTS", (5.0, 5.0))
    one = parquet(numbers(rows, width=60), row_group_size=rows // 4)
    first_group = spans(one, 1, [0])[0].end
    access = LocalAccess({f"f{n:03}": one for n in range(30)})
    tasks = tuple(FileSlice(FileTask(name, name, len(one))) for name in access.files)
    split = Split(0, spec_of(SCHEMA, fetch_ahead=64 << 20), tasks, access)
    batches = read_split(split, is_tentative=True)
    assert next(batches).num_rows
    assert list(access.reads) == ["f000"]
    is_whole = access.reads["f000"][0] == (0, len(one))
    assert is_whole == (rows == 200)
    assert is_whole or sum(end - start for start, end in access.reads["f000"]) < 2 * first_group
    batches.close()
    assert not waits
    others = read_split(split, is_tentative=True)
    found = pa.Table.from_batches(list(others))
    assert found.equals(pa.Table.from_batches(list(read_split(split))))
    assert len(waits) == 1  # once for all files
    assert 0 < waits[0] <= 5.0


@pytest.mark.parametrize("has_row_groups", [True, False])
def test_a_reader_for_whom_the_first_file_has_no_rows_has_the_others_fetched_together(
    has_row_groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "files_at_once", lambda *_: 4)
    together = threading.Barrier(2, timeout=HANGS)

    class Meeting(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            if task.id in ("f1", "f2"):
                together.wait()  # one after the other, nobody would come
            return super().open(task)

    access = Meeting({f"f{n}": parquet(pa.table({"i": range(100 * n, 100 * n + 100)})) for n in range(9)})
    where = Compare("=", Column(("i",), LONG), Literal(850, LONG))
    slices = tuple(FileSlice(FileTask(name, name, len(data))) for name, data in access.files.items())
    spec = replace(spec_of(NARROW), predicate=where, prune=None if has_row_groups else where)
    assert ids(pa.Table.from_batches(list(read_split(Split(0, spec, slices, access), is_tentative=True)))) == [850]


@pytest.mark.parametrize(("files", "row_groups"), [(1, 1), (1, 2), (2, 1)])
def test_who_has_the_last_row_group_waits_for_nobody(
    files: int, row_groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(split_reader.time, "sleep", waits.append)
    monkeypatch.setattr(split_reader, "_MOMENTS", (5.0, 5.0))
    one = parquet(numbers(100), row_group_size=100 // row_groups)
    access = LocalAccess({f"f{n}": one for n in range(files)})
    slices = tuple(FileSlice(FileTask(name, name, len(one))) for name in access.files)
    list(read_split(Split(0, spec_of(SCHEMA), slices, access), is_tentative=True))
    assert len(waits) == files * row_groups - 1


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("why", "damaged"),
    [
        ("only 5 bytes", lambda good: b"hello"),
        ("does not end in PAR1", lambda good: b"<html>" + b"x" * 500),
        ("encrypted", lambda good: good[:-4] + b"PARE"),
        ("footer claims", lambda good: good[:-8] + (1 << 30).to_bytes(4, "little") + b"PAR1"),
        ("not a readable Parquet file", lambda good: good[:-8] + b"\x05\x00\x00\x00PAR1"),
    ],
)
def test_what_is_not_parquet_is_one_clear_error(why: str, damaged: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CorruptFileError, match=rf"f\.parquet of s\.d\.t.*{why}") as caught:
        read_one(damaged(parquet(numbers(100))), SCHEMA)
    assert caught.value.file == "f.parquet"


@pytest.mark.parametrize("field", ["file", "group"])
def test_a_row_count_that_does_not_fit_is_an_error(field: str) -> None:
    rows = 123_457  # rare as a varint, so that it can be found
    good = parquet(pa.table({"i": range(rows)}), compression="none", write_statistics=False)
    size = int.from_bytes(good[-8:-4], "little")
    footer = bytearray(good[-8 - size : -8])
    number = bytes([(2 * rows & 0x7F) | 0x80, (2 * rows >> 7 & 0x7F) | 0x80, 2 * rows >> 14])
    places = [offset for offset in range(len(footer)) if footer[offset : offset + 3] == number]
    # Of the file (field 3 of FileMetaData), of the column's values, of the row group (field 3 of RowGroup).
    offset = places[0] if field == "file" else places[-1]
    footer[offset] ^= 2
    with pytest.raises(CorruptFileError, match="rows"):
        read_one(good[: -8 - size] + bytes(footer) + good[-8:], NARROW)


@pytest.mark.parametrize("ahead", [64 << 20, 16 << 10])
def test_a_flipped_byte_of_a_page_with_a_checksum_is_an_error(ahead: int) -> None:
    table = numbers(3000)
    good = parquet(table, row_group_size=1000, write_page_checksum=True, compression="snappy")
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    noise = random.Random(1)
    messages = []
    for _ in range(150):
        bad = bytearray(good)
        bad[noise.randrange(4, footer)] ^= 1 << noise.randrange(8)
        try:
            got = read_one(bytes(bad), SCHEMA, is_projected=True, fetch_ahead=ahead)
        except CorruptFileError as error:
            messages.append(str(error))
        else:
            assert got.to_pylist() == table.to_pylist(), "a page's header holds bytes that do not matter"
    assert len(messages) > 140
    assert all("f.parquet" in m for m in messages)


def test_a_damaged_footer_never_ends_in_a_stray_exception() -> None:
    good = parquet(numbers(300), row_group_size=100)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    noise = random.Random(2)
    messages = []
    for _ in range(300):
        bad = bytearray(good)
        bad[noise.randrange(footer, len(good) - 8)] ^= 1 << noise.randrange(8)
        for projected in (True, False):
            try:
                read_one(bytes(bad), SCHEMA, is_projected=projected)
            except DeltaSharingError as error:
                messages.append(str(error))
    assert messages
    assert all("f.parquet" in m for m in messages)


def test_a_replaced_file_of_the_planned_size_is_an_error_or_its_own_rows() -> None:
    good = parquet(numbers(3000), compression="none")
    for offset in range(0, len(good), 12_000):
        bad = good[:offset] + b"\0" * min(4000, len(good) - offset) + good[offset + 4000 :]
        try:
            got = read_one(bad, SCHEMA)
        except DeltaSharingError:
            continue
        assert got.num_rows == 3000


def test_errors_of_the_access_come_out_as_they_are_and_threads_end() -> None:
    data = {f"f{n}": parquet(numbers(50)) for n in range(5)}

    class Gone(LocalAccess):
        def open(self, task: FileTask) -> Bytes:
            if task.id == "f3":
                raise CorruptFileError("file f3 went", file="f3")
            return super().open(task)

    before = threading.active_count()
    with pytest.raises(CorruptFileError, match="f3 went"):
        read(spec_of(SCHEMA), Gone(data))
    deadline = time.monotonic() + HANGS
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.parametrize("held", [True, False])
def test_rows_with_more_text_than_a_batch_of_arrow_holds_are_read_in_smaller_ones(
    held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a list, map or struct pyarrow reads no more than 2 GiB of text at once; a dictionary holds that in a few kilobytes."""
    whole, asked = row_group_reader._batches, []

    def limited(group: row_group_reader.RowGroup, batch_rows: int) -> Iterator[pa.RecordBatch]:
        asked.append(batch_rows)
        for count, batch in enumerate(whole(group, batch_rows)):
            if batch_rows > 8 and count == 2:
                raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")
            yield batch

    monkeypatch.setattr(row_group_reader, "_batches", limited)
    monkeypatch.setattr(row_group_reader, "_GUESSED_ROWS", 100)
    monkeypatch.setattr(row_group_reader, "_MOST_ROWS", 100)
    data = parquet(numbers(1000))
    spec = spec_of(NARROW, fetch_ahead=64 << 20 if held else 1)
    assert read(spec, LocalAccess({"f": data}))["i"].to_pylist() == list(range(1000))
    assert asked == [100, 6]


@pytest.mark.parametrize("fetch_ahead", [64 << 20, 1])
@pytest.mark.parametrize("each", [1, 4])
def test_long_texts_that_rows_repeat_come_in_small_batches(each: int, fetch_ahead: int) -> None:
    """A dictionary holds them once: the size of the row group tells nothing of what its rows take."""
    texts = pa.array(["a" * 64_000, "b" * 64_000] * 2_000).dictionary_encode()
    texts = pa.ListArray.from_arrays(list(range(0, 4_001, each)), texts) if each > 1 else texts
    data = parquet(pa.table({"t": texts}), row_group_size=4_000)
    assert len(data) < 64 << 10
    schema = Struct((Field("t", Array(STRING, True) if each > 1 else STRING),))
    pool, rows, most = row_group_reader.decoding_pool(), 0, 0
    before = pool.bytes_allocated()
    for batch in read_split(
        Split(
            0,
            spec_of(schema, fetch_ahead=fetch_ahead),
            (FileSlice(FileTask("f", "f", len(data))),),
            LocalAccess({"f": data}),
        )
    ):
        rows, most = rows + batch.num_rows, max(most, pool.bytes_allocated() - before)
    assert rows == 4_000 // each
    assert most < 64 << 20, "all rows take 256 MB"


@pytest.mark.parametrize("where", ["decoding", "footer", "fetching", "thread"])
def test_a_process_without_memory_does_not_call_its_files_damaged(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark bounds Python workers by ``spark.executor.pyspark.memory``: allocations fail there, and threads do not start."""

    def fail(*_: object, **__: object) -> None:
        if where == "thread":
            raise RuntimeError("can't start new thread")
        raise pa.ArrowMemoryError("malloc of size 64 failed") if where != "fetching" else MemoryError

    place = {
        "decoding": "scan.row_group_reader._batches",
        "footer": "parquet.footer._parsed",
        "fetching": "scan.split_reader.read_footer",
        "thread": "scan.split_reader.read_footer",
    }
    monkeypatch.setattr(f"delta_sharing_spark.{place[where]}", fail)
    with pytest.raises(FileError, match="the memory of this process does not suffice") as told:
        read_one(parquet(numbers(10)), NARROW)
    assert not isinstance(told.value, CorruptFileError)
    assert "s.d.t" in str(told.value)
    assert where in ("fetching", "thread") or told.value.file == "f.parquet"


def test_what_pyarrow_does_not_read_is_not_called_damaged() -> None:
    data = parquet(pa.table({"i": [1, 2]}), compression="snappy", use_dictionary=False)
    lzo = data.replace(b"\x15\x02\x16", b"\x15\x06\x16")
    assert lzo != data
    with pytest.raises(CorruptFileError, match="does not read what this file holds: leave the column out"):
        read_one(lzo, NARROW)


# --- constants ---------------------------------------------------------------------------------------------------


def test_the_logs_partition_value_wins_over_the_files_column() -> None:
    data = parquet(pa.table({"p": ["wrong"], "i": [1]}))
    schema = Struct((Field("P", STRING), Field("i", LONG)))
    spec = spec_of(schema, partition_columns=("P",), partition_keys={"P": ("P",), "Q": ("Q",)})
    tasks = [FileTask("f", "f", len(data), values) for values in ({"p": "right"}, {}, {"Q": "x"})]
    values = [read(spec, LocalAccess({"f": data}), [task]).to_pylist() for task in tasks]
    assert values == [[{"P": p, "i": 1}] for p in ("right", None, None)], "Delta Lake leaves NULLs out"
    with pytest.raises(CorruptFileError, match="no value for the partition column 'P'"):
        read(spec, LocalAccess({"f": data}), [FileTask("f", "f", len(data), {"col-1": "right"})])


def test_a_partition_value_of_a_column_that_another_has_the_name_of() -> None:
    """Where columns have exchanged their names and a NULL is left out, the other column's value is not taken for it."""
    schema = Struct((Field("a", STRING, True, {"delta.columnMapping.physicalName": "b"}),))
    spec = spec_of(
        schema, partition_columns=("a",), partition_keys=partition_keys({"a": "b", "b": "a"}), mapping="name"
    )
    data = parquet(pa.table({"i": [1]}))
    tasks = [FileTask("f", "f", len(data), values) for values in ({"a": "x"}, {"a": "x", "b": "y"})]
    values = [read(spec, LocalAccess({"f": data}), [task]).to_pylist() for task in tasks]
    assert values == [[{"a": None}], [{"a": "y"}]]


def test_change_columns() -> None:
    data = parquet(pa.table({"i": [1, 2], "_change_type": ["insert", "delete"]}))
    schema = Struct(
        (
            Field("i", LONG),
            Field("_change_type", STRING),
            Field("_commit_version", LONG),
            Field("_commit_timestamp", Primitive("timestamp")),
        )
    )
    spec = spec_of(schema, change_feed=True)
    task = FileTask("f", "f", len(data), commit_version=7, commit_timestamp=1_500)
    got = read(spec, LocalAccess({"f": data}), [task])
    assert got.drop_columns(["_commit_timestamp"]).to_pylist() == [
        {"i": 1, "_change_type": "insert", "_commit_version": 7},
        {"i": 2, "_change_type": "delete", "_commit_version": 7},
    ]
    assert got.column("_commit_timestamp").cast(pa.int64()).to_pylist() == [1_500_000] * 2
    fixed = FileTask("f", "f", len(data), change_type="delete", commit_version=8, commit_timestamp=1)
    assert set(read(spec, LocalAccess({"f": data}), [fixed]).column("_change_type").to_pylist()) == {"delete"}
    assert read_one(data, NARROW).schema.names == ["i"]


@pytest.mark.parametrize(("size", "count"), [(10**15, 1), (4 * 10**18, 1), ((1 << 63) - 1, 3)])
def test_a_size_that_cannot_be_asks_for_no_more_splits_than_a_plan_may_have(size: int, count: int) -> None:
    tasks = [FileTask(str(n), "", size) for n in range(count)]
    bins = pack([*tasks, FileTask("z", "", 10)], 128 << 20)
    assert len(bins) <= len(tasks) * MAX_SLICES_PER_FILE + 1
    assert {piece.task.id for one in bins for piece in one} == {task.id for task in [*tasks, FileTask("z", "", 10)]}
    slices = [piece for one in bins for piece in one if piece.task.id == tasks[0].id]
    assert slices[0].start == 0
    assert slices[-1].end is None
    assert all(before.end == after.start for before, after in itertools.pairwise(slices))


def test_many_large_files_and_small_splits_are_no_more_splits_than_a_plan_may_have() -> None:
    many = [FileTask(str(n), "", 1 << 30) for n in range(1 << 12)]
    assert len(pack(many, 1 << 10)) <= 2 * MAX_SPLITS


def test_a_file_without_partition_values_is_no_file_of_nulls() -> None:
    spec = spec_of(SCHEMA, partition_columns=("s",))
    access = LocalAccess({"f": parquet(numbers(3).drop_columns(["s"]))})
    task = FileTask("f", "f", len(access.files["f"]), partition_values=None)
    with pytest.raises(CorruptFileError, match="no value for the partition column 's'"):
        read(spec, access, [task])
    assert read(spec, access, [FileTask("f", "f", task.size)]).column("s").null_count == 3
