"""Cases that run through Spark: what a plan of Spark's reads when its URLs have ended and the table has moved on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pyarrow.compute as pc

from peers.cases import Peers


def through_spark(peers: Peers) -> None:
    """A snapshot, a condition, and a renewal after commits that rewrote the planned files."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    path = peers.folder / "short.share"
    path.write_text(json.dumps(peers.short_profile), encoding="utf-8")

    def load(name: str, **options: str) -> object:
        return spark.read.format("deltaSharing").options(**options).load(f"{path}#peers.all.{name}")

    def count(name: str, **options: str) -> Callable[[], object]:
        return lambda: len(load(name, **options).collect())  # type: ignore[attr-defined]

    def renewed() -> object:
        frame = load("changing_in_spark")
        before = sorted(frame.collect())  # type: ignore[attr-defined]
        own = peers.own.changing_in_spark
        own.append([{"id": 99, "p": "a", "x": 1.0}]).delete(pc.field("id") < 5, deletion_vectors=True).optimize()
        peers.store.upload("changing_in_spark", own.path)
        time.sleep(5)
        after = sorted(frame.collect())  # type: ignore[attr-defined]
        return f"{len(after)} rows, {'the same' if after == before else 'OTHERS'}"

    try:
        peers.report.case("Spark: a table with deletion vectors", count("vectors"), expected=999)
        peers.report.case("Spark: a condition", count("vectors", where="p = 'c' AND id < 250"), expected=50)
        peers.report.case("Spark: a change feed",
                          count("history", readChangeFeed="true", startingVersion="0"), expected=63)  # fmt: skip
        peers.report.case("Spark: commits between plan and renewal", renewed, expected="40 rows, the same")
        peers.report.case("Spark: the table now", count("changing_in_spark"), expected=36)
    finally:
        spark.stop()
