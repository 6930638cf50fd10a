"""Reads Iceberg tables that pyiceberg wrote, by the catalog of an embedded server; what the catalog says is obeyed or refused."""

from __future__ import annotations

import json
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform, TruncateTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import (
    AccessModeError,
    CorruptFileError,
    CredentialError,
    DeltaSharingError,
    ForbiddenError,
    NotFoundError,
    OptionError,
    RequestRefusedError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.testing.server import SharingServer
from support.drawn_iceberg import Column
from support.shared_iceberg import SharedIceberg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from delta_sharing_spark.testing.server.iceberg_catalog import IcebergTable


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    made = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake")
    made.create_namespace("db")
    return made


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running


def shared(server: SharingServer, table: Any, name: str = "s.db.t") -> IcebergTable:
    location = table.metadata_location
    return server.add_iceberg_table(name, location.removeprefix("file://"), location)


def client_of(server: SharingServer) -> SharingClient:
    return SharingClient(server.profile(), retryTimeout="1ms")


ROWS = pa.table(
    {
        "id": pa.array(range(40), pa.int32()),
        "name": [None if n % 7 == 0 else f"name {n % 5}" for n in range(40)],
        "day": [date(1969, 12, 1 + n % 31) if n % 2 else date(2020, 1 + n % 12, 1) for n in range(40)],
        "moment": pa.array([datetime(1969 + n % 3, 12, 31, n % 24, 1) for n in range(40)], pa.timestamp("us")),
        "zoned": pa.array([datetime(1969 + n % 3, 1, 1, n % 24, tzinfo=timezone.utc) for n in range(40)], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal(n) / 4 - 3 for n in range(40)], pa.decimal128(9, 2)),
    }
)  # fmt: skip
SCHEMA = Schema(
    NestedField(1, "id", IntegerType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "day", DateType()),
    NestedField(4, "moment", TimestampType()),
    NestedField(5, "zoned", TimestamptzType()),
    NestedField(6, "price", DecimalType(9, 2)),
)
CONDITIONS = [
    "id = 7", "id BETWEEN 10 AND 12", "name = 'name 3'", "name IS NULL", "name > 'name 2'", "name LIKE 'name 1%'",
    "day < DATE'1969-12-10'", "day = DATE'2020-05-01'", "moment < TIMESTAMP_NTZ'1970-01-01 00:00:00'",
    "moment >= TIMESTAMP_NTZ'1970-12-31 12:00:00'", "zoned = TIMESTAMP'1970-01-01 04:00:00Z'", "price < -1.5", "price = 2.25",
    "id = 7 OR name = 'name 3'", "NOT (id > 5)", "day > DATE'2020-06-01' AND id IN (6, 30, 31)",
    "NOT (name = 'name 3')", "(name = 'name 3') IS NULL", "(name IN ('name 1', 'name 4')) IS NOT TRUE", "id NOT IN (1, 2, 3)",
    "name IN ('name 1', 'nobody') AND NOT (id IN (1, 2, 30))",
]  # fmt: skip
TRANSFORMS = [
    (), ((1, IdentityTransform()),), ((2, IdentityTransform()),), ((3, IdentityTransform()),), ((4, IdentityTransform()),),
    ((6, IdentityTransform()),), ((1, BucketTransform(4)),), ((3, DayTransform()),), ((4, DayTransform()),),
    ((5, MonthTransform()),), ((2, TruncateTransform(6)),), ((1, TruncateTransform(10)),), ((6, TruncateTransform(100)),),
    ((3, MonthTransform()), (1, BucketTransform(2))), ((2, BucketTransform(3)), (1, BucketTransform(2))),
    ((4, BucketTransform(3)),), ((5, BucketTransform(3)), (6, BucketTransform(2))),
]  # fmt: skip


