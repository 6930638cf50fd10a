"""Write the small tables of ``tests/data/delta_spark`` with Delta Lake on Spark, with the rows Delta itself reads.

Run by hand, once, with its own PySpark (it needs Maven Central, Java 17 and about five minutes); the tables are kept:

    python -m venv /tmp/delta && /tmp/delta/bin/pip install pyspark==4.2.0 pyarrow
    PYTHONPATH=tests /tmp/delta/bin/python -m data.write_with_delta            # all tables, or the names given

A table is a list of SQL statements; ``{t}`` stands for it. Beside the table lies ``expected.json``: the types and rows
of every version, and of every version's change feed, as Delta Lake returned them (see ``conformance/canonical.py``).
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import Geography, Geometry, VariantVal

from conformance.canonical import row_texts

HERE = Path(__file__).parent / "delta_spark"
PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
FEED = "'delta.enableChangeDataFeed'='true'"
VECTORS = "'delta.enableDeletionVectors'='true'"
NO_VECTORS = "'delta.enableDeletionVectors'='false'"
ICT = "'delta.enableInCommitTimestamps'='true'"


@dataclass(frozen=True)
class Table:
    """A table to write: what it shows, and the statements that make it."""

    name: str
    shows: str
    statements: tuple[str, ...]

    @property
    def feed(self) -> bool:
        return any(FEED in statement for statement in self.statements)

    @property
    def stamped(self) -> bool:
        """Whether commit times stand in the log; git does not keep the files' times."""
        return any(ICT in statement for statement in self.statements)


def create(columns: str, *properties: str, more: str = "") -> str:
    listed = f"TBLPROPERTIES ({', '.join(properties)})" if properties else ""
    return f"CREATE TABLE {{t}} ({columns}) USING delta {more} {listed}"


def point(x: int, y: int) -> str:
    """A point in well-known binary, as a literal of SQL."""
    return f"X'{struct.pack('<BIdd', 1, 1, x, y).hex()}'"


def rows(count: int, start: int = 0, files: int = 1) -> str:
    return (
        f"INSERT INTO {{t}} SELECT /*+ REPARTITION({files}) */ id, if(id % 2 = 0, 'even', 'odd'), "
        f"cast(id * id AS int) FROM range({start}, {start + count})"
    )


PLAIN = "id BIGINT, part STRING, n INT"
CHANGES = (
    "UPDATE {t} SET n = -n WHERE id % 3 = 0",
    "DELETE FROM {t} WHERE id = 5",
    "MERGE INTO {t} t USING (SELECT id, 'new' AS part, 7 AS n FROM range(7, 14)) s ON t.id = s.id "
    "WHEN MATCHED AND s.id = 8 THEN DELETE WHEN MATCHED THEN UPDATE SET n = s.n WHEN NOT MATCHED THEN INSERT *",
)

