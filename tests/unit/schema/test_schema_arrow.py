"""Spark's Arrow schema, which PySpark's own function is the oracle of, and the schema JSON that Spark is given."""

from __future__ import annotations

import json
import pickle
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from delta_sharing_spark.errors import ResponseError, SchemaError, UnreadableColumnError, UnsupportedFeatureError
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.features import check_type_changes
from delta_sharing_spark.schema.projections import check_types, select
from delta_sharing_spark.schema.types import (
    MAX_DEPTH,
    PRIMITIVES,
    Array,
    DataType,
    Decimal,
    Field,
    Map,
    Primitive,
    Struct,
    parse_schema,
    schema_to_json,
    spark_schema_json,
    without_mapping,
)
from support.drawing import cases

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
METADATA = st.fixed_dictionaries(
    {},
    optional={
        "comment": st.text(max_size=5),
        "delta.columnMapping.id": st.integers(1, 99),
        "delta.columnMapping.physicalName": NAMES,
        "CURRENT_DEFAULT": st.just("no_such_function()"),
        "EXISTS_DEFAULT": st.just("1"),
        "delta.generationExpression": st.just("a + 1"),
        "__CHAR_VARCHAR_TYPE_STRING": st.just("char(3)"),
    },
)


@st.composite
def decimals(draw: Any) -> Decimal:
    precision = draw(st.integers(1, 38))
    return Decimal(precision, draw(st.integers(0, precision)))


def structs(inner: st.SearchStrategy[DataType], least: int = 0) -> st.SearchStrategy[Struct]:
    fields = st.builds(Field, NAMES, inner, st.booleans(), METADATA)
    unique = st.lists(fields, min_size=least, max_size=4, unique_by=lambda f: f.name.lower())
    return unique.map(lambda f: Struct(tuple(f)))


VOID = Primitive("void")
TYPES: st.SearchStrategy[DataType] = st.recursive(
    st.sampled_from(sorted(PRIMITIVES)).map(Primitive) | decimals(),
    lambda inner: (
        st.builds(Array, inner, st.booleans())
        | st.builds(Map, inner.filter(lambda k: k != VOID), inner, st.booleans())
        | structs(inner)
    ),
    max_leaves=8,
)
SCHEMAS = structs(TYPES, least=1)


@cases(200)
@given(SCHEMAS)
def test_the_arrow_schema_is_pysparks(schema: Struct) -> None:
    schema = parse_schema(json.dumps(schema_to_json(schema)))
    spark = to_arrow_schema(StructType.fromJson(spark_schema_json(schema)), timezone="UTC")
    # As Spark's worker compares them: the metadata that PySpark carries along in fields does not count.
    assert arrow_schema(schema).equals(spark)
    assert names_of(arrow_schema(schema)) == names_of(spark)


def test_pyspark_reads_the_collations_of_a_schema_more_than_once() -> None:
    """It changes the metadata that it is given."""
    schema = Struct((Field("c", Primitive("string"), metadata={"__COLLATIONS": {"c": "spark.UTF8_LCASE"}}),))
    assert StructType.fromJson(spark_schema_json(schema)) == StructType.fromJson(spark_schema_json(schema))


def names_of(kind: Any) -> list[Any]:
    """Field names at every level, which equality of lists and maps does not look at."""
    if isinstance(kind, pa.Schema | pa.StructType):
        return [(f.name, names_of(f.type)) for f in kind]
    if isinstance(kind, pa.MapType):
        return [(f.name, names_of(f.type)) for f in (kind.key_field, kind.item_field)]
    return [(kind.value_field.name, names_of(kind.value_type))] if isinstance(kind, pa.ListType) else []


