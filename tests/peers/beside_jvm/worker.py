"""Runs jobs in a session that has the JVM connector, or this one: a job a line of JSON in, its rows or its error a line out."""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyarrow import parquet


def session(jars: str) -> Any:
    """A session, with the jars of the JVM connector or with ours registered: the one line that differs."""
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    builder = (
        builder.config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "1500m")
    )
    builder = builder.config("spark.sql.warehouse.dir", tempfile.mkdtemp()).config(
        "spark.driver.extraJavaOptions", "-Duser.timezone=UTC"
    )
    if jars:
        builder = builder.config("spark.driver.extraClassPath", os.pathsep.join(sorted(glob.glob(f"{jars}/*.jar"))))
        builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if not jars:
        import delta_sharing_spark

        delta_sharing_spark.register(spark, engine="python")
    return spark


def stream(spark: Any, load: Any, checkpoint: str, trigger: str, stop_after: int) -> tuple[Any, list[int]]:
    """What a stream writes until it has read all that is there, and the rows of each batch that has any.

    With ``stop_after`` it fails in the batch behind as many: that one is planned, and no other is.
    """
    out = tempfile.mkdtemp()
    begun: list[Path] = []

    def write(batch: Any, number: int) -> None:
        if stop_after and len(begun) == stop_after:
            raise RuntimeError("stopped")
        begun.append(Path(out, str(number)))
        batch.write.parquet(str(begun[-1]))

    writer = load.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    query = (writer.trigger(availableNow=True) if trigger == "availableNow" else writer).start()
    error = None
    try:
        if trigger == "availableNow":
            query.awaitTermination(90)
        else:
            query.processAllAvailable()
        error = query.exception()
    except Exception as failure:
        error = failure
    finally:
        query.stop()
    if error is not None and not stop_after:
        raise RuntimeError(str(error))
    parts = [[str(file) for file in directory.glob("*.parquet")] for directory in begun]
    written = list(itertools.chain.from_iterable(parts))
    frame = spark.read.schema(load.schema).parquet(*written) if written else spark.createDataFrame([], load.schema)
    counts = [sum(parquet.read_metadata(file).num_rows for file in files) for files in parts]
    return frame, [count for count in counts if count]


def run(spark: Any, job: dict[str, Any], path: str) -> list[str]:
    """The rows of a job as sorted texts, those of ``batches`` behind the sizes of its batches."""
    options = dict(job["options"])
    if job["kind"] == "sql":
        frame = None
        for statement in job["then"].format(path=path).split("; "):
            frame = spark.sql(statement)
        return rows(frame)
    if job["kind"] == "again":
        return rows(spark.sql(job["then"]))
    if job["kind"] in ("batch", "columns"):
        load = spark.read.format("deltaSharing").options(**options).load(path)
        if job["kind"] == "columns":
            return [", ".join(load.columns)]
    else:
        load = spark.readStream.format("deltaSharing").options(**options).load(path)
        checkpoint = job.get("checkpoint") or tempfile.mkdtemp()
        load, sizes = stream(spark, load, checkpoint, job["trigger"], job["stop_after"])
    load.createOrReplaceTempView("t")
    found = rows(spark.sql(job["then"]))
    return [f"batches of {sizes} rows", *found] if job["kind"] == "batches" else found


def rows(frame: Any) -> list[str]:
    return sorted(str(tuple(row)) for row in frame.collect())


def main() -> None:
    """Answer jobs until the input ends."""
    spark = session(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        job = request["job"]
        for name, value in job["settings"].items():
            spark.conf.set(name, value)
        with contextlib.redirect_stdout(sys.stderr):
            try:
                answer: dict[str, Any] = {"rows": run(spark, job, request["path"])}
            except Exception as error:
                said, _, offsets = str(error).partition("=== Streaming Query ===")
                lines = [line for line in said.splitlines() if line.strip() and not line.startswith("\tat ")]
                # Delta's own words name no offset; the offsets below them do.
                advice = re.findall(r"delta-sharing-spark has read [^\"]*", offsets)[:1]
                answer = {"error": " | ".join([" | ".join(lines)[-900:], *advice])}
            finally:
                spark.sql("DROP TABLE IF EXISTS c")
                for name in job["settings"]:
                    spark.conf.set(name, "UTC") if name.endswith("timeZone") else spark.conf.unset(name)
        print(json.dumps(answer), flush=True)
    shutil.rmtree(Path("spark-warehouse"), ignore_errors=True)


if __name__ == "__main__":
    main()
