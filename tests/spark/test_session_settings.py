"""A session's settings reach its loads: its time zone, beside what Spark itself makes of the same texts, and the JVM connector's."""

from __future__ import annotations

import datetime
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_sharing_spark
from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import ConfigError, PredicateError, ProfileError
from delta_sharing_spark.network.parallel_calls import DaemonPool
from delta_sharing_spark.spark.session_settings import session_options
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS
from support.refusals import not_refused

ZONE = "spark.sql.session.timeZone"
#: Before, in and after the hour that New York's clocks leave out on 8 March 2026, and twice in the one that they repeat.
COMMITS = (
    "2026-03-08T06:30:00Z",
    "2026-03-08T07:30:00Z",
    "2026-03-08T12:00:00Z",
    "2026-11-01T05:30:00Z",
    "2026-11-01T06:30:00Z",
    "2026-12-01T00:00:00Z",
)
MOMENTS = (
    "2026-03-08 02:30:00",
    "2026-03-08 03:29:59",
    "2026-03-08 08:00",
    "2026-03-08T16:30:00",
    "2026-03-09",
    "2026-11-01 01:45:00",
)
ALL = list(range(1, len(COMMITS)))
ZONES = (pytest.param("America/New_York", marks=pytest.mark.connect), "EST", "UTC+1")


def millis(moment: str) -> int:
    return int(datetime.datetime.fromisoformat(moment).timestamp() * 1000)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("settings")
    clock = map(millis, (COMMITS[0], *COMMITS))  # the table is made at the time of its first version
    properties = {"delta.enableChangeDataFeed": "true"}
    built = DeltaTableBuilder(root / "t", pa.schema({"id": pa.int64()}), [], properties, clock=lambda: next(clock))
    for version in range(1, len(COMMITS)):
        built.append([{"id": version}])
    parted = DeltaTableBuilder(root / "p", pa.schema({"id": pa.int64(), "at": pa.timestamp("us", "UTC")}), ["at"])
    parted.append(
        [{"id": 1, "at": datetime.datetime(2026, 3, 8, 12, tzinfo=datetime.timezone.utc)}, {"id": 2, "at": None}]
    )
    with SharingServer() as server:
        server.add_table("zones.d.t", built.path)
        server.add_table("zones.d.p", parted.path)
        yield f"{server.write_profile(root / 'config.share')}#zones.d.t"
        assert not server.failures


@pytest.fixture
def in_zone(spark: Any) -> Iterator[Callable[[str], Any]]:
    """The session, in which the source is registered, in another zone."""
    before = spark.conf.get(ZONE)
    delta_sharing_spark.register(spark, engine="python")

    def switched(zone: str) -> Any:
        spark.conf.set(ZONE, zone)
        return spark

    yield switched
    spark.conf.set(ZONE, before)


def ids(frame: Any) -> list[int]:
    return sorted(row.id for row in frame.select("id").collect())