@cases(100)
@given(SCHEMAS)
def test_json_round_trips_and_spark_sees_no_delta_metadata(schema: Struct) -> None:
    schema = parse_schema(json.dumps(schema_to_json(schema)))
    again = parse_schema(json.dumps(schema_to_json(schema)))
    assert again == schema
    assert schema_to_json(again) == schema_to_json(schema)
    text = json.dumps(spark_schema_json(schema), ensure_ascii=False)
    assert not re.search(r'"metadata": \{[^{}]*"(delta\.|CURRENT_DEFAULT|EXISTS_DEFAULT)', text)
    assert text.count('"__CHAR_VARCHAR_TYPE_STRING"') == json.dumps(schema_to_json(schema)).count(
        '"__CHAR_VARCHAR_TYPE_STRING"'
    )
    assert '"delta.columnMapping' not in json.dumps(schema_to_json(without_mapping(schema)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("int", Primitive("integer")),
        ("BIGINT", Primitive("long")),
        ("decimal", Decimal(10, 0)),
        ("decimal( 5 , 2 )", Decimal(5, 2)),
        ("varchar(5)", Primitive("string")),
        ("null", Primitive("void")),
    ],
)
def test_spellings_of_types(text: str, expected: DataType) -> None:
    schema = {"type": "struct", "fields": [{"name": "a", "type": text, "nullable": True, "metadata": {}}]}
    assert parse_schema(json.dumps(schema)).fields[0].type == expected


@pytest.mark.parametrize(
    "name",
    [
        "geography(4326)",
        "interval day to second",
        "time(6)",
        "timestamp_nanos",
        "decimal(39,0)",
        "decimal(2,3)",
        "decimal(" + "9" * 5000 + ",1)",
    ],
)
def test_loads_of_types_we_cannot_read_are_refused_by_name_and_column(name: str) -> None:
    inner = {"type": "struct", "fields": [{"name": "b", "type": name, "nullable": True, "metadata": {}}]}
    tree = {
        "type": "struct",
        "fields": [
            {"name": "a", "type": {"type": "array", "elementType": inner, "containsNull": True}},
            {"name": "ok", "type": "long"},
        ],
    }
    schema = parse_schema(json.dumps(tree), "t")
    with pytest.raises(UnreadableColumnError, match=r"'a\.element\.b' of t .*columns='ok'") as caught:
        check_types(schema, schema, "t")
    assert (caught.value.kind, caught.value.readable) == (name, ("ok",))
    check_types(select(schema, ["ok"], "t"), schema, "t")


@pytest.mark.parametrize(
    "text",
    ["", "[", "null", '"long"', "{}", '{"type": "struct"}', '{"type": "struct", "fields": [1]}', '{"type":"struct","fields":[{"name":"a"}]}',
     '{"type":"struct","fields":[{"name":"a","type":7}]}', '{"type":"struct","fields":[{"name":"a","type":{"type":"array"}}]}',
     '{"type":"struct","fields":[{"name":1,"type":"long"}]}', '{"type":"struct","fields":[{"name":"a","type":"long","nullable":"no"}]}',
     '{"type":"struct","fields":[{"name":"\\ud800","type":"long"}]}', '{"type":"struct","fields":[{"name":"a","type":"long","metadata":"x"}]}',
     '{"type":"struct","fields":[{"name":"a","type":"long","metadata":{"delta.columnMapping.physicalName":7}}]}',
     '{"type":"struct","fields":[{"name":"a","type":"long","metadata":{"delta.columnMapping.id":"x"}}]}',
     '{"type":"struct","fields":[{"name":"a","type":"long","metadata":{"delta.columnMapping.id":"٣"}}]}',
     '{"type":"struct","fields":[{"name":"a","type":"long","metadata":{"delta.columnMapping.id":true}}]}'],
)  # fmt: skip
def test_malformed_schemas_are_one_clear_error(text: str) -> None:
    with pytest.raises(ResponseError, match="t"):
        parse_schema(text, "t")


def test_ids_of_mapped_columns_as_text_are_numbers() -> None:
    """So delta-rs writes the ids of every column where an append adds one (``schema_mode="merge"``, 1.6.6)."""
    inner = {"name": "b", "type": "long", "metadata": {"delta.columnMapping.id": "12"}}
    outer = {"name": "a", "type": {"type": "struct", "fields": [inner]}, "metadata": {"delta.columnMapping.id": "1"}}
    field = parse_schema(json.dumps({"type": "struct", "fields": [outer]}), "t").fields[0]
    assert isinstance(field.type, Struct)
    assert (field.field_id, field.type.fields[0].field_id) == (1, 12)


def test_names_are_found_exactly_then_without_case() -> None:
    schema = Struct((Field("a", Primitive("long")), Field("A", Primitive("string")), Field("b", Primitive("date"))))
    assert schema.find("A") is schema.fields[1]
    assert schema.find("B") is schema.fields[2]
    assert schema.find("c") is None
    twice = Struct((Field("ab", Primitive("long")), Field("aB", Primitive("string"))))
    with pytest.raises(SchemaError, match="ambiguous"):
        twice.find("AB")


