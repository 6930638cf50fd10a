"""Write the small tables of ``tests/data/iceberg`` with Spark's Iceberg runtime, with the rows that its own reader answers.

Run by hand, once, with its own PySpark (it needs Maven Central, Java 17 and two minutes); the tables are kept:

    python -m venv /tmp/iceberg && /tmp/iceberg/bin/pip install pyspark==4.1.4
    /tmp/iceberg/bin/python tests/data/write_with_iceberg.py

Paths in the tables begin with ``s3://lake``, a bucket that a view of Hadoop's file systems puts into a local folder.
Equality deletes and initial defaults are written through the runtime's Java classes: Spark's SQL has neither.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

HERE = Path(__file__).parent / "iceberg"
PACKAGE = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
_MERGE_ON_READ = ", ".join(f"'write.{verb}.mode'='merge-on-read'" for verb in ("delete", "update", "merge"))

#: What is done to a table, ``{t}``: SQL, ``defaults`` (fields with initial defaults), or an equality delete (columns, rows).
Statement = str | tuple[list[str], list[list[Any]]]
_VECTORS = (
    "id BIGINT, part INT, v STRING",
    " PARTITIONED BY (part)",
    [
        "INSERT INTO {t} SELECT id, CAST(id % 2 AS INT), concat('v', id) FROM range(0, 400, 1, 1)",
        "INSERT INTO {t} SELECT id, CAST(id % 2 AS INT), concat('v', id) FROM range(400, 500, 1, 1)",
        "DELETE FROM {t} WHERE id % 7 = 3",
        "DELETE FROM {t} WHERE id BETWEEN 390 AND 410",
    ],
)
_UPDATE = "UPDATE {t} SET v = 'updated' WHERE id % 50 = 0"
_UPGRADE = ["ALTER TABLE {t} SET TBLPROPERTIES ('format-version'='3')", "DELETE FROM {t} WHERE id < 11 AND part = 1"]
_PLAIN = """INSERT INTO {{t}} SELECT CAST(id AS INT), IF(id % 5 = 0, NULL, concat('n', id)), CAST(id / 4 AS DECIMAL(9,2)),
    date_add(DATE'2020-01-01', CAST(id AS INT)), TIMESTAMP'2020-01-01 00:00:00.123456' + make_interval(0, 0, 0, 0, CAST(id AS INT), 0, 0),
    TIMESTAMP_NTZ'2021-05-05 01:02:03.5', id % 2 = 0, id / 3, CAST(id / 7 AS FLOAT), id * 10000000000, CAST(concat('b', id) AS BINARY),
    array('x', NULL, concat('t', id)), map('k', CAST(id AS INT)),
    named_struct('a', CAST(id AS INT), 'b', named_struct('c', concat('c', id))) FROM range({0}, {1}, 1, 1)"""
_SPECS = """INSERT INTO {{t}} SELECT id, concat('c', id % 3), TIMESTAMP'2020-01-01 00:00:00' + make_interval(0, 0, 0, CAST(id AS INT), 0, 0, 0),
    CAST(id AS INT) FROM range({0}, {1}, 1, 1)"""
#: By name: the format's version, columns, partitions, and what is done in order.
TABLES: dict[str, tuple[int, str, str, list[Statement]]] = {
    "plain": (
        1,
        "id INT, name STRING, price DECIMAL(9,2), day DATE, at TIMESTAMP, wall TIMESTAMP_NTZ, ok BOOLEAN, d DOUBLE, f FLOAT, "
        "big BIGINT, bin BINARY, tags ARRAY<STRING>, m MAP<STRING,INT>, s STRUCT<a:INT,b:STRUCT<c:STRING>>",
        "",
        [_PLAIN.format(0, 20), _PLAIN.format(20, 40)],
    ),
    "empty": (2, "id INT, v STRING", "", []),
    "evolved": (
        2,
        "id INT, a STRING, b STRING, n INT, f FLOAT, p DECIMAL(5,2), s STRUCT<x:INT,y:STRING>, l ARRAY<STRUCT<u:INT,v:STRING>>, "
        "m MAP<STRING,STRUCT<q:INT>>",
        "",
        [
            "INSERT INTO {t} SELECT CAST(id AS INT), concat('a', id), concat('b', id), CAST(id AS INT), CAST(id / 2 AS FLOAT), "
            "CAST(id / 2 AS DECIMAL(5,2)), named_struct('x', CAST(id AS INT), 'y', concat('y', id)), "
            "array(named_struct('u', CAST(id AS INT), 'v', 'v')), map('k', named_struct('q', CAST(id AS INT))) "
            "FROM range(0, 10, 1, 1)",
            *(
                f"ALTER TABLE {{t}} {change}"
                for change in (
                    "RENAME COLUMN a TO t", "RENAME COLUMN b TO a", "RENAME COLUMN t TO b", "ALTER COLUMN n TYPE BIGINT",
                    "ALTER COLUMN f TYPE DOUBLE", "ALTER COLUMN p TYPE DECIMAL(12,2)", "RENAME COLUMN s.x TO z",
                    "ADD COLUMN s.x STRING", "ADD COLUMN l.element.w DOUBLE", "ADD COLUMN m.value.r STRING",
                    "ALTER COLUMN p FIRST", "ADD COLUMN extra INT",
                )
            ),
            "INSERT INTO {t} SELECT CAST(1.5 AS DECIMAL(12,2)), 100, 'B', 'A', 5000000000, 1.25D, "
            "named_struct('z', 7, 'y', 'yy', 'x', 'new'), array(named_struct('u', 1, 'v', 'v', 'w', 2.5D)), "
            "map('k', named_struct('q', 1, 'r', 'r')), 9",
            "ALTER TABLE {t} DROP COLUMN extra",
            "ALTER TABLE {t} ADD COLUMN extra STRING",
            "INSERT INTO {t} SELECT CAST(2.5 AS DECIMAL(12,2)), 101, 'B', 'A', 5000000001, 1.5D, NULL, NULL, NULL, 'again'",
        ],
    ),
    "specs": (
        2,
        "id BIGINT, cat STRING, at TIMESTAMP, v INT",
        " PARTITIONED BY (cat)",
        [
            _SPECS.format(0, 9),
            "ALTER TABLE {t} ADD PARTITION FIELD bucket(4, id)",
            _SPECS.format(9, 18),
            "ALTER TABLE {t} DROP PARTITION FIELD cat",
            "ALTER TABLE {t} ADD PARTITION FIELD days(at)",
            _SPECS.format(18, 24),
            "ALTER TABLE {t} RENAME COLUMN cat TO kind",
            "ALTER TABLE {t} ADD PARTITION FIELD truncate(1, kind)",
            _SPECS.format(24, 30),
            "DELETE FROM {t} WHERE id % 4 = 1",
        ],
    ),
    "positions": (2, *_VECTORS[:2], [*_VECTORS[2], _UPDATE]),
    "vectors": (3, *_VECTORS[:2], [*_VECTORS[2], _UPDATE]),
    "upgraded": (2, *_VECTORS[:2], [*_VECTORS[2], *_UPGRADE, _UPDATE]),
    "equality": (
        2,
        "id INT, k INT, name STRING, v STRING",
        "",
        [
            "INSERT INTO {t} SELECT CAST(id AS INT), IF(id % 10 = 9, NULL, CAST(id % 5 AS INT)), "
            "IF(id % 4 = 0, NULL, concat('n', id % 4)), 'first' FROM range(0, 60, 1, 1)",
            (["id"], [[3], [4], [1000]]),
            "INSERT INTO {t} VALUES (3, 1, 'n1', 'again'), (61, NULL, NULL, 'again')",
            "DELETE FROM {t} WHERE id IN (10, 11)",
            (["k", "name"], [[None, "n3"], [2, None]]),
            "ALTER TABLE {t} RENAME COLUMN k TO key",
            "INSERT INTO {t} VALUES (62, 2, NULL, 'last')",
            "ALTER TABLE {t} ALTER COLUMN key TYPE BIGINT",
        ],
    ),
    "everything": (
        3,
        "id INT, v STRING, s STRUCT<a:INT>",
        "",
        [
            "INSERT INTO {t} SELECT CAST(id AS INT), concat('v', id), named_struct('a', CAST(id AS INT)) FROM range(0, 40, 1, 1)",
            "DELETE FROM {t} WHERE id < 5",
            (["id"], [[7], [8], [2]]),
            "defaults",
            "INSERT INTO {t} VALUES (100, 'new', named_struct('a', 1, 'inner', 2), NULL, 6)",
        ],
    ),
    "history": (
        2,
        "id INT",
        "",
        [
            "INSERT INTO {t} VALUES (1)",
            "ALTER TABLE {t} CREATE TAG first",
            "ALTER TABLE {t} ADD COLUMN name STRING",
            "INSERT INTO {t} VALUES (2, 'two')",
            "ALTER TABLE {t} CREATE BRANCH work",
            "INSERT INTO {t}.branch_work VALUES (3, 'three')",
            "INSERT INTO {t} VALUES (4, 'four')",
            "DELETE FROM {t} WHERE id = 1",
        ],
    ),
    "imported": (
        2,
        "id INT, name STRING, st STRUCT<a:INT>, part INT",
        " PARTITIONED BY (part)",
        [
            "CALL ice.system.add_files(table => '{t}', source_table => '`parquet`.`s3://lake/db/hive_files`')",
            "ALTER TABLE {t} RENAME COLUMN name TO title",
            "ALTER TABLE {t} RENAME COLUMN part TO piece",
            "ALTER TABLE {t} ADD COLUMN more STRING",
        ],
    ),
}  # fmt: skip


def session(lake: Path) -> SparkSession:
    view = "spark.hadoop.fs.viewfs.mounttable.lake"
    settings = {
        "spark.jars.packages": PACKAGE,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": "s3://lake/",
        "spark.sql.defaultCatalog": "ice",
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        "spark.hadoop.fs.viewfs.overload.scheme.target.s3.impl": "org.apache.hadoop.fs.LocalFileSystem",
        f"{view}.linkFallback": lake.as_uri(),
        f"{view}.link./db": (lake / "db").as_uri(),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def java_table(spark: Any, name: str) -> Any:
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, f"ice.db.{name}")


def delete_equal(spark: Any, name: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Commit an equality delete; keys are INT or STRING, for Py4J makes an Integer of a small Long."""
    jvm, table = spark._jvm, java_table(spark, name)
    keys = table.schema().select(_java_texts(spark, columns))
    ids = spark._sc._gateway.new_array(jvm.int, len(columns))
    for place, column in enumerate(columns):
        ids[place] = table.schema().findField(column).fieldId()
    parquet, iceberg = jvm.org.apache.iceberg.FileFormat.PARQUET, jvm.org.apache.iceberg
    builder = getattr(iceberg.data, "GenericFileWriterFactory$Builder")(table)
    builder = builder.dataSchema(table.schema()).dataFileFormat(parquet).deleteFileFormat(parquet)
    factory = builder.equalityFieldIds(ids).equalityDeleteRowSchema(keys).build()
    place = f"{table.location()}/data/eq-{jvm.java.util.UUID.randomUUID().toString()}.parquet"
    file = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(place))
    writer = factory.newEqualityDeleteWriter(file, table.spec(), None)
    record = iceberg.data.GenericRecord.create(keys)
    for row in rows:
        filled = record.copy()
        for column, value in zip(columns, row, strict=True):
            filled.setField(column, value)
        writer.write(filled)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


