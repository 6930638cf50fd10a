"""The queries of ``file_index.py``, as a user writes them on a DataFrame, for each of its contenders.

Run by the interpreter of JVM_PEER, this file answers them by the JVM connector: one JSON request a line on standard input, one
answer a line on standard output, as ``jvm_speed.py --serve`` of the peer does. It therefore imports nothing of this connector.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RANGE = "id >= 1000 and id < 6000"
OTHER_RANGE = "id >= 1500000 and id < 1502000"
#: Each of a file of its own, where there are 400.
SOME = "id in (7, 700000, 1999999)"
DAY = "day = date'2022-01-15' and customer < 1000"

#: Loads the table as a DataFrame; a contender that is narrowed by hand is told the columns and rows that the query needs.
Load = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Query:
    """A query of a table.

    Attributes:
        ask: Loads the table, asks, and returns what must be the same for all contenders.
        columns: What the query needs of the table; None: all columns.
        where: The rows that it needs; None: all rows.
        limit: How many of them; None: all.
    """

    ask: Callable[[Any, Load, Query], Any]
    columns: tuple[str, ...] | None = None
    where: str | None = None
    limit: int | None = None

    @property
    def told(self) -> dict[str, Any]:
        """The arguments of ``Table.scan`` that a user who narrows by hand writes."""
        told = {"columns": self.columns, "where": self.where, "limit": self.limit}
        return {name: value for name, value in told.items() if value is not None}


def _sums(frame: Any, *columns: str) -> list[str]:
    """Sums as text, for a process at the other end of a pipe says the same."""
    return [str(value) for value in frame.selectExpr(*(f"sum({column})" for column in columns)).first()]


def _filtered(spark: Any, load: Load, query: Query) -> list[str]:
    return _sums(load(query.told).where(query.where), *(query.columns or ())[1:])


def _joined(spark: Any, load: Load, query: Query) -> list[str]:
    small = spark.range(0, 10_000, 7).where(RANGE)
    return _sums(load(query.told).join(small, "id"), "customer")


def _viewed(spark: Any, load: Load, query: Query) -> list[str]:
    load(query.told).createOrReplaceTempView("shared_rows")
    return _sums(spark.sql(f"select customer from shared_rows where {query.where}"), "customer")


def _twice(spark: Any, load: Load, query: Query) -> list[str]:
    frame = load(query.told)
    return _sums(frame.where(RANGE), "customer") + _sums(frame.where(OTHER_RANGE), "customer")


def _shown(spark: Any, load: Load, query: Query) -> int:
    """Lines; which rows come first is nobody's promise."""
    with redirect_stdout(io.StringIO()) as text:
        load(query.told).show(query.limit)
    return len(text.getvalue().splitlines())


def _scanned(spark: Any, load: Load, query: Query) -> str:
    load(query.told).write.format("noop").mode("overwrite").save()
    return "every row"


def _grouped(spark: Any, load: Load, query: Query) -> list[str]:
    groups = load(query.told).groupBy("city").agg({"price": "sum", "id": "sum"}).collect()
    return sorted(str(sorted(group.asDict().items())) for group in groups)


def _counted(spark: Any, load: Load, query: Query) -> int:
    return int(load(query.told).count())


#: Of a table whose files' statistics tell their ids apart.
SELECTIVE = {
    "range": Query(_filtered, ("id", "customer"), RANGE),
    "equality": Query(_filtered, ("id", "customer"), "id = 1234567"),
    "IN": Query(_filtered, ("id", "customer"), SOME),
    "nothing": Query(_filtered, ("id", "customer"), "id < 0"),
    "join": Query(_joined, ("id", "customer"), RANGE),
    "view": Query(_viewed, ("id", "customer"), RANGE),
    "two filters": Query(_twice, ("id", "customer"), f"({RANGE}) or ({OTHER_RANGE})"),
    "show": Query(_shown, limit=20),
}
#: Of a table of few large files.
WHOLE = {
    "full scan": Query(_scanned),
    "three columns": Query(_grouped, ("city", "price", "id")),
    "count": Query(_counted),
    "filter": Query(_filtered, ("day", "id", "customer"), DAY),
}
#: Of a table of very many files: ten files are left by a partition, by statistics alone, and one by both.
MANY = {
    "partition": Query(_filtered, ("part", "id"), "part = 5000"),
    "statistics": Query(_filtered, ("mark", "id", "part"), "mark >= 5"),
    "both": Query(_filtered, ("part", "id"), "part = 5000 and id < 100"),
    "show(5)": Query(_shown, limit=5),
}
QUERIES = SELECTIVE | WHOLE | MANY


def timed(spark: Any, name: str, load: Load) -> tuple[float, Any]:
    """Seconds of a query, counted from the load on, and its answer."""
    query = QUERIES[name]
    began = time.perf_counter()
    answer = query.ask(spark, load, query)
    return time.perf_counter() - began, answer


def main(peers: str) -> None:
    """Serve as ``jvm_speed.py --serve`` does, with these queries in place of its own."""
    sys.path.insert(0, peers)
    import jvm_speed
    import jvmspark

    def run(spark: Any, case: str, url: str, conf: Mapping[str, str]) -> tuple[float, Any]:
        for key, value in conf.items():
            spark.conf.set(key, value)
        try:
            return timed(spark, case, lambda told: jvmspark.reader(spark).load(url))
        finally:
            for key in conf:
                spark.conf.unset(key)

    jvm_speed.run = run
    sys.argv = [str(Path(peers) / "jvm_speed.py"), "--serve"]
    jvm_speed.main()


if __name__ == "__main__":
    main(sys.argv[1])
