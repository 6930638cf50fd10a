"""SharingClient, scans and module functions without Spark, over the embedded server, in both access modes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import delta_sharing_spark
from delta_sharing_spark import SharingClient, functions
from delta_sharing_spark.access.load import cheapest_column
from delta_sharing_spark.cli.main import main
from delta_sharing_spark.display import Column, Listing
from delta_sharing_spark.errors import (
    AddressError,
    ConfigError,
    DeltaSharingError,
    OptionError,
    PredicateError,
    ProfileError,
    SchemaError,
)
from delta_sharing_spark.options import values
from delta_sharing_spark.options.values import quoted_column
from delta_sharing_spark.scan import row_group_reader
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.table import Scan, SharedTable
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.refusals import not_refused

OFFLINE = {"shareCredentialsVersion": 1, "endpoint": "https://sharing.invalid/x", "bearerToken": "t"}

SCHEMA = pa.schema(
    [("n", pa.int64()), ("p.q", pa.string()), ("s t", pa.struct([("x", pa.int32())])), ("day", pa.string())]
)
ROWS = [{"n": i, "p.q": f"v{i}", "s t": {"x": i % 7}, "day": "ab"[i % 2]} for i in range(100)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    properties = {
        "delta.columnMapping.mode": "name",
        "delta.enableChangeDataFeed": "true",
        "delta.enableDeletionVectors": "true",
    }
    table = DeltaTableBuilder(tmp_path_factory.mktemp("t"), SCHEMA, ("day",), properties)
    table.append(ROWS[:60], files=3).append(ROWS[60:], files=2)
    return table.delete(lambda rows: pc.less(rows["n"], 10), deletion_vectors=True)


@pytest.fixture(scope="module")
def server(built: DeltaTableBuilder) -> Iterator[SharingServer]:
    with SharingServer() as running:
        running.add_table("sh.sc.t", built.path, access_modes=("url", "dir"), comment="<b>&")
        yield running
        assert not running.failures


@pytest.fixture(params=["url", "dir"])
def table(request: pytest.FixtureRequest, server: SharingServer) -> SharedTable:
    return SharingClient(server.profile(), accessMode=request.param).table("sh.sc.t")


def test_odd_names_are_listed_and_read(built: DeltaTableBuilder, caplog: pytest.LogCaptureFixture) -> None:
    """What a server lists is listed and can be read, whatever the protocol says of names; one share fails no other."""
    names = ["`Ünïcode share`.s.t", "plain.`a/b`.`c.d`", "`x``y#`.?.`%41 +`", "plain.s.t"]
    with SharingServer() as running:
        for name in (*names, "`..`.s.t"):
            running.add_table(name.replace("`..`", "..") if ".." in name else name, built.path)
        client = SharingClient(running.profile())
        listed = client.list_all_tables()
        assert sorted(str(client.table(table)) for table in listed) == sorted(names)
        assert "'..' is left out" in caplog.text
        assert [client.table(name).scan(limit=3).to_arrow().num_rows for name in names] == [3] * len(names)
        assert [t.name for t in client.list_tables("plain.`a/b`")] == ["c.d"]


def ordered(rows: pa.Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=str)


def test_every_form_has_the_same_rows(table: SharedTable, built: DeltaTableBuilder) -> None:
    scan = table.scan()
    arrow = scan.to_arrow()
    assert ordered(arrow) == ordered(built.expected())
    assert scan.to_arrow() == arrow, "the order of a scan is its own, whatever thread is faster"
    with scan.to_record_batch_reader(workers=1) as reader:
        assert reader.schema == arrow.schema
        assert reader.read_all() == arrow
    assert scan.to_pandas()["n"].tolist() == arrow["n"].to_pylist()
    assert scan.to_polars()["n"].to_list() == arrow["n"].to_pylist()
    assert tuple(arrow.column_names) == scan.schema.names


@pytest.mark.parametrize(
    ("columns", "where", "limit", "names", "rows"),
    [
        (["p.q", "n"], None, None, ["p.q", "n"], 90),
        (["`p.q`"], "n >= 95", None, ["p.q"], 5),
        (["s t.x"], "`p.q` = 'v42'", None, ["s t"], 1),
        (["n"], "day = 'a'", 7, ["n"], 7),
        (None, None, 13, SCHEMA.names, 13),
        (None, None, 0, SCHEMA.names, 0),
        (None, "n < 10", None, SCHEMA.names, 0),
    ],
)
def test_what_a_scan_narrows_to(
    table: SharedTable, columns: list[str] | None, where: str | None, limit: int | None, names: list[str], rows: int
) -> None:
    scan = table.scan(columns, where, limit)
    table_read = scan.to_arrow()
    assert (table_read.column_names, table_read.num_rows) == (names, rows)
    assert scan.count() == rows


def test_a_count_from_metadata_reads_no_data(server: SharingServer, table: SharedTable) -> None:
    server.reset_metrics()
    assert table.scan().count() == 90
    assert table.scan(limit=20).count() == 20
    assert server.count("data") == 0
    assert Scan(table, {"Columns": "day,n", "where": "n >= 95"}).count() == 5, "names of options are free of case"


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_count_decodes_no_value(tmp_path: Path, mode: str, vectors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Footers tell the number, and vectors what is left: a dictionary's long value for many rows would be written out for each."""
    rows, schema = 50_000, pa.schema({"text": pa.string()})
    table = DeltaTableBuilder(tmp_path / "t", schema, (), {"delta.enableDeletionVectors": "true"})
    table.append([{"text": None}] * rows)
    if vectors:
        table.delete(lambda batch: pa.array([row == 7 for row in range(batch.num_rows)]), deletion_vectors=True)
    (file,) = (tmp_path / "t").glob("*.parquet")
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * (1 << 20)])
    pq.write_table(pa.table({"text": values}), file, compression="zstd")
    for commit in (tmp_path / "t" / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        for add in (action["add"] for action in actions if "add" in action):
            add["size"] = file.stat().st_size
            del add["stats"]
        commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    monkeypatch.setattr(row_group_reader, "_batches", lambda *_: pytest.fail("a row group was decoded"))
    with SharingServer() as server:
        server.add_table("sh.sc.t", table.path, access_modes=("url", "dir"))
        assert SharingClient(server.profile(), accessMode=mode).table("sh.sc.t").count() == 50_000 - vectors


def test_versions_changes_and_metadata(table: SharedTable, built: DeltaTableBuilder) -> None:
    assert table.version() == 3
    assert table.version(starting_timestamp="2020-01-01T00:00:00Z") == 0
    assert table.version(datetime(2020, 1, 1, tzinfo=timezone.utc)) == 0
    committed = table.versions()[2].committed
    assert committed is not None
    moments = [committed + timedelta(microseconds=after) for after in (0, 1, -1)]
    assert [table.version(moment) for moment in moments] == [2, 3, 2], "within a version's millisecond is after it"
    assert table.scan(version=1).count() == 60
    assert table.scan(version=2).to_arrow().num_rows == 100
    feed = table.changes(2, 3)
    assert feed.schema.names[-3:] == ("_change_type", "_commit_version", "_commit_timestamp")
    kinds = feed.to_arrow()["_change_type"].to_pylist()
    assert (kinds.count("insert"), kinds.count("delete")) == (40, 10)
    assert feed.count() == 50
    assert table.changes(2, where="_change_type = 'delete'", columns=["n"]).to_arrow().num_rows == 10
    assert table.metadata.access_modes == ("url", "dir")
    assert table.metadata.id == built.table_id
    assert list(table.schema.names) == SCHEMA.names


def test_shares_are_asked_for_once_for_all_queries(server: SharingServer) -> None:
    """Each query has a copy of its client, with the session's options."""
    client = SharingClient(server.profile())
    server.reset_metrics()
    for _ in range(3):
        assert client.with_options({"timeZone": "UTC"}).shares_among({"sh"}) == {"sh"}
    assert server.count("shares") == 1


def test_a_scan_is_narrowed_beside_what_its_client_asks_of_every_load(server: SharingServer, tmp_path: Path) -> None:
    """Of two conditions both hold, and of two limits the smaller, by whichever call they come; other options are replaced."""
    url = server.write_profile(tmp_path / "p.share") + "#sh.sc.t"

    def table(**options: str) -> SharedTable:
        return SharingClient(server.profile(), **options).table("sh.sc.t")  # type: ignore[arg-type]

    late = table(Where="n >= 95 -- the newest")
    scans = [late.scan(where="n < 97"), late.where("n < 97"), Scan(late, {"WHERE": "n < 97 OR n < 96"})]
    scans += [late.scan(where="n <= 97").filter("n < 97"), late.changes(2, where="n < 97")]
    assert [(sorted(scan.to_arrow()["n"].to_pylist()), scan.count()) for scan in scans] == [([95, 96], 2)] * 5
    assert late.lazy().filter(pl.col("n") < 97).collect().height == 2
    assert functions.load_as_arrow(url, where="n < 97", limit=9).num_rows == 9
    few = table(LIMIT="5", columns="day")
    narrow = (few.limit(9), few.scan(limit=9), few.scan(limit=7).limit(9), table(limit="9").scan(limit=5))
    assert [(scan.count(), scan.to_arrow().num_rows) for scan in narrow] == [(5, 5)] * 4
    assert (len(few.head(3)), len(few.head(7))) == (3, 5)
    assert sorted(few.scan(["n"], where="n >= 97").to_arrow()["n"].to_pylist()) == [97, 98, 99]
    assert few.where("day = 'a'").to_arrow()["day"].to_pylist() == ["a"] * 5
    of_days = [few.lazy().filter(pl.col("day") == day).collect().height for day in "ab"]
    assert sum(of_days) == 5, "Polars filters the five rows of the load"
    with pytest.raises(OptionError, match="call filter"):
        few.limit(5).filter("day = 'a'")
    with pytest.raises(OptionError, match="Invalid value 'many' for option 'limit'"):
        few.scan(limit="many")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("condition", ["n < 3) OR (n > 5", "n < 3 /*", "(n < 3", "n < 3)", "n < '3"])
def test_what_is_no_condition_by_itself_is_none_beside_another(
    table: SharedTable, condition: str, is_first: bool
) -> None:
    first, second = (condition, "n <> '0'") if is_first else ("n <> '0'", condition)
    with pytest.raises(PredicateError, match="close"):
        table.where(first).filter(second).count()


NAMED: dict[str, Callable[[SharingClient, Any], object]] = {
    "list_schemas": lambda client, name: client.list_schemas(name),
    "list_tables": lambda client, name: client.list_tables(name),
    "list_all_tables": lambda client, name: client.list_all_tables(name) if name is not None else client.table(name),
    "table": lambda client, name: client.table(name),
    "[]": lambda client, name: client[name],
    "volumes": lambda client, name: client.volumes("sh", name) if name is not None else client.volume(name),
    "volume": lambda client, name: client.volume(name),
    "model": lambda client, name: client.model(name),
    "skill": lambda client, name: client.skill(name),
    "functions": lambda client, name: functions.load_as_arrow(name),
}


@pytest.mark.parametrize("call", NAMED)
@pytest.mark.parametrize("name", [None, 5, b"sh.sc.t", ["sh.sc.t"], Column("n", "bigint", "", "")], ids=repr)
def test_what_is_no_name_is_refused_with_what_to_write(server: SharingServer, call: str, name: Any) -> None:
    with pytest.raises(AddressError, match=rf"\({type(name).__name__}\) is no text; write "):
        NAMED[call](SharingClient(server.profile()), name)


@pytest.mark.parametrize(
    ("call", "item"),
    [*((call, "schema") for call in ("list_schemas", "table", "volume", "functions")),
     ("volume", "table"), ("list_tables", "share"), ("list_schemas", "table")],
)  # fmt: skip
def test_an_item_of_another_listing_is_no_name(server: SharingServer, call: str, item: str) -> None:
    client = SharingClient(server.profile())
    listed = {"share": client.list_shares(), "schema": client.list_schemas("sh"), "table": client.list_tables("sh.sc")}
    with pytest.raises(AddressError, match="is no text; write"):
        NAMED[call](client, listed[item][0])


@pytest.mark.parametrize("spark", [None, 5, "local[2]", object()], ids=repr)
def test_what_is_no_session_is_refused(table: SharedTable, spark: Any) -> None:
    client: Any = table.client
    uses = (
        lambda: table.to_spark(spark),
        lambda: client.sql(spark, "SELECT 1"),
        lambda: client.query(spark, lambda load: load("sh.sc.t")),
        lambda: client.register(spark),
        lambda: client.refresh(spark),
        lambda: table.scan().explain(spark or 5),
        lambda: client.explain_sql("SELECT 1", spark or 5),
        lambda: delta_sharing_spark.register(spark),
    )
    assert not_refused(ConfigError, "is no Spark session; pass the session as spark", *uses) == []


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("filters", "where"),
        ("filter", "where"),
        ("predicate", "where"),
        ("columns_names", "columns"),
        ("column_names", "columns"),
        ("select", "columns"),
        ("nrows", "limit"),
        ("as_of", "version"),
        ("verson", "version"),
        ("timestmp", "timestamp"),
        ("accesMode", "accessMode"),
    ],
)
def test_words_of_others_are_answered_with_ours(word: str, meant: str) -> None:
    table = SharingClient(OFFLINE).table("a.b.c")
    with pytest.raises(OptionError, match=f"unknown option '{word}'; did you mean '{meant}'\\?"):
        table.scan(**{word: "1"})