@pytest.mark.parametrize("parts", TRANSFORMS, ids=str)
def test_conditions_lose_no_row_whatever_the_partitions(
    catalog: SqlCatalog, server: SharingServer, parts: tuple[tuple[int, Any], ...]
) -> None:
    fields = [PartitionField(source, 1000 + n, transform, f"p{n}") for n, (source, transform) in enumerate(parts)]
    table = catalog.create_table(
        "db.t",
        SCHEMA,
        partition_spec=PartitionSpec(*fields),
        properties={"format-version": str(1 + TRANSFORMS.index(parts) % 2)},
    )
    for start in (0, 20):
        table.append(ROWS.slice(start, 20))
    shared(server, table)
    client = client_of(server)
    assert rows(client.table("s.db.t").to_arrow()) == rows(table.scan().to_arrow()) == rows(ROWS)
    scans = {condition: client.table("s.db.t").scan(where=condition) for condition in CONDITIONS}
    assert {condition: rows(scan.to_arrow()) for condition, scan in scans.items()} == {
        condition: by_duckdb(condition) for condition in CONDITIONS
    }


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("says_ids", [True, False])
def test_partition_fields_of_any_name(catalog: SqlCatalog, server: SharingServer, version: str, says_ids: bool) -> None:
    """Avro spells names otherwise that have other characters than its own: fields are found by their ids."""
    schema = Schema(NestedField(1, "my part-\u00e9", LongType()), NestedField(2, "n", LongType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, IdentityTransform(), "my part-\u00e9"),
        PartitionField(2, 1001, BucketTransform(2), "9b"),
    )
    table = catalog.create_table("db.t", schema, partition_spec=spec, properties={"format-version": version})
    values = pa.table({"my part-\u00e9": [1, 1, 2, None, 3], "n": [1, 2, 3, 4, None]}, schema.as_arrow())
    table.append(values)
    found = shared(server, table)
    if not says_ids:
        edited(lambda tree: [field.pop("field-id") for spec in tree["partition-specs"] for field in spec["fields"]])(
            found
        )
    source = client_of(server).table("s.db.t")
    assert rows(source.to_arrow()) == rows(values)
    scan = source.scan(where="`my part-\u00e9` = 1 AND n = 2")
    assert scan.to_arrow().to_pylist() == [{"my part-\u00e9": 1, "n": 2}]
    assert len(scan.plan().files) == 1
    assert source.scan(where="n IS NULL").to_arrow()["my part-\u00e9"].to_pylist() == [3]


@cache
def by_duckdb(condition: str) -> list[str]:
    import duckdb

    sql = condition.replace("TIMESTAMP_NTZ'", "TIMESTAMP'").replace(
        "TIMESTAMP'1970-01-01 04:00:00Z'", "TIMESTAMPTZ'1970-01-01 04:00:00Z'"
    )
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    numbered = ROWS.append_column("place", pa.array(range(len(ROWS))))
    database.register("numbered", numbered)
    places = [place for (place,) in database.execute(f"SELECT place FROM numbered WHERE {sql}").fetchall()]
    return rows(ROWS.take(places))


def rows(table: Any) -> list[str]:
    return sorted(map(repr, (tuple(row.items()) for row in table.to_pylist())))


def plain(catalog: SqlCatalog, **properties: str) -> Any:
    table = catalog.create_table("db.t", Schema(NestedField(1, "id", LongType())), properties=properties)
    table.append(pa.table({"id": pa.array(range(10), pa.int64())}))
    return table


