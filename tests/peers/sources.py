"""The tables that lie behind the reference server: golden ones, those of ``tests/data``, and some written here."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.testing.tables import DeltaTableBuilder

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT.parent / "shared" / "golden"
#: A share that no address can name without quotes.
ODD_SHARE = "Ünïcode share"
#: And a table of it.
ODD_TABLE = "t é 100%+`x`"
PARTITIONS = "abcdefghij"
VECTORS = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
_SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("x", pa.float64())])


def all_tables() -> dict[str, Path]:
    """Golden tables and those of ``tests/data/delta_spark``, by the names they are shared under."""
    logs = {str(log.parent.relative_to(GOLDEN)): log.parent for log in sorted(GOLDEN.rglob("_delta_log"))}
    tables = {name.removesuffix("/delta").replace("/", "-"): path for name, path in logs.items()}
    for path in sorted((ROOT / "tests" / "data" / "delta_spark").glob("*/_delta_log")):
        tables[f"spark_{path.parent.name}"] = path.parent
    return tables


@dataclass(frozen=True)
class Own:
    """Tables written here, by name."""

    plain: DeltaTableBuilder
    vectors: DeltaTableBuilder
    history: DeltaTableBuilder
    feed_vectors: DeltaTableBuilder
    changing: DeltaTableBuilder
    changing_in_spark: DeltaTableBuilder
    floats: DeltaTableBuilder

    def paths(self) -> dict[str, Path]:
        return {name: getattr(self, name).path for name in self.__dataclass_fields__}


def own_tables(folder: Path) -> Own:
    """Ten partitions with a file each and an odd file; a history of five versions; the same with deletion vectors."""

    def rows(start: int, end: int, p: str = "") -> list[dict[str, object]]:
        return [{"id": i, "p": p or PARTITIONS[i // 100 % 10], "x": i / 2} for i in range(start, end)]

    def partitioned(name: str, properties: dict[str, str]) -> DeltaTableBuilder:
        return DeltaTableBuilder(folder / name, _SCHEMA, ("p",), properties).append(rows(0, 1000))

    plain = partitioned("plain", {})
    vectors = partitioned("vectors", VECTORS).delete(pc.field("id") == 5, deletion_vectors=True)
    history = DeltaTableBuilder(folder / "history", _SCHEMA, (), FEED).append(rows(0, 30), files=3)
    history.append(rows(30, 50)).delete(pc.less(pc.field("id"), 3)).append(rows(50, 60))
    feed_vectors = DeltaTableBuilder(folder / "feed_vectors", _SCHEMA, (), {**FEED, **VECTORS}).append(rows(0, 30))
    feed_vectors.delete(pc.field("id") == 7, deletion_vectors=True).append(rows(30, 40))
    changing, in_spark = (
        DeltaTableBuilder(folder / name, _SCHEMA, (), VECTORS).append(rows(0, 40), files=4)
        for name in ("changing", "changing_in_spark")
    )
    floats = DeltaTableBuilder(folder / "floats", pa.schema([("single", pa.float32()), ("double", pa.float64())]))
    for values in ((1.5, nan, 2.5), (-inf, 1.5, 1.5), (-0.0, 0.0, 0.5), (nan, nan, 1.5), (1.5, 2.5, inf)):
        floats.append([{"single": value, "double": value} for value in values])
    return Own(plain, vectors, history, feed_vectors, changing, in_spark, floats)
