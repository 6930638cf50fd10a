"""Snapshots against a model: random histories, every kind of checkpoint, with and without listing."""

import json
import tracemalloc
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given

from delta_sharing_spark.deltalog import replay
from delta_sharing_spark.deltalog.log_store import CachedLogStore
from delta_sharing_spark.deltalog.paths import commit_name, in_log
from delta_sharing_spark.deltalog.replay import load_head
from delta_sharing_spark.errors import CredentialError, LogError, UnsupportedFeatureError, VersionError
from delta_sharing_spark.testing.server.table_logs import LocalLogStore
from support.drawing import cases, drawn, one_of
from unit.deltalog.logbuilder import (
    ROOT,
    TimedStore,
    add,
    lines,
    load_snapshot,
    log,
    metadata,
    parquet,
    protocol,
    remove,
    write_checkpoint,
)

KINDS = ["classic", "multipart", "v2json", "v2json-inline", "v2parquet", "v2parquet-inline"]


def live(snapshot):
    return sorted(
        (t.id, t.deletion_vector.unique_id if t.deletion_vector else "", t.size, t.partition_values.get("p") or "")
        for t in snapshot.tasks()
    )


def expected(model):
    return sorted((path, dv_id(dv), size, p or "") for (path, dv), (size, p) in model.items())


def dv_id(dv):
    return {None: "", 0: "uab^-aqEH.-t@S}K{vb[*k^"}.get(dv, f"uab^-aqEH.-t@S}}K{{vb[*k^@{dv}")


PATHS = ["a", "b%20c", "p=x/d", "e%25f", "s3://other/g", "file:/abs/h", "ü"]
DVS = [None, 0, 1, 7]


def commit(random):
    """Actions, each of another file, and a kind of checkpoint after them, or none."""
    files = random.sample([(path, dv) for path in PATHS for dv in DVS], random.randint(0, 5))
    actions = [
        (random.random() < 0.5, path, dv, random.randint(0, 99), random.choice(["x", "", None])) for path, dv in files
    ]
    return actions, random.choice([None, None, *KINDS])


def history(random):
    return [commit(random) for _ in range(random.randint(1, 8))]


@cases(60)
@given(drawn(history, *[one_of(False, True)] * 3, lambda random: random))
def test_any_history_replays_to_the_model(case):
    history, listing, refuses, hint, random = case
    model, states, checkpoints = {}, [], []
    store = TimedStore({}, listing=listing, refuses=refuses)
    for version, (actions, kind) in enumerate(history):
        out = [protocol(), metadata()] if version == 0 else []
        for is_add, path, dv, size, p in actions:
            if is_add:
                model[path, dv] = (size, p)
                out.append(add(path, dv=dv, size=size, p=p))
            else:
                model.pop((path, dv), None)
                out.append(remove(path, dv=dv))
        store.files[in_log(commit_name(version))] = lines([*out, {"commitInfo": {"operation": "WRITE"}}])
        states.append(dict(model))
        if kind is not None:
            rows = [add(path, dv=dv, size=size, p=p) for (path, dv), (size, p) in model.items()]
            rows += [remove("gone"), protocol(), metadata()]
            write_checkpoint(store, version, rows, kind)
            checkpoints.append((version, kind))
    if hint and checkpoints:
        version, kind = random.choice(checkpoints)
        tree = {"version": version, "size": 1}
        if kind == "multipart":
            tree["parts"] = 2
        if kind.startswith("v2"):
            name = next(p for p in store.files if p.startswith(f"_delta_log/{version:020d}.checkpoint"))
            tree["v2Checkpoint"] = {"path": name.rpartition("/")[2]}
        store.files["_delta_log/_last_checkpoint"] = json.dumps(tree).encode()
    decoded = [{(unescape(p), d): v for (p, d), v in state.items()} for state in states]
    store.known_version = random.choice([None, random.randrange(len(history))])
    with patch("delta_sharing_spark.deltalog.segment.LISTED_BEFORE", random.choice([0, 1, 3, 128])):
        snapshot = load_snapshot(store)
        assert (snapshot.version, live(snapshot)) == (len(history) - 1, expected(decoded[-1]))
        assert live(snapshot) == expected(decoded[-1])  # batches may be read again
        asked = random.randrange(len(history))
        assert live(load_snapshot(store, version=asked)) == expected(decoded[asked])


