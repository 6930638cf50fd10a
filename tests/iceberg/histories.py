"""Draws the history of an Iceberg table and has Spark's runtime write it: rows, deletes of each kind, schemas, partitions, snapshots.

Equality deletes, which Spark does not write, are Parquet files of pyarrow's that the runtime's Java classes commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from data.write_with_iceberg import add_defaults, java_table

#: Values of primitives, some of them alike; ``{n}`` is a number that differs by row.
VALUES = {
    "INT": "CAST({n} % 40 - 5 AS INT)",
    "BIGINT": "({n} % 50 - 5) * 3000000000",
    "STRING": "concat(elt(1 + {n} % 3, 'a b', 'ü%', ''), {n} % 17)",
    "DATE": "date_add(DATE'1969-12-20', CAST({n} % 40 AS INT))",
    "TIMESTAMP": "TIMESTAMP'1969-12-30 22:00:00.000001' + make_interval(0, 0, 0, 0, CAST({n} AS INT), 7, 0)",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ'1969-11-30 22:00:00' + make_interval(0, 0, 0, CAST({n} AS INT), 0, 0, 0.25)",
    "DECIMAL(9,2)": "CAST(({n} % 60 - 20) / 8 AS DECIMAL(9,2))",
    "FLOAT": "IF({n} % 11 = 0, CAST('NaN' AS FLOAT), CAST(({n} % 9 - 4) / 4 AS FLOAT))",
    "DOUBLE": "IF({n} % 13 = 0, CAST('NaN' AS DOUBLE), ({n} % 9 - 4) / 8)",
    "BOOLEAN": "{n} % 3 = 0",
    "BINARY": "CAST(concat('b', {n} % 7) AS BINARY)",
}
PROMOTED = {"INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(9,2)": "DECIMAL(18,2)"}
VALUES["DECIMAL(18,2)"] = VALUES["DECIMAL(9,2)"].replace("9,2", "18,2")
_TIMES = ("years({})", "months({})", "days({})")
_WIDTHS = ("{}", "bucket(3, {})", "truncate(4, {})")
#: Transforms of partitions by the type of their source.
TRANSFORMS = {
    "INT": _WIDTHS,
    "BIGINT": _WIDTHS,
    "STRING": (*_WIDTHS, "truncate(1, {})"),
    "DATE": ("{}", "bucket(3, {})", *_TIMES),
    "TIMESTAMP": ("bucket(3, {})", *_TIMES, "hours({})"),
    "TIMESTAMP_NTZ": ("{}", *_TIMES, "hours({})"),
    "DECIMAL(9,2)": _WIDTHS,
    "DECIMAL(18,2)": _WIDTHS,
    "BOOLEAN": ("{}",),
    "BINARY": ("bucket(2, {})", "truncate(1, {})"),
}
_MODES = ("copy-on-write", "merge-on-read", "merge-on-read", "merge-on-read")


@cache
def constants(spark: Any) -> dict[str, list[str]]:
    """Some of the values of each primitive, as SQL writes them."""
    texts = ", ".join(f"CAST({one.format(n='id')} AS STRING) AS `{kind}`" for kind, one in VALUES.items())
    found = spark.sql(f"SELECT {texts} FROM range(60)").collect()
    return {kind: [f"CAST('{row[kind]}' AS {kind})" for row in found] for kind in VALUES}


@dataclass
class Nested:
    """A struct, a list of structs, or a map to structs; ``path`` is how SQL names the struct within."""

    form: str
    path: str
    fields: dict[str, str]

    def __str__(self) -> str:
        return self.form.format(f"STRUCT<{', '.join(f'{name}: {kind}' for name, kind in self.fields.items())}>")


def nested(draw: Random) -> Nested:
    """A nested type of two fields."""
    form, path = draw.choice([("{}", ""), ("ARRAY<{}>", ".element"), ("MAP<STRING, {}>", ".value")])
    return Nested(form, path, {"x": draw.choice(["INT", "FLOAT", "DECIMAL(9,2)"]), "y": "STRING"})


def value(kind: str | Nested, number: str) -> str:
    """An expression of a type."""
    if isinstance(kind, str):
        return VALUES[kind].format(n=number)
    struct = ", ".join(f"'{name}', {value(one, number)}" for name, one in kind.fields.items())
    struct = f"IF({number} % 6 = 1, NULL, named_struct({struct}))"
    return {"": "{}", ".element": "array({}, NULL)", ".value": "map('k', {})"}[kind.path].format(struct)


class History:
    """A table ``db.<name>`` that is written step by step.

    Attributes:
        steps: What was done so far, to show where something fails.
        columns: Names and types of now; the first is a number that differs by row.
        refused: How many steps the writer did not take.
    """

    def __init__(self, spark: Any, lake: Path, name: str, seed: int) -> None:
        self._spark, self._lake, self.name, self._draw = spark, lake, name, Random(seed)
        draw = self._draw
        self.steps: list[str] = []
        self.refused = 0
        self._version, self._rows, self._names = draw.choice([1, 2, 2, 3, 3]), 0, 0
        self._parts: list[str] = []
        self._sources: set[str] = set()
        self.columns: dict[str, str | Nested] = {"id": "INT"}
        for kind in draw.sample(sorted(VALUES.keys() - {"DECIMAL(18,2)"}), 4):
            self.columns[self._name()] = kind
        self.columns[self._name()] = nested(draw)
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        by = f" PARTITIONED BY ({self._partition()})" if draw.random() < 0.6 else ""
        properties = {
            "format-version": self._version,
            "write.delete.granularity": draw.choice(["file", "partition"]),
            "write.metadata.metrics.default": draw.choice(["truncate(16)", "truncate(2)", "full", "counts", "none"]),
            "write.parquet.row-group-size-bytes": draw.choice([4096, 134217728]),
            "commit.manifest.min-count-to-merge": draw.choice([2, 100]),
            **{f"write.{verb}.mode": draw.choice(_MODES) for verb in ("delete", "update", "merge")},
        }
        texts = ", ".join(f"'{key}'='{one}'" for key, one in properties.items())
        self._sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg{by} TBLPROPERTIES ({texts})")
        self.insert(60)

    @property
    def folder(self) -> Path:
        """Where its files lie."""
        return self._lake / "db" / self.name

    def step(self) -> None:
        """Do something more; what the writer refuses is counted."""
        kinds: list[Callable[[], None]] = [
            self.insert, self.insert, self.insert, self.overwrite, self.delete, self.delete, self.delete, self.update, self.merge,
            self.delete_equal, self.delete_equal, self.add_column, self.add_column, self.drop_column, self.rename_column,
            self.move_column, self.promote, self.add_nested, self.drop_nested, self.change_partitions, self.change_partitions,
            self.upgrade, self.compact, self.rewrite_manifests, self.refer, self.roll_back, self.add_defaults,
        ]  # fmt: skip
        try:
            self._draw.choice(kinds)()
        except (PySparkException, Py4JJavaError) as error:  # the writer refuses some in an exception of its own
            self.refused += 1
            self.steps.append(f"-- refused: {str(error).splitlines()[0][:200]}")
        self._spark.sql(f"REFRESH TABLE db.{self.name}")

    def _sql(self, text: str) -> None:
        self.steps.append(text)
        self._spark.sql(text.replace("{t}", f"db.{self.name}"))

    def _name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    def _primitives(self) -> list[str]:
        return [name for name, kind in self.columns.items() if isinstance(kind, str)]

    # --- rows

    def _select(self, count: int) -> str:
        number, draw = f"(id + {self._rows})", self._draw
        self._rows += count
        texts = [number if name == "id" else value(kind, number) for name, kind in self.columns.items()]
        texts = [
            text
            if name == "id" or draw.random() < 0.5
            else f"IF({number} % {draw.choice([2, 3, 5])} = 0, NULL, {text})"
            for name, text in zip(self.columns, texts, strict=True)
        ]
        chosen = ", ".join(
            f"CAST({text} AS {kind}) AS {n}" for (n, kind), text in zip(self.columns.items(), texts, strict=True)
        )
        return f"SELECT {chosen} FROM range(0, {count}, 1, {draw.choice([1, 2])})"

    def insert(self, count: int | None = None) -> None:
        self._sql(f"INSERT INTO {{t}} {self._select(count or self._draw.choice([1, 20, 60, 200]))}")

    def overwrite(self) -> None:
        mode = self._draw.choice(["static", "dynamic", "dynamic"])
        self._spark.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
        self._sql(f"INSERT OVERWRITE {{t}} {self._select(self._draw.choice([5, 20]))}")

    def condition(self) -> str:
        """A condition, or two, by values as they are drawn for rows."""
        first = self._compared()
        return first if self._draw.random() < 0.6 else f"{first} {self._draw.choice(['AND', 'OR'])} {self._compared()}"

    def _compared(self) -> str:
        draw = self._draw
        name = draw.choice(self._primitives())
        kind = self.columns[name]
        assert isinstance(kind, str)
        text = str(draw.randrange(self._rows + 10)) if name == "id" else draw.choice(constants(self._spark)[kind])
        forms = [
            "{0} = {1}",
            "{0} >= {1}",
            "{0} < {1}",
            "{0} IS NULL",
            "{0} IS NOT NULL",
            "{0} IN ({1})",
            "NOT ({0} > {1})",
        ]
        return draw.choice(forms).format(name, text)

    def delete(self) -> None:
        where = self.condition() if self._draw.random() < 0.6 else f"id % {self._draw.choice([3, 7])} = 1"
        self._sql(f"DELETE FROM {{t}} WHERE {where}")

    def update(self) -> None:
        name = self._draw.choice([one for one in self._primitives() if one != "id"] or ["id"])
        kind = self.columns[name]
        assert isinstance(kind, str)
        new = "id" if name == "id" else value(kind, str(self._draw.randrange(50)))
        self._sql(f"UPDATE {{t}} SET {name} = CAST({new} AS {kind}) WHERE {self.condition()}")

    def merge(self) -> None:
        source, first = self._select(10), self._rows
        self._sql(
            f"MERGE INTO {{t}} t USING ({source} UNION ALL SELECT * FROM {{t}} WHERE id % 19 = 4 AND id < {first - 10}) s ON t.id = s.id "
            f"WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN NOT MATCHED THEN INSERT *"
        )

    def delete_equal(self) -> None:
        """Delete the rows that equal some present ones in one or two columns, of a partition, or of all where the spec has none."""
        self.upgrade(2)
        draw, table = self._draw, java_table(self._spark, self.name)
        comparable = [name for name in self._primitives() if self.columns[name] not in ("FLOAT", "DOUBLE")]
        names = draw.sample(comparable, draw.choice([1, 1, 2]) if len(comparable) > 1 else 1)
        keys = self._spark.sql(f"SELECT {', '.join(names)} FROM db.{self.name} LIMIT {draw.choice([1, 3])}").toArrow()
        if not len(keys):
            return
        file = draw.choice(list(_all(table.newScan().planFiles()))).file()
        ids = self._spark._sc._gateway.new_array(self._spark._jvm.int, len(names))
        fields = []
        for place, name in enumerate(names):
            ids[place] = table.schema().findField(name).fieldId()
            column = keys.schema.field(name)
            fields.append(pa.field(name, column.type, metadata={"PARQUET:field_id": str(ids[place])}))
        path = f"data/equal-{len(self.steps)}.parquet"
        local = self.folder / path
        local.parent.mkdir(exist_ok=True)
        pq.write_table(keys.cast(pa.schema(fields)), local)
        iceberg = self._spark._jvm.org.apache.iceberg
        spec = table.specs().get(file.specId())
        builder = (
            iceberg.FileMetadata.deleteFileBuilder(spec).ofEqualityDeletes(ids).withPath(f"{table.location()}/{path}")
        )
        builder = builder.withFormat(iceberg.FileFormat.PARQUET).withFileSizeInBytes(local.stat().st_size)
        if spec.isPartitioned():
            builder = builder.withPartition(file.partition())
        self.steps.append(
            f"equality delete of {keys.to_pylist()} in {file.partition().toString()} of spec {file.specId()}"
        )
        table.newRowDelta().addDeletes(builder.withRecordCount(len(keys)).build()).commit()

    # --- columns

    def add_column(self) -> None:
        name, kind = self._name(), nested(self._draw) if self._draw.random() < 0.2 else self._draw.choice(list(VALUES))
        if self._draw.random() < 0.3 and (
            dropped := sorted({f"c{n}" for n in range(1, self._names)} - self.columns.keys())
        ):
            name = self._draw.choice(dropped)  # a column of an earlier name is another column
        place = self._draw.choice(["", "", " FIRST", f" AFTER {self._draw.choice(list(self.columns))}"])
        self._sql(f"ALTER TABLE {{t}} ADD COLUMN {name} {kind}{place}")
        self.columns[name] = kind
        self._reorder()

    def _reorder(self) -> None:
        names = self._spark.table(f"db.{self.name}").columns
        self.columns = {name: self.columns[name] for name in names}

    def drop_column(self) -> None:
        if free := [name for name in self.columns if name not in self._sources | {"id"}]:
            name = self._draw.choice(free)
            self._sql(f"ALTER TABLE {{t}} DROP COLUMN {name}")
            del self.columns[name]

    def rename_column(self) -> None:
        if others := [one for one in self.columns if one != "id"]:
            name, new = self._draw.choice(others), self._name()
            self._sql(f"ALTER TABLE {{t}} RENAME COLUMN {name} TO {new}")
            self.columns = {new if one == name else one: kind for one, kind in self.columns.items()}
            self._sources = {new if one == name else one for one in self._sources}

    def move_column(self) -> None:
        name, other = self._draw.choice(list(self.columns)), self._draw.choice(list(self.columns))
        self._sql(f"ALTER TABLE {{t}} ALTER COLUMN {name} {'FIRST' if name == other else f'AFTER {other}'}")
        self._reorder()

    def promote(self) -> None:
        wide = {
            name: PROMOTED[kind] for name, kind in self.columns.items() if isinstance(kind, str) and kind in PROMOTED
        }
        for name, kind in self.columns.items():
            if isinstance(kind, Nested):
                wide |= {
                    f"{name}{kind.path}.{one}": PROMOTED[inner]
                    for one, inner in kind.fields.items()
                    if inner in PROMOTED
                }
        if wide:
            name = self._draw.choice(list(wide))
            self._sql(f"ALTER TABLE {{t}} ALTER COLUMN {name} TYPE {wide[name]}")
            outer = self.columns[name.partition(".")[0]]
            if isinstance(outer, Nested):
                outer.fields[name.rpartition(".")[2]] = wide[name]
            else:
                self.columns[name] = wide[name]

    def add_nested(self) -> None:
        for name, kind in self.columns.items():
            if isinstance(kind, Nested):
                field, inner = self._name(), self._draw.choice(["INT", "STRING", "DATE"])
                self._sql(f"ALTER TABLE {{t}} ADD COLUMN {name}{kind.path}.{field} {inner}")
                kind.fields[field] = inner
                return

    def drop_nested(self) -> None:
        for name, kind in self.columns.items():
            if isinstance(kind, Nested) and len(kind.fields) > 1:
                field = self._draw.choice(list(kind.fields))
                if self._draw.random() < 0.5:
                    self._sql(f"ALTER TABLE {{t}} DROP COLUMN {name}{kind.path}.{field}")
                    del kind.fields[field]
                else:
                    new = self._name()
                    self._sql(f"ALTER TABLE {{t}} RENAME COLUMN {name}{kind.path}.{field} TO {new}")
                    kind.fields = {new if one == field else one: inner for one, inner in kind.fields.items()}
                return

    def add_defaults(self) -> None:
        """Columns of version 3 whose older rows have a value."""
        if self._version < 3 or "dflt" in self.columns or not isinstance(self.columns.get("s"), Nested | None):
            return
        if "s" not in self.columns:
            struct = Nested("{}", "", {"x": "INT", "y": "STRING"})
            self._sql(f"ALTER TABLE {{t}} ADD COLUMN s {struct}")
            self.columns["s"] = struct
            self.insert()
        self.steps.append("add dflt, s.inner and num with initial defaults")
        add_defaults(self._spark, self.name)
        self._spark.sql(f"REFRESH TABLE db.{self.name}")
        struct = self.columns["s"]
        assert isinstance(struct, Nested)
        struct.fields["inner"] = "INT"
        self.columns |= {"dflt": "STRING", "num": "BIGINT"}

    # --- partitions, files, snapshots

    def _partition(self) -> str:
        name = self._draw.choice([one for one in self._primitives() if self.columns[one] in TRANSFORMS])
        kind = self.columns[name]
        assert isinstance(kind, str)
        self._sources.add(name)
        part = self._draw.choice(TRANSFORMS[kind]).format(name)
        self._parts.append(part)
        return part

    def change_partitions(self) -> None:
        if self._parts and self._draw.random() < 0.4:
            part = self._parts.pop(self._draw.randrange(len(self._parts)))
            self._sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD {part}")
        else:
            self._sql(f"ALTER TABLE {{t}} ADD PARTITION FIELD {self._partition()}")

    def upgrade(self, least: int = 0) -> None:
        wanted = max(least, self._version) if least else min(3, self._version + 1)
        if wanted > self._version:
            self._sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('format-version'='{wanted}')")
            self._version = wanted

    def compact(self) -> None:
        name = self._draw.choice(["rewrite_data_files", "rewrite_position_delete_files"])
        self._sql(f"CALL ice.system.{name}(table => '{{t}}', options => map('rewrite-all', 'true'))")

    def rewrite_manifests(self) -> None:
        self._sql("CALL ice.system.rewrite_manifests(table => '{t}')")

    def refer(self) -> None:
        kind, name = self._draw.choice(["TAG", "BRANCH"]), f"ref{len(self.steps)}"
        self._sql(f"ALTER TABLE {{t}} CREATE {kind} {name}")
        if kind == "BRANCH":
            self._sql(f"INSERT INTO {{t}}.branch_{name} {self._select(7)}")
            self._sql(f"DELETE FROM {{t}}.branch_{name} WHERE id % 5 = 2")

    def roll_back(self) -> None:
        """To an earlier snapshot of the table's own past."""
        past = self._spark.sql(f"SELECT snapshot_id FROM db.{self.name}.history WHERE is_current_ancestor").collect()
        self._sql(f"CALL ice.system.rollback_to_snapshot('{{t}}', {self._draw.choice(past).snapshot_id})")


def _all(closeable: Any) -> Any:
    iterator = closeable.iterator()
    while iterator.hasNext():
        yield iterator.next()
    closeable.close()
