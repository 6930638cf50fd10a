"""The jobs that run by the JVM connector and by this one: small, and each of a kind that real jobs are made of."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.schema.types import Field, Primitive
from delta_sharing_spark.testing.tables import DeltaTableBuilder

#: Commits lie an hour apart, from here on, over the hour that New York's clocks leave out.
FIRST_COMMIT = datetime.datetime(2026, 3, 8, 5, 30, tzinfo=datetime.timezone.utc)


@dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        kind: ``batch``, ``columns`` (those of a batch, in order), ``again`` (a batch that is asked once more after the table moved),
            ``stream``, ``batches`` (a stream whose batches are compared), ``sql`` or ``continue`` (a checkpoint of the other connector).
        about: What it shows, in the words of the table of ``docs/jvm-connector.md``.
        table: The table's name.
        options: Options of the load.
        then: SQL over the loaded view ``t``.
        settings: Settings of the session.
        differs: Why the two may answer otherwise; empty where they must not.
        trigger: Of a stream: ``availableNow``, or empty for one batch after another until nothing is left.
        stop_after: Of a stream that fails on purpose, or may: the batches before, which are compared.
    """

    kind: str
    about: str
    table: str
    options: dict[str, str] = field(default_factory=dict)
    then: str = "SELECT * FROM t"
    settings: dict[str, str] = field(default_factory=dict)
    differs: str = ""
    trigger: str = "availableNow"
    stop_after: int = 0


def tables(root: Path) -> dict[str, DeltaTableBuilder]:
    """The tables, made under a directory."""
    schema = pa.schema({"id": pa.int64(), "part": pa.string(), "x": pa.float64(), "at": pa.timestamp("us", "UTC")})
    feed = {"delta.enableChangeDataFeed": "true"}

    def grown(name: str, partition: list[str], **properties: str) -> DeltaTableBuilder:
        hours = iter(range(-1, 100))
        clock = lambda: int((FIRST_COMMIT + datetime.timedelta(hours=next(hours))).timestamp() * 1000)  # noqa: E731
        built = DeltaTableBuilder(root / name, schema, partition, properties, clock=clock)
        for first in (0, 20, 40):
            built.append([row(i) for i in range(first, first + 20)])
        return built

    def row(i: int) -> dict[str, object]:
        moment = datetime.datetime(2026, 3, 8, i % 24, tzinfo=datetime.timezone.utc)
        return {
            "id": i,
            "part": ("a", "b", None, "é/=%")[i % 4],
            "x": (1.5, float("nan"), -0.0, None)[i % 4],
            "at": moment,
        }

    return {
        "appended": grown("appended", ["part"]),
        "feed": grown("feed", [], **feed).delete(lambda t: pc.equal(pc.bit_wise_and(t["id"], 7), 7)),
        "vectors": grown("vectors", [], **{"delta.enableDeletionVectors": "true"}).delete(
            lambda t: pc.equal(pc.bit_wise_and(t["id"], 7), 7), deletion_vectors=True
        ),
        "mapped": grown("mapped", ["part"], **{"delta.columnMapping.mode": "name"}),
        "by_time": grown("by_time", ["at"]),
        "added": grown("added", [], **feed).add_column(Field("y", Primitive("long"))).append([{**row(60), "y": 1}]),
    }


_RIGHT = "the JVM connector loses or repeats rows here; ours are those of Delta on Spark"
_FILTERS = (
    "SELECT count(*) FROM t",
    "SELECT * FROM t WHERE id >= 10 AND id < 30",
    "SELECT * FROM t WHERE part = 'a'",
    "SELECT * FROM t WHERE part IS NULL OR part = 'é/=%'",
    "SELECT * FROM t WHERE x = CAST('NaN' AS DOUBLE)",
    "SELECT part, sum(id), max(at) FROM t GROUP BY part",
)