def unescape(path):
    return path.replace("%20", " ").replace("%25", "%")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listing", [True, False])
def test_commits_below_a_checkpoint_are_not_needed(kind, listing):
    store = log([add("a")], [add("b")], [remove("a")], listing=listing)
    write_checkpoint(store, 1, [protocol(), metadata(), add("a"), add("b")], kind)
    name = next(p for p in store.files if "checkpoint" in p and "_sidecars" not in p).rpartition("/")[2]
    hint = {"version": 1, "size": 4, **({"parts": 2} if kind == "multipart" else {})}
    if kind.startswith("v2"):
        hint["v2Checkpoint"] = {"path": name}
    store.files["_delta_log/_last_checkpoint"] = json.dumps(hint).encode()
    for version in (0, 1):
        del store.files[in_log(commit_name(version))]
    snapshot = load_snapshot(store)
    assert (snapshot.version, [t.id for t in snapshot.tasks()]) == (2, ["b"])
    with pytest.raises((VersionError, LogError)):
        load_snapshot(store, version=0)


def test_checkpoint_alone_is_a_table():
    store = log([add("a")])
    write_checkpoint(store, 5, [protocol(), metadata(), add("a")], "classic")
    del store.files[in_log(commit_name(0))]
    assert load_snapshot(store).version == 5


def test_an_incomplete_multipart_checkpoint_is_ignored():
    store = log([add("a")], [add("b")])
    write_checkpoint(store, 1, [protocol(), metadata(), add("a")], "multipart")
    del store.files[in_log(f"{1:020d}.checkpoint.0000000002.0000000002.parquet")]
    assert [t.id for t in load_snapshot(store).tasks()] == ["a", "b"]


@pytest.mark.parametrize(
    "hint",
    [b"", b"{", b"[]", b'{"version":"1"}', b'{"version":-1}', b'{"version":77,"size":1}', b'{"version":true}', b"\xff",
     b'{"version":1,"parts":"x"}', b'{"version":1,"v2Checkpoint":[]}'],
)  # fmt: skip
@pytest.mark.parametrize("listing", [True, False])
def test_last_checkpoint_is_a_hint_only(hint, listing):
    store = log([add("a")], [add("b")], listing=listing)
    store.files["_delta_log/_last_checkpoint"] = hint
    assert [t.id for t in load_snapshot(store).tasks()] == ["a", "b"]


@pytest.mark.parametrize("listing", [True, False])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_hole_is_an_error_by_name(listing, refuses):
    store = log([add("a")], [add("b")], [add("c")], listing=listing, refuses=refuses)
    del store.files[in_log(commit_name(1))]
    with pytest.raises(LogError, match=r"00000000000000000001\.json") as raised:
        load_snapshot(store)
    assert raised.value.file == in_log(commit_name(1))
    assert load_snapshot(store, version=0).version == 0


def test_a_hole_after_a_checkpoint():
    store = log([add("a")], [add("b")], [add("c")])
    write_checkpoint(store, 0, [protocol(), metadata(), add("a")], "classic")
    del store.files[in_log(commit_name(1))]
    with pytest.raises(LogError, match="hole"):
        load_snapshot(store)


@pytest.mark.parametrize("listing", [True, False])
def test_a_compaction_that_its_writer_did_not_reconcile_changes_no_row(listing):
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    store = log([add("a")], [add("b")], [remove("b"), add("b", deletionVector=vector)], [add("c")], listing=listing)
    # As in the test data of delta-kernel-rs: the actions of all commits, the newest first.
    newest_first = [remove("b"), add("b", deletionVector=vector), add("b")]
    store.files[in_log(f"{1:020d}.{2:020d}.compacted.json")] = lines(newest_first)
    tasks = sorted(load_snapshot(store).tasks(), key=lambda task: task.id)
    assert [(task.id, task.deletion_vector is not None) for task in tasks] == [("a", False), ("b", True), ("c", False)]