TABLES = [
    Table(
        "deletion_vectors",
        "several vectors in one .bin file, replaced by later ones; after DELETE, UPDATE and MERGE",
        (
            create(PLAIN, VECTORS),
            rows(90, files=3),
            "DELETE FROM {t} WHERE id % 7 = 0",
            "UPDATE {t} SET n = -1 WHERE id % 11 = 0",
            CHANGES[2],
            "DELETE FROM {t} WHERE id % 13 = 0",
        ),
    ),
    Table(
        "deletion_vectors_checkpoint",
        "vectors in a partitioned table, read from a classic checkpoint and from commits after it",
        (
            create(PLAIN, VECTORS, "'delta.checkpointInterval'='3'", more="PARTITIONED BY (part)"),
            rows(40, files=2),
            "DELETE FROM {t} WHERE id IN (1, 2, 3, 30)",
            "DELETE FROM {t} WHERE id IN (4, 31)",
            "DELETE FROM {t} WHERE id IN (5, 32)",
            "DELETE FROM {t} WHERE part = 'odd' AND id < 20",
        ),
    ),
    Table(
        "mapping_name",
        "column mapping by name: odd names, nested renames and drops, a renamed partition column",
        (
            create(
                "id BIGINT, `a b,;{{}}=` STRING, gone INT, s STRUCT<x: INT, y: STRING, z: STRUCT<w: INT>>, "
                "l ARRAY<STRUCT<p: INT, q: STRING>>, m MAP<STRING, STRUCT<k: INT>>, part STRING",
                "'delta.columnMapping.mode'='name'",
                more="PARTITIONED BY (part)",
            ),
            "INSERT INTO {t} VALUES (1, 'x', 10, struct(1, 'one', struct(11)), array(struct(1, 'p')), "
            "map('k', struct(5)), 'A'), (2, null, null, null, null, null, null)",
            "ALTER TABLE {t} RENAME COLUMN `a b,;{{}}=` TO text",
            "ALTER TABLE {t} RENAME COLUMN s.x TO renamed",
            "ALTER TABLE {t} RENAME COLUMN l.element.q TO r",
            "ALTER TABLE {t} RENAME COLUMN part TO `Part Of`",
            "ALTER TABLE {t} DROP COLUMN gone",
            "ALTER TABLE {t} DROP COLUMN s.y",
            "ALTER TABLE {t} ADD COLUMNS (gone STRING, s.y DOUBLE)",
            "INSERT INTO {t} (id, text, s, l, m, `Part Of`, gone) VALUES (3, 'z', "
            "named_struct('renamed', 3, 'z', struct(33), 'y', 2.5D), "
            "array(struct(2, 'r')), map('k', struct(6)), 'B c/d', 'back')",
        ),
    ),
    Table(
        "mapping_id",
        "column mapping by field id, nested, with renamed and dropped columns",
        (
            create(
                "id BIGINT, s STRUCT<x: INT, y: STRING>, l ARRAY<STRUCT<p: INT>>, m MAP<INT, ARRAY<STRUCT<k: INT>>>, "
                "d STRING",
                "'delta.columnMapping.mode'='id'",
            ),
            "INSERT INTO {t} VALUES (1, struct(1, 'one'), array(struct(1)), map(1, array(struct(9))), 'd')",
            "ALTER TABLE {t} RENAME COLUMN s TO t",
            "ALTER TABLE {t} RENAME COLUMN t.x TO s",
            "ALTER TABLE {t} DROP COLUMN d",
            "ALTER TABLE {t} ADD COLUMN d INT FIRST",
            "INSERT INTO {t} VALUES (4, 2, struct(2, 'two'), array(struct(2)), map(2, array(struct(8))))",
        ),
    ),
    Table(
        "mapping_upgraded",
        "reader version 2 without a list of features: mapping switched on after the first rows, then a rename",
        (
            create(PLAIN, NO_VECTORS),
            rows(5),
            "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', "
            "'delta.minWriterVersion'='5')",
            "ALTER TABLE {t} RENAME COLUMN n TO square",
            "ALTER TABLE {t} RENAME COLUMN part TO n",
            "INSERT INTO {t} VALUES (50, 'five', 2500)",
        ),
    ),
    Table(
        "type_widening",
        "every change Delta allows, also nested, one after another",
        (
            create(
                "b BYTE, s SHORT, i INT, f FLOAT, d DECIMAL(5, 2), day DATE, bd BYTE, sd SHORT, id INT, bdec BYTE, "
                "ldec BIGINT, st STRUCT<x: BYTE>, l ARRAY<SHORT>, m MAP<BYTE, INT>",
                "'delta.enableTypeWidening'='true'",
                "'delta.feature.timestampNtz'='supported'",
            ),
            "INSERT INTO {t} VALUES (-128, -32768, 2147483647, 1.5, 123.45, DATE'2020-02-29', 1, 2, 3, 4, 5, "
            "struct(6), array(7S, null), map(8Y, 9)), "
            "(null, null, null, null, null, null, null, null, null, null, null, null, null, null)",
            "ALTER TABLE {t} ALTER COLUMN b TYPE SHORT",
            "ALTER TABLE {t} ALTER COLUMN b TYPE INT",
            "ALTER TABLE {t} ALTER COLUMN b TYPE BIGINT",
            "ALTER TABLE {t} ALTER COLUMN s TYPE INT",
            "ALTER TABLE {t} ALTER COLUMN i TYPE BIGINT",
            "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN d TYPE DECIMAL(12, 4)",
            "ALTER TABLE {t} ALTER COLUMN day TYPE TIMESTAMP_NTZ",
            "ALTER TABLE {t} ALTER COLUMN bd TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN sd TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN id TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN bdec TYPE DECIMAL(12, 1)",
            "ALTER TABLE {t} ALTER COLUMN ldec TYPE DECIMAL(22, 2)",
            "ALTER TABLE {t} ALTER COLUMN st.x TYPE INT",
            "ALTER TABLE {t} ALTER COLUMN l.element TYPE INT",
            "ALTER TABLE {t} ALTER COLUMN m.key TYPE INT",
            "ALTER TABLE {t} ALTER COLUMN m.value TYPE BIGINT",
            "INSERT INTO {t} VALUES (1L << 40, 100000, 1L << 41, 0.1D, 12345678.9012, TIMESTAMP_NTZ'2021-01-01 "
            "12:34:56', 0.25D, 0.5D, 0.75D, 1.5, 2.25, struct(70000), array(70000), map(70000, 1L << 42))",
        ),
    ),
    Table(
        "variant_plain",
        "variants, unshredded: every kind of value, nested, in a struct and an array",
        (
            create(
                "id INT, v VARIANT, s STRUCT<v: VARIANT>, l ARRAY<VARIANT>", "'delta.enableVariantShredding'='false'"
            ),
            "INSERT INTO {t} SELECT id, parse_json(j), named_struct('v', parse_json(j)), array(parse_json(j), null) "
            'FROM VALUES (1, \'{{"a": 1, "b": [true, null, 2.5, "x"], "c": {{"d": 1e100}}}}\'), (2, \'[]\'), '
            "(3, '\"text\"'), (4, 'null'), (5, '123456789012345.678'), (6, null) AS j(id, j)",
            "INSERT INTO {t} SELECT 7, to_variant_object(named_struct('d', DATE'2020-01-02', 't', "
            "TIMESTAMP'2020-01-02 03:04:05.678', 'n', TIMESTAMP_NTZ'2020-01-02 03:04:05', 'x', X'CAFE', 'f', 1.5F, "
            "'dec', 12345678901234567890.12BD)), null, null",
        ),
    ),
    Table(
        "variant_shredded",
        "variants, shredded by a schema that some rows fit, some in part and some not",
        (
            "SET spark.sql.variant.writeShredding.enabled=true",
            "SET spark.sql.variant.allowReadingShredded=true",
            "SET spark.sql.variant.inferShreddingSchema=false",
            "SET spark.sql.variant.forceShreddingSchemaForTest=a int, b string, c array<long>, d struct<e: decimal(9,2)>",
            create("id INT, v VARIANT", "'delta.enableVariantShredding'='true'"),
            "INSERT INTO {t} SELECT id, parse_json(j) FROM VALUES "
            '(1, \'{{"a": 1, "b": "x", "c": [1, 2], "d": {{"e": 1.25}}}}\'), '
            '(2, \'{{"a": "not an int", "more": {{"b": [1]}}, "c": [1, "x"], "d": {{"e": true, "f": 1}}}}\'), '
            "(3, '[1, 2]'), (4, 'null'), (5, null), (6, '{{}}'), (7, '{{\"a\": null, \"d\": 5}}') AS j(id, j)",
        ),
    ),
    Table(
        "types",
        "every type with its edges, nested, char and varchar, NULL everywhere",
        (
            create(
                "id INT NOT NULL COMMENT 'key', b BYTE, s SHORT, l BIGINT, f FLOAT, d DOUBLE, bo BOOLEAN, str STRING, "
                "bin BINARY, c CHAR(4), vc VARCHAR(5), dec9 DECIMAL(9, 2), dec18 DECIMAL(18, 0), dec38 DECIMAL(38, 10), "
                "day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, arr ARRAY<ARRAY<DECIMAL(4, 1)>>, "
                "mp MAP<STRING, MAP<DATE, TIMESTAMP>>, st STRUCT<a: TIMESTAMP_NTZ, b: STRUCT<c: BINARY>>"
            ),
            "INSERT INTO {t} VALUES (1, 127, 32767, 9223372036854775807, float('NaN'), double('-Infinity'), true, "
            "'\u00e4\u20ac\U0001f600', X'00FF', 'ab', 'abc', 9999999.99, 999999999999999999, "
            "9999999999999999999999999999.9999999999, DATE'9999-12-31', TIMESTAMP'9999-12-31 23:59:59.999999', "
            "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', array(array(1.5, null), null, array()), "
            "map('k', map(DATE'2020-01-01', TIMESTAMP'2020-01-01 00:00:00')), "
            "named_struct('a', TIMESTAMP_NTZ'2020-01-01 01:02:03', 'b', named_struct('c', X'01')))",
            "INSERT INTO {t} VALUES (2, -128, -32768, -9223372036854775808, -0.0F, 5e-324D, false, '', X'', '', '', "
            "-9999999.99, -999999999999999999, -0.0000000001, DATE'0001-01-01', TIMESTAMP'0001-01-01 00:00:00', "
            "TIMESTAMP_NTZ'0001-01-01 00:00:00', array(), map(), named_struct('a', null, 'b', named_struct('c', null)))",
            "INSERT INTO {t} (id) VALUES (3)",
            "UPDATE {t} SET str = 'changed' WHERE id = 3",
        ),
    ),
    Table(
        "void_column",
        "columns of type void, which stand in no file",
        (
            create("id INT, v VOID, s STRUCT<a: INT, v: VOID>"),
            "INSERT INTO {t} VALUES (1, null, struct(1, null)), (2, null, null)",
        ),
    ),
    Table(
        "generated_and_defaults",
        "default values, a check constraint, an identity column and a generated column: plain data for a reader",
        (
            create(
                "id BIGINT GENERATED ALWAYS AS IDENTITY, n INT DEFAULT 42, day DATE, y INT GENERATED ALWAYS AS (year(day))",
                "'delta.feature.allowColumnDefaults'='supported'",
            ),
            "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (n > 0)",
            "INSERT INTO {t} (day) VALUES (DATE'2020-05-06'), (null)",
            "ALTER TABLE {t} ADD COLUMN later STRING",
            "ALTER TABLE {t} ALTER COLUMN later SET DEFAULT 'late'",
            "INSERT INTO {t} (n, day) VALUES (7, DATE'2021-01-01')",
        ),
    ),
    Table(
        "v2_checkpoint",
        "V2 checkpoints with sidecars, vectors, commits before and after",
        (
            create(
                PLAIN,
                VECTORS,
                "'delta.checkpointPolicy'='v2'",
                "'delta.checkpointInterval'='3'",
                more="PARTITIONED BY (part)",
            ),
            rows(10),
            rows(10, 10),
            "DELETE FROM {t} WHERE id % 4 = 0",
            rows(10, 20),
            "DELETE FROM {t} WHERE id = 1",
        ),
    ),
    Table(
        "clustered_row_tracking",
        "liquid clustering, row tracking, in-commit timestamps, and OPTIMIZE; writer features only",
        (
            create(PLAIN, ICT, "'delta.enableRowTracking'='true'", more="CLUSTER BY (id)"),
            rows(20, files=2),
            "UPDATE {t} SET n = 0 WHERE id = 3",
            rows(20, 20, files=2),
            "OPTIMIZE {t}",
        ),
    ),
    Table(
        "partition_values",
        "partition columns of every type, odd strings, NULL and the empty string",
        (
            create(
                "id INT, s STRING, b BYTE, sh SHORT, i INT, l BIGINT, f FLOAT, d DOUBLE, bo BOOLEAN, dec DECIMAL(20, 4), "
                "day DATE, ts TIMESTAMP, ntz TIMESTAMP_NTZ, bin BINARY",
                more="PARTITIONED BY (s, b, sh, i, l, f, d, bo, dec, day, ts, ntz, bin)",
            ),
            "INSERT INTO {t} VALUES (1, 'a/b=c%20:?#[] \"\u00e4', -1, -2, -3, -4, 1.5, -2.5e300, true, 1.0000, "
            "DATE'1969-12-31', TIMESTAMP'1969-12-31 23:59:59.123456', TIMESTAMP_NTZ'2020-01-01 00:00:00.000001', X'61')",
            "INSERT INTO {t} VALUES (2, '', null, null, null, null, null, null, null, null, null, null, null, null)",
            "INSERT INTO {t} VALUES (3, '__HIVE_DEFAULT_PARTITION__', 127, 1, 1, 1, float('NaN'), double('Infinity'), false, "
            "-0.0001, DATE'9999-12-31', TIMESTAMP'9999-12-31 23:59:59', TIMESTAMP_NTZ'0001-01-01 00:00:00', X'7A7A')",
            "INSERT INTO {t} VALUES (4, ' spaces ', 0, 0, 0, 0, -0.0F, 0.0D, false, 0, DATE'2020-02-29', "
            "TIMESTAMP'2020-01-01 00:00:00', TIMESTAMP_NTZ'2020-01-01 00:00:00', X'20')",
        ),
    ),
    Table(
        "timestamps_int96",
        "timestamps as INT96, up to the year 9999, beside INT64 of both units",
        (
            "SET spark.sql.parquet.outputTimestampType=INT96",
            create("id INT, ts TIMESTAMP, s STRUCT<ts: TIMESTAMP>"),
            "INSERT INTO {t} SELECT id, ts, named_struct('ts', ts) FROM VALUES (1, TIMESTAMP'9999-12-31 23:59:59.999999'), "
            "(2, TIMESTAMP'0001-01-01 00:00:00'), (3, TIMESTAMP'1969-12-31 23:59:59.999999'), (4, null), "
            "(5, TIMESTAMP'1582-10-04 00:00:00') AS v(id, ts)",
            "SET spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS",
            "INSERT INTO {t} SELECT 6, TIMESTAMP'2020-01-01 00:00:00.123456', null",
            "SET spark.sql.parquet.outputTimestampType=TIMESTAMP_MILLIS",
            "INSERT INTO {t} SELECT 7, TIMESTAMP'2020-01-01 00:00:00.123', null",
        ),
    ),
    Table(
        "cdf_plain", "change files of UPDATE, DELETE and MERGE", (create(PLAIN, FEED, NO_VECTORS), rows(10), *CHANGES)
    ),
    Table(
        "places",
        "geometries and geographies of every reference system that Spark has, nested and NULL, with a deletion vector",
        (
            create(
                "id BIGINT, place GEOMETRY(4326), earth GEOGRAPHY(4326), web GEOMETRY(3857), "
                "s STRUCT<p: GEOMETRY(4326), n: INT>, l ARRAY<GEOGRAPHY(4326)>, m MAP<STRING, GEOMETRY(0)>",
                VECTORS,
            ),
            *(
                f"INSERT INTO {{t}} VALUES ({i}, st_setsrid(st_geomfromwkb({point(i, -i)}), 4326), "
                f"st_geogfromwkb({point(i, 45)}), st_setsrid(st_geomfromwkb({point(i, i)}), 3857), "
                f"struct(st_setsrid(st_geomfromwkb({point(0, i)}), 4326), {i}), "
                f"array(st_geogfromwkb({point(i, 0)}), null), map('k', st_geomfromwkb({point(7, i)})))"
                for i in range(3)
            ),
            "INSERT INTO {t} SELECT id, null, null, null, null, null, null FROM range(3, 6)",
            "DELETE FROM {t} WHERE id IN (1, 4)",
        ),
    ),
    Table(
        "cdf_partitioned",
        "change files of a partitioned table; a whole partition deleted and one overwritten without change files",
        (
            create(PLAIN, FEED, NO_VECTORS, more="PARTITIONED BY (part)"),
            rows(10),
            *CHANGES,
            "DELETE FROM {t} WHERE part = 'even'",
            "INSERT OVERWRITE {t} SELECT 100, 'odd', 1",
        ),
    ),
    Table(
        "cdf_vectors",
        "the feed of a table with deletion vectors and in-commit timestamps; OPTIMIZE changes nothing",
        (
            create(PLAIN, FEED, VECTORS, ICT),
            rows(10, files=2),
            *CHANGES,
            "OPTIMIZE {t}",
            "RESTORE TABLE {t} TO VERSION AS OF 2",
        ),
    ),
    Table(
        "cdf_mapping",
        "the feed under column mapping, with a renamed column before the last change",
        (
            create(PLAIN, FEED, VECTORS, "'delta.columnMapping.mode'='name'", more="PARTITIONED BY (part)"),
            rows(6),
            "UPDATE {t} SET n = 5 WHERE id = 2",
            "ALTER TABLE {t} RENAME COLUMN n TO square",
            "UPDATE {t} SET square = 6 WHERE id = 3",
        ),
    ),
    Table(
        "cdf_restored",
        "the feed of a NULL partition, whose removes lack their partition value; truncated, overwritten, restored, grown",
        (
            create("id BIGINT, part STRING", FEED, NO_VECTORS, ICT, more="PARTITIONED BY (part)"),
            "INSERT INTO {t} VALUES (1, 'a'), (2, null)",
            "TRUNCATE TABLE {t}",
            "INSERT OVERWRITE {t} VALUES (5, 'b')",
            "RESTORE TABLE {t} TO VERSION AS OF 1",
            "ALTER TABLE {t} ADD COLUMNS (more STRING FIRST)",
            "INSERT INTO {t} VALUES ('m', 9, 'c')",
            "UPDATE {t} SET more = 'filled' WHERE part IS NULL",
        ),
    ),
    Table(
        "cdf_upgraded",
        "the feed of a table whose columns were mapped later, and one renamed then",
        (
            create("id BIGINT, n INT", FEED, NO_VECTORS),
            "INSERT INTO {t} VALUES (1, 1), (2, 2)",
            "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode'='name', 'delta.minReaderVersion'='2', "
            "'delta.minWriterVersion'='5')",
            "DELETE FROM {t} WHERE id = 2",
            "ALTER TABLE {t} RENAME COLUMN n TO m",
            "UPDATE {t} SET m = 3 WHERE id = 1",
        ),
    ),
    Table(
        "cdf_growth",
        "the feed of a table whose schema grew, at the end and inside a struct",
        (
            create("id BIGINT, s STRUCT<a: INT>", FEED, NO_VECTORS),
            "INSERT INTO {t} VALUES (1, struct(1)), (2, null)",
            "ALTER TABLE {t} ADD COLUMNS (more STRING, s.b INT)",
            "INSERT INTO {t} VALUES (3, struct(3, 33), 'three')",
            "UPDATE {t} SET more = 'filled' WHERE id < 3",
        ),
    ),
]