def _java_texts(spark: Any, texts: list[str]) -> Any:
    array = spark._sc._gateway.new_array(spark._jvm.java.lang.String, len(texts))
    for place, text in enumerate(texts):
        array[place] = text
    return array


def add_defaults(spark: Any, name: str) -> None:
    iceberg = spark._jvm.org.apache.iceberg
    literal, types = iceberg.expressions.Expressions.lit, iceberg.types.Types
    update = java_table(spark, name).updateSchema()
    update = update.addColumn("dflt", types.StringType.get(), literal("dunno"))
    update = update.addColumn("s", "inner", types.IntegerType.get(), literal(17))
    update.addColumn("num", types.LongType.get(), literal(5)).commit()


def write(spark: Any) -> None:
    spark.sql("CREATE NAMESPACE IF NOT EXISTS db")
    files = spark.range(0, 6).selectExpr(
        "CAST(id AS INT) AS id",
        "concat('x', id) AS name",
        "CAST(id % 2 AS INT) AS part",
        "named_struct('a', CAST(id AS INT)) AS st",
    )
    files.write.partitionBy("part").parquet("s3://lake/db/hive_files")
    for name, (version, columns, partitions, statements) in TABLES.items():
        properties = f"TBLPROPERTIES ('format-version'='{version}', {_MERGE_ON_READ}, 'write.parquet.compression-codec'='snappy')"
        spark.sql(f"CREATE TABLE db.{name} ({columns}) USING iceberg{partitions} {properties}")
        for statement in statements:
            if isinstance(statement, tuple):
                delete_equal(spark, name, *statement)
            elif statement == "defaults":
                add_defaults(spark, name)
            else:
                spark.sql(statement.replace("{t}", f"db.{name}"))
            spark.sql(f"REFRESH TABLE db.{name}")