@cases(60)
@given(drawn(lambda random: random.randint(1, 70), one_of(False, True), lambda random: random))
def test_a_log_that_cannot_be_listed_is_found_by_names_or_not_at_all(case):
    count, refuses, random = case
    store = log(*[[add(f"f{i}")] for i in range(count)], listing=False, refuses=refuses)
    kinds = {random.randrange(count): random.choice(["classic", "multipart"]) for _ in range(random.randint(0, 3))}
    # As a clean-up leaves it: nothing below one of the checkpoints, whose own commit may be gone as well.
    oldest = random.choice([0, *kinds])
    first = min(oldest + random.randint(0, 1 if oldest else 0), count - 1)
    kinds = {version: kind for version, kind in kinds.items() if version >= oldest}
    for version, kind in kinds.items():
        write_checkpoint(store, version, [protocol(), metadata(), *[add(f"f{i}") for i in range(version + 1)]], kind)
    for version in range(first):
        del store.files[in_log(commit_name(version))]
    hint = random.choice([None, *sorted(kinds), random.randrange(count)])
    if hint is not None:
        tree = {"version": hint, "parts": 2 if kinds.get(hint) == "multipart" else None}
        store.files["_delta_log/_last_checkpoint"] = json.dumps(tree).encode()
    store.known_version = known = random.choice([None, random.randint(first, count - 1)])
    asked_version = random.choice([None, random.randrange(count)])

    target = count - 1 if asked_version is None else asked_version
    hinted = kinds.keys() & {hint} if hint is not None and hint <= target else set()
    guessed = {v for v, kind in kinds.items() if kind == "classic" and v <= target} | hinted
    readable = first == 0 or any(first <= v + 1 or v == target for v in guessed)
    is_readable = asked_version is not None or hinted or {known, hint, 0} & set(range(first, count))
    if readable and is_readable:
        snapshot = load_snapshot(store, version=asked_version)
        assert snapshot.version == target
        assert sorted(t.id for t in snapshot.tasks()) == sorted(f"f{i}" for i in range(target + 1))
    else:
        with pytest.raises((LogError, VersionError, CredentialError)):
            load_snapshot(store, version=asked_version)


@pytest.fixture(scope="module")
def long_log():
    store = log(*[[add(f"f{i}")] for i in range(3000)], listing=False, refuses=True)
    write_checkpoint(store, 2900, [protocol(), metadata(), *[add(f"f{i}") for i in range(2901)]], "classic")
    return store


@pytest.mark.parametrize(("known", "bound"), [(2999, 270), (2950, 270), (None, 370)])
def test_what_is_asked_for_in_vain_is_bounded_by_the_commits_to_read(long_log, known, bound):
    long_log.known_version = known
    long_log.reads.clear()
    snapshot = load_snapshot(CachedLogStore(long_log))
    assert (snapshot.version, sum(1 for _ in snapshot.tasks())) == (2999, 3000)
    assert len(long_log.reads) <= bound


@pytest.mark.parametrize(
    ("hint", "version", "kind", "message"),
    [
        (None, None, LogError, "begin with version 30.*missing or corrupt.*list _delta_log"),
        (20, None, LogError, "begin with version 30.*names version 20, which is not there.*list _delta_log"),
        (38, 35, LogError, "names version 38, which is later"),
        (38, 12, VersionError, "neither its commit nor a checkpoint"),
    ],
)
def test_a_checkpoint_whose_name_cannot_be_guessed_is_an_error_that_says_so(hint, version, kind, message):
    store = log(*[[add(f"f{i}")] for i in range(40)], listing=False, refuses=True, known_version=39)
    write_checkpoint(store, 30, [protocol(), metadata(), add("a")], "v2json")
    for earlier in range(30):
        del store.files[in_log(commit_name(earlier))]
    if hint is not None:
        store.files["_delta_log/_last_checkpoint"] = json.dumps({"version": hint}).encode()
    with pytest.raises(kind, match=message) as raised:
        load_snapshot(store, version=version)
    assert version is not None or raised.value.file == in_log(commit_name(29))


