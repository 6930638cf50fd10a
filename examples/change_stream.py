"""A change stream applied to a local table with ``foreachBatch``: inserts, updates and deletes, batch by batch.

Runs by itself: ``python examples/change_stream.py`` shares a small table on loopback, changes it, and follows the
changes into a local Parquet table. With a share of your own, only the address changes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from delta_sharing_spark.testing.interpreter import worker_python
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = worker_python()
CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def apply_changes(changes: DataFrame, target: Path, key: str, batch: int) -> None:
    """Write the next state of ``target``: a repeated batch writes the same state again."""
    spark = changes.sparkSession
    latest = Window.partitionBy(key).orderBy(F.desc("_commit_version"), F.desc("_change_type"))
    last = (
        changes.where("_change_type <> 'update_preimage'")
        .withColumn("nth", F.row_number().over(latest))
        .where("nth = 1")
        .drop("nth")
    )
    states = sorted(int(path.name) for path in target.iterdir() if int(path.name) < batch)
    kept = last.where("_change_type <> 'delete'").drop(*CHANGE_COLUMNS)
    if states:
        old = spark.read.parquet(str(target / str(states[-1])))
        kept = old.join(last.select(key), key, "left_anti").unionByName(kept)
    kept.coalesce(1).write.mode("overwrite").parquet(str(target / str(batch)))


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    with tempfile.TemporaryDirectory() as directory, SharingServer() as server:
        table = DeltaTableBuilder(
            Path(directory) / "orders",
            pa.schema([("id", pa.int64()), ("state", pa.string())]),
            properties={"delta.enableChangeDataFeed": "true"},
        )
        table.append([{"id": i, "state": "new"} for i in range(5)])
        server.add_table("share.shop.orders", table.path)
        address = f"{server.write_profile(Path(directory) / 'shop.share')}#share.shop.orders"
        target = Path(directory) / "copy"
        target.mkdir()

        def follow() -> None:
            query = (
                spark.readStream.format("deltaSharing")
                .option("readChangeFeed", "true")
                .load(address)
                .writeStream.option("checkpointLocation", f"{directory}/checkpoint")
                .foreachBatch(lambda changes, batch: apply_changes(changes, target, "id", batch))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            newest = max(int(path.name) for path in target.iterdir())
            spark.read.parquet(str(target / str(newest))).orderBy("id").show()

        follow()
        table.update(pc.field("id") == 1, lambda rows: rows.set_column(1, "state", pa.array(["paid"] * len(rows))))
        table.delete(pc.field("id") == 3)
        table.append([{"id": 9, "state": "new"}])
        follow()
    spark.stop()


if __name__ == "__main__":
    main()
