"""The pieces below a snapshot: names, paths, columns, statistics, the feature gate."""

import datetime
import decimal
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delta_sharing_spark.deltalog import paths
from delta_sharing_spark.deltalog.actions import split_lines
from delta_sharing_spark.deltalog.add_batch import AddBatch
from delta_sharing_spark.deltalog.commit_reconciliation import key_hashes, repeated_hashes
from delta_sharing_spark.errors import LogError, UnsupportedFeatureError
from delta_sharing_spark.schema import arrow_bridge as columns
from delta_sharing_spark.schema import features
from support.drawing import cases
from unit.deltalog.logbuilder import ADD, add, load_snapshot, log, metadata, parquet, protocol, remove

N = "0" * 19


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{N}1.json", "commit"),
        (f"{N}1.checkpoint.parquet", "classic"),
        (f"{N}1.checkpoint.0000000001.0000000002.parquet", "multipart"),
        (f"{N}1.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", "v2"),
        (f"{N}1.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet", "v2"),
        (f"{N}1.{N}5.compacted.json", None),
        (f"{N}1.checkpoint.json", None),
        (f"{N}1.crc", None),
        ("_last_checkpoint", None),
        (f".{N}1.json.crc", None),
        (f"{N}1.json.tmp", None),
        ("1.json", None),
        (f"{N}1.80a083e8-7026-4e79-81be-64bd76c43a11.json", None),
    ],
)
def test_file_names(name, kind):
    parsed = paths.parse_name(name)
    assert (parsed and parsed.kind) == kind
    assert parsed is None or parsed.version == 1


@pytest.mark.parametrize(
    ("root", "uri", "location"),
    [
        ("s3://b/t", "p=1/a%20b.parquet", "s3://b/t/p=1/a b.parquet"),
        ("s3://b/t", "a%2520b", "s3://b/t/a%20b"),
        ("s3://b/t", "s3://other/x%25y", "s3://other/x%y"),
        ("s3://b/t", "/k/x", "s3://b/k/x"),
        ("abfss://c@a.dfs.core.windows.net/t", "/k", "abfss://c@a.dfs.core.windows.net/k"),
        ("file:///d/t", "file:/d/x", "file:///d/x"),
        ("file:///d/t", "file://localhost/d/x", "file:///d/x"),
        ("file:///d/t", "../../etc/passwd", "file:///etc/passwd"),
        ("s3://b/t", "x/../../u/y", "s3://b/u/y"),
        ("s3://b/t", "a..b/c.d", "s3://b/t/a..b/c.d"),
        ("s3://b/t", "ts=10%3A00/f", "s3://b/t/ts=10:00/f"),
        ("s3://b/t", "a%3Ab.parquet", "s3://b/t/a:b.parquet"),
        ("s3://b/t", "s3%3A//c/f", "s3://b/t/s3:/c/f"),
        ("s3://b/t", "%2Fk", "s3://b/t/k"),
        ("file:///d/t", "dbfs:/mnt/a%20b/f", "dbfs:/mnt/a b/f"),
    ],
)
def test_paths_are_decoded_once_and_stand_where_they_point(root, uri, location):
    assert paths.join(root, paths.decode_uri(uri)) == location


def test_a_file_on_another_host_is_refused():
    with pytest.raises(LogError, match="another host"):
        paths.join("file:///d", "file://host/x")


@given(st.lists(st.booleans(), max_size=70), st.integers(0, 10))
def test_masks_round_trip(values, cut):
    array = columns.mask(np.array(values, np.bool_))
    assert array.to_pylist() == values
    assert columns.bools(array.slice(cut)).tolist() == values[cut:]


@given(st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1), max_size=20))
def test_integers_round_trip(values):
    array = columns.int64s(values)
    array.validate(full=True)
    assert array.to_pylist() == values


@given(st.lists(st.none() | st.text(max_size=5), max_size=20))
def test_strings_round_trip(texts):
    array = columns.strings(texts)
    array.validate(full=True)
    assert array.to_pylist() == texts
    assert columns.unpacked(columns.packed(array)).to_pylist() == texts
    assert columns.unpacked(columns.packed(array.slice(1, 3))).to_pylist() == texts[1:4]
    assert columns.has_byte(array, b"%") == any("%" in text for text in texts if text)