@pytest.mark.parametrize("missing", [1, 15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("known", [None, 0, 20, 39])
def test_a_hole_is_never_taken_for_the_end(missing, known):
    store = log(*[[add(f"f{i}")] for i in range(40)], listing=False, known_version=known)
    del store.files[in_log(commit_name(missing))]
    with pytest.raises(LogError, match="hole"):
        load_snapshot(store)


def test_commits_that_were_found_by_their_names_are_fetched_once():
    store = log(*[[add(f"f{i}")] for i in range(60)], listing=False, known_version=59)
    assert sum(1 for _ in load_snapshot(CachedLogStore(store)).tasks()) == 60
    assert all(store.reads.count(in_log(commit_name(version))) == 1 for version in range(60))


def test_a_credential_that_reads_nothing_is_named_as_the_cause():
    with pytest.raises(CredentialError, match="refuses"):
        load_snapshot(TimedStore({}, listing=False, refuses=True))
    with pytest.raises(LogError, match="no Delta log"):
        load_snapshot(TimedStore({}, listing=False))
    with pytest.raises(LogError, match="no Delta log"):
        load_snapshot(TimedStore({}))


@pytest.mark.parametrize("listing", [True, False])
def test_versions_out_of_range(listing):
    store = log([add("a")], [add("b")], listing=listing)
    with pytest.raises(VersionError, match="newest is 1"):
        load_snapshot(store, version=2)
    with pytest.raises(VersionError, match="start at 0"):
        load_snapshot(store, version=-1)


def test_missing_and_corrupt_parts_are_named():
    store = log([add("a")])
    write_checkpoint(store, 0, [protocol(), metadata(), add("a")], "v2parquet")
    del store.files["_delta_log/_sidecars/0-0.parquet"]
    with pytest.raises(LogError, match=r"_sidecars/0-0\.parquet"):
        list(load_snapshot(store).tasks())
    store = log([add("a")])
    del store.files[in_log(commit_name(0))]  # from which it would be replayed
    store.files[in_log(f"{0:020d}.checkpoint.parquet")] = b"PAR1 nothing PAR1"
    with pytest.raises(LogError, match=r"checkpoint\.parquet"):
        load_snapshot(store)
    store.files[in_log(f"{0:020d}.checkpoint.parquet")] = parquet([add("a")])
    with pytest.raises(LogError, match="lacks its protocol"):
        load_snapshot(store)


@pytest.mark.parametrize(
    "line",
    [
        b'{"add":{"path":"x"',
        b'{"add":{"size":1,"partitionValues":{}}}',
        b'{"add":{"path":1,"size":1}}',
        b'{"add":{"path":"x","size":"big"}}',
        b'{"remove":{}}',
        b"[]",
        b'{"add":{"path":"x","size":1},"remove":{"path":"y"}}',
        b"\xff\xfe",
    ],
)
def test_corrupt_commits_are_named_and_never_skipped(line):
    store = log([add("a")], [add("b")])
    store.files[in_log(commit_name(1))] += line + b"\n"
    with pytest.raises(LogError, match=r"00000000000000000001\.json"):
        list(load_snapshot(store).tasks())


def test_lines_that_arrow_does_not_take_are_read_by_python():
    store = log([add("a")])
    store.files[in_log(commit_name(1))] = (
        b'{"add":{"path":"b","size":1e1,"partitionValues":{"p":"y"},"modificationTime":1.0,"dataChange":true,'
        b'"stats":{"numRecords":3}}}\n\n{"unknown":{"x":1}}'
    )
    task = list(load_snapshot(store).tasks())[-1]
    assert (task.id, task.size, task.rows, task.partition_values) == ("b", 10, 3, {"p": "y"})


def test_a_line_longer_than_a_block_and_a_commit_in_pieces(monkeypatch):
    monkeypatch.setattr(replay, "PARSED_BYTES", 1000)
    stats = json.dumps({"numRecords": 5, "minValues": {"p": "x" * 3_000_000}})
    store = log([add("a", stats=stats), *[add(f"f{i}") for i in range(50)], remove("f7")])
    tasks = list(load_snapshot(store).tasks(keep_stats=True))
    assert len(tasks) == 50
    assert next(t for t in tasks if t.id == "a").stats == stats


FIFTY = [add(f"f{i}", p=f"p{i}") for i in range(50)]


@pytest.mark.parametrize(
    "commits",
    [
        [[*FIFTY, protocol(), metadata()]],
        [[protocol(), metadata(()), add("old", partitionValues={})], [*FIFTY, remove("old"), metadata()]],
    ],
    ids=["the first commit", "a later one"],
)
def test_what_a_commit_says_of_the_table_may_stand_behind_its_files(monkeypatch, commits):
    """The order of a commit's lines means nothing, and a long commit is parsed in pieces."""
    monkeypatch.setattr(replay, "PARSED_BYTES", 1000)
    values = {task.id: task.partition_values for task in load_snapshot(log(*commits)).tasks()}
    assert values == {f"f{i}": {"p": f"p{i}"} for i in range(50)}


def test_gate_and_errors_by_name():
    with pytest.raises(UnsupportedFeatureError, match="'catalogManaged'"):
        load_snapshot(log([protocol(3, ["catalogManaged"]), metadata()]))
    with pytest.raises(UnsupportedFeatureError, match="'somethingNew'") as raised:
        load_snapshot(log([protocol(3, ["deletionVectors", "somethingNew"]), metadata()]))
    assert raised.value.features == ("somethingNew",)
    with pytest.raises(UnsupportedFeatureError, match="reader version 4"):
        load_snapshot(log([protocol(4), metadata()]))
    with pytest.raises(LogError, match="readerFeatures"):
        load_snapshot(log([protocol(1, ["deletionVectors"]), metadata()]))
    with pytest.raises(LogError, match="no metaData"):
        load_snapshot(log([protocol()]))
    broken = metadata()
    broken["metaData"]["format"]["provider"] = "orc"
    with pytest.raises(UnsupportedFeatureError, match="orc"):
        load_snapshot(log([protocol(), broken]))


def test_the_newest_protocol_counts():
    store = log([protocol(3, ["catalogManaged"]), metadata()], [protocol(1)])
    assert load_head(store).protocol.min_reader_version == 1


def test_partition_values_by_physical_name_with_reader_version_2():
    schema = json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": n, "type": "string", "nullable": True,
                 "metadata": {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": f"col-{n}"}}
                for i, n in enumerate(["p", "q", "v"], 1)
            ],
        }
    )  # fmt: skip
    values = [{"col-p": "1", "col-q": "2"}, {"col-q": "4", "col-p": "3"}, {"col-p": ""}]
    adds = [add(f"f{i}", partitionValues=v) for i, v in enumerate(values)]
    head = [protocol(2), metadata(("p", "q"), schema, delta__columnMapping__mode="name")]
    expected = [{"col-p": "1", "col-q": "2"}, {"col-p": "3", "col-q": "4"}, {"col-p": "", "col-q": None}]
    by_checkpoint = log([*head])
    write_checkpoint(by_checkpoint, 0, [*head, *adds], "classic")
    snapshots = [load_snapshot(store) for store in (log([*head, *adds]), by_checkpoint)]
    assert [snapshot.mapping for snapshot in snapshots] == ["name", "name"]
    assert [[t.partition_values for t in snapshot.tasks()] for snapshot in snapshots] == [expected, expected]
    plain = load_snapshot(log([protocol(1), metadata(("p",), schema, delta__columnMapping__mode="name")]))
    assert plain.mapping == "none"