@pytest.mark.parametrize("transform", [None, IdentityTransform(), BucketTransform(64), TruncateTransform(10)], ids=str)
def test_fields_of_structs_leave_files_out(catalog: SqlCatalog, server: SharingServer, transform: Any) -> None:
    struct = StructType(NestedField(3, "x", IntegerType()), NestedField(4, "y", StringType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", struct))
    fields = [] if transform is None else [PartitionField(3, 1000, transform, "p")]
    table = catalog.create_table("db.t", schema, partition_spec=PartitionSpec(*fields))
    values: list[dict[str, Any] | None] = [{"x": n, "y": f"y{n}"} for n in (1, 1, 20, 300)]
    values += [None, {"x": None, "y": "y5"}]
    for n, value in enumerate(values):
        table.append(pa.Table.from_pylist([{"id": n, "s": value}], schema=schema.as_arrow()))
    shared(server, table)
    source = client_of(server).table("s.db.t")
    expected = {"s.x = 20": [2], "s.x IN (1, 7)": [0, 1], "s.x IS NULL": [4, 5], "s.x > 20": [3], "s.x < 0": [],
                "s.y = 'y300'": [3], "NOT (s.x = 1)": [2, 3]}  # fmt: skip
    scans = {where: source.scan(where=where) for where in expected}
    assert {where: sorted(scan.to_arrow()["id"].to_pylist()) for where, scan in scans.items()} == expected
    # pyiceberg tells no bounds of them, so only partitions do; a bucket tells nothing of what lies between.
    opened = [len(scans[where].plan().files) for where in ("s.x = 20", "s.x IN (1, 7)")]
    assert transform is None or opened == [1, 2]


def test_bounds_of_fields_of_structs_leave_files_out(tmp_path: Path) -> None:
    columns = [Column(1, "id", "int"), Column(2, "s", [Column(3, "x", "int")])]
    with SharedIceberg(tmp_path, columns) as lake:
        for n, struct in enumerate(({3: 1}, {3: 20}, {3: None}, None)):
            lake.writer.insert([{1: n, 2: struct}], metrics="truncated" if struct is None else "full")
        lake.writer.commit()
        # The file whose struct is NULL tells no NULL of the field, as some writers have it, and stays.
        source = lake.client().table("s.db.t")
        expected = {"s.x = 20": ([1], 2), "s.x < 20": ([0], 2), "s.x IS NULL": ([2, 3], 4), "s.x <> 1": ([1], 2)}
        scans = {where: source.scan(where=where) for where in expected}
        assert expected == {
            where: (sorted(scan.to_arrow()["id"].to_pylist()), len(scan.plan().files)) for where, scan in scans.items()
        }


def test_few_files_of_many_are_opened(catalog: SqlCatalog, server: SharingServer) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", IntegerType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    table = catalog.create_table("db.t", schema, partition_spec=spec)
    for start in range(3):
        values = range(start * 20, start * 20 + 20)
        table.append(
            pa.table({"id": pa.array(values, pa.int64()), "part": pa.array([v // 5 for v in values], pa.int32())})
        )
    shared(server, table)
    explained = client_of(server).table("s.db.t").scan(where="part = 5").explain()
    assert "iceberg" in str(explained)
    plan = client_of(server).table("s.db.t").scan(where="part = 5 AND id = 27")
    assert plan.to_arrow().to_pydict() == {"id": [27], "part": [5]}


def test_a_column_of_a_name_that_was_dropped_is_another_one(catalog: SqlCatalog, server: SharingServer) -> None:
    """Schemas that look alike do not share what was found out about a file's columns."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "x", LongType()))
    table = catalog.create_table("db.t", schema)
    table.append(pa.table({"id": pa.array([1], pa.int64()), "x": pa.array([10], pa.int64())}))
    first = table.current_snapshot().snapshot_id
    with table.update_schema() as update:
        update.delete_column("x")
    with table.update_schema() as update:
        update.add_column("x", LongType())
    shared(server, catalog.load_table("db.t"))
    source = client_of(server).table("s.db.t")
    for _ in range(2):
        assert source.scan(version=first).to_arrow().to_pylist() == [{"id": 1, "x": 10}]
        assert source.to_arrow().to_pylist() == [{"id": 1, "x": None}]


def test_executors_of_carry_profile_false_cannot_ask(catalog: SqlCatalog, server: SharingServer) -> None:
    import pickle

    shared(server, plain(catalog))
    kept, carried = (client_of(server).table("s.db.t").scan(carryProfile=carry).plan() for carry in (False, True))
    assert server.token not in repr(carried.access)
    assert server.token.encode() not in pickle.dumps(kept.splits[0])
    assert server.token.encode() in pickle.dumps(carried.splits[0])


def test_a_token_of_an_own_identity_is_not_shown_to_another_host(server: SharingServer, tmp_path: Path) -> None:
    """The recipient confirms the endpoint; the catalog is named by the profile alone."""
    file = tmp_path / "token"
    file.write_text("own-token")
    profile = {
        "shareCredentialsVersion": 1,
        "endpoint": server.endpoint,
        "icebergEndpoint": "http://127.0.0.1:1/iceberg",
    }
    client = SharingClient(profile, bearerTokenFile=str(file), identityEndpoint=server.endpoint, accessMode="iceberg")
    with pytest.raises(AccessModeError, match="is not shown a token of your own identity or key"):
        client.table("s.db.t").to_arrow()


def test_a_table_that_is_also_delta_is_read_as_delta(
    catalog: SqlCatalog, server: SharingServer, tmp_path: Path
) -> None:
    from delta_sharing_spark.testing.tables import DeltaTableBuilder

    DeltaTableBuilder(tmp_path / "delta", pa.schema({"id": pa.int64()})).append([{"id": 77}])
    shared(server, plain(catalog))
    server.add_table("s.db.t", tmp_path / "delta", format="delta,iceberg")
    assert client_of(server).table("s.db.t").to_arrow().to_pydict() == {"id": [77]}
    assert server.count("iceberg") == 0
    assert client_of(server).table("s.db.t").scan(accessMode="iceberg").to_arrow().num_rows == 10


def test_a_profile_without_a_catalog_is_told_so(catalog: SqlCatalog, server: SharingServer) -> None:
    shared(server, plain(catalog))
    profile = {key: value for key, value in server.profile().items() if key != "icebergEndpoint"}
    with pytest.raises(AccessModeError, match="the profile names no Iceberg catalog"):
        SharingClient(profile).table("s.db.t").scan(accessMode="iceberg").to_arrow()
    with pytest.raises(UnsupportedFeatureError, match="does not have the address of the provider's Iceberg catalog"):
        SharingClient(profile).table("s.db.t").to_arrow()
    with pytest.raises(UnsupportedFeatureError, match="does not have the address of the provider's Iceberg catalog"):
        _ = SharingClient(profile).table("s.db.t").schema
    with pytest.raises(UnsupportedFeatureError, match="set accessMode to auto or iceberg"):
        client_of(server).table("s.db.t").scan(accessMode="url").to_arrow()


def test_a_ref_is_for_iceberg_alone(server: SharingServer, tmp_path: Path) -> None:
    from delta_sharing_spark.testing.tables import DeltaTableBuilder

    DeltaTableBuilder(tmp_path / "delta", pa.schema({"id": pa.int64()})).append([{"id": 77}])
    server.add_table("s.db.t", tmp_path / "delta")
    with pytest.raises(OptionError, match="'ref' names a branch or tag of an Iceberg table"):
        client_of(server).table("s.db.t").scan(ref="main").to_arrow()
    with pytest.raises(OptionError, match="'ref' does not go with 'gateway'"):
        SharingClient.over("grpc://127.0.0.1:1", token="t").table("s.db.t").scan(ref="main").to_arrow()
    with pytest.raises(OptionError, match="does not go with 'versionAsOf'"):
        client_of(server).table("s.db.t").scan(ref="main", versionAsOf=1).to_arrow()


@pytest.mark.parametrize(
    ("prefix_in", "overrides"),
    [("overrides", {}), ("defaults", {}), (None, {}), ("defaults", {"prefix": "shares/%73"})],
)
def test_the_prefix_may_stand_in_either_or_none_and_is_sent_as_it_is(
    catalog: SqlCatalog, server: SharingServer, prefix_in: str | None, overrides: dict[str, str]
) -> None:
    shared(server, plain(catalog))
    server.iceberg.prefix_in = prefix_in
    server.iceberg.overrides = {"uri": server.profile()["icebergEndpoint"] + "/", **overrides}
    assert client_of(server).table("s.db.t").to_arrow().num_rows == 10


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (401, UnauthenticatedError, "ask the provider for a new profile"),
        (403, ForbiddenError, "ask the provider of the share for access"),
        (404, NotFoundError, "check the names"),
        (419, UnauthenticatedError, "ask the provider for a new profile"),
        (406, RequestRefusedError, "406"),
        (502, UnavailableError, "502"),
        (503, UnavailableError, "503"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_own", [True, False])
def test_a_refusal_is_one_line(
    catalog: SqlCatalog, server: SharingServer, status: int, error: type[Exception], words: str, is_own: bool
) -> None:
    shared(server, plain(catalog))
    server.iceberg.refusal = status, is_own
    with pytest.raises(error, match=words) as raised:
        client_of(server).table("s.db.t").to_arrow()
    text = str(raised.value)
    assert "\n" not in text
    assert ("refused by the catalog" if is_own else "refused by a filter") in text
    assert "the Iceberg catalog answered" in text
    assert server.token not in text


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[IcebergTable], None]:
    def edit(table: IcebergTable) -> None:
        from pathlib import Path

        tree = json.loads(Path(table.metadata_path).read_text())
        change(tree)
        Path(table.metadata_path).write_text(json.dumps(tree))

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda tree: tree.update({"format-version": 4}), "of format version 4"),
        (lambda tree: tree["properties"].update({"encryption.key-id": "k"}), "an encrypted Iceberg table"),
        (lambda tree: tree.update({"encryption-keys": [{"key-id": "k"}]}), "an encrypted Iceberg table"),
    ],
)
def test_what_is_not_read_is_refused_by_name(catalog: SqlCatalog, server: SharingServer, edit: Any, words: str) -> None:
    edited(edit)(shared(server, plain(catalog)))
    with pytest.raises(UnsupportedFeatureError, match=words):
        client_of(server).table("s.db.t").to_arrow()


def test_keys_that_the_catalog_would_sign_with_are_refused(catalog: SqlCatalog, server: SharingServer) -> None:
    table = shared(server, plain(catalog))
    edited(lambda tree: tree.update({"location": "s3://lake/t"}))(table)
    table.metadata_location, table.config = "s3://lake/t/metadata/x.json", {"s3.remote-signing-enabled": "true"}
    with pytest.raises(UnsupportedFeatureError, match="would sign each request itself"):
        client_of(server).table("s.db.t").to_arrow()
    table.config = {}
    with pytest.raises(CredentialError, match="vends no credentials for s3://lake/t"):
        client_of(server).table("s.db.t").to_arrow()


@pytest.mark.parametrize("uri", ["https://elsewhere.example/iceberg", "file:///etc", "http://127.0.0.1:1/iceberg"])
def test_another_servers_uri_is_refused(catalog: SqlCatalog, server: SharingServer, uri: str) -> None:
    shared(server, plain(catalog))
    server.iceberg.overrides = {"uri": uri, "token": "stolen", "io-impl": "os.system", "py-io-impl": "os.system"}
    with pytest.raises(AccessModeError, match="another server, which is not shown the recipient's token"):
        client_of(server).table("s.db.t").to_arrow()


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("http://storage.example", "it is not https"),
        ("https://169.254.169.254", "an address of this machine or its network"),
        ("https://user@storage.example", "it names a user"),
    ],
)
def test_an_endpoint_that_is_no_storage_is_not_asked(
    catalog: SqlCatalog, server: SharingServer, endpoint: str, words: str
) -> None:
    table = shared(server, plain(catalog))
    table.config = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.endpoint": endpoint}
    with pytest.raises(AccessModeError, match=words):
        client_of(server).table("s.db.t").to_arrow()


def test_columns_of_other_types_refuse_themselves(catalog: SqlCatalog, server: SharingServer) -> None:
    from uuid import UUID

    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "u", UUIDType()), NestedField(3, "x", FixedType(3)),
        NestedField(4, "clock", TimeType()),
    )  # fmt: skip
    table = catalog.create_table("db.t", schema)
    one = UUID("12345678-1234-5678-1234-567812345678")
    table.append(
        pa.table(
            {"id": pa.array([1, 2], pa.int64()), "u": pa.array([one.bytes, None], pa.uuid()), "x": pa.array([b"abc", None], pa.binary(3)),
             "clock": pa.array([5, 6], pa.time64("us"))},
            schema=schema.as_arrow(),
        )
    )  # fmt: skip
    shared(server, table)
    client = client_of(server)
    with pytest.raises(UnsupportedFeatureError, match=r"'clock'.*time"):
        client.table("s.db.t").to_arrow()
    assert client.table("s.db.t").count() == 2
    assert client.table("s.db.t").scan(where="id > 1").count() == 1
    found = client.table("s.db.t").scan(columns=["id", "u", "x"]).to_arrow()
    assert found.to_pylist() == [{"id": 1, "u": str(one), "x": b"abc"}, {"id": 2, "u": None, "x": None}]


def test_manifests_may_stand_in_the_metadata_of_version_1(catalog: SqlCatalog, server: SharingServer) -> None:
    table = plain(catalog, **{"format-version": "1"})
    (manifest,) = table.current_snapshot().manifests(table.io)

    def without_list(tree: dict[str, Any]) -> None:
        (snapshot,) = tree["snapshots"]
        del snapshot["manifest-list"]
        snapshot["manifests"] = [manifest.manifest_path]

    found = shared(server, table)
    edited(without_list)(found)
    assert rows(client_of(server).table("s.db.t").to_arrow()) == rows(table.scan().to_arrow())
    edited(lambda tree: tree["partition-specs"].append({"spec-id": 1, "fields": []}))(found)
    assert rows(client_of(server).table("s.db.t").to_arrow()) == rows(table.scan().to_arrow())
    rewrite(manifest.manifest_path, lambda record: None)  # its header then tells no spec
    with pytest.raises(CorruptFileError, match="it does not tell its partition spec, and its table has several"):
        client_of(server).table("s.db.t").to_arrow()
    edited(lambda tree: tree["snapshots"][0].pop("manifests"))(found)
    with pytest.raises(DeltaSharingError, match="is malformed"):
        client_of(server).table("s.db.t").to_arrow()


def rewrite(path: str, change: Callable[[dict[str, Any]], None]) -> int:
    """Change each record of an Avro file; returns its new length."""
    import io
    from pathlib import Path

    import fastavro

    file = Path(path.removeprefix("file://"))
    reader = fastavro.reader(io.BytesIO(file.read_bytes()))
    records: Any = list(reader)
    for record in records:
        change(record)
    out = io.BytesIO()
    fastavro.writer(out, reader.writer_schema, records)
    return file.write_bytes(out.getvalue())


@pytest.mark.parametrize("name", ["ORC", "AVRO"])
def test_files_of_other_formats_are_refused_by_name(catalog: SqlCatalog, server: SharingServer, name: str) -> None:
    table = plain(catalog)
    shared(server, table)
    (manifest,) = table.current_snapshot().manifests(table.io)
    length = rewrite(manifest.manifest_path, lambda record: record["data_file"].update(file_format=name))
    rewrite(table.current_snapshot().manifest_list, lambda record: record.update(manifest_length=length))
    with pytest.raises(UnsupportedFeatureError, match=f"of the format {name}, and this reader reads Parquet"):
        client_of(server).table("s.db.t").to_arrow()


def test_errors_name_a_damaged_manifest(catalog: SqlCatalog, server: SharingServer) -> None:
    table = plain(catalog)
    shared(server, table)
    listed = table.current_snapshot().manifest_list
    with open(listed.removeprefix("file://"), "r+b") as file:
        file.write(b"not Avro")
    with pytest.raises(DeltaSharingError, match="is a damaged part of an Iceberg table"):
        client_of(server).table("s.db.t").to_arrow()
