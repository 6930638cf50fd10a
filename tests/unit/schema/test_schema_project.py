"""Which columns a load reads: by name, by a user's schema, merged with a predicate's."""

from __future__ import annotations

import pytest

from delta_sharing_spark.access.table_shape import TableShape, check_same
from delta_sharing_spark.errors import SchemaError
from delta_sharing_spark.schema.projections import merge, requested, select
from delta_sharing_spark.schema.types import Array, Field, Map, Primitive, Struct

LONG, STRING = Primitive("long"), Primitive("string")
POINT = Struct((Field("x", LONG, False), Field("y", LONG), Field("tag", STRING)))
TABLE = Struct(
    (
        Field("id", LONG, False, {"delta.columnMapping.physicalName": "p-id", "comment": "key"}),
        Field("Place", POINT),
        Field("a.b", STRING),
        Field("list", Array(POINT)),
        Field("map", Map(STRING, POINT)),
    )
)


def shown(schema: Struct) -> str:
    return str(schema).removeprefix("struct<").removesuffix(">")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["id"], "id:long"),
        (["PLACE"], f"Place:{POINT}"),
        (["place.y"], "Place:struct<y:long>"),
        (["place.y", "ID", "Place.X"], "Place:struct<y:long,x:long>,id:long"),
        (["a.b"], "a.b:string"),
        (["list"], f"list:array<{POINT}>"),
    ],
)
def test_columns_by_name(columns: list[str], expected: str) -> None:
    assert shown(select(TABLE, columns, "t")) == expected


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["idd"], "t has no column 'idd'; did you mean 'id'"),
        (["place.yy"], "no column 'yy'"),
        (["id.x"], "is of type long, it has no field 'x'"),
        (["list.x"], "it has no field 'x'"),
        (["id", "ID"], "named twice"),
        (["place", "place.x"], "named twice"),
        (["place.x", "place"], "named twice"),
        (["place.x", "place.X"], "named twice"),
        ([""], "no column ''"),
    ],
)
def test_columns_that_cannot_be(columns: list[str], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        select(TABLE, columns, "t")


def test_metadata_and_nullability_stay() -> None:
    (field,) = select(TABLE, ["ID"], "t").fields
    assert (field.name, field.nullable, field.physical_name, field.comment) == ("id", False, "p-id", "key")
    assert select(TABLE, ["place.x"], "t").fields[0].type == Struct((Field("x", LONG, False),))


def test_a_users_schema_keeps_its_spelling_order_and_nullability_and_finds_the_files_columns() -> None:
    user_schema = Struct(
        (
            Field("PLACE", Struct((Field("Y", LONG),))),
            Field("ID", LONG, True),
            Field("LIST", Array(Struct((Field("X", LONG),)))),
        )
    )
    got = requested(TABLE, user_schema, "t")
    assert got == user_schema
    assert [f.physical_name for f in got.fields] == ["Place", "p-id", "list"]
    place, listed = got.fields[0].type, got.fields[2].type
    assert isinstance(place, Struct)
    assert place.fields[0].physical_name == "y"
    assert isinstance(listed, Array)
    assert isinstance(listed.element, Struct)
    assert listed.element.fields[0].physical_name == "x"


@pytest.mark.parametrize(
    ("user_schema", "message"),
    [
        (Struct((Field("nope", LONG),)), "no column 'nope'"),
        (Struct((Field("id", STRING),)), "'id' of t is of type long, the given schema says string"),
        (Struct((Field("place", Struct((Field("z", LONG),))),)), "struct 'place' of t has no column 'z'"),
        (Struct((Field("map", Map(LONG, POINT)),)), r"'map\.key' of t is of type string"),
        (Struct((Field("list", Array(LONG)),)), r"'list\.element'"),
    ],
)
def test_a_users_schema_that_does_not_fit(user_schema: Struct, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        requested(TABLE, user_schema, "t")


def test_a_users_schema_that_names_a_column_twice() -> None:
    with pytest.raises(SchemaError, match="twice"):
        requested(TABLE, Struct((Field("id", LONG), Field("ID", LONG))), "t")


def test_merged_schemas_have_what_both_have() -> None:
    first = select(TABLE, ["place.y", "id"], "t")
    second = select(TABLE, ["a.b", "place.x", "id"], "t")
    assert shown(merge(first, second)) == "Place:struct<y:long,x:long>,id:long,a.b:string"


def test_a_hundred_thousand_columns_cost_what_ten_thousand_do_ten_times() -> None:
    """A quadratic way compares names by the billion, and ends by the suite's time-out."""
    fields = tuple(Field(f"c{i}", Primitive("long")) for i in range(100_000))
    schema, same = Struct(fields), Struct(fields)
    assert select(schema, schema.names, "t") == schema
    assert merge(schema, same) == schema
    assert requested(schema, same, "t") == schema
    shape = TableShape("id", schema, (), "none")
    check_same(shape, TableShape("id", same, (), "none"), "t")