@pytest.mark.parametrize("zone", ZONES)
def test_a_moment_is_in_the_zone_of_the_session(
    in_zone: Callable[[str], Any], address: str, zone: str, tmp_path: Path
) -> None:
    spark = in_zone(zone)
    profile, _, name = address.partition("#")
    client = SharingClient(profile, engine="python")
    moments = ", ".join(f"unix_millis(CAST('{moment}' AS TIMESTAMP))" for moment in MOMENTS)
    sparks_own = dict(zip(MOMENTS, spark.sql(f"SELECT array({moments}) AS m").first().m, strict=True))
    for place, (moment, at) in enumerate(sparks_own.items()):
        version = sum(millis(commit) <= at for commit in COMMITS) - 1
        if version < 0:
            continue
        as_of = list(range(1, version + 1))
        since = [i for i in range(1, len(COMMITS)) if millis(COMMITS[i]) >= at]
        scan = client.table(name).scan(timestamp=moment)
        found = {"pandas": sorted(scan.to_pandas()["id"])}
        # By ways that differ in how they learn the zone, not in what they do with it.
        is_asked_of_spark = place in (0, 4)
        if is_asked_of_spark:
            found["load"] = ids(spark.read.format("deltaSharing").option("timestampAsOf", moment).load(address))
            in_a_thread = DaemonPool(1).submit(client.table(name).scan(timestamp=moment).to_pandas).result()
            found["pandas in a thread"] = sorted(in_a_thread["id"])  # in which no session is active
        if is_asked_of_spark and zone == "America/New_York":
            read = spark.read.option("TimestampAsOf", moment)
            found["engine"] = ids(scan.to_spark(spark, "auto"))
            found["sql"] = ids(client.sql(spark, f"SELECT id FROM {name} TIMESTAMP AS OF '{moment}'"))
            found["format as an argument"] = ids(read.load(address, format="deltaSharing"))
            client.register(spark, {"view_of_moment": name}, timestamp=moment)
            found["view"] = ids(spark.table("view_of_moment"))
        assert found == dict.fromkeys(found, as_of), moment
        if since:
            feeds = [sorted(client.table(name).changes(starting_timestamp=moment).to_pandas()["id"])]
            if is_asked_of_spark:
                changes = {"readChangeFeed": "true", "startingTimestamp": moment}
                feeds.append(ids(spark.read.format("deltaSharing").options(**changes).load(address)))
            assert feeds == [since] * len(feeds), moment
    if zone != "America/New_York":
        return
    moment = MOMENTS[0]
    since = [i for i in range(1, len(COMMITS)) if millis(COMMITS[i]) >= sparks_own[moment]]
    query = (
        spark.readStream.format("deltaSharing").option("startingTimestamp", moment).load(address)
        .writeStream.format("parquet").option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(HANGS)
    assert ids(spark.read.parquet(str(tmp_path / "out"))) == since


@pytest.mark.parametrize("zone", ZONES)
def test_partition_values_without_a_zone_are_in_the_sessions(
    in_zone: Callable[[str], Any], spark_mode: str, address: str, zone: str
) -> None:
    """As Delta on Spark reads them: the wall clock of the text, in whatever zone the session is."""
    spark = in_zone(zone)
    profile, _, _ = address.partition("#")
    table = SharingClient(profile).table("zones.d.p")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW alone USING deltaSharing OPTIONS (path '{profile}#zones.d.p')")
    frames = {
        "alone": spark.table("alone"),
        "registered": spark.read.format("deltaSharing").load(f"{profile}#zones.d.p"),
        "auto": table.to_spark(spark),
        "where": table.scan(where="at = '2026-03-08 12:00:00' OR at IS NULL").to_spark(spark, "python"),
    }
    as_text = {name: frame.selectExpr("id", "CAST(at AS STRING) AS at") for name, frame in frames.items()}
    rows = {name: sorted((row.id, row.at) for row in frame.collect()) for name, frame in as_text.items()}
    assert rows == {name: [(1, "2026-03-08 12:00:00"), (2, None)] for name in frames}
    if spark_mode == "classic":
        texts = frames["registered"].selectExpr("id", "CAST(at AS STRING) AS at").rdd.map(tuple).collect()
        assert sorted(texts) == [(1, "2026-03-08 12:00:00"), (2, None)]
        with pytest.raises(Exception, match=r"tells none to df\.rdd.*register\(spark\) before the load"):
            frames["alone"].rdd.collect()
    at = table.scan(where="id = 1").to_arrow()["at"][0].value
    assert at == spark.sql("SELECT unix_micros(CAST('2026-03-08 12:00:00' AS TIMESTAMP)) AS m").first().m


@pytest.mark.connect
@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ("timestampAsOf '2026-03-08 12:00:00'", "names no time zone.*'2026-03-08T12:00:00Z'.*timeZone="),
        ("where \"_commit > '2026-03-08 12:00:00'\"", "_commit"),
    ],
)
def test_the_source_alone_refuses_what_nothing_tells(
    in_zone: Callable[[str], Any], address: str, options: str, refused: str
) -> None:
    view = f"CREATE TEMPORARY VIEW nothing USING deltaSharing OPTIONS (path '{address}', {options})"
    with pytest.raises(Exception, match=refused):
        in_zone("America/New_York").sql(view).collect()


@pytest.mark.connect
def test_the_source_alone_is_told_a_zone(in_zone: Callable[[str], Any], address: str) -> None:
    spark = in_zone("America/New_York")
    given = f"path '{address}', timestampAsOf '2026-03-08 12:00:00', timeZone 'UTC'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW told USING deltaSharing OPTIONS ({given})")
    assert ids(spark.table("told")) == [1, 2]


@pytest.fixture
def setting(spark: Any) -> Iterator[Callable[[dict[str, str]], None]]:
    """Set settings of the session, until the test ends."""
    names: list[str] = []

    def put(settings: dict[str, str]) -> None:
        for name, value in settings.items():
            names.append(name)
            spark.conf.set(name, value)

    yield put
    for name in names:
        spark.conf.unset(name)