def exchanged(*values: dict[str, str | None]) -> list[dict[str, Any]]:
    """The first commit of a table partitioned by ``a``, ``b`` and ``c``, of which the first two have exchanged their names."""
    fields = [
        {"name": n, "type": "string", "nullable": True,
         "metadata": {"delta.columnMapping.id": i, "delta.columnMapping.physicalName": physical}}
        for i, (n, physical) in enumerate([("a", "b"), ("b", "a"), ("c", "col-c"), ("v", "col-v")], 1)
    ]  # fmt: skip
    schema = json.dumps({"type": "struct", "fields": fields})
    head = [protocol(2), metadata(("a", "b", "c"), schema, delta__columnMapping__mode="name")]
    return [*head, *(add(f"f{i}", partitionValues=v) for i, v in enumerate(values))]


@pytest.mark.parametrize("kind", [None, "classic", "v2json-inline", "v2parquet"])
def test_a_partition_value_may_stand_under_the_logical_name_that_no_other_column_has_as_its_physical_one(kind):
    """Trino and Delta Kernel have written such; without a word the column was NULL in every row."""
    actions = exchanged({"b": "1", "a": "2", "c": "3"}, {"a": "2", "c": "3"}, {"b": "1", "col-c": None})
    store = log(actions)
    if kind is not None:
        store = log(actions[:2])
        write_checkpoint(store, 0, actions, kind)
    values = {task.id: task.partition_values for task in load_snapshot(store).tasks()}
    assert values == {
        "f0": {"b": "1", "a": "2", "col-c": "3"},
        "f1": {"b": None, "a": "2", "col-c": "3"},
        "f2": {"b": "1", "a": None, "col-c": None},
    }


