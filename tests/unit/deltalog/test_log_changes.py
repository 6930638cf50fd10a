"""Change data feeds per commit, timestamps, and the commits a stream goes on with."""

import pytest

from delta_sharing_spark.deltalog import replay as history
from delta_sharing_spark.deltalog.commit_feed import load_commits
from delta_sharing_spark.deltalog.paths import commit_name, in_log
from delta_sharing_spark.errors import LogError, UnsupportedFeatureError, VersionError
from unit.deltalog.logbuilder import (
    TimedStore,
    add,
    lines,
    load_snapshot,
    log,
    metadata,
    protocol,
    remove,
    write_checkpoint,
)

CDF = {"delta__enableChangeDataFeed": "true"}
HEAD = [protocol(), metadata(**CDF)]


def load_changes(store, start, end=None, **options):
    return load_commits(store, start, end, feed=True, **options)


def feed(*commits, start=0, end=None, **options):
    return list(load_changes(log([*HEAD, *commits[0]], *commits[1:], **options), start, end))


def short(task):
    def name(v):
        return None if v is None else int(v.unique_id.rpartition("@")[2])

    return (
        task.change_type,
        task.id,
        name(task.deletion_vector),
        task.invert_deletion_vector,
        name(task.excluded),
    )


def test_inserts_deletes_and_change_files():
    cdc = {"cdc": {"path": "_change_data/c%201", "partitionValues": {"p": "x"}, "size": 3, "dataChange": False}}
    commits = feed(
        [add("a"), add("b")],
        [remove("a", size=5, partitionValues={"p": "q"})],
        [add("c"), remove("b"), cdc],
        [add("d", dataChange=False), remove("c", dataChange=False)],
    )
    assert [[short(t) for t in c.tasks] for c in commits] == [
        [("insert", "a", None, False, None), ("insert", "b", None, False, None)],
        [("delete", "a", None, False, None)],
        [(None, "_change_data/c 1", None, False, None)],
        [],
    ]
    assert commits[1].tasks[0].partition_values == {"p": "q"}
    assert [c.has_new_head for c in commits] == [True, False, False, False]
    assert {t.commit_version for t in commits[0].tasks} == {0}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, 1, [("delete", "a", 1, True, None)]),
        (1, None, [("insert", "a", 1, True, None)]),
        (1, 7, [("delete", "a", 7, True, 1), ("insert", "a", 1, True, 7)]),
        (1, 1, []),
        (None, None, [("delete-insert", None, None, None, None)]),
    ],
)
def test_a_file_whose_vector_changed_gives_the_difference(before, after, expected):
    more = {"size": 10, "partitionValues": {"p": "x"}}
    commits = feed([add("a", dv=before)], [remove("a", dv=before, **more), add("a", dv=after)])
    tasks = [short(t) for t in commits[1].tasks]
    assert tasks == ([] if expected and expected[0][0] == "delete-insert" else expected)


def test_a_deleted_file_keeps_its_own_vector():
    commits = feed([add("a", dv=7)], [remove("a", dv=7, size=1, partitionValues={"p": "x"})])
    assert short(commits[0].tasks[0]) == ("insert", "a", 7, False, None)
    assert short(commits[1].tasks[0]) == ("delete", "a", 7, False, None)


def test_ranges():
    commits = ([add("a")], [add("b")], [add("c")])
    assert [c.version for c in feed(*commits, start=1, end=1)] == [1]
    assert [c.version for c in feed(*commits, start=1, end=99)] == [1, 2]
    assert feed(*commits, start=3) == []
    with pytest.raises(VersionError, match=r"version 4 .* does not exist: the newest is 2"):
        feed(*commits, start=4)


def test_change_data_must_be_recorded_over_the_whole_range():
    store = log([metadata(), protocol(), add("a")], [metadata(**CDF), add("b")], [add("c")], [metadata(), add("d")])
    assert [c.version for c in load_changes(store, 1, 2)] == [1, 2]
    with pytest.raises(VersionError, match=r"version 0 of s\.c\.t"):
        list(load_changes(store, 0, table="s.c.t"))
    with pytest.raises(VersionError, match=r"version 3 of s\.c\.t"):
        list(load_changes(store, 1, 3, table="s.c.t"))
    assert [c.version for c in load_commits(store, 0)] == [0, 1, 2, 3]


def test_the_gate_stands_at_every_version():
    store = log([*HEAD, add("a")], [protocol(3, ["newThing"])], [protocol(1)])
    assert load_snapshot(store).version == 2
    with pytest.raises(UnsupportedFeatureError, match="newThing"):
        list(load_changes(store, 0))


def test_commits_for_streams():
    # Of a removed file an action need say no more than its path, and a clean-up may have deleted it.
    store = log([add("a"), add("z", dataChange=False)], [remove("a"), add("b")])
    assert [([t.id for t in c.tasks], c.removes) for c in load_commits(store, 0)] == [(["a"], 0), (["b"], 1)]