_KINDS = [
    (pa.int8(), st.integers(-200, 200)),
    (pa.uint64(), st.integers(-1, 1 << 64)),
    (pa.int64(), st.one_of(st.integers(), st.booleans())),
    (pa.date32(), st.one_of(st.integers(-(1 << 31), 1 << 31), st.dates())),
    (pa.timestamp("us", tz="UTC"), st.integers(-(1 << 62), 1 << 62)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text()),
    (pa.binary(), st.binary()),
    (pa.decimal128(10, 2), st.decimals(allow_nan=False, allow_infinity=False, places=2)),
]


@given(
    st.sampled_from(_KINDS).flatmap(
        lambda k: st.tuples(st.just(k[0]), st.lists(st.one_of(st.none(), k[1]), max_size=9))
    )
)
def test_values_without_pandas_are_those_of_arrow(drawn):
    kind, values = drawn
    refusals = OverflowError, pa.ArrowException
    try:
        expected = pa.array(values, kind)
    except refusals:
        with pytest.raises(refusals):
            columns.array_of(values, kind)
        return
    array = columns.array_of(values, kind)
    array.validate(full=True)
    assert array.type == kind
    # As text: NaN is unlike itself.
    assert str(array) == str(expected)
    assert array.null_count == expected.null_count


MAPS = st.lists(
    st.none() | st.dictionaries(st.sampled_from("abc"), st.none() | st.text(max_size=2), max_size=3), max_size=12
)


@given(MAPS, st.integers(0, 5), st.sampled_from("abcd"))
def test_map_values(rows, cut, key):
    array = pa.array([None if r is None else list(r.items()) for r in rows], pa.map_(pa.string(), pa.string()))
    expected = [None if r is None else r.get(key) for r in rows][cut:]
    assert columns.map_values(array.slice(cut), key).to_pylist() == expected


@given(st.binary(max_size=200), st.integers(1, 50))
def test_pieces_are_whole_lines(data, size):
    pieces = list(split_lines(data, size))
    assert b"".join(pieces) == data
    assert all(piece.endswith(b"\n") for piece in pieces[:-1])


def test_parsed_statistics_become_the_json_of_other_files():
    utc = datetime.timezone.utc
    values = {
        "i": 1,
        "s": 'a"b',
        "d": datetime.date(2020, 1, 2),
        "t": datetime.datetime(2020, 1, 2, 3, 4, 5, 678000, utc),
        "n": datetime.datetime(2020, 1, 2, 3, 4, 5),
        "dec": decimal.Decimal("12345678901234567890.10"),
        "f": float("nan"),
        "b": b"x",
        "nested": {"x": 2, "y": None},
    }
    types = pa.struct(
        [
            ("i", pa.int64()),
            ("s", pa.string()),
            ("d", pa.date32()),
            ("t", pa.timestamp("us", "UTC")),
            ("n", pa.timestamp("us")),
            ("dec", pa.decimal128(38, 2)),
            ("f", pa.float64()),
            ("b", pa.binary()),
            ("nested", pa.struct([("x", pa.int32()), ("y", pa.int32())])),
        ]
    )
    kind = pa.struct([("numRecords", pa.int64()), ("minValues", types), ("tightBounds", pa.bool_())])
    parsed = pa.array([{"numRecords": 3, "minValues": values, "tightBounds": True}, None], kind)
    names, sizes = pa.array(["a", "b"]), pa.array([1, 2])
    text, nothing = AddBatch("s3://b/t", names, sizes, {}, sizes, stats_parsed=parsed).stats_texts()
    assert nothing is None
    assert "12345678901234567890.10" in text
    tree = json.loads(text)
    assert tree["numRecords"] == 3
    assert tree["tightBounds"] is True
    assert tree["minValues"] | {"dec": 0} == {
        "i": 1,
        "s": 'a"b',
        "d": "2020-01-02",
        "t": "2020-01-02T03:04:05.678000Z",
        "n": "2020-01-02T03:04:05.000000",
        "dec": 0,
        "nested": {"x": 2},
    }


