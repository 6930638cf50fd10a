"""Rows and predicate texts, by chance, over a schema of every scalar type, dense in the values where comparisons go wrong."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
from random import Random
from typing import Any

import pyarrow as pa

from delta_sharing_spark.schema.types import Decimal, Field, Primitive, Struct

D = decimal.Decimal
UTC = dt.timezone.utc
P = Primitive

NESTED = Struct((Field("x", P("integer")), Field("y", P("string")), Field("z", Struct((Field("w", P("double")),)))))
SCHEMA = Struct(
    (
        Field("flag", P("boolean")),
        Field("i8", P("byte")),
        Field("i16", P("short")),
        Field("i32", P("integer")),
        Field("i64", P("long")),
        Field("j64", P("long")),
        Field("f32", P("float")),
        Field("f64", P("double")),
        Field("g64", P("double")),
        Field("dec", Decimal(10, 2)),
        Field("dec4", Decimal(20, 4)),
        Field("big", Decimal(38, 18)),
        Field("s", P("string")),
        Field("t", P("string")),
        Field("bin", P("binary")),
        Field("d", P("date")),
        Field("ts", P("timestamp")),
        Field("ntz", P("timestamp_ntz")),
        Field("a b", P("integer")),
        Field("st", NESTED),
    )
)
ARROW = pa.schema(
    [
        ("flag", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("j64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("g64", pa.float64()),
        ("dec", pa.decimal128(10, 2)),
        ("dec4", pa.decimal128(20, 4)),
        ("big", pa.decimal128(38, 18)),
        ("s", pa.string()),
        ("t", pa.string()),
        ("bin", pa.binary()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("ntz", pa.timestamp("us")),
        ("a b", pa.int32()),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string()), ("z", pa.struct([("w", pa.float64())]))])),
    ]
)

INTS = [0, 1, -1, 2, 7, 100, 127, -128]
LONGS = [*INTS, 2**31 - 1, -(2**31), 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
NAN, INF = float("nan"), float("inf")
FLOATS = [0.0, -0.0, 1.0, 1.5, -1.5, 0.5, 100.0, INF, -INF, NAN, 2.0**-149, 3.4028234663852886e38, 16777216.0]
F32_TENTH = 0.10000000149011612
DOUBLES = [*FLOATS, 0.1, F32_TENTH, 2.0**53, 9.223372036854775807e18, 5e-324, 1e308, 1.1, 99999999.99]
STRINGS = ["", "a", "A", "ab", "a%", "a_c", "abc", "a\nc", "aéc", "a😀c", "é", "z", "\\", "a\\b", "'", "it's", "ａ", "x" * 40,
           "\U0001f600", "\uffff", " 1", "10", "9", "NULL", "a\x00b"]  # fmt: skip
BINARIES = [b"", b"a", b"\x00", b"\xff", b"ab", b"\x7f", b"\x80"]
DATES = [dt.date(1, 1, 1), dt.date(1582, 10, 15), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2020, 1, 1),
         dt.date(2020, 2, 29), dt.date(9999, 12, 31)]  # fmt: skip
CLOCKS = [dt.time(), dt.time(12, 34, 56), dt.time(23, 59, 59, 999999), dt.time(0, 0, 0, 1), dt.time(12, 0, 0, 123456)]
STAMPS = [dt.datetime.combine(d, c) for d in DATES for c in CLOCKS]
DECS = [
    D("0.00"),
    D("0.01"),
    D("-0.01"),
    D("1.50"),
    D("1.00"),
    D("99999999.99"),
    D("-99999999.99"),
    D("0.10"),
    D("2.00"),
]
DECS4 = [*(D(str(v) + "00") for v in DECS), D("1.5001"), D("9007199254740993.0000"), D("0.1000")]
BIGS = [D("0"), D("1.5"), D("99999999999999999999.999999999999999999"), D("0.000000000000000001"),
        D("9007199254740992.999999999999999999"), D("0.1"), D("-1.500000000000000001")]  # fmt: skip


#: Values that floats are compared wrongly at, which a row has more often for that.
_ODD_FLOATS = [NAN, NAN, NAN, -0.0, -0.0]
#: What the columns of a row are chosen from, NULL besides; those of a struct by their paths.
POOLS: dict[str, list[Any]] = {
    "flag": [True, False],
    "i8": INTS,
    "i16": [*INTS, 32767, -32768],
    "i32": LONGS[:10],
    "i64": LONGS,
    "j64": LONGS,
    "f32": [*FLOATS, F32_TENTH, *_ODD_FLOATS],
    "f64": [*DOUBLES, *_ODD_FLOATS],
    "g64": [*DOUBLES, *_ODD_FLOATS],
    "dec": DECS,
    "dec4": DECS4,
    "big": BIGS,
    "s": STRINGS,
    "t": STRINGS,
    "bin": BINARIES,
    "d": DATES,
    "ts": [stamp.replace(tzinfo=UTC) for stamp in STAMPS],
    "ntz": STAMPS,
    "a b": INTS,
    "st.x": INTS,
    "st.y": STRINGS,
    "st.z.w": [*DOUBLES, *_ODD_FLOATS],
}
_LETTERS = "ab%_\\'\né😀z0"


def row(random: Random) -> dict[str, Any]:
    values = {name: random.choice([None, *pool]) for name, pool in POOLS.items()}
    if random.random() < 0.2:
        (values["f64"],) = struct.unpack("d", random.randbytes(8))
    if random.random() < 0.2:
        values["s"] = _text(random, _LETTERS, 5)
    x, y, w = (values.pop(name) for name in ("st.x", "st.y", "st.z.w"))
    z = random.choice([None, {"w": w}])
    return {**values, "st": random.choice([None, {"x": x, "y": y, "z": z}])}


def rows(random: Random) -> list[dict[str, Any]]:
    return [row(random) for _ in range(random.randint(1, 12))]


_quoted = {"'": "\\'", "\\": "\\\\", "\n": "\\n", "\x00": "\\0"}


def _text(random: Random, letters: str, longest: int) -> str:
    return "".join(random.choices(letters, k=random.randint(0, longest)))


def string_literal(random: Random) -> str:
    """A string in one of the forms that Spark reads."""
    text = random.choice([random.choice(STRINGS), _text(random, _LETTERS, 5)])
    form = random.choice(["escaped", "doubled", "double", "raw", "unicode"])
    if form == "raw" and "'" not in text:
        return f"r'{text}'"
    if form == "doubled":
        return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    if form == "double":
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if form == "unicode":
        return "'" + "".join(f"\\U{ord(c):08x}" for c in text) + "'"
    return "'" + "".join(_quoted.get(c, c) for c in text) + "'"


INTEGER_LITERALS = [str(v) for v in LONGS] + ["1Y", "-128Y", "7S", "100L", "- 1", "9223372036854775808", "-9223372036854775809",
                    "99999999999999999999", "CAST('7' AS BIGINT)", "CAST(1.9 AS INT)", "'7'", "' 100 '", "'-1'"]  # fmt: skip
FRACTION_LITERALS = ["0.1", "1.5", "-1.5", "1.0", "0.10", "1e0", "15e-1", "1.5F", "0.1F", "0.1D", "1.5D", "9007199254740993D", "1.50BD",
                     "'0.1'", "'NaN'", "'-Infinity'", "'1.5'", "CAST('NaN' AS FLOAT)", "CAST('inf' AS DOUBLE)", "CAST(0.1 AS FLOAT)",
                     "-0.0D", "-0D", "0.0", "5e-324", "99999999.99", "1e308", "CAST(16777217 AS FLOAT)", "0.01", "2", "-0.000",
                     "1.4e-45F", "1.1", ".5", "5.", "1.5001", "16777217", "CAST('1.005' AS DECIMAL(3,2))"]  # fmt: skip
DATE_LITERALS = ["DATE '2020-01-01'", "'2020-1-1'", "'1970-01-01'", "DATE '0001-01-01'", "'9999-12-31'", "'2020'", "'2020-02'",
                 "DATE'2020-02-29'", "'2020-02-29 foo'", "CAST('2020-01-01' AS DATE)", "'1582-10-15'"]  # fmt: skip
STAMP_LITERALS = ["TIMESTAMP '2020-01-01 00:00:00'", "'2020-01-01 12:34:56'", "'2020-01-01T12:34:56Z'", "'1970-01-01 00:00:00.000001'",
                  "TIMESTAMP '2020-01-01 02:00:00+02:00'", "'1969-12-31 23:59:59.999999'", "'0001-01-01'", "'9999-12-31 23:59:59.999999'",
                  "'2020-02-29 12:00:00.1234569'", "TIMESTAMP '1970-01-01 1:00:00 Europe/Berlin'", "TIMESTAMP_LTZ '2020-01-01'",
                  "'1969-12-31 23:59:59.9999995'", "TIMESTAMP '1970-01-01 00:00:00.000001+05:30'", "'1582-10-15 00:00:00-08:00'"]  # fmt: skip
NTZ_LITERALS = [
    "TIMESTAMP_NTZ '2020-01-01 00:00:00'",
    "TIMESTAMP_NTZ '1969-12-31T23:59:59.999999'",
    "TIMESTAMP_NTZ'2020-1-1'",
]
BINARY_LITERALS = ["X'00'", "X'ff'", "X'6162'", "x'7F'", "X''", "X'8'", "'a'", "''", "CAST('ab' AS BINARY)", "'é'"]
BOOLEAN_LITERALS = ["true", "FALSE", "'t'", "'No'", "' yes '"]

_NUMERIC_LITERALS = [*INTEGER_LITERALS, *FRACTION_LITERALS]
LITERALS: dict[str, list[str]] = {
    **dict.fromkeys(("i8", "i16", "i32", "I64", "`a b`", "st.x", "f32", "f64", "g64", "dec", "dec4", "big", "st.z.w"), _NUMERIC_LITERALS),
    "flag": BOOLEAN_LITERALS,
    "bin": BINARY_LITERALS,
    "d": [*DATE_LITERALS, *STAMP_LITERALS[:1], *NTZ_LITERALS],
    "ts": [*DATE_LITERALS[:1], *STAMP_LITERALS, *NTZ_LITERALS],
    "ntz": [*DATE_LITERALS[:1], *NTZ_LITERALS, *STAMP_LITERALS[:2], "TIMESTAMP '2020-01-01 02:00:00+02:00'"],
}  # fmt: skip
#: Columns that are compared, with the literals above or with strings.
COMPARED = sorted([*LITERALS, "s", "t", "`st`.y"])
PAIRS = [("i64", "j64"), ("i32", "i64"), ("i8", "i16"), ("f64", "g64"), ("f64", "st.z.w"), ("dec", "dec4"), ("s", "t"), ("s", "st.y"),
         ("i32", "`a b`"), ("f64", "f64"), ("d", "d"), ("bin", "bin"), ("flag", "flag"), ("ts", "ts")]  # fmt: skip
OPS = ["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>", "!>", "!<"]
LIKE_PATTERNS = ["'%'", "'a%'", "'%c'", "'%a%'", "'a_c'", "''", "'_'", "'a\\%'", "'a\\_c'", "'a__c'", "'%\\n%'", "'a\\\\\\\\b'",
                 "'%é%'", "'a%%_'", "'_%_'", "'a!%' ESCAPE '!'", "'a!!%' ESCAPE '!'", "'%''%'", "r'a\\\\b'", "NULL", "'.*'",
                 "'[a]%'", "'%_😀%'", "'%%'", "'x%x'"]  # fmt: skip


_DAYS = [
    "DATE '2020-01-01'",
    "'2020-02-29'",
    "DATE '1582-10-15'",
    "DATE '1969-12-31'",
    "to_date('1970-01-01')",
    "DATE '0001-01-01'",
]
_NUMBERS = ["1", "0", "1.5", "-1.5D", "100", "'7'", "2147483648", "0.1F", "CAST('NaN' AS DOUBLE)", "9007199254740993"]
_YEARS = ["2020", "1969", "1970", "0", "1", "9999", "10000", "2019.5", "1582L", "-1"]
_MOMENTS = [
    "TIMESTAMP '2020-01-01 00:00:00'",
    "'2020-02-29 12:34:56'",
    "TIMESTAMP '1969-12-01 00:00:00'",
    "TIMESTAMP '1970-01-01 00:00:00.000001'",
]
#: Functions of columns, with literals that compare with them.
FUNCTIONS: dict[str, list[str]] = {
    name: literals
    for names, literals in (
        (("CAST(ts AS DATE)", "date(ntz)", "to_date(d)", "ts::date", "trunc(d, 'MM')", "trunc(ts, 'year')", "trunc(d, 'Week')",
          "coalesce(d, DATE '2020-01-01')", "coalesce(CAST(ts AS DATE), DATE '1970-01-01')"), [*_DAYS, _MOMENTS[0]]),
        (("year(d)", "year(ts)", "year(ntz)", "coalesce(year(d), 2020)"), _YEARS),
        (("date_trunc('MONTH', ts)", "date_trunc('hour', ts)", "date_trunc('QUARTER', ts)", "date_trunc('second', ts)", "CAST(d AS TIMESTAMP)",
          "coalesce(ts, TIMESTAMP '2020-01-01 00:00:00')", "date_trunc('week', ts)", "CAST(ntz AS TIMESTAMP)"), [*_MOMENTS, _DAYS[0]]),
        (("CAST(i8 AS BIGINT)", "CAST(i32 AS DOUBLE)", "CAST(i64 AS DOUBLE)", "CAST(f32 AS DOUBLE)", "CAST(dec AS DECIMAL(20,4))",
          "CAST(i32 AS DECIMAL(12,1))", "double(dec)", "bigint(i16)", "coalesce(i32, 0)", "coalesce(dec, 0)", "ifnull(f64, 1.5)", "nvl(i64, 7)",
          "coalesce(i8, NULL, 100)", "coalesce(f32, 0)", "coalesce(i64, 1.5)", "coalesce(i32, 1D)"), _NUMBERS),
        (("coalesce(s, 'a')", "coalesce(st.y, NULL)", "coalesce(t, '')"), ["'a'", "''", "'abc'", "'é'"]),
        (("coalesce(flag, false)",), ["true", "false"]),
    )
    for name in names
}  # fmt: skip
#: A column and a literal that is computed.
COMPUTED = [
    *(("d", f"{day} {sign} {interval}") for day in ("DATE '2020-03-31'", "make_date(2020, 2, 29)") for sign in "+-" for interval in (
        "INTERVAL '7' DAY", "INTERVAL 7 DAYS", "INTERVAL 1 WEEK", "INTERVAL '1' MONTH", "INTERVAL '1-2' YEAR TO MONTH", "INTERVAL 1 YEAR 2 MONTHS", "30",
        "INTERVAL '1 12:00:00' DAY TO SECOND", "INTERVAL -7 DAYS", "(INTERVAL '1' DAY + INTERVAL '2' HOUR)", "INTERVAL '-1' YEAR", "7S")),
    *(("ts", f"TIMESTAMP '2020-03-31 12:34:56' {sign} {interval}") for sign in "+-" for interval in (
        "INTERVAL '7' DAY", "INTERVAL 90 MINUTES", "INTERVAL '1' MONTH", "INTERVAL '1.5' SECOND", "INTERVAL 1 DAY 2 HOURS", "INTERVAL 5 MILLISECONDS")),
    *(("d", text) for text in ("date_add(DATE '2020-01-01', 30)", "date_sub('2020-03-01', 1)", "add_months(DATE '2020-01-31', 1)", "add_months('2020-03-31', -1)",
                               "date('2020-01-01')", "to_date('2020-1-1')", "DATE '2020-01-01' - INTERVAL '1' MONTH + INTERVAL '1' DAY", "INTERVAL 1 DAY + DATE '2019-12-31'")),
    *(("ts", text) for text in ("timestamp('2020-01-01')", "to_timestamp('2020-01-01 12:34:56')", "timestamp(DATE '2020-01-01')")),
    *(("i32", text) for text in ("1 + 1", "2 * 3 + 1", "2 * (3 - 4)", "7 / 2", "7 DIV 2", "-7 % 3", "-(-7)", "- 1 - -1", "100Y + 1S", "1.5 + 0.5", "10 % 3.5", "1L * 7", "int('7')", "year(DATE '2020-01-01') - 1918")),
    *(("dec", text) for text in ("1.5 * 1", "0.05 + 0.05", "1 / 3.0", "3.0 / 2", "2.5 % 1", "1.005 * 2", "- 1.50", "99999999.99 - 0", "1e0 + 0.5", "0.1 + CAST(1 AS INT)")),
    *(("f64", text) for text in ("1.5D * 2", "0.1D + 0.2D", "1 / 10", "1.1F + 0.1D", "5.5D % 2", "1.0F / 3", "-(0.0D)", "0.1F + 0.1F", "0.1F * 3F", "2F + 1")),
]  # fmt: skip

#: What takes a condition, and is one.
OF_CONDITIONS = ["coalesce({}, true)", "coalesce({}, NULL, false)", "ifnull({}, flag)", "({}) = true", "({}) <> false", "({}) <=> false",
                 "({}) IS DISTINCT FROM true", "isnull({})", "({}) IS NOT UNKNOWN"]  # fmt: skip


def like_pattern(random: Random) -> str:
    """A pattern of its own making, escaped by anything; not all are whole."""
    text, escape = _text(random, "ab%_!\\\n😀c", 6), random.choice(["", "", "!", "%", "_", "a", "\\\\", "😀"])
    quoted = "'" + "".join(_quoted.get(c, c) for c in text) + "'"
    return quoted + (f" ESCAPE '{escape}'" if escape else "")


def comparison(random: Random) -> str:
    choice = random.choice
    column, op, negated = choice(COMPARED), choice(OPS), choice(["", "", "NOT "])

    def literal() -> str:
        return choice(LITERALS[column]) if column in LITERALS else string_literal(random)

    kind = choice(["compare", "compare", "flip", "in", "between", "null", "pair", "like", "bare", "is", "null literal",
                   "text", "function", "function", "function in", "computed"])  # fmt: skip
    if kind == "compare":
        return f"{column} {op} {literal()}"
    if kind == "flip":
        return f"{literal()} {op} {column}"
    if kind == "in":
        values = [literal() if random.random() < 0.75 else "NULL" for _ in range(random.randint(1, choice([3, 14])))]
        return f"{column} {negated}IN ({', '.join(values)})"
    if kind == "between":
        return f"{column} {negated}BETWEEN {literal()} AND {literal()}"
    if kind == "null":
        return f"{choice([*COMPARED, 'st', 'st.z'])} IS {negated}NULL"
    if kind == "pair":
        left, right = choice(PAIRS)
        return f"{left} {op} {right}"
    if kind == "like":
        pattern = choice([choice(LIKE_PATTERNS), like_pattern(random)])
        return f"{choice(['s', 't', 'st.y'])} {negated}LIKE {pattern}"
    if kind == "text":
        return (
            f"{choice(['startswith', 'ENDSWITH', 'contains'])}({choice(['s', 't', 'st.y'])}, {string_literal(random)})"
        )
    if kind in ("function", "function in"):
        function, literals = choice(sorted(FUNCTIONS.items()))
        other = choice([*literals, "NULL"])
        if kind == "function in":
            return f"{function} {negated}IN ({choice(literals)}, {other})"
        return f"{function} {choice([*OPS, 'IS DISTINCT FROM'])} {other}"
    if kind == "computed":
        name, computed = choice(COMPUTED)
        return f"{name} {op} {computed}"
    if kind == "bare":
        return choice(["flag", "true", "NOT flag", "1 = 1", "'a' = \"a\"", "1 > NULL", "NULL <=> 1", "1.0 = 1"])
    if kind == "is":
        return f"flag IS {negated}{choice(['TRUE', 'FALSE', 'UNKNOWN'])}"
    return f"{column} {op} NULL"


def predicate(random: Random) -> str:
    """Up to five comparisons, joined and wrapped; not all are in the language (types that do not compare, decimals that would round)."""
    return _predicate(random, random.choice([1, 1, 1, 2, 3, 5]))


def _predicate(random: Random, comparisons: int) -> str:
    if comparisons > 1:
        left = random.randint(1, comparisons - 1)
        joined = f"{_predicate(random, left)} {random.choice(['AND', 'OR'])} {_predicate(random, comparisons - left)}"
        text = random.choice([joined, f"({joined})"])
    else:
        text = comparison(random)
    wrapped = ["NOT ({})", "NOT {}", "({}) IS NULL", "({}) IS NOT TRUE", random.choice(OF_CONDITIONS)]
    return random.choice([*["{}"] * 10, *wrapped]).format(text)


def table(of: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(of, schema=ARROW)
