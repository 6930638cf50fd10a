"""What each shared table of a query is loaded with, and the text that Spark runs."""

from __future__ import annotations

from typing import Any

import pytest

from delta_sharing_spark.errors import PredicateError
from delta_sharing_spark.predicates.query import Query, analyse
from delta_sharing_spark.schema.types import Field, Primitive, Struct

P = Primitive
ORDERS = Struct(
    (
        Field("id", P("long")),
        Field("cust", P("long")),
        Field("price", P("double")),
        Field("day", P("date")),
        Field("note", P("string")),
    )
)
CUSTOMERS = Struct((Field("cid", P("long")), Field("city", P("string")), Field("note", P("string"))))
TABLES = {("s", "d", "orders"): ORDERS, ("s", "d", "customers"): CUSTOMERS, ("s", "e", "orders"): ORDERS}


def look_up(name: tuple[str, str, str]) -> Struct | None:
    return TABLES.get((name[0].lower(), name[1].lower(), name[2].lower()))


def found(text: str) -> list[tuple[Any, str | None]]:
    return [(r.columns, r.where) for r in analyse(text, look_up).references]


CASES: dict[str, list[tuple[Any, str | None]]] = {
    "SELECT id, sum(price) FROM s.d.orders WHERE day > DATE'2020-01-01' AND upper(note) = 'A' GROUP BY id": [
        (("id", "price", "day", "note"), "(day > DATE'2020-01-01')")
    ],
    "SELECT count(*) FROM s.d.orders": [((), None)],
    "SELECT o.id FROM s.d.orders o JOIN s.d.customers AS c ON o.cust = c.cid WHERE o.price > 1 AND c.city = 'it''s' AND o.note = c.note": [
        (("id", "cust", "price", "note"), "(price > 1)"),
        (("cid", "city", "note"), "(city = 'it''s')"),
    ],
    "SELECT id FROM s.d.orders, s.d.customers WHERE cust = cid AND price > 1 AND city IN ('a', 'b') AND id BETWEEN 1 AND 2": [
        (("id", "cust", "price"), "(price > 1) AND (id BETWEEN 1 AND 2)"),
        (("cid", "city"), "(city IN ('a', 'b'))"),
    ],
    "SELECT id FROM s.d.orders, s.d.customers WHERE cust = cid AND note = 'x'": [(("id", "cust", "note"), None), (("cid", "note"), None)],
    "SELECT id FROM s.d.orders o LEFT JOIN s.d.customers c ON cust = cid WHERE o.price > 1 AND c.city IS NULL": [
        (("id", "cust", "price"), "(price > 1)"),
        (("cid", "city"), None),
    ],
    "SELECT id FROM s.d.orders o RIGHT OUTER JOIN s.d.customers c ON cust = cid WHERE o.price > 1 AND c.city = 'a'": [
        (("id", "cust", "price"), "(price > 1)"),
        (("cid", "city"), "(city = 'a')"),
    ],
    "SELECT id FROM s.d.orders o RIGHT JOIN s.d.customers c ON cust = cid AND o.id = 2 AND c.city <> 'b' WHERE o.price IS NULL": [
        (("id", "cust", "price"), "(id = 2)"),
        (("cid", "city"), None),
    ],
    "SELECT id FROM s.d.orders o FULL JOIN s.d.customers c ON cust = cid AND o.id = 2 WHERE o.price > 1 AND (c.city = 'a' OR c.city <=> NULL)": [
        (("id", "cust", "price"), "(price > 1)"),
        (("cid", "city"), None),
    ],
    "SELECT id FROM s.d.orders o LEFT JOIN s.d.customers c ON cust = cid AND o.id = 2 AND c.city = 'a' LEFT JOIN local l ON l.x = 3": [
        (("id", "cust"), None),
        (("cid", "city"), "(city = 'a')"),
    ],
    "SELECT id FROM s.d.orders o JOIN s.d.customers c ON cust = cid AND o.id = 2 AND c.city = 'a' WHERE o.price > 0": [
        (("id", "cust", "price"), "(id = 2) AND (price > 0)"),
        (("cid", "city"), "(city = 'a')"),
    ],
    "SELECT id FROM s.d.orders o LEFT JOIN s.d.customers c ON cust = cid JOIN local l ON c.city = 'a' AND c.note IS NULL AND left(o.note, 1) = l.x AND o.id = 4": [
        (("id", "cust", "note"), "(id = 4)"),
        (("cid", "city", "note"), "(city = 'a')"),
    ],
    "SELECT id FROM s.d.orders o LEFT SEMI JOIN s.d.customers c ON cust = cid AND o.id = 2 AND c.city = 'a'": [
        (("id", "cust"), "(id = 2)"),
        (("cid", "city"), "(city = 'a')"),
    ],
    "SELECT id FROM s.d.orders o ANTI JOIN s.d.customers c ON cust = cid AND o.id = 2 AND c.city = 'a' WHERE o.price > 1": [
        (("id", "cust", "price"), "(price > 1)"),
        (("cid", "city"), "(city = 'a')"),
    ],
    "SELECT id FROM s.d.orders o, s.d.customers c WHERE (cid = cust AND o.id = 1 AND o.price BETWEEN 1 AND 2 AND c.city = 'a') OR (cid = cust AND o.id = 3)": [
        (("id", "cust", "price"), "(((id = 1) AND (price BETWEEN 1 AND 2)) OR (id = 3))"),
        (("cid", "city"), None),
    ],
    "SELECT id FROM s.d.orders o, s.d.customers c WHERE o.id = 1 AND c.cid = 2 OR o.id = 2 AND c.cid = 3 OR upper(o.note) = 'A' AND c.cid = 4": [
        (("id", "note"), None),
        (("cid", "note"), "((cid = 2) OR (cid = 3) OR (cid = 4))"),
    ],
    "SELECT id FROM s.d.orders o, s.d.customers c WHERE NOT (o.id = 1 AND c.cid = 2) AND (o.id = 5 AND (c.cid = 6))": [
        (("id",), "(id = 5)"), (("cid",), "((cid = 6))"),
    ],
    "SELECT id FROM s.d.orders o WHERE EXISTS (SELECT * FROM s.d.customers INTERSECT SELECT * FROM local)": [
        (("id",), None),
        (None, None),
    ],
    "SELECT id FROM s.d.orders o LEFT ANTI JOIN s.d.customers c ON cust = cid WHERE price > 1": [
        (("id", "cust", "price"), "(price > 1)"),
        (("cid",), None),
    ],
    "SELECT o.id FROM s.d.orders o JOIN local l ON o.id = l.id WHERE o.price > 1 AND price < 3": [(("id", "price"), "(price > 1)")],
    "SELECT id FROM s.d.orders WHERE price > 1 OR id = 2": [(("id", "price"), "(price > 1 OR id = 2)")],
    "SELECT id FROM s.d.orders WHERE price > 1 AND rand() < 0.5": [(("id", "price"), None)],
    "SELECT id FROM s.d.orders WHERE price > (SELECT avg(price) FROM s.d.orders WHERE id > 3) AND id = 1": [
        (("id", "price"), "(id = 1)"),
        (("id", "price"), "(id > 3)"),
    ],
    "SELECT id FROM s.d.orders o WHERE EXISTS (SELECT * FROM s.d.customers WHERE cid = o.cust AND city = 'a')": [
        (("id", "cust"), None),
        (("cid", "city"), "(city = 'a')"),
    ],
    "SELECT * FROM s.d.orders WHERE id = 1": [(None, "(id = 1)")],
    "SELECT * FROM (SELECT id FROM s.d.orders WHERE id = 1) t WHERE id = 2": [(("id",), "(id = 1)")],
    "WITH c AS (SELECT cust, price FROM s.d.orders WHERE price > 1) SELECT a.cust FROM c a JOIN c b ON a.cust = b.cust": [(("cust", "price"), "(price > 1)")],
    "SELECT id FROM s.d.orders WHERE id = 1 UNION ALL SELECT cid FROM s.d.customers WHERE cid = 2": [(("id",), "(id = 1)"), (("cid",), "(cid = 2)")],
    "SELECT id, x FROM s.d.orders LATERAL VIEW posexplode(split(note, ',')) v AS x, y WHERE price > 1 AND orders.day IS NULL": [
        (("id", "price", "day", "note"), "(day IS NULL)")
    ],
    "SELECT a, b FROM s.d.orders AS t(a, b, c, d, e) WHERE a = 1": [(None, None)],
    "SELECT extract(year FROM day) FROM s.d.orders WHERE day IS DISTINCT FROM DATE'2020-01-01'": [(("day",), "(day IS DISTINCT FROM DATE'2020-01-01')")],
    "SELECT id FROM s.d.orders TABLESAMPLE (10 PERCENT) o WHERE id = 1": [(None, None)],
    "SELECT id FROM s.d.orders NATURAL JOIN s.d.customers WHERE id = 1": [(None, "(id = 1)"), (None, None)],
    "SELECT id FROM s.d.orders JOIN s.d.customers USING (note) WHERE id = 1": [(None, "(id = 1)"), (None, None)],
    "SELECT * FROM (SELECT id, price FROM s.d.orders) PIVOT (sum(price) FOR id IN (1, 2))": [(None, None)],
    "SELECT o.* FROM s.d.orders o, s.d.customers c WHERE o.id = 1": [(None, "(id = 1)"), ((), None)],
    "FROM s.d.orders |> WHERE id = 1": [(None, None)],
    "SELECT id FROM (s.d.orders o JOIN s.d.customers c ON o.cust = c.cid) WHERE o.price > 1": [(None, None), (None, None)],
    "SELECT /*+ BROADCAST(o) */ `ID` FROM `s`.d.Orders o WHERE CASE WHEN id = 1 AND cust = 2 THEN true END AND id = 3": [(("id", "cust"), "(id = 3)")],
    "SELECT left(o.note, 1) FROM s.d.orders o CROSS JOIN s.d.customers c WHERE o.id = 1 AND c.cid NOT BETWEEN 1 AND 2": [
        (("id", "note"), "(id = 1)"),
        (("cid", "note"), "(cid NOT BETWEEN 1 AND 2)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES.items(), ids=[t[:60] for t in CASES])
def test_columns_and_conditions(text: str, expected: list[tuple[Any, str | None]]) -> None:
    assert found(text) == expected


SPLICES = {
    "SELECT id FROM s.d.orders": "SELECT id FROM v0 AS `orders`",
    "SELECT o.id FROM s.d.orders o -- s.d.orders": "SELECT o.id FROM v0 o -- s.d.orders",
    "SELECT s.d.orders.id, d.orders.cust, orders.price FROM s.d.orders": "SELECT `orders`.id, `orders`.cust, orders.price FROM v0 AS `orders`",
    "SELECT 's.d.orders' FROM s.d.orders JOIN s.d.customers ON cust = cid": "SELECT 's.d.orders' FROM v0 AS `orders` JOIN v1 AS `customers` ON cust = cid",
    "SELECT id FROM s.d.orders TABLESAMPLE (10 PERCENT) REPEATABLE (3) WHERE id = 1": "SELECT id FROM v0 TABLESAMPLE (10 PERCENT) REPEATABLE (3) AS `orders` WHERE id = 1",
    "SELECT a.b.c FROM local.x.y, local z": "SELECT a.b.c FROM local.x.y, local z",
    "(SELECT id FROM s.d.orders ORDER BY id) UNION SELECT 1": "(SELECT id FROM v0 AS `orders` ORDER BY id) UNION SELECT 1",
}


@pytest.mark.parametrize(("text", "expected"), SPLICES.items())
def test_only_table_names_are_spliced(text: str, expected: str) -> None:
    query: Query = analyse(text, look_up)
    assert query.splice([f"v{i}" for i in range(len(query.references))]) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("DROP TABLE s.d.orders", "a query"),
        ("INSERT INTO x SELECT id FROM s.d.orders", "a query"),
        ("SELECT id FROM s.d.orders VERSION AS OF 3", "time travel"),
        ("SELECT id FROM s.d.orders TIMESTAMP AS OF '2020-01-01'", "time travel"),
        ("SELECT (id FROM s.d.orders", "not closed"),
        ("SELECT id) FROM s.d.orders", "closes nothing"),
    ],
)
def test_what_is_no_query_over_a_share_is_refused(text: str, said: str) -> None:
    with pytest.raises(PredicateError, match=said):
        analyse(text, look_up)


def test_it_says_why_not() -> None:
    (reference,) = analyse("SELECT * FROM s.d.orders WHERE upper(note) = 'A'", look_up).references
    assert reference.whole == "*"
    assert "upper()" in (reference.unpushed or "")


def test_a_condition_that_means_another_thing_in_the_zone_of_the_load_is_not_given() -> None:
    schema = Struct((Field("at", P("timestamp")),))
    zones = {"time_zone": "America/New_York", "load_zone": "UTC"}
    for moment, given in (
        ("2024-01-01 00:00:00", None),
        ("2024-01-01 00:00:00Z", "(at > TIMESTAMP'2024-01-01 00:00:00Z')"),
    ):
        text = f"SELECT at FROM s.d.t WHERE at > TIMESTAMP'{moment}'"
        assert analyse(text, lambda _: schema, **zones).references[0].where == given  # type: ignore[arg-type]


def test_no_condition_is_given_where_the_session_reads_them_by_other_rules() -> None:
    (reference,) = analyse("SELECT id FROM s.d.orders WHERE id = 1", look_up, refused="it is so").references
    assert (reference.columns, reference.where, reference.unpushed) == (("id",), None, "it is so")


@pytest.mark.parametrize(
    ("condition", "given"),
    [
        ("day < DATE '1994-01-01' + INTERVAL '1' YEAR", "day < DATE '1995-01-01'"),
        ("o.day >= date '1998-12-01' - interval 90 days AND id = 1", "(day >= DATE '1998-09-02') AND (id = 1)"),
        ("day BETWEEN date'2020-01-31' + interval '1' month AND (DATE '2020-02-29' - INTERVAL '1' year + interval '1' day)", "day BETWEEN DATE '2020-02-29' AND (DATE '2019-03-01')"),
        ("price BETWEEN .06 - 0.01 AND .06 + 0.01 - .1", "price BETWEEN 0.05 AND -0.03"),
        ("day = DATE '2020-01-01' + INTERVAL '1' HOUR", None),
        ("day = DATE '2020-01-01' + INTERVAL '1-2' YEAR TO MONTH", None),
        ("day = DATE '9999-12-01' + INTERVAL '1' MONTH", None),
        ("day = DATE '2020-13-01' + INTERVAL '1' MONTH", None),
        ("day = DATE '2020-01-01' + INTERVAL '1' MONTH * 2", None),
        ("price > 2 * .06 - 0.01", None),
        ("price > .06 - 0.01 * 2", None),
        ("price > 1 - .06 - 0.01", None),
        ("price > - .06 + 0.01", None),
        ("price > .06 - 1", None),
        ("price > 0.1234567 + 0.1", None),
    ],
)  # fmt: skip
def test_constants_that_a_query_computes_become_literals(condition: str, given: str | None) -> None:
    (reference,) = analyse(f"SELECT id FROM s.d.orders o WHERE {condition}", look_up).references
    where = reference.where
    assert where == (given if given is None or " AND (id" in given else f"({given})")