@pytest.mark.parametrize("wanted", [None, ["id", "day", "s"]], ids=["all", "those wanted"])
@pytest.mark.parametrize("release", ["3.2.1", "3.5.1"])
def test_bounds_of_dates_in_a_checkpoint_by_the_julian_calendar_are_not_used(release, wanted):
    """Databricks' runtimes 9 to 13 write checkpoints so as well: a file with rows of 1000-01-01 was skipped for another day."""
    values = pa.struct([("id", pa.int64()), ("day", pa.date32()), ("s", pa.struct([("t", pa.timestamp("us"))]))])
    parsed = pa.struct([("numRecords", pa.int64()), ("minValues", values)])
    kind = pa.struct([*(f for f in ADD if f.name != "stats"), ("stats_parsed", parsed)])
    day, moment = datetime.date(1000, 1, 6), datetime.datetime(2024, 1, 1)
    tree = {"numRecords": 4, "minValues": {"id": 1, "day": day, "s": {"t": moment}}}
    pairs = {"org.apache.spark.version": release} | (
        {"org.apache.spark.legacyDateTime": ""} if release == "3.2.1" else {}
    )
    store = log([protocol(), metadata()])
    store.files["_delta_log/" + paths.checkpoint_names(0)[0]] = parquet(
        [protocol(), metadata(), add("a", stats_parsed=tree)], add_type=kind, pairs=pairs
    )
    (batch,) = load_snapshot(store).adds(stats_columns=wanted)
    stats = json.loads(batch.stats_texts()[0])
    assert stats["numRecords"] == 4
    assert set(stats["minValues"]) == ({"id"} if release == "3.2.1" else {"id", "day", "s"})


@pytest.mark.parametrize("json_too", [False, True])
def test_a_checkpoint_with_statistics_in_columns_only(json_too):
    values = pa.struct([("id", pa.int64()), ("other", pa.int64())])
    parsed = pa.struct([("numRecords", pa.int64()), ("minValues", values), ("nullCount", values)])
    fields = [f for f in ADD if json_too or f.name != "stats"]
    kind = pa.struct([*fields, ("stats_parsed", parsed)])
    store = log([protocol(), metadata()])
    tree = {"numRecords": 4, "minValues": {"id": 1, "other": 2}, "nullCount": {"id": 0, "other": 0}}
    store.files["_delta_log/" + paths.checkpoint_names(0)[0]] = parquet(
        [protocol(), metadata(), add("a", stats_parsed=tree), add("b")], add_type=kind
    )
    snapshot = load_snapshot(store)
    a, b = snapshot.tasks(keep_stats=True)
    assert (a.rows, json.loads(a.stats), b.rows, b.stats) == (4, tree, None, None)
    (batch,) = [x for x in snapshot.adds(stats_columns=["id"]) if x.paths[0].as_py() == "a"] or [None]
    assert json.loads(batch.stats_texts()[0]) == {"numRecords": 4, "minValues": {"id": 1}, "nullCount": {"id": 0}}
    assert next(iter(snapshot.adds(with_stats=False))).num_records()[0].as_py() is None


@pytest.mark.parametrize(
    ("stats", "rows"),
    [
        ('{"numRecords":5}', 5),
        (' { "numRecords" : 6 , "x":1}', 6),
        ('{"minValues":{"numRecords":9},"numRecords":7}', 7),
        ("broken", None),
        ('{"numRecords":"5"}', None),
        (None, None),
    ],
)
def test_rows_from_statistics(stats, rows):
    store = log([add("a", stats=stats), add("b", stats='{"numRecords":1}')])
    assert [t.rows for t in load_snapshot(store).tasks()] == [rows, 1]


@pytest.mark.parametrize("name", sorted(features.SUPPORTED | features.REFUSED.keys()))
def test_every_feature_passes_or_is_refused_by_name(name):
    if name in features.SUPPORTED:
        features.check_protocol(3, [name], table="t")
        assert name.lower() in features.reader_features_header().split(",")
    else:
        with pytest.raises(UnsupportedFeatureError, match=f"'{name}'"):
            features.check_protocol(3, [name], table="t")
        assert name.lower() not in features.reader_features_header().split(",")


@pytest.mark.parametrize(
    ("version", "names", "error"),
    [
        (1, None, None),
        (2, None, None),
        (3, [], None),
        (3, ["nope"], UnsupportedFeatureError),
        (3, ["DeletionVectors"], UnsupportedFeatureError),
        (4, [], UnsupportedFeatureError),
        (0, None, LogError),
        (3, None, None),
        (1, [], None),
        (2, ["columnMapping"], LogError),
    ],
)
def test_protocol_versions(version, names, error):
    if error is None:
        features.check_protocol(version, names, table="t")
    else:
        with pytest.raises(error):
            features.check_protocol(version, names, table="t")