def session() -> SparkSession:
    settings = {
        "spark.jars.packages": PACKAGE,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled": "true",
        "spark.databricks.delta.geo.preview.enabled": "true",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.fieldId.read.enabled": "true",
        "spark.sql.parquet.fieldId.write.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def answer(frame: DataFrame) -> dict[str, Any]:
    return {
        "types": [[field.name, field.dataType.simpleString()] for field in frame.schema.fields],
        "rows": row_texts(arrow(frame)),
    }


def arrow(frame: DataFrame) -> pa.Table:
    """``frame.toArrow()``, which fails on a variant or a place that is NULL (Spark 4.2): then by way of Python's values."""
    if not any(name in frame.schema.simpleString() for name in ("variant", "geometry", "geography")):
        return frame.toArrow()
    schema = pa.schema([pa.field(f.name, nullable(f.type)) for f in to_arrow_schema(frame.schema, timezone="UTC")])
    return pa.Table.from_pylist([plain(row) for row in frame.collect()], schema)


def nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, nullable(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(nullable(kind.value_type))
    return pa.map_(kind.key_type, nullable(kind.item_type)) if pa.types.is_map(kind) else kind


def plain(value: Any) -> Any:
    if isinstance(value, VariantVal):
        return {"value": value.value, "metadata": value.metadata}
    if isinstance(value, (Geometry, Geography)):
        return {"srid": value.getSrid(), "wkb": bytes(value.getBytes())}
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    if isinstance(value, Row):
        return {name: plain(item) for name, item in value.asDict().items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def expected(spark: SparkSession, table: Table, path: Path) -> dict[str, Any]:
    newest = spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()["version"]
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    description: dict[str, Any] = {
        "shows": table.shows,
        "written_by": PACKAGE,
        "protocol": [detail["minReaderVersion"], detail["minWriterVersion"]],
        "features": sorted(detail["tableFeatures"]),
        "versions": {},
    }
    for version in range(newest + 1):
        description["versions"][version] = answer(
            spark.read.format("delta").option("versionAsOf", version).load(str(path))
        )
    if table.feed:
        description["changes"] = {}
        ranges = [(version, version) for version in range(newest + 1)] + [(0, newest)]
        for start, end in ranges:
            reader = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", start)
            try:
                frame = reader.option("endingVersion", end).load(str(path))
                description["changes"][f"{start}-{end}"] = answer(
                    frame if table.stamped else frame.drop("_commit_timestamp")
                )
            except Exception as error:  # what Delta itself refuses is part of the answer
                description["changes"][f"{start}-{end}"] = {"error": str(error).splitlines()[0][:300]}
    return description


def write(spark: SparkSession, table: Table) -> None:
    path = HERE / table.name
    shutil.rmtree(path, ignore_errors=True)
    spark.sql("RESET")
    for statement in table.statements:
        spark.sql(statement.format(t=f"delta.`{path}`"))
    result = expected(spark, table, path)
    for checksum in path.rglob("*.crc"):
        checksum.unlink()
    (path / "expected.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


HEADER = """# Tables written by Delta Lake on Spark

The project's own, written by `tests/data/write_with_delta.py` with {package}; not edited by hand. Each holds its Delta
table and `expected.json`: the types and rows (as texts, `tests/conformance/canonical.py`) of every version, and of every
version's change feed, as Delta itself returned them. `.crc` files are left out; commit times are compared only where
they stand in the log. Read by `tests/conformance/test_every_table.py` (both access modes and formats) and
`tests/conformance/test_differential.py` (against other readers).

| table | shows | versions | reader, writer | features | newest schema |
|---|---|---|---|---|---|
"""


def catalogue() -> None:
    """``README.md`` of the tables that are there."""
    lines = []
    for path in sorted(HERE.glob("*/expected.json")):
        description = json.loads(path.read_text(encoding="utf-8"))
        newest = list(description["versions"].values())[-1]["types"]
        schema = ", ".join(f"{name} {kind}" for name, kind in newest)
        feed = " + feed" if "changes" in description else ""
        protocol = ", ".join(map(str, description["protocol"]))
        lines.append(
            f"| `{path.parent.name}` | {description['shows']} | {len(description['versions'])}{feed} | {protocol} "
            f"| {', '.join(description['features'])} | {schema} |\n"
        )
    (HERE / "README.md").write_text(HEADER.format(package=PACKAGE) + "".join(lines), encoding="utf-8")


def main(names: list[str]) -> int:
    failures = 0
    if names != ["catalogue"]:
        failures = write_all(names)
    catalogue()
    return failures


def write_all(names: list[str]) -> int:
    failures = 0
    spark = session()
    for table in TABLES:
        if names and table.name not in names:
            continue
        try:
            write(spark, table)
            sys.stdout.write(f"{table.name}: written\n")
        except Exception as error:  # the other tables are written all the same; the exit code tells
            shutil.rmtree(HERE / table.name, ignore_errors=True)
            sys.stdout.write(f"{table.name}: {str(error)[:600]}\n")
            failures += 1
        sys.stdout.flush()
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
