"""Queries drawn at random over tables whose columns are named like clauses, in sessions with drawn settings."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

ROWS, COMMITS = 40, 4
_TEXTS = ["a", "b", "it's", "a_b", "%", "", "A", None]
_DAYS = [datetime.date(2023, 12, 31), datetime.date(2024, 1, 1), datetime.date(2024, 2, 29), None]
_PATTERNS = ["'a%'", "'%b'", "'%\\\\_%'", "'a_b'", "'%'"]
_NUMBERS = ["0", "1", "2", "7", "-1", "2.5", "NULL", "10000000000"]
#: A column's name and kind, the same in both tables but for the last ones.
_SHARED = {"id": "number", "note": "text", "offset": "number", "limit": "number", "group": "text", "order": "float", "window": "day",
           "case": "moment", "end": "flag", "version": "decimal"}  # fmt: skip
COLUMNS = {
    "first": {**_SHARED, "start": "number", "sort": "text", "box": "struct"},
    "second": {**_SHARED, "for": "number", "values": "day", "having": "list"},
}
#: Kinds of columns that conditions are not drawn over like the others.
_NESTED = ("struct", "list")
#: Settings of a session that change how a query is planned, or what it means.
SETTINGS = [
    ("spark.sql.caseSensitive", "true"),
    ("spark.sql.ansi.enabled", "false"),
    ("spark.sql.session.timeZone", "America/New_York"),
    ("spark.sql.session.timeZone", "Asia/Kolkata"),
    ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
    ("spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer.ColumnPruning"),
    ("spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer.PushDownPredicates,org.apache.spark.sql.catalyst.optimizer.ConstantFolding"),
    ("spark.sql.constraintPropagation.enabled", "false"),
    ("spark.sql.optimizer.nestedSchemaPruning.enabled", "false"),
    ("spark.sql.optimizer.inSetConversionThreshold", "1"),
    ("spark.sql.adaptive.enabled", "false"),
    ("spark.sql.codegen.wholeStage", "false"),
    ("spark.sql.cbo.enabled", "true"),
    ("spark.sql.autoBroadcastJoinThreshold", "-1"),
    ("spark.sql.sources.useV1SourceList", ""),
    ("spark.sql.parquet.filterPushdown", "false"),
]  # fmt: skip
#: True of every row, whatever the moment and the chance.
_CERTAIN = ["rand() >= 0", "length(uuid()) = 36", "monotonically_increasing_id() >= 0", "now() = current_timestamp()", "current_date() > DATE'2020-01-01'",
            "current_user() IS NOT NULL", "spark_partition_id() >= 0", "current_database() IS NOT NULL"]  # fmt: skip
_LITERALS = {
    "number": _NUMBERS,
    "decimal": _NUMBERS,
    "float": [*_NUMBERS, "CAST('NaN' AS DOUBLE)", "1.5D"],
    "text": ["'a'", "'it\\'s'", "''", "'b'", "'zz'", "'limit 3'", "NULL"],
    "day": ["DATE'2024-01-01'", "'2024-02-29'", "DATE'2024-01-01' + INTERVAL 1 MONTH", "current_date()", "TIMESTAMP'2024-01-01 05:00:00'"],
    "moment": ["TIMESTAMP'2024-01-01 05:00:00'", "'2024-01-01 09:00:00Z'", "DATE'2024-01-01'", "now()", "now() - INTERVAL 900 DAYS"],
    "flag": ["true", "false"],
}  # fmt: skip


def tables(seed: int) -> dict[str, pa.Table]:
    """The rows of both tables."""
    draw = random.Random(seed)

    def numbers(kind: pa.DataType) -> pa.Array:
        return pa.array([draw.choice([0, 1, 2, 3, 7, -1, None]) for _ in range(ROWS)], kind)

    def column(kind: str) -> pa.Array:
        if kind == "number":
            return numbers(draw.choice([pa.int64(), pa.int32(), pa.int16()]))
        if kind == "decimal":
            return pa.array(
                [draw.choice([Decimal("0.50"), Decimal("2.50"), Decimal("-1.00"), None]) for _ in range(ROWS)],
                pa.decimal128(9, 2),
            )
        if kind == "float":
            return pa.array([draw.choice([0.0, 1.5, 2.5, float("nan"), None]) for _ in range(ROWS)], pa.float64())
        if kind == "text":
            return pa.array([draw.choice(_TEXTS) for _ in range(ROWS)], pa.string())
        if kind == "day":
            return pa.array([draw.choice(_DAYS) for _ in range(ROWS)], pa.date32())
        if kind == "moment":
            moments = [datetime.datetime(2024, 1, 1, h, tzinfo=datetime.timezone.utc) for h in (0, 5, 9, 10)]
            return pa.array([draw.choice([*moments, None]) for _ in range(ROWS)], pa.timestamp("us", "UTC"))
        if kind == "flag":
            return pa.array([draw.choice([True, False, None]) for _ in range(ROWS)], pa.bool_())
        if kind == "list":
            lists = [
                None if draw.random() < 0.2 else draw.choices([0, 1, 2, 3, None], k=draw.choice([0, 1, 3]))
                for _ in range(ROWS)
            ]
            return pa.array(lists, pa.list_(pa.int64()))
        boxes = [
            None if draw.random() < 0.2 else {"end": draw.choice([1, 2, None]), "group": draw.choice(_TEXTS)}
            for _ in range(ROWS)
        ]
        return pa.array(boxes, pa.struct([("end", pa.int32()), ("group", pa.string())]))

    return {name: pa.table({c: column(kind) for c, kind in columns.items()}) for name, columns in COLUMNS.items()}


@dataclass(frozen=True)
class Drawn:
    """A query.

    Attributes:
        text: Its SQL; ``@`` stands for catalog (or share) and schema, ``#`` for another schema with a table of one name.
        args: Values of its parameters.
        settings: Of the session it is planned and executed in.
    """

    text: str
    args: Mapping[str, Any] | Sequence[Any] | None
    settings: Mapping[str, str]


class Queries:
    """Draws queries whose rows do not depend on chance."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._args: dict[str, Any] | list[Any] | None = None

    def query(self) -> Drawn:
        """The next query."""
        self._args = self._draw.choice([None, None, None, {}, []])
        shapes: list[Callable[[], str]] = [
            self._plain, self._plain, self._join, self._join, self._grouped, self._with, self._set, self._nested, self._windowed,
            self._lateral, self._generated, self._pivoted, self._recursive, self._travelled, self._natural, self._repeated, self._limited,
        ]  # fmt: skip
        text = self._draw.choice(shapes)()
        for name in ("first", "second"):
            if self._draw.random() < 0.15:
                written = self._pick([f"`@`.`{name}`", f"@ . /* FROM @.{name} ' */ {name}", f"IDENTIFIER('@.{name}')"])
                text = text.replace(f"@.{name}", written.replace("`@`", "@"), 1)
            if self._draw.random() < 0.05:
                text = text.replace(f"@.{name} ", f"~{name} ", 1)
        if self._draw.random() < 0.1:
            text = text.replace(" WHERE ", " -- FROM @.second; '\n WHERE ")
        return Drawn(text, self._args, dict(self._draw.sample(SETTINGS, self._draw.choice([0, 0, 1, 2]))))

    def _number(self) -> str:
        """A number, perhaps as a parameter."""
        value = self._draw.choice([0, 1, 2, 7, -1])
        if self._args is None or self._draw.random() < 0.3:
            return str(value)
        if isinstance(self._args, list):
            self._args.append(value)
            return "?"
        self._args[f"p{len(self._args)}"] = value
        return f":p{len(self._args) - 1}"

    def _pick(self, options: Sequence[str]) -> str:
        return self._draw.choice(options)

    def _column(self, sources: dict[str, str], kind: str | None = None) -> str:
        """A column of one of the tables by their aliases, at times in backquotes."""
        candidates = [
            (alias, c)
            for alias, table in sources.items()
            for c, k in COLUMNS[table].items()
            if kind in (None, k) and k not in _NESTED
        ]
        if kind in ("number", "text") and self._draw.random() < 0.15:
            boxed = [alias for alias, table in sources.items() if table == "first"]
            if boxed:
                return f"{self._pick(boxed)}.box.{'end' if kind == 'number' else 'group'}"
        alias, column = self._draw.choice(candidates)
        name = f"`{column}`" if self._draw.random() < 0.3 else column
        return f"{alias}.{name}" if len(sources) > 1 or self._draw.random() < 0.5 else name

    def _condition(self, sources: dict[str, str], depth: int = 2) -> str:
        if depth and self._draw.random() < 0.6:
            left, right = self._condition(sources, depth - 1), self._condition(sources, depth - 1)
            return self._pick([f"{left} AND {right}", f"{left} OR {right}", f"({left} OR {right})", f"NOT ({left} AND {right})",
                               f"CASE WHEN {left} THEN {right} ELSE {self._condition(sources, 0)} END", f"({left}) <=> true"])  # fmt: skip
        if self._draw.random() < 0.04:
            return self._pick(_CERTAIN)
        kind = self._pick(["number", "number", "float", "text", "day", "moment", "flag", "decimal"])
        column, literal = self._column(sources, kind), self._pick(_LITERALS[kind])
        forms = [f"{column} {self._pick(['=', '<', '<=', '>', '>=', '<>', '<=>'])} {literal}", f"{column} IS NULL", f"{column} IS NOT NULL",
                 f"{column} IN ({', '.join(self._draw.choices(_LITERALS[kind], k=self._draw.choice([1, 3, 12])))})",
                 f"{column} BETWEEN {literal} AND {self._pick(_LITERALS[kind])}", f"{column} = {self._column(sources, kind)}",
                 f"coalesce({column}, {literal}) > {self._pick(_LITERALS[kind])}"]  # fmt: skip
        if kind == "text":
            forms += [f"{column} LIKE {self._pick(_PATTERNS)}", f"upper({column}) = 'A'", f"startswith({column}, 'a')", f"{column} ILIKE 'A%'", f"{column} RLIKE '^a'",
                      f"{column} COLLATE UTF8_LCASE {self._pick(['=', '>', '<'])} 'A'", f"{column} COLLATE UTF8_LCASE IN ('A', 'B')", f"startswith({column} COLLATE UTF8_LCASE, 'A')",
                      f"contains({column}, 'b')", f"endswith({column}, '')", f"nullif({column}, 'a') = {literal}", f"{column} || 'x' > 'a'", f"substr({column}, 1, 1) = 'a'",
                      f"{column} LIKE ANY ('a%', 'b')", f"NOT {column} LIKE ALL ('a%', '%')"]  # fmt: skip
        if kind in ("day", "moment"):
            forms += [f"year({column}) = 2024", f"CAST({column} AS DATE) >= DATE'2024-01-01'", f"date_trunc('DAY', {column}) = TIMESTAMP'2024-01-01 00:00:00'",
                      f"{column} > current_date() - INTERVAL {self._pick(['900', '99999'])} DAYS", f"month({column}) IN (1, 2)", f"{column} = {self._column(sources, 'day')}",
                      f"{column} <= CAST('2024-01-01' AS TIMESTAMP_NTZ)", f"CAST({column} AS STRING) LIKE '2024-01%'", f"date_add({column}, 1) > DATE'2024-01-01'"]  # fmt: skip
        if kind in ("number", "decimal", "float"):
            forms += [f"{column} + {self._number()} > {self._number()}", f"{column} = {self._number()}", f"{column} > {self._number()}", f"{column} IN ({self._number()}, {self._number()})",
                      f"CAST({column} AS STRING) = '1'", f"{column} = '1'", f"{column} > 1.5BD", f"{column} < 2.5D", f"try_cast({column} AS TINYINT) = 7", f"drawn_plus({column}) > 2",
                      f"{column} >= drawn_variable", f"{column} = {self._column(sources, 'decimal')}", f"abs({column}) = 1", f"CAST({column} AS INT) = 2", f"-{column} < 1", f"{column} % 2 = 0",
                      f"if({column} > 1, {column}, NULL) = 2", f"CAST({column} AS DECIMAL(3,1)) = 2.5", f"isnan({column})"]  # fmt: skip
        if kind == "flag":
            forms = [column, f"NOT {column}", f"{column} IS NOT TRUE", f"{column} = false"]
        return self._pick(forms)

    def _source(self) -> tuple[str, str]:
        return self._pick(["first", "second"]), self._pick(["x", "start", "version", "w"])

    def _plain(self) -> str:
        table, alias = self._source()
        columns = ", ".join(f"{self._column({alias: table})} AS c{i}" for i in range(self._draw.choice([1, 2])))
        where = f" WHERE {self._condition({alias: table})}"
        return self._pick([f"SELECT {columns} FROM @.{table} {alias}{where}", f"SELECT * FROM @.{table} AS {alias}{where}",
                           f"SELECT count(*) FROM (SELECT * FROM @.{table} {alias}{where})", f"FROM @.{table} {alias} |> WHERE {self._condition({alias: table})} |> SELECT {columns}",
                           f"SELECT count(*), sum({self._column({alias: table}, 'number')}) FROM @.{table} {alias}{where}"])  # fmt: skip

    def _join(self) -> str:
        one, other = self._pick(["first", "second"]), self._pick(["first", "second"])
        sources = {"a": one, "b": other}
        kind = self._pick(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
        on = f"a.id = b.{self._pick(['id', 'offset', '`limit`'])}"
        if self._draw.random() < 0.6:
            on += (
                f" AND {self._condition(sources, 1)}"
                if self._draw.random() < 0.7
                else f" AND ({self._condition({'b': other}, 1)})"
            )
        seen = {"a": one} if "SEMI" in kind or "ANTI" in kind else sources
        if self._draw.random() < 0.15 and len(seen) == 2:
            return f"SELECT id, a.note AS n, b.offset AS o FROM @.{one} a {kind} @.{other} b USING (id) WHERE {self._condition(sources, 1)}"
        columns = ", ".join(f"{self._column(seen)} AS c{i}" for i in range(2))
        where = f" WHERE {self._condition(seen)}" if self._draw.random() < 0.7 else ""
        return f"SELECT {columns} FROM @.{one} a {kind} @.{other} b ON {on}{where}"

    def _grouped(self) -> str:
        table, alias = self._source()
        key = self._column({alias: table}, self._pick(["text", "number", "day"]))
        having = (
            f" HAVING count(*) > 1 AND max({self._column({alias: table}, 'number')}) > 0"
            if self._draw.random() < 0.4
            else ""
        )
        value = self._column({alias: table}, "number")
        return f"SELECT {key} AS k, count({value}) AS n, max({self._column({alias: table}, 'text')}) AS m FROM @.{table} {alias} WHERE {self._condition({alias: table})} GROUP BY {key}{having}"

    def _with(self) -> str:
        table, _ = self._source()
        body = f"SELECT * FROM @.{table} x" + (
            f" WHERE {self._condition({'x': table}, 1)}" if self._draw.random() < 0.6 else ""
        )
        sources = {"p": table, "q": table}
        return f"WITH c AS ({body}) SELECT {self._column(sources)} AS c0, {self._column(sources)} AS c1 FROM c p JOIN c q ON p.id = q.offset WHERE {self._condition(sources, 2)}"

    def _set(self) -> str:
        columns = ["id", "note", "`window`"]
        sides = [
            f"SELECT {', '.join(columns)} FROM @.{t} x WHERE {self._condition({'x': t})}" for t in ("first", "second")
        ]
        return self._pick([" UNION ALL ", " UNION ", " EXCEPT ", " INTERSECT "]).join(sides)

    def _nested(self) -> str:
        outer, inner = self._pick(["first", "second"]), self._pick(["first", "second"])
        both = {"o": outer, "i": inner}
        test = self._pick([f"o.id IN (SELECT i.offset FROM @.{inner} i WHERE {self._condition({'i': inner}, 1)})",
                           f"EXISTS (SELECT 1 FROM @.{inner} i WHERE i.id = o.offset AND {self._condition(both, 1)})",
                           f"NOT EXISTS (SELECT * FROM @.{inner} i WHERE i.id = o.id AND {self._condition({'i': inner}, 1)})",
                           f"o.id > (SELECT min(i.offset) FROM @.{inner} i WHERE {self._condition({'i': inner}, 1)})",
                           f"o.id = (SELECT max(i.id) FROM @.{inner} i WHERE i.note = o.note AND {self._condition({'i': inner}, 0)})",
                           f"o.note NOT IN (SELECT i.note FROM @.{inner} i WHERE i.note IS NOT NULL AND {self._condition({'i': inner}, 0)})"])  # fmt: skip
        return f"SELECT {self._column({'o': outer})} AS c0, o.id FROM @.{outer} o WHERE {test} {self._pick(['AND', 'OR'])} {self._condition({'o': outer}, 1)}"

    def _windowed(self) -> str:
        table, alias = self._source()
        inner = f"SELECT *, count(*) OVER (PARTITION BY {self._column({alias: table}, 'text')}) AS n, sum(id) OVER () AS s FROM @.{table} {alias} WHERE {self._condition({alias: table}, 1)}"
        return f"SELECT y.id, y.n FROM ({inner}) y WHERE {self._condition({'y': table}, 1)} AND y.n > 1"

    def _lateral(self) -> str:
        outer, inner = self._pick(["first", "second"]), self._pick(["first", "second"])
        both = {"o": outer, "i": inner}
        body = f"SELECT count(*) AS n, max({self._column({'i': inner}, 'text')}) AS m FROM @.{inner} i WHERE i.id = o.offset AND {self._condition(both, 1)}"
        return f"SELECT o.id, l.n, l.m FROM @.{outer} o, LATERAL ({body}) l WHERE {self._condition({'o': outer}, 1)}"

    def _generated(self) -> str:
        condition = self._condition({"x": "second"}, 1)
        return self._pick([f"SELECT x.id, e FROM @.second x LATERAL VIEW OUTER explode(x.having) t AS e WHERE {condition}",
                           f"SELECT x.id, e FROM @.second x LATERAL VIEW explode(filter(x.having, v -> v > x.id)) t AS e WHERE {condition} AND e < 3",
                           f"SELECT x.id, size(x.having) AS n FROM @.second x WHERE array_contains(x.having, {self._number()}) OR {condition}",
                           f"SELECT x.id FROM @.second x WHERE x.having[0] = {self._number()} AND {condition}",
                           f"SELECT x.box, x.box.end FROM @.first x WHERE x.box IS NOT NULL AND {self._condition({'x': 'first'}, 1)}",
                           f"SELECT named_struct('a', x.id, 'b', x.box.group).b AS c FROM @.first x WHERE struct(x.id, x.offset) = struct({self._number()}, {self._number()}) OR {self._condition({'x': 'first'}, 1)}"])  # fmt: skip

    def _pivoted(self) -> str:
        table, _ = self._source()
        body = f"SELECT note, offset, `limit` FROM @.{table} x WHERE {self._condition({'x': table}, 1)}"
        return self._pick([f"SELECT * FROM ({body}) PIVOT (sum(`limit`) AS s, count(*) AS n FOR offset IN (0, 1, 2))",
                           f"SELECT * FROM (SELECT id, offset, `limit`, note FROM @.{table} x WHERE {self._condition({'x': table}, 1)}) UNPIVOT (v FOR n IN (`limit`)) WHERE v > 0",
                           f"SELECT note, offset, count(*) AS n, grouping_id() AS g FROM @.{table} x WHERE {self._condition({'x': table}, 1)} GROUP BY {self._pick(['ROLLUP', 'CUBE'])} (note, offset) HAVING note = 'a' OR n > 1"])  # fmt: skip

    def _recursive(self) -> str:
        table, other = self._pick(["first", "second"]), self._pick(["first", "second"])
        return f"WITH RECURSIVE r(n, d) AS (SELECT CAST(id AS BIGINT), 0 FROM @.{table} x WHERE {self._condition({'x': table}, 1)} UNION ALL SELECT CAST(y.offset AS BIGINT), d + 1 FROM r JOIN @.{other} y ON y.id = r.n WHERE d < 2 AND {self._condition({'y': other}, 0)}) SELECT n, d, count(*) AS c FROM r GROUP BY n, d"

    def _travelled(self) -> str:
        table, _ = self._source()
        version = self._draw.randrange(1, COMMITS + 1)
        travel = self._pick(
            [
                f"VERSION AS OF {version}",
                f"FOR SYSTEM_VERSION AS OF '{version}'",
                f"TIMESTAMP AS OF '{moment_of(version)}'",
            ]
        )
        return self._pick([f"SELECT {self._column({'x': table})} AS c FROM @.{table} {travel} AS x WHERE {self._condition({'x': table}, 1)}",
                           f"SELECT x.id, y.note FROM @.{table} {travel} AS x FULL JOIN @.{table} y ON x.id = y.offset WHERE {self._condition({'x': table, 'y': table}, 1)}",
                           f"SELECT count(*) FROM @.{table} {travel} x"])  # fmt: skip

    def _natural(self) -> str:
        kind = self._pick(["NATURAL JOIN", "NATURAL LEFT JOIN", "NATURAL FULL JOIN"])
        one, other = "(SELECT id, note, start FROM @.first x)", "(SELECT id, note, `for` FROM @.second x)"
        where = self._pick(["id > 0", "note = 'a'", "start = 1 OR `for` = 1", "`for` IS NULL"])
        twice = f"SELECT a.id, b.note AS n FROM @.first a JOIN #.first b ON a.id = b.id AND {self._condition({'a': 'first', 'b': 'first'}, 1)}"
        return self._pick(
            [
                f"SELECT * FROM {one} {kind} {other} WHERE {where}",
                f"SELECT id, `group` FROM @.first a JOIN @.second b USING (id, `group`) WHERE {where.replace('start', 'a.start').replace('note', 'a.note')}",
                twice,
            ]
        )

    def _repeated(self) -> str:
        table, _ = self._source()
        sides = [
            f"SELECT {c} AS c FROM @.{table} x WHERE {self._condition({'x': table}, 1)}"
            for c in ("id", "offset", "`limit`", "id")
        ]
        return self._pick([" UNION ALL ".join(sides), f"SELECT ({sides[0].replace(' AS c', ' AS c', 1).replace('SELECT id', 'SELECT max(id)')}) AS m, count(*) AS n FROM @.{table} x WHERE x.id IN ({sides[1]}) OR EXISTS ({sides[2]})",
                           f"WITH a AS ({sides[0]}), b AS (SELECT * FROM a WHERE c > 0), first AS (SELECT c FROM b) SELECT f.c, s.note FROM first f JOIN @.first s ON f.c = s.id WHERE {self._condition({'s': 'first'}, 1)}"])  # fmt: skip

    def _limited(self) -> str:
        table, _ = self._source()
        condition = self._condition({"x": table}, 1)
        return self._pick([f"SELECT x.id FROM @.{table} x WHERE {condition} ORDER BY x.id DESC NULLS LAST LIMIT 5", f"SELECT count(*) FROM (SELECT * FROM @.{table} LIMIT 7)",
                           f"SELECT count(*) FROM (SELECT * FROM @.{table} x WHERE {condition} LIMIT 3)", f"SELECT count(*) FROM @.{table} TABLESAMPLE (100 PERCENT) x WHERE {condition}",
                           f"SELECT * FROM (TABLE @.{table} ) x WHERE {condition}", f"SELECT DISTINCT x.note FROM @.{table} x WHERE {condition} ORDER BY note LIMIT 2 OFFSET 1",
                           f"SELECT id, note FROM (SELECT *, row_number() OVER (PARTITION BY note ORDER BY id, offset, `limit`) AS r FROM @.{table} x) x WHERE r = 1 AND note > 'a'"])  # fmt: skip


def moment_of(version: int) -> str:
    """A moment at which a version was the newest; of the last one its commit's, for later ones are refused."""
    return f"2024-05-0{version + 1} {'00' if version == COMMITS else '12'}:00:00Z"


def commit_time(version: int) -> int:
    """Milliseconds since the epoch of a version's commit: one a day."""
    return int(datetime.datetime(2024, 5, version + 1, tzinfo=datetime.timezone.utc).timestamp() * 1000)
