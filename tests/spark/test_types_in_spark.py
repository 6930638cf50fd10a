"""What Spark itself does with the types it is given: CHAR, VARCHAR and collation marks, places on earth, types that are not read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import UnreadableColumnError
from delta_sharing_spark.schema.types import Array, Field, Map, Primitive, Spatial, Struct
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.refusals import not_refused


def marked(name: str, kind: str) -> Field:
    return Field(name, Primitive("string"), True, {"__CHAR_VARCHAR_TYPE_STRING": kind})


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_char_columns_are_padded_by_spark_as_those_of_its_own_tables(
    share: Callable[..., str], load: Callable[..., Any], tmp_path: Path, mode: str
) -> None:
    """Files may hold CHAR unpadded; the mark in the schema makes Spark pad on reading, VARCHAR stays as it is."""
    nested = Struct((Field("c", Primitive("string")),))
    schema = Struct(
        (
            Field("id", Primitive("integer")),
            marked("c", "char(4)"),
            marked("v", "varchar(5)"),
            Field("s", nested, True, {"__CHAR_VARCHAR_TYPE_STRING": "struct<c:char(3)>"}),
        )
    )
    table = DeltaTableBuilder(tmp_path / "padded", schema)
    table.append([{"id": 1, "c": "ab", "v": "ab", "s": {"c": "x"}}, {"id": 2, "c": "abcd", "v": "ab  "}, {"id": 3}])
    frame = load(share(table, access_modes=("url", "dir")), accessMode=mode)
    rows = [tuple(row) for row in frame.selectExpr("id", "c", "v", "s.c AS sc").orderBy("id").collect()]
    assert rows == [(1, "ab  ", "ab", "x  "), (2, "abcd", "ab  ", None), (3, None, None, None)]
    assert [[row.id for row in frame.where(f"c = '{text}'").collect()] for text in ("ab", "ab  ")] == [[1], [1]]


def test_where_compares_char_columns_as_spark_does(
    share: Callable[..., str], load: Callable[..., Any], tmp_path: Path
) -> None:
    """Spark's own filter is the oracle: of values in both forms, and of some that are longer than their column."""
    schema = Struct(
        (
            Field("id", Primitive("integer")),
            marked("c", "char(3)"),
            marked("d", "char(5)"),
            Field("v", Primitive("string")),
        )
    )
    texts = [None, "", " ", "a", "a ", "a  ", "ab", "abc", "abcd ", "b", "a\t", "é", "日本", "abc~"]
    rows = [{"id": i, "c": texts[i // 14], "d": texts[i % 14], "v": texts[(i * 5) % 14]} for i in range(196)]
    path = share(DeltaTableBuilder(tmp_path / "t", schema).append(rows, files=3), access_modes=("url", "dir"))
    literals = ["", "a", "a ", "ab", "abcd", "abcd  ", "é"]
    conditions = [f"c {sign} '{text}'" for sign in ("=", "<>", "<", ">=", "<=>") for text in literals]
    conditions += [f"c {sign} {other}" for sign in ("=", "<", "<=>") for other in ("d", "v")]
    conditions += [f"v >= c OR '{text}' > d" for text in literals] + [
        f"c LIKE '{text}%' AND d NOT LIKE '{text}'" for text in literals
    ]
    conditions += [
        "c IN ('a', 'abcd')",
        "c NOT IN ('a', 'ab', 'abcd  ')",
        "d IN ('')",
        "contains(c, 'b ')",
        "endswith(c, ' ')",
    ]
    frame = load(path).selectExpr("id", *(f"({condition}) AS k{i}" for i, condition in enumerate(conditions)))
    expected = {condition: set() for condition in conditions}
    for row in frame.collect():
        for i, condition in enumerate(conditions):
            if row[f"k{i}"]:
                expected[condition].add(row["id"])
    profile, _, name = path.partition("#")
    table = SharingClient(profile).table(name)
    scans = {condition: table.scan(where=condition) for condition in conditions}
    assert {condition: set(scan.to_arrow()["id"].to_pylist()) for condition, scan in scans.items()} == expected
    expected["d LIKE 'a  %'"] = {row["id"] for row in rows if (row["d"] or "x").ljust(5).startswith("a  ")}
    loads = {text: load(path, where=text) for text in ("c = 'a'", "c = 'abcd'", "c IN ('a', 'abcd')", "d LIKE 'a  %'")}
    found = {condition: {row.id for row in frame.collect()} for condition, frame in loads.items()}
    assert found == {condition: expected[condition] for condition in loads}


@pytest.mark.connect
@pytest.mark.parametrize("engine", ["native", "python"])
def test_collated_columns_are_compared_by_their_collation(
    spark: Any, share: Callable[..., str], tmp_path: Path, engine: str
) -> None:
    """Also within a struct, and in each query: PySpark changes the marks that it is given."""
    nested = Struct((Field("c", Primitive("string"), True, {"__COLLATIONS": {"c": "icu.UNICODE_CI"}}),))
    mark = {"__COLLATIONS": {"k": "spark.UTF8_LCASE"}}
    table = DeltaTableBuilder(tmp_path / "t", Struct((Field("k", Primitive("string"), True, mark), Field("s", nested))))
    table.append([{"k": "a", "s": {"c": "X"}}, {"k": "A", "s": {"c": "x"}}, {"k": "b", "s": None}])
    profile, _, name = share(table).partition("#")
    client = SharingClient(profile, engine=engine)
    text = (
        f"SELECT count(*) AS n, count(DISTINCT k) AS k, count(DISTINCT s.c) AS c FROM {name} WHERE s.c = 'X' OR k = 'B'"
    )
    for _ in range(2):
        assert client.sql(spark, text).collect() == [(3, 2, 1)]
        assert client.table(name).to_spark(spark).where("k = 'A'").count() == 2


@pytest.mark.connect
@pytest.mark.parametrize("engine", ["auto", "python"])
def test_other_columns_than_those_of_types_that_are_not_read(
    spark: Any, share: Callable[..., str], load: Callable[..., Any], tmp_path: Path, engine: str
) -> None:
    """By their names in a load and in SQL; a load or a query that needs the others is refused, and names them."""
    kinds = pa.struct({"a": pa.int32(), "at": pa.binary()})
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64(), "at": pa.binary(), "s": kinds}))
    built.append([{"id": 1, "s": {"a": 2}}, {"id": 3}])
    (log,) = (built.path / "_delta_log").glob("*0.json")
    log.write_text(log.read_text().replace('\\"binary\\"', '\\"hologram\\"'))
    address = share(built)
    profile, _, name = address.partition("#")
    client = SharingClient(profile, engine=engine)
    why = "column 'at' of .* has the type 'hologram', which this reader does not read; name the columns to read, as in columns='id,s.a'"
    with pytest.raises((UnreadableColumnError, PySparkException), match=why):
        client.table(name).to_spark(spark).collect()  # over Connect the Python source finds out with the first action
    with pytest.raises(PySparkException, match=why):
        load(address).collect()
    assert load(address, columns="id,s.a").orderBy("id").collect() == [(1, (2,)), (3, None)]
    assert client.table(name).select("id").to_spark(spark).orderBy("id").collect() == [(1,), (3,)]
    assert client.sql(spark, f"SELECT id, s.a FROM {name} WHERE id < 9 ORDER BY id").collect() == [(1, 2), (3, None)]
    assert client.sql(spark, f"SELECT count(*) FROM {name}").collect() == [(2,)]
    assert client.query(spark, lambda table: table(name).select("id").orderBy("id")).collect() == [(1,), (3,)]
    client.register(spark, {"holograms": name})
    assert spark.sql("SELECT max(id), max(s.a) FROM holograms").collect() == [(3, 2)]
    refusal = "column {} of .* has a type that this reader does not read; name the other columns in the query"
    uses = (
        lambda: client.sql(spark, f"SELECT * FROM {name}").collect(),
        lambda: client.sql(spark, f"SELECT id FROM {name} WHERE at IS NULL").collect(),
        lambda: spark.sql("SELECT at FROM holograms").collect(),
    )
    assert not_refused(Exception, refusal.format("`at`"), *uses) == []
    with pytest.raises(Exception, match=refusal.format("`s`.`at`")):
        client.sql(spark, f"SELECT s FROM {name}").collect()


