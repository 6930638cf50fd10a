"""Random Delta tables and random operations on them, by Delta Lake on Spark: statements from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

#: Types of columns, with literals of each.
LITERALS: dict[str, tuple[str, ...]] = {
    "BIGINT": ("0", "-1", "7", "1099511627776"),
    "INT": ("0", "-50", "49"),
    "SMALLINT": ("0", "-50", "49"),
    "TINYINT": ("0", "-50", "49"),
    "STRING": ("'a'", "''", "'a b'", "'ä%/=:'", "'null'", f"'x{'y' * 60}'"),
    "DATE": ("date'2020-01-01'", "date'1969-12-31'", "date'0001-01-01'", "date'9999-12-31'"),
    "TIMESTAMP": ("timestamp'2020-01-01 00:00:00'", "timestamp'1900-01-01 01:02:03.456'", "timestamp'1969-12-31 23:59:59.999999'"),
    "TIMESTAMP_NTZ": ("timestamp_ntz'2020-01-01 00:00:00'", "timestamp_ntz'1969-12-31 23:59:59.999999'"),
    "DECIMAL(10,2)": ("0.00", "-99.99", "12.34"),
    "DECIMAL(20,4)": ("0.0000", "-99.9999", "12.3456"),
    "DOUBLE": ("1.5D", "-0.0D", "0.0D", "1e300D", "cast('NaN' as double)", "cast('Infinity' as double)"),
    "FLOAT": ("cast(1.5 as float)", "cast(0.1 as float)", "cast('NaN' as float)"),
    "BOOLEAN": ("true", "false"),
    "BINARY": ("X'00FF'", "X''"),
    "STRUCT<x: INT, y: STRING>": ("named_struct('x', 1, 'y', 'q')", "named_struct('x', null, 'y', null)"),
    "ARRAY<INT>": ("array(1, 2)", "array()", "array(null)"),
    "MAP<STRING, INT>": ("map('a', 1)", "map('k', cast(null as int))"),
    "ARRAY<STRUCT<u: INT>>": ("array(named_struct('u', 1))", "array()"),
}  # fmt: skip
PARTITIONS = ("STRING", "INT", "DATE", "TIMESTAMP", "BOOLEAN", "DECIMAL(10,2)", "BIGINT")
WIDER = {"TINYINT": "SMALLINT", "SMALLINT": "INT", "INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(10,2)": "DECIMAL(20,4)"}
NAMES = ("a", "b", "Cc", "h", "d e", "f.g")


def quoted(name: str) -> str:
    return f"`{name}`"


@dataclass
class RandomTable:
    """A table and what was done to it.

    Attributes:
        run: Executes a statement; returns whether Delta took it.
        columns, partitions: Names to types, as the table is now.
        rows: So many were written; ``id`` counts them.
    """

    random: random.Random
    run: Callable[[str], bool]
    columns: dict[str, str] = field(default_factory=lambda: {"id": "BIGINT"})
    partitions: dict[str, str] = field(default_factory=dict)
    rows: int = 0

    def make(self) -> None:
        """Create the table, and change it four to ten times."""
        self.create()
        self.insert()
        operations = (
            self.insert, self.overwrite, self.update, self.delete, self.delete, self.merge, self.add, self.rename,
            self.drop, self.widen, self.reorder, self.property, self.optimize, self.purge,
        )  # fmt: skip
        for _ in range(self.random.randrange(4, 11)):
            self.random.choice(operations)()

    def create(self) -> None:
        likely, choice = (lambda share: self.random.random() < share), self.random.choice
        mapping = choice(("none", "none", "name", "id"))
        for _ in range(self.random.randrange(2, 6)):
            self.columns.setdefault(choice(NAMES if mapping != "none" else NAMES[:4]), choice(tuple(LITERALS)))
        self.partitions = {f"p{i}": choice(PARTITIONS) for i in range(choice((0, 0, 1, 1, 2)))}
        properties = {
            "columnMapping.mode": mapping,
            "enableDeletionVectors": likely(0.6),
            "enableChangeDataFeed": likely(0.6),
            "enableTypeWidening": likely(0.4),
            "enableInCommitTimestamps": likely(0.3),
            "enableRowTracking": likely(0.3),
            "checkpointPolicy": "v2" if likely(0.3) else "classic",
            "checkpointInterval": choice((2, 3, 4, 10)),
            "checkpoint.writeStatsAsStruct": likely(0.3),
            "checkpoint.writeStatsAsJson": likely(0.9),
            "dataSkippingNumIndexedCols": choice((0, 1, 2, 32, 32, 32)),
        }
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self.all.items())
        by = f"PARTITIONED BY ({', '.join(self.partitions)})" if self.partitions else ""
        properties_text = ", ".join(f"'delta.{name}'='{str(value).lower()}'" for name, value in properties.items())
        self.run(f"CREATE TABLE {{t}} ({columns}) USING delta {by} TBLPROPERTIES ({properties_text})")

    @property
    def all(self) -> dict[str, str]:
        return {**self.columns, **self.partitions}

    def literal(self, kind: str, nulls: float = 0.15) -> str:
        text = "null" if self.random.random() < nulls else self.random.choice(LITERALS[kind])
        return f"cast({text} AS {kind})"

    def values(self, count: int) -> str:
        lines = []
        for _ in range(count):
            self.rows += 1
            values = [str(self.rows) if name == "id" else self.literal(kind) for name, kind in self.all.items()]
            lines.append(f"({', '.join(values)})")
        return f"VALUES {', '.join(lines)} AS v({', '.join(map(quoted, self.all))})"

    def predicate(self, depth: int = 2) -> str:
        """A condition in the language of ``where``."""
        if depth and self.random.random() < 0.6:
            left, right = self.predicate(depth - 1), self.predicate(depth - 1)
            return self.random.choice((f"NOT ({left})", f"({left}) AND ({right})", f"({left}) OR ({right})"))
        name, kind = self.random.choice(
            [i for i in self.all.items() if not i[1].startswith(("STRUCT", "ARRAY", "MAP"))]
        )
        column = quoted(name)

        def value() -> str:
            return str(self.random.randrange(self.rows + 1)) if name == "id" else self.literal(kind, nulls=0)

        forms = [f"{column} IS NULL", f"{column} IS NOT NULL"]
        forms += [f"{column} {op} {value()}" for op in ("=", "<>", "<", "<=", ">", ">=", "<=>")]
        forms += [f"{column} IN ({value()}, {value()})", f"{column} BETWEEN {value()} AND {value()}"]
        if kind == "STRING":
            forms += [f"{column} LIKE 'a%'", f"{column} LIKE '%y'", f"{column} LIKE '_'"]
        return self.random.choice(forms)

    def insert(self, how: str = "INTO") -> None:
        names, files = ", ".join(map(quoted, self.all)), self.random.choice((1, 2, 3))
        source = self.values(self.random.choice((1, 3, 8, 20)))
        self.run(f"INSERT {how} {{t}} ({names}) SELECT /*+ REPARTITION({files}) */ * FROM {source}")

    def overwrite(self) -> None:
        self.insert("OVERWRITE")

    def update(self) -> None:
        name, kind = self.random.choice(list(self.all.items()))
        if name != "id":
            self.run(f"UPDATE {{t}} SET {quoted(name)} = {self.literal(kind)} WHERE {self.predicate()}")

    def delete(self) -> None:
        every = f"id % {self.random.choice((2, 3, 5))} = 0"
        self.run(f"DELETE FROM {{t}} WHERE {self.random.choice((every, self.predicate()))}")

    def merge(self) -> None:
        self.run(
            f"MERGE INTO {{t}} t USING (SELECT * FROM {self.values(3)}) s ON t.id = s.id - {self.random.randrange(1, 6)} "
            f"WHEN MATCHED AND s.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def add(self) -> None:
        name, kind = f"n{len(self.all)}_{self.rows}", self.random.choice(tuple(LITERALS))
        place = self.random.choice(("", " FIRST", " AFTER id"))
        if self.run(f"ALTER TABLE {{t}} ADD COLUMNS ({name} {kind}{place})"):
            self.columns[name] = kind

    def rename(self) -> None:
        """A column takes a free name, maybe one that another had before."""
        old, new = self.random.choice(list(self.all)), self.random.choice((*NAMES, "p0", "p9"))
        if old == "id" or new in self.all:
            return
        if self.run(f"ALTER TABLE {{t}} RENAME COLUMN {quoted(old)} TO {quoted(new)}"):
            for known in (self.columns, self.partitions):
                if old in known:
                    known[new] = known.pop(old)

    def drop(self) -> None:
        name = self.random.choice(list(self.columns))
        if name != "id" and self.run(f"ALTER TABLE {{t}} DROP COLUMN {quoted(name)}"):
            del self.columns[name]

    def widen(self) -> None:
        for name, kind in self.columns.items():
            wider = WIDER.get(kind)
            if wider and self.run(f"ALTER TABLE {{t}} ALTER COLUMN {quoted(name)} TYPE {wider}"):
                self.columns[name] = wider
                return

    def reorder(self) -> None:
        place = self.random.choice(("FIRST", "AFTER id"))
        self.run(f"ALTER TABLE {{t}} ALTER COLUMN {quoted(self.random.choice(list(self.columns)))} {place}")

    def property(self) -> None:
        assignment = self.random.choice(
            (
                "'delta.enableDeletionVectors'='true'",
                "'delta.enableDeletionVectors'='false'",
                "'delta.enableChangeDataFeed'='true'",
                "'delta.columnMapping.mode'='name'",
            )
        )
        self.run(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({assignment})")

    def optimize(self) -> None:
        self.run("OPTIMIZE {t}")

    def purge(self) -> None:
        self.run("REORG TABLE {t} APPLY (PURGE)")
