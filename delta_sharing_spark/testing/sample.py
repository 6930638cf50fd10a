"""The demonstration's tables: a small one, a large one in sorted files, one with a history, nested ones, all types."""

from __future__ import annotations

import datetime
import decimal
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.schema.types import Array, DataType, Decimal, Field, Map, Primitive, Struct
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

SHARE, SCHEMA = "demo", "city"
#: Rows of ``demo.city.trips``.
TRIPS = 2_000_000

_STATIONS = (
    ("Harbour", "Lisbon", 38.7057, -9.1448, 24),
    ("Old Market", "Lisbon", 38.7139, -9.1334, 18),
    ("Nørreport", "Copenhagen", 55.6831, 12.5716, 40),
    ("Amager", "Copenhagen", 55.6574, 12.6026, 22),
    ("Marienplatz", "München", 48.1374, 11.5755, 36),
    ("Isartor", "München", 48.1340, 11.5820, None),
    ("Ginza", "東京", 35.6717, 139.7650, 64),
    ("Ueno", "東京", 35.7141, 139.7774, 48),
)
#: Files of the sample's volume, model and skill.
_ASSETS = {
    "raw/weather/2026-01.csv": "day,rain\n2026-01-01,3.5\n2026-01-02,0.0\n",
    "raw/weather/2026-02.csv": "day,rain\n2026-02-01,1.0\n",
    "raw/notes.json": '{"station": "Harbour", "note": "closed on Mondays"}\n',
    "fare/model.json": '{"base": 1.5, "per_minute": 0.2}\n',
    "trip-report/SKILL.md": "---\nname: trip-report\ndescription: Writes a report of a day's trips\n---\n",
}
_CITIES = ("Copenhagen", "Lisbon", "München", "東京")
_PAYMENTS = ("card", "cash", "pass")


@dataclass(frozen=True, slots=True)
class SampleTable:
    """A table of the sample: its name in the share, its directory, how many rows it has, and what it shows."""

    name: str
    path: str
    rows: int
    comment: str

    def __str__(self) -> str:
        return f"{SHARE}.{SCHEMA}.{self.name}"


def write_sample(directory: str | os.PathLike[str], *, trips: int = TRIPS) -> list[SampleTable]:
    """Write the five tables below ``directory``; the rows are the same each time.

    ``stations`` is small. ``trips`` is large, partitioned by city and sorted by time, so that a condition on ``started``
    skips files. ``customers`` is nested. ``bicycles`` has four versions, a change data feed and a deletion vector.
    ``types`` has a column of each type.

    Args:
        directory: Where; made if absent.
    """
    root = Path(directory)
    return [
        _stations(root / "stations"),
        _trips(root / "trips", trips),
        _customers(root / "customers"),
        _bicycles(root / "bicycles"),
        _types(root / "types"),
    ]


def share_sample(server: SharingServer, directory: str | os.PathLike[str], *, trips: int = TRIPS) -> list[SampleTable]:
    """Write the sample below ``directory`` and share it on ``server``, in both access modes; and a volume, a model and a skill.

    Args:
        server: A server that runs.
        directory, trips: As :func:`write_sample`.
    """
    tables = write_sample(directory, trips=trips)
    for table in tables:
        server.add_table(str(table), table.path, access_modes=("url", "dir"), comment=table.comment)
    assets = Path(directory) / "assets"
    for name, text in _ASSETS.items():
        (assets / name).parent.mkdir(parents=True, exist_ok=True)
        (assets / name).write_text(text, encoding="utf-8")
    server.add_volume(f"{SHARE}.{SCHEMA}.raw", assets / "raw")
    server.add_model(f"{SHARE}.{SCHEMA}.fare", assets / "fare", 1, aliases=("champion",), comment="Fare by minutes")
    server.add_skill(f"{SHARE}.{SCHEMA}.trip-report", assets / "trip-report", "Writes a report of a day's trips")
    return tables


def _described(schema: pa.Schema, *required: str, **comments: str) -> pa.Schema:
    """The schema with the columns ``required`` NOT NULL, and with comments."""
    fields = [field.with_nullable(field.name not in required) for field in schema]
    return pa.schema([f.with_metadata({"comment": comments[f.name]}) if f.name in comments else f for f in fields])