@pytest.mark.connect
def test_settings_of_the_jvm_connector_become_options(spark: Any, setting: Callable[[dict[str, str]], None]) -> None:
    zone = spark.conf.get(ZONE)
    setting(
        {
            "spark.delta.sharing.network.timeout": "7s",
            "spark.delta.sharing.network.maxRetryDuration": "2500",
            "spark.delta.sharing.network.proxyHost": "proxy.example",
            "spark.delta.sharing.network.proxyPort": "3128",
            "spark.delta.sharing.network.sslTrustAll": "false",
            "spark.delta.sharing.queryPagination.enabled": "true",
            "spark.delta.sharing.maxFilesPerQueryRequest": "50",
            "spark.delta.sharing.network.useAsyncQuery": "true",
            "spark.delta.sharing.jsonPredicateHints.enabled": "false",
            "spark.delta.sharing.streaming.queryTableVersionIntervalSeconds": "45s",
            "spark.sql.delta.sharing.forceDeltaFormat": "true",
        }
    )
    expected = {
        "readTimeout": "7s",
        "connectTimeout": "7s",
        "retryTimeout": "2500ms",
        "proxy": "http://proxy.example:3128",
        "maxFilesPerRequest": "50",
        "asyncQuery": "true",
        "serverHints": "sql",
        "responseFormat": "delta",
        "timeZone": zone,
    }
    assert session_options(spark, {}) == expected
    assert session_options(spark, {}, is_stream=True) == {**expected, "pollInterval": "45s"}
    given = {"PROXY": "http://other:1", "timezone": "Asia/Tokyo"}
    assert session_options(spark, given) == {k: v for k, v in expected.items() if k not in ("proxy", "timeZone")}
    spark.conf.unset("spark.delta.sharing.network.proxyPort")
    with pytest.raises(ConfigError, match="belong together"):
        session_options(spark, {})


@pytest.mark.connect
def test_settings_that_no_option_means_are_named_in_one_warning(
    spark: Any, setting: Callable[[dict[str, str]], None]
) -> None:
    setting(
        {
            "spark.delta.sharing.network.sslTrustAll": "true",
            "spark.delta.sharing.network.numRetries": "9",
            "spark.delta.sharing.client.class": "com.example.Client",
            "spark.delta.sharing.network.timeout": "soon",
            "spark.delta.sharing.misspelt": "1",
            "spark.delta.sharing.limitPushdown.enabled": "true",
        }
    )
    with pytest.warns(UserWarning, match="settings of the JVM connector") as warned:
        assert session_options(spark, {}) == {"timeZone": spark.conf.get(ZONE)}
    (text,) = (str(warning.message) for warning in warned)
    parts = (
        r"sslTrustAll \(certificates are always verified: .*caBundle\)",
        r"numRetries \(.*retryTimeout\)",
        r"client\.class \(no Java class",
        r"network\.timeout \(its value does not fit: .*'soon'",
        r"misspelt \(the JVM connector 4\.4 does not know it",
    )
    assert [part for part in parts if not re.search(part, text)] == []
    assert "limitPushdown" not in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session_options(spark, {})


@pytest.mark.connect
def test_a_proxy_that_the_session_names_is_the_way_to_the_data(
    in_zone: Callable[[str], Any], address: str, setting: Callable[[dict[str, str]], None], tmp_path: Path
) -> None:
    """Whoever loads: nothing answers at the proxy, so that a load which comes to its rows went past it."""
    spark = in_zone("UTC")
    for view, more in (("by_itself", ""), ("cached", f", cacheDir '{tmp_path}'")):
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {view} USING deltaSharing OPTIONS (path '{address}', retryTimeout '1ms'{more})"
        )
    setting({"spark.delta.sharing.network.proxyHost": "127.0.0.1", "spark.delta.sharing.network.proxyPort": "9"})
    setting({"spark.delta.sharing.network.maxRetryDuration": "1"})
    profile, _, name = address.partition("#")
    loads = (
        lambda: spark.table("by_itself").collect(),
        lambda: spark.table("cached").collect(),
        lambda: spark.read.format("deltaSharing").load(address).collect(),
        lambda: SharingClient(profile).table(name).to_spark(spark).collect(),
        lambda: SharingClient(profile).sql(spark, f"SELECT * FROM {name}").collect(),
    )
    assert not_refused(Exception, "proxy", *loads) == []
    setting({"spark.delta.sharing.network.noProxyHosts": "127.0.0.1,localhost"})
    assert ids(spark.table("by_itself")) == ALL