def jobs() -> Iterator[Job]:
    """The jobs, in the order of the table."""
    for table in ("appended", "feed", "vectors", "mapped", "by_time"):
        yield Job("batch", "snapshots", table)
        for then in _FILTERS:
            yield Job("batch", "filters and aggregates", table, then=then, differs=_RIGHT if "NaN" in then else "")
        yield Job("batch", "snapshots", table, then="SELECT count(*) FROM (SELECT * FROM t LIMIT 7)")
        yield Job("batch", "a version", table, {"versionAsOf": "1"})
        yield Job("batch", "a version that is not there", table, {"versionAsOf": "99"})
    for zone in ("UTC", "America/New_York", "EST", "UTC+1"):
        for moment in (
            "2026-03-08 02:30:00",
            "2026-03-08 07:29:59",
            "2026-03-08T07:30:00Z",
            "2026-03-08 09:00:00 America/New_York",
        ):
            yield Job(
                "batch", "a moment", "feed", {"timestampAsOf": moment}, settings={"spark.sql.session.timeZone": zone}
            )
        yield Job(
            "batch",
            "partition values in zones",
            "by_time",
            then="SELECT id, CAST(at AS STRING) FROM t",
            settings={"spark.sql.session.timeZone": zone},
        )
    feed = {"readChangeFeed": "true"}
    changes = "SELECT id, _change_type, _commit_version FROM t"
    for options in (
        {"startingVersion": "0"},
        {"startingVersion": "2", "endingVersion": "3"},
        {"startingVersion": "4"},
        {"startingTimestamp": "2026-03-08 07:00:00"},
        {"startingVersion": "1", "endingTimestamp": "2026-03-08 08:00:00"},
        {"startingVersion": "3", "endingVersion": "1"},
        {"startingVersion": "latest"},
        {},
    ):
        yield Job("batch", "change feeds", "feed", {**feed, **options}, changes)
    yield Job(
        "batch",
        "_commit_timestamp",
        "feed",
        {**feed, "startingVersion": "1"},
        "SELECT _commit_timestamp FROM t",
        differs="LONG there in the parquet format; TIMESTAMP here, or commitTimestampType=long",
    )
    yield Job(
        "batch",
        "_commit_timestamp",
        "feed",
        {**feed, "startingVersion": "1", "commitTimestampType": "long"},
        "SELECT _commit_timestamp FROM t",
    )
    order = "the parquet format has _change_type last there: select columns by name"
    for response_format in ("parquet", "delta"):
        options = {**feed, "startingVersion": "0", "responseFormat": response_format}
        yield Job("columns", "columns of a feed", "added", options, differs=order)
    moved = "files are listed anew there; a DataFrame is the version that was loaded here"
    yield Job("again", "a DataFrame after the table moved", "appended", then="SELECT count(*) FROM t", differs=moved)
    for options in (
        {"maxFilesPerTrigger": "1"},
        {"responseFormat": "parquet"},
        {"callerOrg": "us"},
        {"versionAsOf": "x"},
        {"versionAsOf": "1", "timestampAsOf": "2026-03-08T07:30:00Z"},
        {"timestampAsOf": "soon"},
        {"readChangeFeed": "maybe"},
        {"responseFormat": "csv"},
    ):
        yield Job("batch", "options", "appended", options)
    for options in ({"versionASOF": "1"}, {"verionAsOf": "1"}, {"pathGlobFilter": "*"}):
        why = "ignored there; here an option that nobody knows is an error" if "versionASOF" not in options else ""
        yield Job("batch", "options", "appended", options, differs=why)
    for kind in ("batch", "stream"):
        for options in (
            {"failOnDataLoss": "true"},
            {"failOnDataLoss": "false"},
            {"excludeRegex": "nothing"},
            {"ignoreFileDeletion": "true"},
            {"schemaTrackingLocation": "/tmp/of-a-schema"},
            {"allowSourceColumnDrop": "always"},
        ):
            idle = (
                "ignored there; here an error that says what to do instead"
                if options != {"failOnDataLoss": "true"}
                else ""
            )
            yield Job(kind, "options of Delta's readers", "appended", options, differs=idle)
    ranged = "the whole table there; here an error, for a range needs readChangeFeed"
    yield Job("batch", "options", "appended", {"startingVersion": "2"}, differs=ranged)
    for settings in (
        {"spark.delta.sharing.network.timeout": "30s"},
        {"spark.delta.sharing.network.numRetries": "1"},
        {"spark.delta.sharing.queryPagination.enabled": "true", "spark.delta.sharing.maxFilesPerQueryRequest": "2"},
        {"spark.delta.sharing.jsonPredicateHints.enabled": "false"},
        {
            "spark.delta.sharing.network.proxyHost": "127.0.0.1",
            "spark.delta.sharing.network.proxyPort": "9",
            "spark.delta.sharing.network.maxRetryDuration": "1",
        },
    ):
        late = "a proxy is read there before the first file of a process, here at each load: this one answers nothing"
        yield Job(
            "batch",
            "settings of the session",
            "appended",
            then="SELECT * FROM t WHERE id > 5",
            settings=settings,
            differs=late if len(settings) == 3 else "",
        )
    for options in (
        {},
        {"startingVersion": "1"},
        {"startingVersion": "latest"},
        {"maxFilesPerTrigger": "1"},
        {"maxBytesPerTrigger": "1b"},
        {"startingTimestamp": "2026-03-08 07:30:00"},
    ):
        yield Job("stream", "streams", "appended", options)
    for options in (
        {"startingVersion": "1"},
        {"startingVersion": "1", "ignoreDeletes": "true"},
        {"startingVersion": "1", "ignoreChanges": "true"},
        {"startingVersion": "1", "skipChangeCommits": "true"},
        {"startingVersion": "1", "versionAsOf": "1"},
    ):
        yield Job(
            "stream",
            "streams over a delete",
            "feed",
            options,
            differs=""
            if "versionAsOf" in options or len(options) > 1
            else "both stop at the delete; here the rows of the versions before it come first",
        )
    before = "nothing there; the rows of the versions before the delete here"
    options = {"startingVersion": "1"}
    yield Job("stream", "rows before a delete", "feed", options, "SELECT id FROM t", differs=before, stop_after=99)
    yield Job("stream", "streams of changes", "feed", {**feed, "startingVersion": "1"}, changes)
    for end in ("endingVersion", "endingTimestamp"):
        options = {**feed, "startingVersion": "1", end: "2" if end == "endingVersion" else "2026-03-08T07:30:00Z"}
        read_on = "a stream's end is ignored there; here the line says that a stream reads on"
        yield Job("stream", "streams with an end", "feed", options, changes, differs=read_on)
    yield Job("stream", "streams over vectors", "vectors", {"responseFormat": "delta", "ignoreChanges": "true"})
    for table, response_format, limit, trigger in (
        ("appended", "parquet", {}, "availableNow"),
        ("appended", "parquet", {"maxFilesPerTrigger": "1"}, "availableNow"),
        ("appended", "parquet", {"maxFilesPerTrigger": "3"}, "availableNow"),
        ("appended", "parquet", {"maxFilesPerTrigger": "3"}, ""),
        ("appended", "parquet", {"maxBytesPerTrigger": "1b"}, "availableNow"),
        ("appended", "parquet", {"maxBytesPerTrigger": "1g"}, "availableNow"),
        ("appended", "delta", {"maxFilesPerTrigger": "5", "maxBytesPerTrigger": "1g"}, "availableNow"),
        ("appended", "delta", {"maxFilesPerTrigger": "5", "maxBytesPerTrigger": "1g"}, ""),
        ("appended", "delta", {"maxBytesPerTrigger": "1b"}, "availableNow"),
        ("by_time", "parquet", {"maxFilesPerTrigger": "7", "maxVersionsPerRpc": "1"}, "availableNow"),
        ("feed", "parquet", {**feed, "maxFilesPerTrigger": "1", "startingVersion": "1"}, "availableNow"),
        ("feed", "parquet", {**feed, "maxBytesPerTrigger": "1b", "startingVersion": "1"}, ""),
    ):
        options = {"responseFormat": response_format, **limit}
        yield Job("batches", "batches of a stream", table, options, "SELECT id FROM t", trigger=trigger)
    for statement in (
        "CREATE OR REPLACE TEMPORARY VIEW v USING deltaSharing OPTIONS (path '{path}'); SELECT * FROM v",
        "CREATE OR REPLACE TEMPORARY VIEW v USING deltaSharing OPTIONS (path '{path}', versionAsOf '1'); SELECT * FROM v",
    ):
        yield Job("sql", "SQL", "appended", then=statement)
    for statement, why in (
        (
            "SELECT * FROM deltaSharing.`{path}`",
            "an address in a statement is refused by Spark there, and read here after register",
        ),
        (
            "CREATE TABLE c USING deltaSharing LOCATION '{path}'; SELECT * FROM c",
            "a table there; here the line says the view to make",
        ),
    ):
        yield Job("sql", "SQL", "appended", then=statement, differs=why)
    for response_format in ("parquet", "delta"):
        for begins in ("there", "here"):
            yield Job(
                "continue",
                "checkpoints carried over",
                begins,
                {"responseFormat": response_format, "startingVersion": "1"},
            )
            for start in ({}, {"startingVersion": "1"}):
                yield Job(
                    "continue",
                    "checkpoints within a version",
                    begins,
                    {"responseFormat": response_format, "maxFilesPerTrigger": "1", **start},
                    stop_after=2,
                )
