"""Buckets of a partition (Iceberg, "Bucket Transform Details"), beside pyiceberg's: which one a value is in, and which files are opened."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, In
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from delta_sharing_spark.access.iceberg.buckets import bucket_of
from delta_sharing_spark.predicates.tree import Literal
from delta_sharing_spark.schema.types import DataType, Primitive
from delta_sharing_spark.schema.types import Decimal as DecimalOfDelta
from delta_sharing_spark.testing.server import SharingServer
from unit.access.test_iceberg import ROWS, SCHEMA, catalog, client_of, rows, server, shared

__all__ = ["catalog", "server"]

_EXACT = Context(prec=80)
_LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
#: By Iceberg's type: ours, values of ours, and the value of pyiceberg's that is the same one.
KINDS: dict[PrimitiveType, tuple[DataType, st.SearchStrategy[Any], Any]] = {
    IntegerType(): (Primitive("integer"), st.integers(-(1 << 31), (1 << 31) - 1), int),
    LongType(): (Primitive("long"), _LONGS, int),
    DateType(): (Primitive("date"), st.integers(-719_162, 2_932_896), int),
    TimestampType(): (Primitive("timestamp_ntz"), _LONGS, int),
    TimestamptzType(): (Primitive("timestamp"), _LONGS, int),
    StringType(): (Primitive("string"), st.text(), str),
    BinaryType(): (Primitive("binary"), st.binary(), bytes),
    UUIDType(): (Primitive("string"), st.uuids().map(str), lambda text: UUID(text).bytes),
    DecimalType(38, 9): (
        DecimalOfDelta(38, 9),
        st.integers(1 - 10**38, 10**38 - 1).map(lambda number: Decimal(number).scaleb(-9, _EXACT)),
        lambda value: value,
    ),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_is_in_the_bucket_that_the_specification_says(kind: PrimitiveType) -> None:
    ours, values, theirs = KINDS[kind]

    @given(values, st.integers(1, 1 << 31))
    def compared(value: Any, count: int) -> None:
        expected = BucketTransform(count).transform(kind)(theirs(value))
        assert bucket_of(Literal(value, ours), kind == UUIDType(), count) == expected

    compared()


@pytest.mark.parametrize("value", ["", "no UUID", "12345678", 1.0, True])
def test_what_is_no_uuid_is_in_no_bucket_that_is_known(value: Any) -> None:
    kind = Primitive("string" if isinstance(value, str) else "double")
    assert bucket_of(Literal(value, kind), isinstance(value, str), 4) is None


@pytest.mark.parametrize("source", [1, 2, 3, 4, 5, 6], ids=SCHEMA.find_column_name)
@pytest.mark.parametrize("is_one", [True, False], ids=["=", "IN"])
def test_as_few_files_are_opened_as_by_pyiceberg(
    catalog: SqlCatalog, server: SharingServer, source: int, is_one: bool
) -> None:
    """By partitions of files, and by the summaries of manifests that list some buckets each."""
    spec = PartitionSpec(PartitionField(source, 1000, BucketTransform(5), "p"))
    # Bounds would leave out nearly as many.
    table = catalog.create_table(
        "db.t", SCHEMA, partition_spec=spec, properties={"write.metadata.metrics.default": "none"}
    )
    for start in range(0, 40, 8):
        table.append(ROWS.slice(start, 8))
    shared(server, table)
    name = str(SCHEMA.find_column_name(source))
    values = [value for value in ROWS[name].to_pylist() if value is not None]
    several = values[3:4] if is_one else values[5:15:4]
    condition = EqualTo(name, _given(several[0])) if is_one else In(name, tuple(map(_given, several)))
    expected = table.scan(row_filter=condition)
    found = client_of(server).table("s.db.t").scan(where=f"{name} IN ({', '.join(map(_sql, several))})")
    assert rows(found.to_arrow()) == rows(expected.to_arrow())
    assert len(found.plan().files) == len(list(expected.plan_files())) < len(list(table.scan().plan_files()))


def _given(value: Any) -> Any:
    """A value as pyiceberg's conditions take it."""
    return value.isoformat() if isinstance(value, datetime) else value


def _sql(value: Any) -> str:
    if isinstance(value, datetime):
        return f"TIMESTAMP{'_NTZ' * (value.tzinfo is None)} '{value.replace(tzinfo=None)}{'Z' * (value.tzinfo == timezone.utc)}'"
    return f"'{value}'" if isinstance(value, str) else f"DATE '{value}'" if hasattr(value, "year") else str(value)


@pytest.mark.parametrize("transform", [IdentityTransform(), TruncateTransform(10)], ids=str)
def test_decimals_of_more_digits_than_pythons_context_has(
    catalog: SqlCatalog, server: SharingServer, transform: Any
) -> None:
    """A partition of 38 digits is not rounded to 28."""
    values = [Decimal("12345678901234567890123456789012345.67"), Decimal("-9999999999999999999999999999999999.99")]
    spec = PartitionSpec(PartitionField(1, 1000, transform, "p"))
    table = catalog.create_table("db.t", Schema(NestedField(1, "d", DecimalType(38, 2))), partition_spec=spec)
    for value in values:
        table.append(pa.table({"d": pa.array([value], pa.decimal128(38, 2))}))
    shared(server, table)
    table = client_of(server).table("s.db.t")
    conditions = {f"d = {value}BD": [value] for value in values}
    conditions |= {f"d <= {value}BD AND d >= {value}BD": [value] for value in values}
    assert {text: table.scan(where=text).to_arrow()["d"].to_pylist() for text in conditions} == conditions


@pytest.mark.parametrize("parts", [(), (BucketTransform(3),)], ids=str)
def test_a_uuid_is_compared_as_the_text_that_it_is_here(
    catalog: SqlCatalog, server: SharingServer, parts: tuple[Any, ...]
) -> None:
    """Its bounds are sixteen bytes, which may be text as well."""
    values = [UUID(bytes=letter * 16) for letter in (b"A", b"B", b"z", b"\xf0")]
    spec = PartitionSpec(*(PartitionField(1, 1000, part, "p") for part in parts))
    table = catalog.create_table("db.t", Schema(NestedField(1, "u", UUIDType())), partition_spec=spec)
    for two in (values[:2], values[2:]):
        table.append(pa.table({"u": pa.array([value.bytes for value in two], pa.uuid())}))
    shared(server, table)
    table = client_of(server).table("s.db.t")
    texts = ("u = '{0}'", "u IN ('{0}', 'no UUID')", "u <= '{0}' AND u >= '{0}'")
    conditions = {text.format(value): [str(value)] for value in values for text in texts}
    assert {text: table.scan(where=text).to_arrow()["u"].to_pylist() for text in conditions} == conditions
