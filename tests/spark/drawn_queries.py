"""Queries drawn at random over two tables whose columns are named like clauses."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa

ROWS = 40
_TEXTS = ["a", "b", "it's", "a_b", "%", "", "A", None]
_DAYS = [datetime.date(2023, 12, 31), datetime.date(2024, 1, 1), datetime.date(2024, 2, 29), None]
_PATTERNS = ["'a%'", "'%b'", "'%\\\\_%'", "'a_b'", "'%'"]
_NUMBERS = ["0", "1", "2", "7", "-1", "2.5", "NULL", "10000000000"]
#: A column's name and kind, the same in both tables but for the last ones.
_SHARED = {"id": "number", "note": "text", "offset": "number", "limit": "number", "group": "text", "order": "float", "window": "day",
           "case": "moment", "end": "flag", "version": "decimal"}  # fmt: skip
COLUMNS = {
    "first": {**_SHARED, "start": "number", "sort": "text", "box": "struct"},
    "second": {**_SHARED, "for": "number", "values": "day"},
}
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
        boxes = [
            None if draw.random() < 0.2 else {"end": draw.choice([1, 2, None]), "group": draw.choice(_TEXTS)}
            for _ in range(ROWS)
        ]
        return pa.array(boxes, pa.struct([("end", pa.int32()), ("group", pa.string())]))

    return {name: pa.table({c: column(kind) for c, kind in columns.items()}) for name, columns in COLUMNS.items()}


class Queries:
    """Draws queries; ``@`` stands for catalog (or share) and schema."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def query(self) -> str:
        """A query whose rows do not depend on chance."""
        shape = self._draw.choice(
            [
                self._plain,
                self._plain,
                self._join,
                self._join,
                self._grouped,
                self._with,
                self._set,
                self._nested,
                self._windowed,
            ]
        )
        return shape()

    def _pick(self, options: Sequence[str]) -> str:
        return self._draw.choice(options)

    def _column(self, sources: dict[str, str], kind: str | None = None) -> str:
        """A column of one of the tables by their aliases, at times in backquotes."""
        found = [
            (alias, c)
            for alias, table in sources.items()
            for c, k in COLUMNS[table].items()
            if kind in (None, k) and k != "struct"
        ]
        if kind in ("number", "text") and self._draw.random() < 0.15:
            boxed = [alias for alias, table in sources.items() if table == "first"]
            if boxed:
                return f"{self._pick(boxed)}.box.{'end' if kind == 'number' else 'group'}"
        alias, column = self._draw.choice(found)
        name = f"`{column}`" if self._draw.random() < 0.3 else column
        return f"{alias}.{name}" if len(sources) > 1 or self._draw.random() < 0.5 else name

    def _condition(self, sources: dict[str, str], depth: int = 2) -> str:
        if depth and self._draw.random() < 0.6:
            left, right = self._condition(sources, depth - 1), self._condition(sources, depth - 1)
            return self._pick([f"{left} AND {right}", f"{left} OR {right}", f"({left} OR {right})", f"NOT ({left} AND {right})",
                               f"CASE WHEN {left} THEN {right} ELSE {self._condition(sources, 0)} END", f"({left}) <=> true"])  # fmt: skip
        kind = self._pick(["number", "number", "float", "text", "day", "moment", "flag", "decimal"])
        column, literal = self._column(sources, kind), self._pick(_LITERALS[kind])
        forms = [f"{column} {self._pick(['=', '<', '<=', '>', '>=', '<>', '<=>'])} {literal}", f"{column} IS NULL", f"{column} IS NOT NULL",
                 f"{column} IN ({', '.join(self._draw.choices(_LITERALS[kind], k=self._draw.choice([1, 3, 12])))})",
                 f"{column} BETWEEN {literal} AND {self._pick(_LITERALS[kind])}", f"{column} = {self._column(sources, kind)}",
                 f"coalesce({column}, {literal}) > {self._pick(_LITERALS[kind])}"]  # fmt: skip
        if kind == "text":
            forms += [
                f"{column} LIKE {self._pick(_PATTERNS)}",
                f"upper({column}) = 'A'",
                f"startswith({column}, 'a')",
            ]
        if kind in ("day", "moment"):
            forms += [f"year({column}) = 2024", f"CAST({column} AS DATE) >= DATE'2024-01-01'"]
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