def _stations(path: Path) -> SampleTable:
    places = [("station", pa.string()), ("city", pa.string()), ("latitude", pa.float64()), ("longitude", pa.float64())]
    schema = pa.schema([*places, ("docks", pa.int32()), ("opened", pa.date32())])
    notes = {"station": "Name of the station", "docks": "Places for bicycles, if known"}
    days = [datetime.date(2021, 3, 1) + datetime.timedelta(days=97 * number) for number in range(len(_STATIONS))]
    rows = [dict(zip(schema.names, (*station, day), strict=True)) for station, day in zip(_STATIONS, days, strict=True)]
    described = _described(schema, "station", "city", **notes)
    DeltaTableBuilder(path, described, description="Bicycle stations").append(rows)
    return SampleTable("stations", str(path), len(rows), "Bicycle stations: a small table")


def _trips(path: Path, rows: int) -> SampleTable:
    draw = np.random.default_rng(20261121)
    numbers = np.arange(rows, dtype=np.int64)
    seconds = draw.integers(60, 7200, rows, dtype=np.int32)
    kilometres = np.round(seconds / 3600 * draw.uniform(8, 22, rows), 2)
    start = int(datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc).timestamp()) * 1_000_000
    started = start + (numbers * (365 * 86_400_000_000 // max(rows, 1)))
    ratings = draw.integers(1, 6, rows).astype(np.float32)
    data = pa.table(
        {
            "trip": numbers,
            "city": _texts(_CITIES, draw.integers(0, len(_CITIES), rows, dtype=np.int8)),
            "started": pa.array(started).cast(pa.timestamp("us", tz="UTC")),
            "seconds": seconds,
            "kilometres": kilometres,
            "fare": _cents(100 + seconds.astype(np.int64) * 2),
            "payment": _texts(_PAYMENTS, draw.integers(0, len(_PAYMENTS), rows, dtype=np.int8)),
            "member": draw.random(rows) < 0.4,
            "rating": pa.array(ratings, mask=draw.random(rows) < 0.7),
        }
    )
    schema = _described(
        data.schema,
        "trip",
        trip="Number of the trip",
        city="Partition",
        started="Ascending: the files of a city follow each other",
        rating="One to five; most riders give none",
    )
    style = FileStyle(keep_rows=False, row_group_size=131_072)
    DeltaTableBuilder(path, schema, ["city"], style=style, description="Bicycle trips").append(data, files=4)
    return SampleTable("trips", str(path), rows, "Bicycle trips, partitioned by city, in files sorted by time")


def _texts(values: tuple[str, ...], codes: npt.NDArray[np.int8]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(values)).cast(pa.string())


def _cents(values: npt.NDArray[np.int64]) -> pa.Array:
    """Hundredths as ``decimal(8,2)``, without a Python object for each."""
    words = np.zeros((len(values), 2), dtype="<i8")
    words[:, 0] = values
    return pa.Array.from_buffers(pa.decimal128(8, 2), len(values), [None, pa.py_buffer(words)])


def _customers(path: Path) -> SampleTable:
    geo = pa.struct([("latitude", pa.float64()), ("longitude", pa.float64())])
    columns = {
        "customer": pa.int64(),
        "name": pa.string(),
        "address": pa.struct([("street", pa.string()), ("city", pa.string()), ("geo", geo)]),
        "phones": pa.list_(pa.string()),
        "preferences": pa.map_(pa.string(), pa.string()),
        "rides": pa.list_(pa.struct([("trip", pa.int64()), ("fare", pa.decimal128(8, 2))])),
        "joined": pa.timestamp("us", tz="UTC"),
    }
    schema = _described(pa.schema(columns), "customer")
    rows = [_customer(number) for number in range(1000)]
    DeltaTableBuilder(path, schema, description="Customers").append(rows)
    return SampleTable(
        "customers", str(path), len(rows), "Customers: structs, arrays and maps, with nulls at each level"
    )


def _customer(number: int) -> dict[str, object]:
    station, city, latitude, longitude, _ = _STATIONS[number % len(_STATIONS)]
    geo = None if number % 5 == 0 else {"latitude": latitude, "longitude": longitude}
    cents = (number * 37 % 5000, number * 53 % 5000)
    return {
        "customer": number,
        "name": None if number % 11 == 0 else f"Customer {number}",
        "address": None if number % 7 == 0 else {"street": f"{station} {number % 90 + 1}", "city": city, "geo": geo},
        "phones": None if number % 6 == 0 else [f"+351 555 {number:04d}", None][: number % 3],
        "preferences": None if number % 4 == 0 else {"language": "pt", "bicycle": None if number % 3 else "cargo"},
        "rides": None
        if number % 9 == 0
        else [{"trip": number, "fare": decimal.Decimal(c).scaleb(-2)} for c in cents[: number % 3]],
        "joined": datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc) + datetime.timedelta(hours=7 * number),
    }


#: The days on which the versions of ``demo.city.bicycles`` were committed, at noon UTC.
BICYCLE_DAYS = ("2026-01-05", "2026-02-02", "2026-03-02", "2026-04-06")


def _bicycles(path: Path) -> SampleTable:
    """Version 0 is empty, 1 buys twelve bicycles, 2 sends three to the workshop, 3 retires two by a deletion vector."""
    # The builder asks for the time of the table's creation, which is that of version 0, and of each version.
    days = iter((BICYCLE_DAYS[0], *BICYCLE_DAYS))

    def clock() -> int:
        return int(datetime.datetime.fromisoformat(f"{next(days)}T12:00:00+00:00").timestamp() * 1000)

    names = ("model", "station", "state")
    columns = pa.schema({"bicycle": pa.int64()} | dict.fromkeys(names, pa.string()))
    schema = _described(columns, "bicycle", station="Where it stands", state="ready or workshop")
    properties = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "true"}
    table = DeltaTableBuilder(
        path, schema, properties=properties, clock=clock, description="Bicycles and their history"
    )
    models = ("city", "cargo", "electric")
    bought = [(number, models[number % 3], _STATIONS[number % len(_STATIONS)][0], "ready") for number in range(1, 13)]
    rows = [dict(zip(schema.names, values, strict=True)) for values in bought]
    table.append(rows)
    table.update(
        pc.field("bicycle").isin([4, 8, 12]),
        lambda chosen: chosen.set_column(3, "state", pa.array(["workshop"] * chosen.num_rows, pa.string())),
    )
    table.delete(pc.field("bicycle").isin([3, 7]), deletion_vectors=True)
    return SampleTable("bicycles", str(path), 10, "Bicycles: four versions, a change data feed, a deletion vector")