def test_a_profile_of_hadoops_file_systems_is_read_through_spark(
    in_zone: Callable[[str], Any], address: str, tmp_path: Path
) -> None:
    spark = in_zone("UTC")
    profile, _, name = address.partition("#")
    elsewhere = f"viewfs://here/profiles/{Path(profile).name}"
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.here.link./profiles", f"file://{Path(profile).parent}")
    assert ids(SharingClient(elsewhere, engine="python").table(name).to_spark(spark)) == ALL
    assert ids(spark.read.format("deltaSharing").option("path", f"{elsewhere}#{name}").load()) == ALL
    stream = spark.readStream.format("deltaSharing").load(f"{elsewhere}#{name}")
    assert stream.columns == ["id"]
    with pytest.raises(ProfileError, match=r"viewfs://here/profiles/none\.share does not exist"):
        SharingClient("viewfs://here/profiles/none.share")


@pytest.mark.connect
def test_an_address_in_a_statement_is_a_table_of_the_clients_profile(spark: Any, address: str, tmp_path: Path) -> None:
    client = SharingClient(address.partition("#")[0])
    assert ids(client.sql(spark, f"SELECT id FROM deltaSharing.`{address}` WHERE id > 1")) == ALL[1:]
    travelled = f"SELECT a.id FROM DELTASHARING.`{address}` VERSION AS OF 2 a JOIN zones.d.t b ON a.id = b.id"
    assert ids(client.sql(spark, travelled)) == [1, 2]
    with pytest.raises(PredicateError, match=r"of the profile other\.share.*SharingClient\('other\.share'\)\.sql"):
        client.sql(spark, "SELECT * FROM deltaSharing.`other.share#zones.d.t`")


@pytest.mark.connect
def test_plain_statements_name_tables_by_their_addresses(
    in_zone: Callable[[str], Any], address: str, tmp_path: Path
) -> None:
    """Spark itself takes them of its own file formats alone; `register` reads them in whatever runs at once."""
    spark = in_zone("America/New_York")
    table = f"deltaSharing.`{address}`"
    assert ids(spark.sql(f"SELECT id FROM {table} WHERE id > :least", {"least": 1})) == ALL[1:]
    travelled = f"SELECT a.id, '{{}} deltaSharing.`' AS x FROM {table} VERSION AS OF 2 AS a JOIN {table} b USING (id)"
    assert ids(spark.sql(travelled)) == [1, 2]
    assert ids(spark.sql(f"SELECT * FROM {table} TIMESTAMP AS OF '2026-03-08 12:00:00'")) == ids(
        spark.read.format("deltaSharing").option("timestampAsOf", "2026-03-08 12:00:00").load(address)
    )
    spark.sql(f"CREATE TABLE copied USING parquet LOCATION '{tmp_path / 'copied'}' AS SELECT id FROM {table}")
    spark.sql(f"INSERT INTO copied SELECT id FROM {table}")
    assert ids(spark.table("copied")) == sorted([*ALL, *ALL])
    spark.sql("DROP TABLE copied")
    using = r"CREATE TEMPORARY VIEW name USING deltaSharing OPTIONS \(path"
    with pytest.raises(PredicateError, match=using):
        spark.sql(f"CREATE TEMPORARY VIEW later AS SELECT * FROM {table}")
    with pytest.raises(PredicateError, match=using):
        spark.sql(f"CACHE TABLE later AS SELECT * FROM {table}")
    with pytest.raises(Exception, match=r"make a view: CREATE TEMPORARY VIEW name USING deltaSharing OPTIONS \(path '"):
        spark.sql(f"CREATE TABLE kept USING deltaSharing LOCATION '{address}'").collect()
    with pytest.raises(Exception, match=r"none\.share does not exist"):
        spark.sql("SELECT * FROM deltaSharing.`/none.share#a.b.c`").collect()
    assert spark.sql("SELECT 'deltaSharing.`a#b.c.d`' AS id").first().id == "deltaSharing.`a#b.c.d`"
    assert not [t.tableName for t in spark.sql("SHOW TABLES").collect() if t.tableName.startswith("t0")]
