"""Logs that say what cannot be: an error that names the file, never fewer rows, doubled ones, or a crash."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.deltalog.commit_feed import load_commits
from delta_sharing_spark.deltalog.paths import commit_name, in_log
from delta_sharing_spark.errors import DeltaSharingError, LogError
from support.refusals import not_refused
from unit.deltalog.logbuilder import (
    ADD,
    METADATA,
    PROTOCOL,
    MemoryLogStore,
    add,
    load_snapshot,
    log,
    metadata,
    parquet,
    protocol,
    remove,
    write_checkpoint,
)

HEAD = [protocol(), metadata(delta__enableChangeDataFeed="true")]
CLASSIC = in_log(f"{1:020d}.checkpoint.parquet")
V2_JSON = in_log(f"{1:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json")
SIDECAR = "_delta_log/_sidecars/1-0.parquet"
FILES = [add("a"), add("b"), add("c")]


def snapshot(store: MemoryLogStore) -> list[str]:
    return sorted(task.id for task in load_snapshot(store).tasks(keep_stats=True))


def feed(store: MemoryLogStore) -> list[str]:
    return [task.id for commit in load_commits(store, 1, feed=True) for task in commit.tasks]


def with_line(line: bytes, place: int = 1) -> MemoryLogStore:
    """A log of two commits; the second has this line first (0) or last (1)."""
    store = log([*HEAD, add("a")], [add("b")])
    name = in_log(commit_name(1))
    store.files[name] = line + b"\n" + store.files[name] if place == 0 else store.files[name] + line + b"\n"
    return store


# --- lines of commits -------------------------------------------------------------------------------------------------

NO_OBJECTS = [
    b"null",
    b" null",
    b"\tnull",
    b"1",
    b'"x"',
    b"[]",
    b"true",
    b"nul",
    b"\xff",
    b"\x00",
    b"[null]",
    b"\xef\xbb\xbf{}",
]


@pytest.mark.parametrize("line", NO_OBJECTS)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("read", [snapshot, feed])
def test_a_line_that_is_no_object_is_an_error(read: Callable[..., object], line: bytes, place: int) -> None:
    with pytest.raises(LogError, match=r"0001\.json"):
        read(with_line(line, place))


@pytest.mark.parametrize("line", NO_OBJECTS)
@pytest.mark.parametrize("place", [0, 1])
def test_a_line_of_a_checkpoint_that_is_no_object_is_an_error(line: bytes, place: int) -> None:
    store = log_at("v2json-inline")
    store.files[V2_JSON] = line + b"\n" + store.files[V2_JSON] if place == 0 else store.files[V2_JSON] + line
    with pytest.raises(LogError, match=r"checkpoint.*json"):
        snapshot(store)


@pytest.mark.parametrize("data", [b"", b"\n", b"  \n\n"])
@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("read", [snapshot, feed])
def test_an_empty_commit_is_an_upload_that_broke_off(
    read: Callable[[MemoryLogStore], list[str]], listing: bool, data: bytes
) -> None:
    """As a commit that changed nothing, it would hide the rows that it added, and show those that it removed."""
    store = log([*HEAD, add("a")], [remove("a"), add("b")], [add("c")], listing=listing)
    store.files[in_log(commit_name(1))] = data
    with pytest.raises(LogError, match=r"0001\.json is empty.*repair its log"):
        read(store)


@pytest.mark.parametrize(("read", "files"), [(snapshot, ["a", "b"]), (feed, ["b"])])
@pytest.mark.parametrize(
    ("size", "is_read"), [("10", True), (10.0, True), ("ten", False), ("1" * 5000, False), ([1], False)]
)
def test_a_size_is_read_alike_by_snapshots_and_feeds(
    size: Any, is_read: bool, read: Callable[..., object], files: list[str]
) -> None:
    tree = add("b")
    tree["add"]["size"] = size
    store = log([*HEAD, add("a")], [tree])
    if is_read:
        assert read(store) == files
    else:
        with pytest.raises(LogError, match=r"0001\.json"):
            read(store)


def test_a_commit_of_nothing_but_null_does_not_end_the_process() -> None:
    """In a process of its own: Arrow's reader dies of it."""
    script = (
        "from unit.deltalog.logbuilder import log, commit_name, in_log, load_snapshot\n"
        "from delta_sharing_spark.errors import LogError\n"
        "for line in (b'null', b'\\r null', b'{}\\rnull'):\n"
        "    store = log([], [])\n"
        "    store.files[in_log(commit_name(1))] = line + b'\\n'\n"
        "    try:\n        list(load_snapshot(store).tasks())\n"
        "    except LogError as error:\n        print('refused')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, "refused\n" * 3), ended.stderr


ACTIONS = ["add", "remove", "cdc", "metaData", "protocol", "commitInfo", "sidecar"]


@pytest.mark.parametrize("value", ["x", -1, 1.5, True, [], [{}]])
@pytest.mark.parametrize("kind", ACTIONS[:6])
def test_an_action_that_is_no_object_is_never_skipped(kind: str, value: Any) -> None:
    store = with_line(json.dumps({kind: value}).encode())
    readers = [feed] if kind in ("cdc", "commitInfo") else [snapshot, feed]
    assert not_refused(LogError, "", *(partial(read, store) for read in readers)) == []


WRONG = [1, -1, 1.5, True, [], ["x"], {"x": 1}, "\ud800", 1e999, 10**30]


def changed(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    copy = json.loads(json.dumps(tree))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return copy


def leaves(tree: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    paths = []
    for name, value in tree.items():
        paths.append((*above, name))
        if isinstance(value, dict):
            paths += leaves(value, (*above, name))
    return paths


FULL_ADD = add("z", dv=1, stats='{"numRecords":3}')
FULL_REMOVE = remove("a", dv=1, size=1, partitionValues={"p": "x"})
CDC = {"cdc": {"path": "c", "size": 1, "partitionValues": {"p": "x"}, "dataChange": False}}


@pytest.mark.parametrize("value", [*WRONG, None, "", "x", {}, float("nan")], ids=repr)
@pytest.mark.parametrize("action", [FULL_ADD, FULL_REMOVE, CDC, *HEAD], ids=lambda action: next(iter(action)))
def test_any_field_of_any_type_is_read_or_refused(action: dict[str, Any], value: Any) -> None:
    for path in leaves(action):
        store = with_line(json.dumps(changed(action, path, value)).encode())
        for read in (snapshot, feed):
            with contextlib.suppress(DeltaSharingError):
                read(store)


@pytest.mark.parametrize(
    ("action", "match"),
    [
        (changed(add("z"), ("add", "size"), 4 * 10**18), "size"),
        (changed(add("z"), ("add", "size"), 10**15), "size"),
        (changed(add("z"), ("add", "size"), 2**63), r"0001\.json|deletion vector"),
        (changed(add("z"), ("add", "size"), -1), "size"),
        (changed(add("z"), ("add", "partitionValues"), None), "partition"),
        (changed(add("z"), ("add", "partitionValues"), {"p": ["x"]}), r"0001\.json|deletion vector"),
        (changed(add("z"), ("add", "partitionValues"), {"p": "\ud800"}), "surrogate"),
        (changed(add("z"), ("add", "path"), None), "path"),
        (changed(add("z"), ("add", "path"), "x%ff"), "not UTF-8"),
        (changed(add("z"), ("add", "path"), "\ud800"), "surrogate"),
        (changed(FULL_ADD, ("add", "deletionVector", "offset"), "1"), r"0001\.json|deletion vector"),
        (changed(FULL_ADD, ("add", "deletionVector", "sizeInBytes"), "x"), r"0001\.json|deletion vector"),
        (changed(FULL_ADD, ("add", "deletionVector", "sizeInBytes"), 1 << 40), r"0001\.json|deletion vector"),
        (changed(FULL_ADD, ("add", "deletionVector", "sizeInBytes"), (1 << 31) - 1), "sizeInBytes"),
        (changed(FULL_ADD, ("add", "deletionVector", "pathOrInlineDv"), 5), r"0001\.json|deletion vector"),
        (changed(FULL_ADD, ("add", "deletionVector", "cardinality"), []), r"0001\.json|deletion vector"),
        (changed(FULL_ADD, ("add", "deletionVector", "cardinality"), -1), "cardinality"),
        (CDC | {"cdc": {**CDC["cdc"], "partitionValues": {"p": []}}}, r"partitionValues\['p'\] is not text"),
        (CDC | {"cdc": {**CDC["cdc"], "size": 10**16}}, "size"),
        (changed(HEAD[0], ("protocol", "minReaderVersion"), 1e999), "minReaderVersion|malformed"),
        (changed(HEAD[0], ("protocol", "readerFeatures"), "deletionVectors"), "malformed"),
        (changed(HEAD[1], ("metaData", "partitionColumns"), "p"), "malformed"),
        (changed(HEAD[1], ("metaData", "configuration"), {"delta.columnMapping.mode": 1}), "malformed"),
        *[(changed(HEAD[1], ("metaData", name), none), f"malformed.*{name} is")
          for name in ("configuration", "format") for none in (0, False, "", [])],
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error(action: dict[str, Any], match: str) -> None:
    store = with_line(json.dumps(action).encode())
    readers = [feed] if "cdc" in action else [snapshot, feed]
    assert not_refused(LogError, match, *(partial(read, store) for read in readers)) == []


@pytest.mark.parametrize("depth", [1000, 100_000])
def test_a_deep_line_is_an_error(depth: int) -> None:
    deep = b'{"x":' + b"[" * depth + b"]" * depth + b"}"
    store = with_line(deep)
    with contextlib.suppress(LogError):
        assert snapshot(store) == ["a", "b"]
    with contextlib.suppress(LogError):
        assert feed(store) == ["b"]


# --- checkpoints ------------------------------------------------------------------------------------------------------


def log_at(kind: str, actions: list[dict[str, Any]] | None = None) -> MemoryLogStore:
    head = [*HEAD, *(FILES if actions is None else actions)]
    store = log(head, [])
    write_checkpoint(store, 1, head, kind)
    return store


KINDS = ["classic", "multipart", "v2json", "v2parquet", "v2json-inline", "v2parquet-inline"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_named_twice_is_an_error(kind: str) -> None:
    assert snapshot(log_at(kind)) == ["a", "b", "c"]
    with pytest.raises(LogError, match="names the file b twice"):
        snapshot(log_at(kind, [*FILES, add("b", size=11)]))
    assert len(snapshot(log_at(kind, [add("a"), add("b", dv=0), add("b", dv=1)]))) == 3  # other logical files
    no_vector = {"storageType": "u", "sizeInBytes": 40, "cardinality": 2}
    with pytest.raises(LogError, match=r"deletion vector .*pathOrInlineDv"):
        snapshot(log_at(kind, [add("a", deletionVector=no_vector), add("b", deletionVector=no_vector)]))


@pytest.mark.parametrize("kind", ["v2json", "v2parquet"])
def test_sidecars_are_what_the_checkpoint_says(kind: str) -> None:
    store = log_at(kind)
    store.files[SIDECAR] += b"PAR1"
    with pytest.raises(LogError, match=r"1-0\.parquet.*bytes, the checkpoint says"):
        snapshot(store)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (None, "twice"),
        (b'{"sidecar":"x"}', "not an object"),
        (b'{"sidecar":{}}', "no path"),
        (b'{"sidecar":{"path":"x","sizeInBytes":"1"}}', "no number"),
    ],
)
def test_sidecars_that_a_checkpoint_cannot_name(more: bytes | None, match: str) -> None:
    store = log_at("v2json")
    lines = store.files[V2_JSON].splitlines()
    store.files[V2_JSON] = b"\n".join([*lines, more or next(line for line in lines if b"sidecar" in line)])
    with pytest.raises(LogError, match=match):
        snapshot(store)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("classic", CLASSIC),
        ("multipart", in_log(f"{1:020d}.checkpoint.{2:010d}.{2:010d}.parquet")),
        ("v2json", SIDECAR),
    ],
)
@pytest.mark.parametrize("is_renamed", [False, True], ids=["dropped", "renamed"])
def test_a_part_without_adds_is_not_an_empty_one(kind: str, name: str, is_renamed: bool) -> None:
    store = log_at(kind)
    table = pq.read_table(pa.BufferReader(store.files[name]))
    renamed = table.rename_columns(["ADD" if n == "add" else n for n in table.column_names])
    _write(store, name, renamed if is_renamed else table.drop_columns(["add"]))
    with pytest.raises(LogError, match=r"no column 'add'|the checkpoint says"):
        snapshot(store)


@pytest.mark.parametrize(
    ("rows", "is_read"),
    [
        ([{"appId": "a", "version": 1}], True),
        ([{"appId": "a", "version": 1}, None], False),
        ([{"version": 1}], False),
    ],
    ids=str,
)
def test_a_part_whose_rows_are_other_actions_needs_no_column_of_files(rows: list[Any], is_read: bool) -> None:
    """As in the test data of delta-kernel-rs, where a part of a checkpoint has the column ``txn`` alone."""
    store, known = log_at("classic"), snapshot(log_at("classic"))
    store.files[in_log(f"{1:020d}.checkpoint.{1:010d}.{2:010d}.parquet")] = store.files.pop(CLASSIC)
    _write(store, in_log(f"{1:020d}.checkpoint.{2:010d}.{2:010d}.parquet"), pa.table({"txn": rows}))
    if is_read:
        assert snapshot(store) == known
    else:
        with pytest.raises(LogError, match="no column 'add', and rows that are no other action"):
            snapshot(store)


def _write(store: MemoryLogStore, name: str, table: pa.Table) -> None:
    out = io.BytesIO()
    pq.write_table(table, out)
    store.files[name] = out.getvalue()


@pytest.mark.parametrize("column", ["add", "protocol", "metaData", "sidecar"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.list_(pa.int64())])
def test_a_column_of_another_type_is_an_error(column: str, kind: pa.DataType) -> None:
    store = log_at("classic")
    table = pq.read_table(pa.BufferReader(store.files[CLASSIC]))
    index = table.column_names.index(column)
    _write(store, CLASSIC, table.set_column(index, column, pa.nulls(table.num_rows, kind)))
    with pytest.raises(LogError, match=r"checkpoint\.parquet"):
        snapshot(store)


@pytest.mark.parametrize("field", [f.name for f in ADD])
@pytest.mark.parametrize(
    "value", [b"\xff\xfe", 1.5, [1], {"a": 1}, None, pa.array([{"storageType": "u"}]), pa.array([["x"]])], ids=repr
)
def test_fields_of_other_types_in_a_checkpoint_are_read_or_refused(field: str, value: Any) -> None:
    store = log_at("classic", [add("a", dv=1, stats="{}")])
    rows = pq.read_table(pa.BufferReader(store.files[CLASSIC])).to_pylist()
    adds = [row["add"] for row in rows]
    length = len(rows)
    arrays, names = [], []
    for kept in ADD:
        names.append(kept.name)
        if kept.name == field:
            one = value if isinstance(value, pa.Array) else pa.array([value])
            arrays.append(pa.concat_arrays([one] * length))
        else:
            values = [None if one is None else one[kept.name] for one in adds]
            arrays.append(pa.array(values, kept.type))
    mask = pa.array([one is None for one in adds])
    table = pa.table(
        {
            "add": pa.StructArray.from_arrays(arrays, names, mask=mask),
            "metaData": pa.array([row["metaData"] for row in rows], METADATA),
            "protocol": pa.array([row["protocol"] for row in rows], PROTOCOL),
        }
    )
    _write(store, CLASSIC, table)
    try:
        snapshot(store)
    except DeltaSharingError:
        return
    assert field not in ("path", "size", "partitionValues")


def test_text_of_a_checkpoint_that_is_no_text_is_an_error() -> None:
    store = log_at("classic", [add("abcdefg")])
    assert store.files[CLASSIC].count(b"abcdefg") >= 1
    store.files[CLASSIC] = store.files[CLASSIC].replace(b"abcdefg", b"abc\xff\xfefg")
    with pytest.raises(LogError, match="UTF"):
        snapshot(store)


def test_paths_and_rows_that_a_checkpoint_lacks() -> None:
    nothing = add("a")
    nothing["add"]["path"] = None
    nullable = pa.struct([pa.field(f.name, f.type) for f in ADD])
    store = log_at("classic")
    store.files[CLASSIC] = parquet([*HEAD, nothing], add_type=nullable)
    with pytest.raises(LogError, match="without a path"):
        snapshot(store)
    store.files[CLASSIC] = parquet([*HEAD, changed(add("a"), ("add", "partitionValues"), None)])
    with pytest.raises(LogError, match="without partitionValues"):
        snapshot(store)


# --- statistics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "rows"),
    [(10**24, None), (2**63, None), (2**40 + 1, None), (-1, None), (True, None), (1.5, None), (2**40, 2**40), (7, 7)],
)
@pytest.mark.parametrize("more", [{}, {"minValues": {}}], ids=["alone", "beside bounds"])
def test_counts_that_cannot_be_tell_nothing(records: Any, rows: int | None, more: dict[str, Any]) -> None:
    store = log([*HEAD, add("a", stats=json.dumps(more | {"numRecords": records}))])
    assert [task.rows for task in load_snapshot(store).tasks()] == [rows]


def test_more_deleted_rows_than_rows_tell_nothing() -> None:
    store = log([*HEAD, add("a", dv=1, stats='{"numRecords":1}'), add("b", dv=1, stats='{"numRecords":2}')])
    assert [task.rows for task in load_snapshot(store).tasks()] == [None, 2]
