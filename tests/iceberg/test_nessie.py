"""What pyiceberg writes by Nessie's catalog, beside pyiceberg's own answers after each step: a catalog of others, end to end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import CredentialError, NotFoundError
from delta_sharing_spark.testing.server import SharingServer
from iceberg.nessie import SHARE, Nessie, nessie

#: Text that locations, URLs and signatures each spell in their own way.
TEXTS = ("plain", "with space", "per%cent", "a/b=c", "ünï", "+&?#", None)
SCHEMA = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "part", StringType()),
    NestedField(3, "v", StringType()),
    NestedField(4, "s", StructType(NestedField(5, "a", IntegerType()), NestedField(6, "b", StringType()))),
)
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))


def rows(first: int, last: int) -> pa.Table:
    """Rows of the first schema."""
    return pa.Table.from_pylist(
        [
            {"id": n, "part": TEXTS[n % 7], "v": None if n % 5 == 0 else f"v{n % 4}", "s": {"a": n, "b": str(n)}}
            for n in range(first, last)
        ],
        SCHEMA.as_arrow(),
    )


def later_rows(table: Any, first: int, last: int) -> pa.Table:
    """Rows of the table's schema of now, after ``evolve``."""
    rows = [
        {"value": f"v{n % 4}", "id": n, "s": {"a": n, "c": n * 2}, "part": TEXTS[n % 7], "more": n}
        for n in range(first, last)
    ]
    return pa.Table.from_pylist(rows, table.schema().as_arrow())


def evolve(table: Any) -> None:
    """Rename, drop, promote, add, move, also within a struct."""
    with table.update_schema() as update:
        update.rename_column("v", "value")
        update.update_column("id", LongType())
        update.delete_column("s.b")
        update.add_column(("s", "c"), LongType())
        update.add_column("more", LongType())
    with table.update_schema() as update:
        update.move_first("value")
        update.move_after("part", "s")


def other_partitions(table: Any) -> None:
    with table.update_spec() as update:
        update.remove_field("part")
        update.add_field("id", BucketTransform(3), "bucket")


def drop_and_add_again(table: Any) -> None:
    """A column of the same name is another column."""
    with table.update_schema() as update:
        update.delete_column("more")
    with table.update_schema() as update:
        update.add_column("more", LongType())


#: What pyiceberg does to the table, in order; deletes rewrite files, for pyiceberg writes no delete files.
STEPS: dict[str, Callable[[Any], object]] = {
    "append": lambda table: table.append(rows(0, 40)),
    "append again": lambda table: table.append(rows(40, 60)),
    "delete rows": lambda table: table.delete("id < 5 or v = 'v3'"),
    "delete a partition": lambda table: table.delete("part = 'per%cent'"),
    "overwrite by a filter": lambda table: table.overwrite(rows(100, 120), overwrite_filter="id >= 50"),
    "upsert": lambda table: table.upsert(rows(15, 25), join_cols=["id"]),
    "evolve": evolve,
    "append to the later schema": lambda table: table.append(later_rows(table, 200, 230)),
    "other partitions": other_partitions,
    "append to the later partitions": lambda table: table.append(later_rows(table, 300, 330)),
    "delete across schemas and partitions": lambda table: table.delete("value = 'v1' or id > 325"),
    "drop and add again": drop_and_add_again,
    "append once more": lambda table: table.append(later_rows(table, 400, 410)),
    "overwrite all": lambda table: table.overwrite(later_rows(table, 500, 520), overwrite_filter=AlwaysTrue()),
    "delete all": lambda table: table.delete("id >= 0"),
}


class WithLastColumn(HTTPAdapter):
    """Adds to a new schema the id of its last column, which this Nessie asks for and pyiceberg does not send any more."""

    def send(self, request: PreparedRequest, *args: Any, **kwargs: Any) -> Response:
        if request.method == "POST" and b'"add-schema"' in (body := _bytes(request.body)):
            tree = json.loads(body)
            for update in tree["updates"]:
                if update["action"] == "add-schema":
                    update["last-column-id"] = Schema.model_validate(update["schema"]).highest_field_id
            request.prepare_body(json.dumps(tree), None)
        return super().send(request, *args, **kwargs)