@pytest.mark.parametrize("read", [load_commits, load_changes])
def test_a_range_goes_on_where_another_ended_without_the_log_before(read):
    store = log([*HEAD, add("a")], [add("b")], [add("c"), metadata(**CDF, more="x")], [add("d")], [add("e")])
    store.times = {commit_name(version): 1000 * version for version in range(5)}
    whole = list(read(store, 3))
    before = list(read(store, 2, 2))[-1].head
    write_checkpoint(store, 4, [*HEAD, add("a"), add("b"), add("c"), add("d"), add("e")], "classic")
    for version in range(3):
        del store.files[in_log(commit_name(version))]
    assert list(read(store, 3, before=before)) == whole
    others = (None, list(read(store, 4, before=before))[-1].head)  # of no version before: those of 4 are the same
    tasks = [[commit.tasks for commit in read(store, 3, before=other)] for other in others]
    assert tasks == [[commit.tasks for commit in whole]] * 2


@pytest.mark.parametrize(
    ("actions", "match"),
    [
        ([remove("a", size=1)], "no partition values"),
        ([remove("gone", partitionValues={"p": "x"})], "no size"),
        ([{"add": {"path": "x", "size": 1, "partitionValues": {}}}], "changes data"),
        ([add("a"), add("a")], "twice"),
        ([{"add": {"dataChange": True}}], "no path"),
    ],
)
def test_commits_that_cannot_be_told_are_errors(actions, match):
    with pytest.raises(LogError, match=match):
        feed([add("a")], actions)


def test_commits_that_were_cleaned_up():
    store = log([*HEAD, add("a")], [add("b")], [add("c")])
    write_checkpoint(store, 1, [*HEAD, add("a"), add("b")], "classic")
    del store.files[in_log(commit_name(0))]
    assert [c.version for c in load_changes(store, 1)] == [1, 2]
    with pytest.raises(VersionError, match="no longer"):
        list(load_changes(store, 0))


def timed(*times, ict=None, listing=True):
    head = {} if ict is None else {"delta__enableInCommitTimestamps": "true", **ict}
    commits = []
    for version in range(len(times)):
        info = {"commitInfo": {"timestamp": 1, "inCommitTimestamp": 1000 + version}}
        commits.append([info, *([protocol(), metadata(**head)] if version == 0 else []), add(f"f{version}")])
    store = TimedStore(log(*commits).files, listing=listing)
    store.times = {commit_name(v): t for v, t in enumerate(times)}
    return store


@pytest.mark.parametrize("listing", [True, False])
def test_versions_by_modification_time(listing):
    store = timed(100, 200, 300, listing=listing)
    assert [history.times_of(store).at_or_before(t) for t in (100, 150, 200, 300)] == [0, 0, 1, 2]
    assert [history.times_of(store).at_or_after(t) for t in (1, 100, 101, 300)] == [0, 0, 1, 2]
    assert history.times_of(store).at_or_before(999, may_be_late=True) == 2
    with pytest.raises(VersionError, match="before the earliest"):
        history.times_of(store).at_or_before(99)
    with pytest.raises(VersionError, match="after the newest"):
        history.times_of(store).at_or_before(301)
    with pytest.raises(VersionError, match="after the newest"):
        history.times_of(store).at_or_after(301)
    assert load_snapshot(store, version=1).timestamp_ms == 200
    assert load_snapshot(store, version=2).timestamp_ms == 300


def test_modification_times_grow_with_versions():
    store = timed(100, 50, 101)
    assert [load_snapshot(store, version=v).timestamp_ms for v in range(3)] == [100, 101, 102]
    store = TimedStore(log([*HEAD, add("a")], [add("b")]).files)
    assert [c.timestamp_ms for c in load_changes(store, 0)] == [0, 1]


@pytest.mark.parametrize("listing", [True, False])
def test_in_commit_timestamps(listing):
    store = timed(5, 6, 7, ict={}, listing=listing)
    assert [load_snapshot(store, version=v).timestamp_ms for v in range(3)] == [1000, 1001, 1002]
    assert history.times_of(store).at_or_before(1001) == 1
    late = timed(5, 6, 7, 8, listing=listing, ict={**CDF,
        "delta__inCommitTimestampEnablementVersion": "2", "delta__inCommitTimestampEnablementTimestamp": "1002"})  # fmt: skip
    untold = timed(5, 6, 7, 8, listing=listing, ict={"delta__inCommitTimestampEnablementVersion": "2"})
    assert [history.times_of(untold).at_or_before(t) for t in (5, 6, 500, 1002, 1003)] == [0, 1, 1, 2, 3]
    assert [load_snapshot(late, version=v).timestamp_ms for v in range(4)] == [5, 6, 1002, 1003]
    assert [history.times_of(late).at_or_before(t) for t in (5, 6, 500, 1002, 1003)] == [0, 1, 1, 2, 3]
    assert [c.timestamp_ms for c in load_changes(late, 0)] == [5, 6, 1002, 1003]


def test_a_missing_in_commit_timestamp_is_an_error():
    store = log([protocol(), metadata(delta__enableInCommitTimestamps="true"), add("a")])
    with pytest.raises(LogError, match="inCommitTimestamp"):
        _ = load_snapshot(store).timestamp_ms
    assert lines([]) == b""
