"""Types that are not read refuse their columns, not the table; places on earth are read as well-known binary that says what it is."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import PredicateError, UnreadableColumnError, UnsupportedFeatureError
from delta_sharing_spark.schema.features import reader_features_header
from delta_sharing_spark.schema.types import (
    Array,
    Field,
    Map,
    Primitive,
    Spatial,
    Struct,
    Unreadable,
    parse_schema,
    schema_to_json,
    spark_schema_json,
)
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.refusals import not_refused

POINT = struct.pack("<BIdd", 1, 1, 1.0, 2.0)
PLACES = Struct(
    (
        Field("id", Primitive("long")),
        Field("place", Spatial()),
        Field("earth", Spatial("EPSG:4326", "KARNEY")),
        Field("s", Struct((Field("p", Spatial("SRID:0")), Field("n", Primitive("integer"))))),
    )
)


def one(kind: object) -> Any:
    fields = [{"name": "x", "type": kind, "nullable": True, "metadata": {}}]
    return parse_schema(json.dumps({"type": "struct", "fields": fields})).fields[0].type


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("geometry", Spatial()),
        ("GEOMETRY( EPSG:3857 )", Spatial("EPSG:3857")),
        ("geometry(OGC:CRS84, SPHERICAL)", Unreadable("geometry(OGC:CRS84, SPHERICAL)")),
        ("geometry(4326)", Unreadable("geometry(4326)")),
        ("geography", Spatial("OGC:CRS84", "SPHERICAL")),
        ("geography(vincenty)", Spatial("OGC:CRS84", "VINCENTY")),
        ("geography(EPSG:4326)", Spatial("EPSG:4326", "SPHERICAL")),
        ("geography(EPSG:4326,KARNEY)", Spatial("EPSG:4326", "KARNEY")),
        ("geography(EPSG:4326, RHUMB)", Unreadable("geography(EPSG:4326, RHUMB)")),
        ("timestamp_nanos", Unreadable("timestamp_nanos")),
        ("interval day to second", Unreadable("interval day to second")),
        ("decimal(39,0)", Unreadable("decimal(39,0)")),
        ({"type": "udt", "class": "X", "sqlType": "string"}, Unreadable("udt")),
    ],
    ids=str,
)
def test_types_of_schemas(text: object, kind: object) -> None:
    assert one(text) == kind
    if isinstance(kind, Spatial):
        assert one(str(kind)) == kind


def with_type(built: DeltaTableBuilder, before: str, after: str, feature: str | None = None) -> None:
    """Declare a column of another type in the log, which no writer here writes."""
    for log in (built.path / "_delta_log").glob("*.json"):
        text = log.read_text(encoding="utf-8").replace(f'\\"{before}\\"', f'\\"{after}\\"')
        if feature is not None:
            text = text.replace('"readerFeatures":[', f'"readerFeatures":["{feature}",')
        log.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("timestamp_nanos", "timestampNanos"),
        ("interval year to month", "intervalTypes"),
        ("hologram", None),
    ],
)
def test_a_column_of_such_a_type_is_refused_and_the_others_are_read(
    server: SharingServer, tmp_path: Path, mode: str, name: str, feature: str | None
) -> None:
    schema = pa.schema(
        {
            "id": pa.int64(),
            "at": pa.binary(),
            "s": pa.struct({"a": pa.int32(), "at": pa.binary()}),
            "l": pa.list_(pa.binary()),
        }
    )
    built = DeltaTableBuilder(tmp_path / "t", schema, features=["vacuumProtocolCheck"])
    built.append([{"id": 1, "s": {"a": 2}}, {"id": 3}])
    with_type(built, "binary", name, feature)
    table = f"s.d.{mode}_{(feature or name).lower()}"
    server.add_table(table, built.path, access_modes=(mode,))
    shared = SharingClient(server.profile()).table(table)

    def refusal(load: Scan) -> tuple[str, str, tuple[str, ...], str]:
        with pytest.raises(UnreadableColumnError) as refused:
            load.to_arrow()
        return refused.value.column, refused.value.kind, refused.value.readable, str(refused.value)

    loads = (shared.scan(), shared.scan(columns=["at"]), shared.scan(columns=["id"], where="at IS NULL"))
    text = (
        f"column 'at' of {table} has the type {name!r}, which this reader does not read; name the columns to read, as in "
        f"columns='id,s.a' (it has id, s.a), or upgrade delta-sharing-spark"
    )
    assert [refusal(load) for load in loads] == [("at", name, ("id", "s.a"), text)] * 3
    columns = [refusal(shared.select(path))[3].partition(" of ")[0] for path in ("s", "s.at", "l")]
    assert columns == ["column 's.at'", "column 's.at'", "column 'l.element'"]
    assert shared.select("id", "s.a").to_arrow().to_pylist() == [{"id": 1, "s": {"a": 2}}, {"id": 3, "s": None}]
    assert shared.scan(columns=["id"], where="s.a = 2").to_arrow()["id"].to_pylist() == [1]
    # A count needs no column of theirs.
    assert (shared.count(), shared.scan(where="id = 3").count(), shared.limit(1).count()) == (2, 1, 1)
    counts = (shared.scan(where="at IS NULL").count, shared.select("at").count, shared.select("id", "at").count)
    assert not_refused(UnreadableColumnError, "column 'at' of ", *counts) == []


def test_a_feature_that_nobody_knows_refuses_the_table(server: SharingServer, tmp_path: Path) -> None:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()}), features=["rowOfNewKind"])
    server.add_table("s.d.unknown", built.path, access_modes=("dir",))
    with pytest.raises(UnsupportedFeatureError, match="rowOfNewKind"):
        SharingClient(server.profile()).table("s.d.unknown").scan(columns=["id"]).to_arrow()


def test_such_types_are_void_to_spark_where_a_query_is_planned() -> None:
    assert spark_schema_json(Struct((Field("x", Unreadable("hologram")),)))["fields"][0]["type"] == "void"
    assert schema_to_json(Struct((Field("x", Unreadable("hologram")),)))["fields"][0]["type"] == "hologram"


def test_the_capabilities_name_the_features() -> None:
    assert {"geospatial", "geospatial-dev", "timestampnanos", "intervaltypes"} <= set(
        reader_features_header().split(",")
    )


@pytest.fixture(scope="module")
def places(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    built = DeltaTableBuilder(tmp_path_factory.mktemp("places") / "t", PLACES)
    built.append([{"id": 1, "place": POINT, "earth": POINT, "s": {"p": POINT, "n": 1}}, {"id": 2}])
    assert built.protocol.reader_features == ("geospatial",)
    server.add_table("s.d.places", built.path, access_modes=("url", "dir"))
    return SharingClient(server.profile()).table("s.d.places")


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_places_are_geoarrow(places: Any, mode: str) -> None:
    rows = places.scan(accessMode=mode).to_arrow()
    assert rows["place"].to_pylist() == rows["earth"].to_pylist() == [POINT, None]
    inner = rows.schema.field("s").type.field("p"), rows["s"].type.field("p")
    fields = [rows.schema.field("place"), rows.schema.field("earth"), *inner]
    assert [field.type for field in fields] == [pa.binary()] * 4
    assert [field.metadata[b"ARROW:extension:name"] for field in fields] == [b"geoarrow.wkb"] * 4
    assert [json.loads(field.metadata[b"ARROW:extension:metadata"]) for field in fields] == [
        {"crs": "OGC:CRS84", "crs_type": "authority_code"},
        {"crs": "EPSG:4326", "crs_type": "authority_code", "edges": "karney"},
        {},
        {},
    ]


def test_places_in_conditions(places: Any) -> None:
    assert places.scan(where="place IS NULL").to_arrow()["id"].to_pylist() == [2]
    assert places.scan(where="s.p IS NOT NULL").to_arrow()["id"].to_pylist() == [1]
    with pytest.raises(PredicateError, match=r"GEOMETRY\(OGC:CRS84\) and BINARY do not compare"):
        places.scan(where="place = X'00'").to_arrow()


def test_duckdb_has_geometries_and_polars_an_extension_type(places: Any) -> None:
    pytest.importorskip("duckdb")
    kinds = dict(zip(*(getattr(places.to_duckdb(), what) for what in ("columns", "types")), strict=True))
    assert str(kinds["place"]).startswith("GEOMETRY")
    assert str(kinds["earth"]) == "BLOB"
    polars = pytest.importorskip("polars")
    assert places.to_polars()["id"].to_list() == places.lazy().collect()["id"].to_list() == [1, 2]
    assert polars.DataFrame(places.scan())["place"].is_null().to_list() == [False, True]


def test_geopandas_has_shapes_and_systems(places: Any) -> None:
    pytest.importorskip("geopandas")
    frame = places.select("id", "place").to_geopandas()
    assert frame.crs is not None
    assert str(frame["place"][0]) == "POINT (1 2)"
    assert frame["place"][1] is None


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_voids_that_stand_in_files(server: SharingServer, tmp_path: Path, mode: str) -> None:
    """Delta's ``materializedVoidType``: Parquet's UNKNOWN tells which structs are NULL and how long arrays are; older files lack the columns."""
    void = Primitive("void")
    schema = Struct(
        (
            Field("id", Primitive("long")),
            Field("v", void),
            Field("s", Struct((Field("a", void),))),
            Field("l", Array(void)),
            Field("m", Map(Primitive("string"), void)),
        )
    )
    built = DeltaTableBuilder(tmp_path / "t", schema, features=["materializedVoidType"])
    kinds = {"s": pa.struct({"a": pa.null()}), "l": pa.list_(pa.null()), "m": pa.map_(pa.string(), pa.null())}
    rows = {"s": [{"a": None}, None], "l": [[None, None], []], "m": [[("k", None)], None]}
    materialized = {name: pa.array(values, kinds[name]) for name, values in rows.items()}
    built.append_physical(pa.table({"id": [1, 2], "v": pa.nulls(2), **materialized}))
    built.append_physical(pa.table({"id": [3]}))
    server.add_table(f"s.d.voids_{mode}", built.path, access_modes=(mode,))
    found = SharingClient(server.profile()).table(f"s.d.voids_{mode}").to_arrow()
    assert sorted(found.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "v": None, **{name: values[0] for name, values in rows.items()}},
        {"id": 2, "v": None, **{name: values[1] for name, values in rows.items()}},
        {"id": 3, "v": None, "s": None, "l": None, "m": None},
    ]
    assert found.schema.field("l").type.value_type == pa.null()