def _bytes(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else body or b""


@dataclass
class Place:
    """The catalog as its writer has it, and the client of a recipient."""

    server: Nessie
    writer: RestCatalog
    sharing: SharingServer

    @property
    def profile(self) -> dict[str, Any]:
        return {**self.sharing.profile(), "icebergEndpoint": self.server.uri}

    @property
    def client(self) -> SharingClient:
        return SharingClient(self.profile, retryTimeout="1ms")

    def table(self, name: str, version: int) -> Any:
        """A new table, which is shared as an Iceberg table alone."""
        self.sharing.add_table(f"{SHARE}.db.{name}", Path(__file__).parent, format="iceberg")
        properties = {"format-version": str(version)}
        return self.writer.create_table(("db", name), SCHEMA, partition_spec=SPEC, properties=properties)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    java_home = os.environ.get("NESSIE_JAVA_HOME")
    if java_home is None:
        pytest.skip("Nessie needs a Java of version 21 or newer (NESSIE_JAVA_HOME); nox -s iceberg finds one")
    with nessie(str(Path(java_home) / "bin" / "java")) as running, SharingServer() as sharing:
        writer = RestCatalog("nessie", uri=running.uri, warehouse=SHARE)
        writer._session.mount(running.uri, WithLastColumn())
        writer.create_namespace("db")
        yield Place(running, writer, sharing)
        assert not sharing.failures


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def conditions(table: pa.Table, draw: Random) -> Iterator[str]:
    """Conditions that pyiceberg and this project word and mean alike, by values of the table's columns."""
    for name in ("id", "part", "v", "value", "more"):
        if name not in table.column_names:
            continue
        values = [value for value in table[name].to_pylist() if value is not None]
        values = values or [0 if name in ("id", "more") else "none"]
        texts = [repr(value) for value in draw.sample(values, min(3, len(values)))]
        yield f"{name} {draw.choice(['=', '<', '>='])} {texts[0]}"
        yield f"{name} IN ({', '.join(texts)}) AND id > {draw.randrange(300)}"
        yield f"{name} IS {draw.choice(['NULL', 'NOT NULL'])}"


@pytest.mark.parametrize("version", [1, 2])
def test_each_step_is_read_as_pyiceberg_reads_it(place: Place, version: int) -> None:
    table, draw = place.table(f"t{version}", version), Random(version)
    found, expected = {}, {}
    for step, change in STEPS.items():
        change(table)
        shared = place.client.table(f"{SHARE}.db.t{version}")
        rows = table.scan().to_arrow()
        expected[step] = rows.column_names, sorted_rows(rows), rows.num_rows
        read = shared.to_arrow()
        found[step] = read.column_names, sorted_rows(read), shared.count()
        for condition in draw.sample(list(conditions(rows, draw)), 4):
            expected[step, condition] = sorted_rows(table.scan(row_filter=condition).to_arrow())
            found[step, condition] = sorted_rows(shared.scan(where=condition).to_arrow())
        columns = draw.sample(rows.column_names, 2)
        expected[(step, *columns)] = sorted_rows(rows.select(columns))
        found[(step, *columns)] = sorted_rows(shared.scan(columns=columns).to_arrow())
        for snapshot in table.snapshots():
            number = snapshot.snapshot_id
            expected[step, number] = sorted_rows(table.scan(snapshot_id=number).to_arrow())
            found[step, number] = sorted_rows(shared.scan(version=number).to_arrow())
    assert found == expected


@pytest.mark.parametrize("name", ["with space", "per%cent", "ünï"])
def test_names_that_urls_spell_otherwise(place: Place, name: str) -> None:
    place.table(name, 2).append(rows(0, 10))
    assert place.client.table(f"{SHARE}.db.`{name}`").to_arrow().num_rows == 10


def test_in_spark(place: Place, spark: Any, tmp_path: Path) -> None:
    """By the lane, the Python source, and the format."""
    (tmp_path / "p.share").write_text(json.dumps(place.profile))
    table = place.table("in_spark", 2)
    for step, change in STEPS.items():
        change(table)
        if step == "append once more":
            break
    expected = sorted_rows(table.scan().to_arrow())
    shared = place.client.table(f"{SHARE}.db.in_spark")
    frames = {engine: shared.scan().to_spark(spark, engine=engine) for engine in ("native", "python")}
    rows = {engine: sorted_rows(frame.toArrow()) for engine, frame in frames.items()}
    assert rows == dict.fromkeys(frames, expected)
    loaded = spark.read.format("deltaSharing").load(f"{tmp_path}/p.share#{SHARE}.db.in_spark")
    assert sorted_rows(loaded.toArrow()) == expected


def test_keys_that_open_nothing_any_more(place: Place) -> None:
    """They are asked for again, and what still is refused is told in one line without them."""
    place.table("revoked", 2).append(rows(0, 10))
    scan = place.client.table(f"{SHARE}.db.revoked").scan()
    place.server.revoke()
    try:
        with pytest.raises(CredentialError) as refused:
            scan.to_arrow()
    finally:
        place.server.grant("s3:*")
    assert "\n" not in str(refused.value)
    assert "ASIA" not in str(refused.value)
    place.server.grant("s3:GetObject")
    try:
        assert scan.to_arrow().num_rows == 10  # nothing is listed, and nothing is written
    finally:
        place.server.grant("s3:*")


def test_a_table_that_is_not_there(place: Place) -> None:
    place.sharing.add_table(f"{SHARE}.db.missing", Path(__file__).parent, format="iceberg")
    with pytest.raises(NotFoundError, match="missing"):
        place.client.table(f"{SHARE}.db.missing").to_arrow()