def answer(spark: Any, key: str, query: str) -> None:
    with tempfile.TemporaryDirectory() as out:
        spark.sql(query).coalesce(1).write.mode("overwrite").parquet(f"file://{out}/answer")
        (HERE / "answers").mkdir(exist_ok=True)
        shutil.copy(next(Path(out, "answer").glob("part-*.parquet")), HERE / "answers" / f"{key}.parquet")


def keep(lake: Path) -> None:
    """Copy what a reader needs: the newest metadata of each table, and no checksums."""
    for file in lake.glob("**/*"):
        if not file.is_file() or file.name.startswith(".") or file.name in ("version-hint.text", "_SUCCESS"):
            continue
        documents = list(file.parent.glob("v*.metadata.json"))
        if file in documents and file != max(documents, key=lambda one: int(re.sub(r"\D", "", one.name))):
            continue
        kept = HERE / "lake" / file.relative_to(lake)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, kept)


def main() -> None:
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    with tempfile.TemporaryDirectory() as place:
        lake = Path(place, "lake")
        (lake / "db").mkdir(parents=True)
        spark = session(lake)
        write(spark)
        for name in TABLES:
            answer(spark, name, f"SELECT * FROM db.{name}")
        for row in spark.sql("SELECT snapshot_id FROM db.history.snapshots").collect():
            answer(spark, f"history@{row[0]}", f"SELECT * FROM db.history VERSION AS OF {row[0]}")
        for ref in ("first", "work"):
            answer(spark, f"history@{ref}", f"SELECT * FROM db.history VERSION AS OF '{ref}'")
        spark.stop()
        keep(lake)


if __name__ == "__main__":
    main()