def test_words_of_a_change_feed() -> None:
    with pytest.raises(OptionError, match="did you mean 'starting_version'"):
        SharingClient(OFFLINE).table("a.b.c").changes(start_version=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_profile_is_told_as_one(text: str) -> None:
    with pytest.raises(ProfileError, match="the profile is empty text; give a path or the JSON, or leave it out"):
        SharingClient(text)


def test_a_profile_whose_token_has_ended_warns() -> None:
    with pytest.warns(
        UserWarning, match=r"bearer token ended at 2020-01-02 00:00 UTC, as its expirationTime says"
    ) as told:
        SharingClient({**OFFLINE, "expirationTime": "2020-01-02T00:00:00Z"})
    assert told[0].filename == __file__, "it names the line of the user"


def test_what_is_no_url_is_not_shown() -> None:
    """A token that was pasted into the place of the endpoint."""
    client = SharingClient({**OFFLINE, "endpoint": "pasted-t0ken"})
    assert repr(client) == "SharingClient('an endpoint that is no URL')"
    with pytest.raises(ConfigError) as refused:
        client.list_shares()
    assert "pasted" not in str(refused.value)


@pytest.mark.parametrize(
    "use", [SharedTable.to_record_batch_reader, lambda table, workers: table.scan().to_record_batch_reader(workers),
            SharedTable.versions], ids=["table", "scan", "versions"]
)  # fmt: skip
@pytest.mark.parametrize("number", [-1, 0, "3", 2.5, True])
def test_numbers_that_are_none_are_refused(table: SharedTable, use: Callable[..., object], number: Any) -> None:
    """No rows came of workers=-1."""
    with pytest.raises(OptionError, match=rf"(workers|most)={number} is not a whole number of at least 1"):
        use(table, number)


def test_browsing(server: SharingServer) -> None:
    client = SharingClient(server.profile())
    (share,) = client.list_shares()
    (schema,) = client.list_schemas(share)
    assert client.list_schemas("sh") == [schema]
    (entry,) = client.list_tables(schema)
    assert client.list_tables("sh.sc") == client.list_all_tables() == client.list_all_tables(share) == [entry]
    assert (entry.access_modes, entry.comment) == (("url", "dir"), "<b>&")
    assert client.table(entry).scan().count() == 90
    assert "&lt;b&gt;&amp;" in client.list_tables(schema)._repr_html_()  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", ["sh", "sh.", ".sc", ""])
def test_a_schema_is_named_with_its_share(server: SharingServer, wrong: str) -> None:
    with pytest.raises(AddressError, match=r"<share>\.<schema>"):
        SharingClient(server.profile()).list_tables(wrong)


def test_objects_show_themselves(server: SharingServer, table: SharedTable) -> None:
    assert "struct&lt;" in table._repr_html_()
    assert [c.name for c in table.columns] == SCHEMA.names
    assert repr(table.columns).splitlines()[2].split() == ["n", "long"]
    gone = SharingClient(server.profile()).table("sh.sc.gone<")
    with pytest.raises(DeltaSharingError, match="gone<"):
        gone._repr_html_()
    assert "sh.sc.t: limit = 3<" in table.scan(limit=3)._repr_html_()
    assert "struct&lt;" in table.schema._repr_html_()
    assert "<td" in table.metadata._repr_html_()
    assert "schemaString" not in table.metadata._repr_html_()
    assert "(none)" in Listing([])._repr_html_()
    assert "... and 3 more" in Listing(range(103))._repr_html_()
    explained = table.scan(where="day = 'a' AND n > 3").explain()
    assert "in 1 split\n" in explained
    assert "jsonPredicateHints" in explained or "skipped" in explained
    assert "sh.sc.t, version 3" in explained
    assert explained.endswith("where      `day` = 'a' AND `n` > 3")
    unsent = "not sent   `p.q` LIKE '%7': the protocol's hints have no words for it"
    by_url = table.client.options["accessMode"] == "url"
    assert (unsent in table.scan(where="`p.q` LIKE '%7' AND n > 3").explain()) == by_url
    assert ("no hints: there is no where" in table.scan().explain()) == by_url


def test_secrets_are_not_shown(server: SharingServer) -> None:
    client = SharingClient(server.profile())
    table = client.table("sh.sc.t")
    scan = table.scan(limit=3, clientSecret="hush-hush", proxy="http://u:hush-hush@proxy:1")
    with pytest.raises(OptionError) as unknown:
        table.scan(unknown="hush-hush")
    assert "hush" not in str(unknown.value)
    shown = repr((client, client.profile, table, scan))
    assert "hush" not in shown
    assert server.token not in shown
    assert "'limit': '3'" in repr(scan)


def test_the_profile_as_spark_is_given_it(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p#1.share"
    server.write_profile(path)
    clients = [SharingClient(source, accessMode="url") for source in (path, str(path))]
    name = clients[0].table("sh.sc.t").name
    assert [client.options_for(name) for client in clients] == [{"accessMode": "url", "path": f"{path}#sh.sc.t"}] * 2
    inline = (server.profile(), json.dumps(server.profile()), clients[0].profile)
    read = [SharingClient(profile).options_for(name) for profile in inline]
    assert [(options["path"], options["bearerToken"]) for options in read] == [("sh.sc.t", server.token)] * 3
    basic = {"type": "basic", "endpoint": server.endpoint, "username": "u", "password": "p"}
    options = SharingClient({"shareCredentialsVersion": 2, **basic}).options_for(name)
    assert options == {"shareCredentialsVersion": "2", **basic, "path": "sh.sc.t"}
    with pytest.raises(ProfileError, match="DELTA_SHARING_PROFILE"):
        SharingClient()
    monkeypatch.setenv("DELTA_SHARING_PROFILE", str(path))
    by_path = SharingClient()
    monkeypatch.setenv("DELTA_SHARING_PROFILE", json.dumps(server.profile()))
    assert SharingClient().options_for(name)["bearerToken"] == server.token
    assert by_path.options_for(name)["path"] == f"{path}#sh.sc.t"  # not the profile that is the environment's by now
    assert by_path.is_of(str(path))


def test_module_functions(server: SharingServer, tmp_path: Path) -> None:
    url = server.write_profile(tmp_path / "p.share") + "#sh.sc.t"
    assert functions.get_table_version(url) == 3
    assert functions.get_table_metadata(url).partition_columns == ("day",)
    assert functions.get_table_protocol(url).reader_features == ("columnMapping", "deletionVectors")
    assert functions.load_as_arrow(url, limit=4, columns=["n"]).shape == (4, 1)
    assert len(functions.load_as_pandas(url, where="n >= 90")) == 10
    assert functions.load_as_polars(url, version=1).height == 60
    assert len(functions.load_table_changes_as_pandas(url, starting_version=3)) == 10


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"columns": "n"}, OptionError, "a list of names"),
        ({"columns": 1.5}, OptionError, "a list of names"),
        ({"columns": ["n", 1]}, OptionError, "a list of names"),
        ({"columns": 10**400}, OptionError, "a list of names"),
        ({"columns": ["m"]}, SchemaError, "no column 'm'"),
        ({"limit": -1}, OptionError, "limit"),
        ({"version": 1, "timestamp": "2026-01-01"}, OptionError, "either"),
        ({"vershun": 1}, OptionError, "unknown option 'vershun'"),
        ({"where": "n >"}, DeltaSharingError, "ends too early"),
        ({"version": 99}, DeltaSharingError, "99"),
    ],
)
def test_wrong_scans(table: SharedTable, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        table.scan(**arguments).to_arrow()


def test_threads_end_with_their_reader(table: SharedTable) -> None:
    reader = table.scan(maxSplitBytes="1k").to_record_batch_reader(workers=3)
    assert reader.read_next_batch().num_rows
    reader.close()
    del reader
    began = time.monotonic()
    while any(thread.name.startswith("delta-sharing-split") for thread in threading.enumerate()):
        assert time.monotonic() - began < 20
        time.sleep(0.01)


def test_cheapest_column() -> None:
    assert cheapest_column(Struct(())) is None
    assert quoted_column("p.q") == "p.q"
    assert quoted_column("a b`c") == "`a b``c`"
    assert quoted_column("`x y`") == "`x y`"


def test_exports() -> None:
    assert delta_sharing_spark.__all__ == sorted(delta_sharing_spark.__all__)
    for name in delta_sharing_spark.__all__:
        assert getattr(delta_sharing_spark, name).__name__ == name
    with pytest.raises(AttributeError, match="nope"):
        delta_sharing_spark.nope  # noqa: B018


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import delta_sharing_spark", ("pyspark", "pandas", "sqlglot", "fsspec", "pyarrow", "requests")),
        (
            "from delta_sharing_spark import SharingClient",
            ("pyspark", "pandas", "sqlglot", "fsspec", "pyarrow.dataset"),
        ),
        ("import delta_sharing_spark.predicates.sql", ("sqlglot", "pyarrow.compute", "pandas")),
        (  # what is not imported lends no identity
            "import delta_sharing_spark.access.directory.table, delta_sharing_spark.storage.clouds",
            ("fsspec", "s3fs", "adlfs", "gcsfs", "aiohttp", "botocore", "google"),
        ),
    ],
)
def test_imports_are_lazy(statement: str, absent: tuple[str, ...]) -> None:
    code = f"{statement}\nimport sys\nassert not [m for m in {absent!r} if m in sys.modules], sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("where", ["", "n > 3 and day in ('a', 'b') and `p.q` like '%'"])