def _types(path: Path) -> SampleTable:
    """A row of ordinary values, one of the extremes that every reader must hold, one of nulls."""
    utc = datetime.timezone.utc
    columns: list[tuple[str, DataType, object, object]] = [
        ("a_boolean", Primitive("boolean"), True, False),
        ("a_byte", Primitive("byte"), 7, -(2**7)),
        ("a_short", Primitive("short"), 700, 2**15 - 1),
        ("an_integer", Primitive("integer"), 70_000, -(2**31)),
        ("a_long", Primitive("long"), 7_000_000_000, 2**63 - 1),
        ("a_float", Primitive("float"), 1.5, float("inf")),
        ("a_double", Primitive("double"), 2.25, float("nan")),
        ("a_decimal", Decimal(38, 10), decimal.Decimal("12.3456789012"), decimal.Decimal(10**28 - 1)),
        ("a_string", Primitive("string"), "København", ""),
        ("a_binary", Primitive("binary"), b"\x00\xff", b""),
        ("a_date", Primitive("date"), datetime.date(2026, 1, 31), datetime.date(1582, 10, 15)),
        (
            "a_timestamp",
            Primitive("timestamp"),
            datetime.datetime(2026, 1, 31, 12, 30, 0, 123456, utc),
            datetime.datetime(1900, 1, 1, tzinfo=utc),
        ),
        (
            "a_timestamp_ntz",
            Primitive("timestamp_ntz"),
            datetime.datetime(2026, 1, 31, 12, 30),
            datetime.datetime(1900, 1, 1),
        ),
        ("an_array", Array(Primitive("integer")), [1, None, 3], []),
        ("a_struct", Struct((Field("name", Primitive("string")),)), {"name": "Ginza"}, {"name": None}),
        ("a_map", Map(Primitive("string"), Primitive("double")), {"north": 0.5, "south": None}, {}),
    ]
    schema = Struct(tuple(Field(name, kind, True, {"comment": str(kind)}) for name, kind, _, _ in columns))
    rows: list[dict[str, object]] = [{name: ordinary for name, _, ordinary, _ in columns}]
    rows += [{name: extreme for name, _, _, extreme in columns}, dict.fromkeys(schema.names)]
    DeltaTableBuilder(path, schema, description="A column of each type").append(rows)
    return SampleTable("types", str(path), len(rows), "A column of each type: ordinary values, extremes, nulls")
