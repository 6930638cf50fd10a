"""The tables of TPC-H, drawn by numpy: the specification's columns, sizes and value ranges, no official dbgen data.

Prices and quantities are decimals, so that sums are exact in any order. Values that the 22 queries ask for stand in at
least one part in a hundred, so that no query is empty on small scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

NATIONS = [
    ("ALGERIA", 0), ("ARGENTINA", 1), ("BRAZIL", 1), ("CANADA", 1), ("EGYPT", 4), ("ETHIOPIA", 0), ("FRANCE", 3),
    ("GERMANY", 3), ("INDIA", 2), ("INDONESIA", 2), ("IRAN", 4), ("IRAQ", 4), ("JAPAN", 2), ("JORDAN", 4), ("KENYA", 0),
    ("MOROCCO", 0), ("MOZAMBIQUE", 0), ("PERU", 1), ("CHINA", 2), ("ROMANIA", 3), ("SAUDI ARABIA", 4), ("VIETNAM", 2),
    ("RUSSIA", 3), ("UNITED KINGDOM", 3), ("UNITED STATES", 1),
]  # fmt: skip
REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST"]
COLORS = ["almond", "azure", "blue", "chocolate", "forest", "green", "ivory", "khaki", "lemon", "orchid", "red", "tan"]
TYPES = [["STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"], ["ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"],
         ["TIN", "NICKEL", "BRASS", "STEEL", "COPPER"]]  # fmt: skip
CONTAINERS = [["SM", "LG", "MED", "JUMBO", "WRAP"], ["CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM"]]
SEGMENTS = ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"]
PRIORITIES = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"]
MODES = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]
INSTRUCTIONS = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
WORDS = [
    "carefully",
    "quick",
    "ironic",
    "pending",
    "final",
    "bold",
    "deposits",
    "accounts",
    "packages",
    "requests",
    "theodolites",
]
FIRST_DAY, LAST_DAY, TODAY = 8035, 10440, 9298  # 1992-01-01, 1998-08-02, 1995-06-17
Ints = npt.NDArray[np.int64]


def tables(scale: float, seed: int = 20261121) -> dict[str, pa.Table]:
    """All eight tables; 1.0 is a gigabyte of text, six million line items."""
    draw = np.random.default_rng(seed)
    size = {n: max(10, int(c * scale)) for n, c in (("s", 10_000), ("c", 150_000), ("p", 200_000), ("o", 1_500_000))}
    part, price = _part(draw, size["p"])
    orders, lines = _orders(draw, size, price)
    return {
        "region": pa.table({"r_regionkey": np.arange(5), "r_name": REGIONS, "r_comment": [f"region {i}" for i in range(5)]}),
        "nation": pa.table(
            {
                "n_nationkey": np.arange(25),
                "n_name": [n for n, _ in NATIONS],
                "n_regionkey": np.array([r for _, r in NATIONS]),
                "n_comment": [f"nation {i}" for i in range(25)],
            }
        ),
        "supplier": _supplier(draw, size["s"]),
        "customer": _customer(draw, size["c"]),
        "part": part,
        "partsupp": _partsupp(draw, size["p"], size["s"]),
        "orders": orders,
        "lineitem": lines,
    }  # fmt: skip


def _money(cents: Ints) -> pa.Array:
    """Hundredths as decimal(15,2)."""
    wide = np.stack([cents.astype(np.int64), cents.astype(np.int64) >> 63], axis=1)
    return pa.Array.from_buffers(pa.decimal128(15, 2), len(cents), [None, pa.py_buffer(wide.tobytes())])


def _days(days: Ints) -> pa.Array:
    return pa.array(days.astype(np.int32)).cast(pa.date32())


def _choice(draw: np.random.Generator, values: list[str], count: int) -> Any:
    return np.array(values)[draw.integers(0, len(values), count)]


def _comments(draw: np.random.Generator, count: int, words: int = 4) -> Any:
    text = _choice(draw, WORDS, count)
    for _ in range(words - 1):
        text = np.char.add(np.char.add(text, " "), _choice(draw, WORDS, count))
    return text


def _phones(draw: np.random.Generator, nations: Ints) -> list[str]:
    numbers = draw.integers(0, 10**10, len(nations))
    return [f"{n + 10}-{x // 10**7:03d}-{x // 10**4 % 1000:03d}-{x % 10**4:04d}" for n, x in zip(nations.tolist(), numbers.tolist(), strict=True)]  # fmt: skip


def _supplier(draw: np.random.Generator, count: int) -> pa.Table:
    key = np.arange(1, count + 1)
    nations = key * 7 % 25
    comments = _comments(draw, count).astype(object)
    comments[::97] = "sleepy Customer word Complaints"
    return pa.table(
        {
            "s_suppkey": key,
            "s_name": [f"Supplier#{k:09d}" for k in key],
            "s_address": _comments(draw, count, 2),
            "s_nationkey": nations,
            "s_phone": _phones(draw, nations),
            "s_acctbal": _money(draw.integers(-99_999, 1_000_000, count)),
            "s_comment": comments,
        }
    )


def _customer(draw: np.random.Generator, count: int) -> pa.Table:
    key, nations = np.arange(1, count + 1), draw.integers(0, 25, count)
    return pa.table(
        {
            "c_custkey": key,
            "c_name": [f"Customer#{k:09d}" for k in key],
            "c_address": _comments(draw, count, 2),
            "c_nationkey": nations,
            "c_phone": _phones(draw, nations),
            "c_acctbal": _money(draw.integers(-99_999, 1_000_000, count)),
            "c_mktsegment": _choice(draw, SEGMENTS, count),
            "c_comment": _comments(draw, count),
        }
    )


def _part(draw: np.random.Generator, count: int) -> tuple[pa.Table, Ints]:
    key = np.arange(1, count + 1)
    name = np.char.add(np.char.add(_choice(draw, COLORS, count), " "), _choice(draw, COLORS, count)).astype(object)
    brand = np.array([f"Brand#{i}{j}" for i in range(1, 6) for j in range(1, 6)], object)[draw.integers(0, 25, count)]
    kind = np.array([" ".join((a, b, c)) for a in TYPES[0] for b in TYPES[1] for c in TYPES[2]], object)
    kind = kind[draw.integers(0, len(kind), count)]
    box = np.array([" ".join((a, b)) for a in CONTAINERS[0] for b in CONTAINERS[1]], object)[
        draw.integers(0, 40, count)
    ]
    size = draw.integers(1, 51, count)
    for first, values in enumerate(
        [("Brand#23", "MED BOX", 5), ("Brand#12", "SM CASE", 3), ("Brand#34", "LG BOX", 9), ("Brand#23", "MED BAG", 7)]
    ):
        brand[first::100], box[first::100], size[first::100] = values
    name[4::100] = "forest green"
    kind[5::100] = "ECONOMY ANODIZED STEEL"
    kind[6::50], size[6::50] = "LARGE PLATED BRASS", 15
    price = 90_000 + (key // 10) % 20_001 + 100 * (key % 1_000)
    table = pa.table(
        {
            "p_partkey": key,
            "p_name": pa.array(name, pa.string()),
            "p_mfgr": [f"Manufacturer#{b[6]}" for b in brand],
            "p_brand": pa.array(brand, pa.string()),
            "p_type": pa.array(kind, pa.string()),
            "p_size": pa.array(size, pa.int32()),
            "p_container": pa.array(box, pa.string()),
            "p_retailprice": _money(price),
            "p_comment": _comments(draw, count, 2),
        }
    )
    return table, price


def _supplier_of(part: Ints, turn: Ints, suppliers: int) -> Ints:
    """One of the four suppliers of a part, as the specification computes them."""
    result: Ints = (part + turn * (suppliers // 4 + (part - 1) // suppliers)) % suppliers + 1
    return result


def _partsupp(draw: np.random.Generator, parts: int, suppliers: int) -> pa.Table:
    part, turn = np.repeat(np.arange(1, parts + 1), 4), np.tile(np.arange(4), parts)
    return pa.table(
        {
            "ps_partkey": part,
            "ps_suppkey": _supplier_of(part, turn, suppliers),
            "ps_availqty": pa.array(draw.integers(1, 10_000, len(part)), pa.int32()),
            "ps_supplycost": _money(draw.integers(100, 100_001, len(part))),
            "ps_comment": _comments(draw, len(part)),
        }
    )


def _orders(draw: np.random.Generator, size: dict[str, int], price: Ints) -> tuple[pa.Table, pa.Table]:
    count = size["o"]
    key = np.arange(1, count + 1) * 4
    customer = draw.integers(1, size["c"] + 1, count)
    customer += (customer % 3 == 0) & (customer < size["c"])  # every third customer has no order
    day = np.sort(draw.integers(FIRST_DAY, LAST_DAY - 121, count))
    lines = draw.integers(1, 8, count)
    large = np.arange(count) % 100 == 0
    lines[large] = 7
    of = np.repeat(np.arange(count), lines)
    total = len(of)
    part = draw.integers(1, size["p"] + 1, total)
    quantity = np.where(large[of], draw.integers(45, 51, total), draw.integers(1, 51, total))
    shipped = day[of] + draw.integers(1, 122, total)
    received = shipped + draw.integers(1, 31, total)
    cost = quantity * price[part - 1]
    status = np.where(shipped > TODAY, "O", "F")
    open_lines = np.add.reduceat(shipped > TODAY, np.cumsum(lines) - lines)
    comments = _comments(draw, count).astype(object)
    comments[::50] = "special pending requests"
    orders = pa.table(
        {
            "o_orderkey": key,
            "o_custkey": customer,
            "o_orderstatus": np.where(open_lines == 0, "F", np.where(open_lines == lines, "O", "P")),
            "o_totalprice": _money(np.add.reduceat(cost, np.cumsum(lines) - lines)),
            "o_orderdate": _days(day),
            "o_orderpriority": _choice(draw, PRIORITIES, count),
            "o_clerk": [f"Clerk#{k:09d}" for k in draw.integers(1, 1001, count).tolist()],
            "o_shippriority": pa.array(np.zeros(count), pa.int32()),
            "o_comment": pa.array(comments, pa.string()),
        }
    )
    lineitem = pa.table(
        {
            "l_orderkey": key[of],
            "l_partkey": part,
            "l_suppkey": _supplier_of(part, draw.integers(0, 4, total), size["s"]),
            "l_linenumber": pa.array(np.arange(total) - np.repeat(np.cumsum(lines) - lines, lines) + 1, pa.int32()),
            "l_quantity": _money(quantity * 100),
            "l_extendedprice": _money(cost),
            "l_discount": _money(draw.integers(0, 11, total)),
            "l_tax": _money(draw.integers(0, 9, total)),
            "l_returnflag": np.where(received <= TODAY, _choice(draw, ["R", "A"], total), "N"),
            "l_linestatus": status,
            "l_shipdate": _days(shipped),
            "l_commitdate": _days(day[of] + draw.integers(30, 91, total)),
            "l_receiptdate": _days(received),
            "l_shipinstruct": _choice(draw, INSTRUCTIONS, total),
            "l_shipmode": _choice(draw, MODES, total),
            "l_comment": _comments(draw, total, 3),
        }
    )
    return orders, lineitem