def test_a_task_imports_only_what_reads(table: SharedTable, where: str) -> None:
    """Each worker of Spark's pays for what it imports: nothing that asks a sharing server, nor pandas for a partition's value."""
    split = pickle.dumps(table.scan(**{"where": where} if where else {}).plan().splits[0])
    absent = ("pyarrow.dataset", "pandas", "fsspec", "xml.etree")
    absent += tuple(f"delta_sharing_spark.sharing.{name}" for name in ("query", "response", "rest", "wire_lines"))
    code = (
        "import pickle, sys\n"
        "from delta_sharing_spark.scan.split_reader import read_split\n"
        f"assert sum(batch.num_rows for batch in read_split(pickle.loads({split!r})))\n"
        f"print([m for m in {absent!r} if m in sys.modules])"
    )
    entered = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert entered.stdout.strip() == "[]"


@pytest.mark.parametrize("read", ["to_arrow()", "to_polars()", "lazy().collect()"])
def test_a_read_without_pandas_imports_none(server: SharingServer, tmp_path: Path, read: str) -> None:
    """It takes a quarter of a second, as much as many a table."""
    profile = str(server.write_profile(tmp_path / "p.share"))
    code = (
        "import sys\n"
        "from delta_sharing_spark import SharingClient\n"
        f"assert len(SharingClient({profile!r}).table('sh.sc.t').scan(columns=['n']).{read})\n"
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_moments_without_a_zone_are_in_utc_where_no_session_is(
    table: SharedTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As ``where`` reads the same text; the log says it once."""
    for module in ("access.load", "table"):
        monkeypatch.setattr(f"delta_sharing_spark.{module}.active_zone", lambda: None)
    values._note_utc.cache_clear()
    moments = ("2020-01-01", "2020-01-01 00:00", date(2020, 1, 1))
    assert [table.version(moment) for moment in moments] == [table.version("2020-01-01T00:00:00Z")] * 3
    read = [table.scan(timestamp=moment)._parsed().timestamp_as_of for moment in moments]
    assert read == [datetime(2020, 1, 1, tzinfo=timezone.utc)] * 3
    assert [record.levelname for record in caplog.records if "read in UTC" in record.getMessage()] == ["WARNING"]


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda table: table.version("gestern"), "starting_timestamp: The provided timestamp (gestern)"),
        (lambda table: table.scan(timestamp="gestern"), "timestamp: The provided timestamp (gestern)"),
        (lambda table: table.scan(timestampAsOf="gestern"), "option 'timestampAsOf': The provided timestamp (gestern)"),
        (lambda table: table.scan(version=1, timestamp="2020-01-01"), "provide version or timestamp."),
        (lambda table: table.scan(version=-1), "Invalid value '-1' for version,"),
        (lambda table: table.changes(ending_version=1), "No starting_version or starting_timestamp"),
        (lambda table: table.changes("x"), "Invalid value 'x' for starting_version,"),
    ],
)
def test_errors_of_methods_name_what_the_user_wrote(
    table: SharedTable, use: Callable[[SharedTable], object], says: str
) -> None:
    with pytest.raises(OptionError) as refused:
        use(table)
    assert says in str(refused.value)
    assert refused.value.option


@pytest.mark.parametrize("travel", ["TIMESTAMP AS OF 'gestern'", "VERSION AS OF 'x'"])
def test_errors_of_statements_name_what_the_user_wrote(table: SharedTable, travel: str) -> None:
    sql = pytest.importorskip("delta_sharing_spark.spark.sql")
    text = f"SELECT * FROM sh.sc.t {travel}"
    (mention,) = sql.table_references(text, sql.tokens_of(text))
    with pytest.raises(OptionError) as refused:
        sql._find(table.client, mention)
    assert travel[: travel.index(" '")] in str(refused.value)
    assert "AsOf" not in str(refused.value)


@pytest.mark.parametrize("words", ["head --timestamp", "changes --starting-timestamp"])
def test_errors_of_commands_name_what_the_user_wrote(
    words: str, server: SharingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, option = words.split()
    assert main([command, f"{server.write_profile(tmp_path / 'p.share')}#sh.sc.t", option, "gestern"]) != 0
    assert f"{option}: The provided timestamp (gestern)" in capsys.readouterr().err