@pytest.mark.parametrize("where", ["id > 5 AND p LIKE '%x%'", "id IN (1, 2) OR p IS NULL", "p = 'x' AND NOT id = 1"])
def test_planning_imports_no_pandas(tmp_path, where):
    """Neither of a log of commits, nor of a checkpoint with statistics in columns."""
    values = pa.struct([("id", pa.int64())])
    parsed = pa.struct(
        [("numRecords", pa.int64()), ("minValues", values), ("maxValues", values), ("nullCount", values)]
    )
    tree = {"numRecords": 4, "minValues": {"id": 1}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    store = log([protocol(), metadata(), add("a"), add("b%20c", p=None)], [add("d", dv=1), remove("b%20c")])
    store.files["_delta_log/" + paths.checkpoint_names(0)[0]] = parquet(
        [protocol(), metadata(), add("a", stats_parsed=tree), add("b%20c", p=None)],
        add_type=pa.struct([*(f for f in ADD if f.name != "stats"), ("stats_parsed", parsed)]),
    )
    (tmp_path / "_delta_log").mkdir()
    for name, data in store.files.items():
        (tmp_path / name).write_bytes(data)
    code = (
        "import sys\nfrom delta_sharing_spark.testing.server.table_logs import LocalLogStore\n"
        "from delta_sharing_spark.deltalog.replay import read_snapshot\n"
        "from delta_sharing_spark.predicates.file_skipping import FileSkipping\n"
        "from delta_sharing_spark.predicates.sql import parse_where\n"
        f"snapshot = read_snapshot(LocalLogStore({str(tmp_path)!r}), lambda snapshot: snapshot)\n"
        f"skipping = FileSkipping(parse_where({where!r}, snapshot.schema), snapshot.schema, ('p',))\n"
        "files = 0\n"
        "for batch in snapshot.adds(stats_columns=skipping.stats_columns):\n"
        "    skipping.reasons(batch.num_rows, batch.partition_values, batch)\n"
        "    files += len(list(batch.without_stats().tasks()))\n"
        "assert files == 2, files\n"
        "assert not {'pandas', 'sqlglot', 'fsspec'} & set(sys.modules), 'heavy imports'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("byte", "long", True),
        ("integer", "double", True),
        ("long", "double", False),
        ("long", "integer", False),
        ("float", "double", True),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("decimal(10,2)", "decimal(12,4)", True),
        ("decimal(10,2)", "decimal(12,5)", False),
        ("decimal(10,2)", "decimal(12,1)", False),
        ("integer", "decimal(10,0)", True),
        ("integer", "decimal(11,2)", False),
        ("long", "decimal(20,0)", True),
        ("long", "decimal(19,0)", True),
        ("long", "decimal(18,0)", False),
        ("long", "decimal(" + "9" * 5000 + ",0)", False),
        ("string", "integer", False),
        (None, "integer", False),
    ],
)
def test_type_changes_that_the_protocol_lists(before, after, allowed):
    field = {
        "name": "n",
        "type": "long",
        "nullable": True,
        "metadata": {"delta.typeChanges": [{"fromType": before, "toType": after}]},
    }
    inner = {"type": "array", "elementType": {"type": "struct", "fields": [field]}, "containsNull": True}
    schema = {"type": "struct", "fields": [{"name": "a", "type": inner, "nullable": True, "metadata": {}}]}
    store = log([protocol(3, ["typeWidening"]), metadata((), json.dumps(schema))])
    if allowed:
        load_snapshot(store)
    else:
        with pytest.raises(UnsupportedFeatureError, match=r"a\.element\.n"):
            load_snapshot(store)


@cases(50)
@given(st.lists(st.text(max_size=20) | st.text(min_size=500, max_size=600), max_size=30), st.data())
def test_a_key_has_one_hash_whatever_it_is_hashed_with(texts: list[str], data: st.DataObject) -> None:
    together = key_hashes(pa.array(texts, pa.string())).tolist()
    order = data.draw(st.permutations(range(len(texts))))
    cut = data.draw(st.integers(0, len(texts)))
    hashes = [key_hashes(pa.array([texts[i] for i in part], pa.string())) for part in (order[:cut], order[cut:])]
    assert dict(zip(order, np.concatenate(hashes).tolist(), strict=True)) == dict(enumerate(together))


def test_hardly_any_paths_share_a_hash() -> None:
    paths = [f"p={i % 100}/part-{i:05d}-c000.snappy.parquet" for i in range(20_000)]
    paths += [f"{i % 10}{'x' * 7}{i // 10 % 10}{'x' * 7}{i // 100}" for i in range(10_000)]
    assert not len(repeated_hashes(key_hashes(pa.array(paths))))
    again = key_hashes(pa.array([*paths, paths[7], paths[29_000]]))
    assert sorted(repeated_hashes(again)) == sorted(again[[7, 29_000]])