def test_tasks_are_built_for_survivors_only_and_share_partition_values():
    store = log([add(f"f{i}", p="xy"[i % 2], stats=json.dumps({"numRecords": i})) for i in range(20)])
    tasks = [t for batch in load_snapshot(store).adds() for t in batch.filter(batch.sizes.is_valid()).tasks()]
    assert len(tasks) == 20
    assert len({id(t.partition_values) for t in tasks}) == 2
    seen = []

    def prune(batch):
        seen.append(batch.num_rows)
        import numpy as np

        return np.arange(batch.num_rows) == 3

    (task,) = (t for batch in load_snapshot(store).adds() for t in batch.filter(prune(batch)).tasks())
    assert (task.id, task.rows, task.location, seen) == ("f3", 3, f"{ROOT}/f3", [20])


def test_a_commit_that_goes_while_the_log_is_read():
    class Vacuumed(TimedStore):
        def read(self, path):
            if path.endswith(commit_name(0)):
                write_checkpoint(self, 1, [protocol(), metadata(), add("a"), add("b")], "classic")
                self.files.pop(path, None)
            return super().read(path)

    store = Vacuumed(dict(log([add("a")], [add("b")]).files))
    assert sorted(t.id for t in load_snapshot(store).tasks()) == ["a", "b"]

    class Gone(TimedStore):
        def read(self, path):
            if path.endswith(commit_name(0)):
                raise FileNotFoundError(path)
            return super().read(path)

    with pytest.raises(LogError, match="cleaned up"):
        load_snapshot(Gone(dict(log([add("a")], [add("b")]).files)))


def test_memory_of_a_plan_stays_columnar():
    store = log([add(f"p=x/part-{i:06d}", stats=json.dumps({"numRecords": i})) for i in range(20_000)])
    snapshot = load_snapshot(store)
    tracemalloc.start()
    count = sum(batch.num_rows for batch in snapshot.adds())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak < 2_000_000


def test_the_local_store(tmp_path):
    files = log([add("a")], [add("b")]).files
    (tmp_path / "_delta_log").mkdir()
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    roots = (tmp_path, str(tmp_path), f"file:{tmp_path}", f"file://{tmp_path}/")
    read = [[task.location for task in load_snapshot(LocalLogStore(root)).tasks()] for root in roots]
    assert read == [[f"file://{tmp_path}/a", f"file://{tmp_path}/b"]] * 4