POINT = struct.pack("<BIdd", 1, 1, 1.0, 2.0)


def wkb(value: Any) -> Any:
    """A place's well-known binary, be it of Spark's own type or BINARY, and the places within a value."""
    if hasattr(value, "getBytes"):
        return bytes(value.getBytes())
    if isinstance(value, Row):
        return {name: wkb(item) for name, item in value.asDict().items()}
    if isinstance(value, dict):
        return {key: wkb(item) for key, item in value.items()}
    return [wkb(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("engine", ["native", "python"])
def test_places_are_of_sparks_types_where_it_reads_them(
    spark: Any, share: Callable[..., str], tmp_path: Path, engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark 4.2 and later reads places of the systems that it has; elsewhere they are WKB as BINARY, which the log says."""
    place, earth, far = Spatial(), Spatial("OGC:CRS84", "SPHERICAL"), Spatial("EPSG:2154")
    schema = Struct(
        (
            Field("id", Primitive("long")),
            Field("place", place),
            Field("far", far),
            Field("s", Struct((Field("p", place), Field("n", Primitive("integer"))))),
            Field("l", Array(earth)),
            Field("m", Map(Primitive("string"), place)),
        )
    )
    row = {"place": POINT, "far": POINT, "s": {"p": POINT, "n": 1}, "l": [POINT, None], "m": [("k", POINT)]}
    built = DeltaTableBuilder(tmp_path / "t", schema).append([{"id": 1, **row}, {"id": 2}, {"id": 3, **row}])
    profile, _, name = share(built).partition("#")
    client = SharingClient(profile, engine=engine)
    with caplog.at_level("INFO", "delta_sharing_spark"):
        frame = client.table(name).to_spark(spark)
    has_places = tuple(map(int, spark.version.split(".")[:2])) >= (4, 2)
    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    assert kinds == {
        "id": "bigint",
        "place": "geometry(4326)" if has_places else "binary",
        "far": "binary",
        "s": f"struct<p:{'geometry(4326)' if has_places else 'binary'},n:int>",
        "l": f"array<{'geography(4326)' if has_places else 'binary'}>",
        "m": f"map<string,{'geometry(4326)' if has_places else 'binary'}>",
    }
    assert "column 'far' of" in caplog.text
    assert ("column 'place' of" in caplog.text) is not has_places
    whole = {"place": POINT, "far": POINT, "s": {"p": POINT, "n": 1}, "l": [POINT, None], "m": {"k": POINT}}
    rows = [wkb(found) for found in frame.orderBy("id").collect()]
    assert rows == [{"id": 1, **whole}, {"id": 2, **dict.fromkeys(whole)}, {"id": 3, **whole}]
    assert frame.where("place IS NOT NULL AND id > 1").select("id").collect() == [(3,)]
    if has_places:
        assert frame.selectExpr("st_srid(place) AS n").where("n = 4326").count() == 2
        sql = client.sql(spark, f"SELECT hex(st_asbinary(s.p)) AS p FROM {name} WHERE id = 1")
        assert sql.collect() == [(POINT.hex().upper(),)]