CHANGE = "delta.typeChanges"


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        *[(a, b, True) for a, b in [("byte", "short"), ("byte", "long"), ("short", "integer"), ("integer", "long")]],
        *[(a, "double", True) for a in ("byte", "short", "integer", "float")],
        *[(a, "decimal(10,0)", True) for a in ("byte", "short", "integer")],
        ("long", "decimal(20,0)", True),
        ("long", "decimal(22,2)", True),
        ("date", "timestamp_ntz", True),
        ("decimal(5,2)", "decimal(7,4)", True),
        ("decimal(5,2)", "decimal(7,5)", False),
        ("decimal(5,2)", "decimal(5,1)", False),
        *[(a, b, True) for a, b in [("byte", "decimal(4,1)"), ("short", "decimal(5,0)"), ("long", "decimal(19,0)")]],
        *[(a, b, False) for a, b in [("byte", "decimal(3,1)"), ("short", "decimal(4,0)"), ("long", "decimal(18,0)")]],
        ("integer", "decimal(10,1)", False),
        ("long", "double", False),
        ("long", "integer", False),
        ("double", "float", False),
        ("date", "timestamp", False),
        ("string", "variant", False),
        ("integer", None, False),
        ("integer", "interval", False),
    ],
)
def test_type_changes_are_checked_at_every_level(before: str, after: Any, allowed: bool) -> None:
    change = {
        CHANGE: [{"fromType": "byte", "toType": "short"}, {"fromType": before, "toType": after, "fieldPath": "element"}]
    }
    field = Field("x", Array(Primitive("long")), metadata=change)
    schema = Struct((Field("m", Map(Primitive("string"), Struct((field,)))),))
    if allowed:
        check_type_changes(schema, table="t")
    else:
        with pytest.raises(UnsupportedFeatureError, match=r"'m\.value\.x' of t") as caught:
            check_type_changes(schema, table="t")
        assert caught.value.features == ("typeWidening",)


def test_void_is_nullable_whatever_the_schema_says_and_no_key() -> None:
    tree = {"type": "array", "elementType": "void", "containsNull": False}
    schema = parse_schema(
        json.dumps(
            {
                "type": "struct",
                "fields": [{"name": n, "type": t, "nullable": False} for n, t in [("v", "void"), ("l", tree)]],
            }
        )
    )
    assert schema == Struct((Field("v", VOID), Field("l", Array(VOID), False)))
    key = {"type": "map", "keyType": "void", "valueType": "long"}
    schema = parse_schema(json.dumps({"type": "struct", "fields": [{"name": "m", "type": key}]}))
    with pytest.raises(UnreadableColumnError, match=r"'m\.key'"):
        check_types(schema, schema, "t")


_LEVEL = {
    "struct": ('{"type":"struct","fields":[{"name":"f","type":', ',"nullable":true,"metadata":{}}]}'),
    "array": ('{"type":"array","elementType":', ',"containsNull":true}'),
    "map": ('{"type":"map","keyType":"string","valueType":', ',"valueContainsNull":true}'),
}


def _nested(levels: int, kind: str) -> str:
    before, after = _LEVEL[kind]
    inner = before * levels + '"long"' + after * levels
    return f'{{"type":"struct","fields":[{{"name":"deep","type":{inner},"nullable":true,"metadata":{{}}}}]}}'


def _check(text: str) -> None:
    schema = parse_schema(text, "t")
    check_types(schema, schema, "t")


@pytest.mark.parametrize("kind", ["struct", "array", "map"])
@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, 150, 450, 100_000])
def test_nesting_has_a_limit_that_everything_can_hold(kind: str, levels: int) -> None:
    if levels >= MAX_DEPTH:
        # Of the column alone, as far as Python reads the text at all.
        with pytest.raises(UnsupportedFeatureError, match=r"deeper than 64 levels|'deep\..*' of t .*within 64 others"):
            _check(_nested(levels, kind))
        return
    schema = parse_schema(_nested(levels, kind), "t")
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert parse_schema(json.dumps(schema_to_json(schema))) == schema
    assert arrow_schema(schema).names == ["deep"]
    assert len(str(schema)) > levels
