"""Reads tables that Spark's Iceberg runtime wrote, and compares their rows with its own answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import CredentialError, VersionError
from support.iceberg_lake import STORED, IcebergLake

if TYPE_CHECKING:
    from collections.abc import Iterator

ANSWERS = sorted(path.stem for path in (STORED / "answers").glob("*.parquet"))


@pytest.fixture(scope="module")
def lake() -> Iterator[IcebergLake]:
    with IcebergLake() as running:
        yield running
        assert not running.failures


@pytest.fixture
def client(lake: IcebergLake) -> SharingClient:
    return SharingClient(lake.profile())


def rows(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def options_of(answer: str) -> dict[str, Any]:
    _, at, when = answer.partition("@")
    return {} if not at else {"versionAsOf": int(when)} if when.isdigit() else {"ref": when}


@pytest.mark.parametrize("answer", ANSWERS)
def test_rows_are_those_of_sparks_iceberg_reader(client: SharingClient, answer: str) -> None:
    expected = pq.ParquetFile(STORED / "answers" / f"{answer}.parquet").read()
    found = client.table(f"s.db.{answer.partition('@')[0]}").scan(**options_of(answer)).to_arrow()
    assert found.schema.names == expected.schema.names
    assert rows(found) == rows(expected)


#: By operator in SQL: which values pass beside another one, or beside none.
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "= {}": lambda a, b: a is not None and a == b,
    "> {}": lambda a, b: a is not None and a > b,
    "<= {}": lambda a, b: a is not None and a <= b,
    "IS NULL": lambda a, _: a is None,
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", [name for name in ANSWERS if "@" not in name])
def test_conditions_leave_the_rows_that_pass(client: SharingClient, name: str, operator: str) -> None:
    """Each column's conditions prune manifests, files and row groups, and lose no row."""
    table = pq.ParquetFile(STORED / "answers" / f"{name}.parquet").read()
    found, expected = {}, {}
    for column in table.column_names:
        values = sorted({value for value in table[column].to_pylist() if isinstance(value, int | str)}, key=repr)
        chosen = [None] if operator == "IS NULL" else [values[0], values[len(values) // 2]] if values else []
        for value in chosen:
            text = f"'{value}'" if isinstance(value, str) else str(value).lower()
            where = f"`{column}` {operator.format(text)}"
            found[where] = rows(client.table(f"s.db.{name}").scan(where=where).to_arrow())
            passing = [row for row in table.to_pylist() if OPERATORS[operator](row[column], value)]
            expected[where] = sorted(map(repr, passing))
    assert found == expected


@pytest.mark.parametrize("name", [name for name in ANSWERS if "@" not in name])
def test_counts_are_those_of_the_rows(client: SharingClient, name: str) -> None:
    expected = pq.ParquetFile(STORED / "answers" / f"{name}.parquet").metadata.num_rows
    assert client.table(f"s.db.{name}").count() == expected
    assert client.table(f"s.db.{name}").scan(limit=3).to_arrow().num_rows == min(3, expected)
    one = (
        client.table(f"s.db.{name}").scan(columns=[client.table(f"s.db.{name}").to_arrow().schema.names[-1]]).to_arrow()
    )
    assert one.num_rows == expected


@pytest.mark.parametrize("name", ["positions", "equality", "specs", "everything"])
def test_credentials_may_end_at_any_request(lake: IcebergLake, name: str) -> None:
    expected = rows(pq.ParquetFile(STORED / "answers" / f"{name}.parquet").read())
    lake.reset_metrics()
    SharingClient(lake.profile()).table(f"s.db.{name}").to_arrow()
    for ends in range(lake.count("data") + lake.count("log")):
        lake.ends = ends
        assert rows(SharingClient(lake.profile()).table(f"s.db.{name}").to_arrow()) == expected, ends
    lake.ends = None


def test_a_snapshot_that_is_not_there_is_named(client: SharingClient) -> None:
    with pytest.raises(VersionError, match=r"snapshot 5 of s\.db\.history does not exist"):
        client.table("s.db.history").scan(versionAsOf=5).to_arrow()
    with pytest.raises(VersionError, match="no branch or tag 'none'; it has 'first', 'main', 'work'"):
        client.table("s.db.history").scan(ref="none").to_arrow()
    with pytest.raises(VersionError, match="no snapshot at or before"):
        client.table("s.db.history").scan(timestampAsOf="2001-01-01T00:00:00Z").to_arrow()


def test_a_file_outside_of_what_is_vended_is_not_opened(lake: IcebergLake) -> None:
    table = lake.iceberg.tables["s", "db", "plain"]
    table.storage_credentials = [{"prefix": "s3://lake/db/plain/metadata", "config": lake.vended}]
    try:
        with pytest.raises(CredentialError, match="lies outside"):
            SharingClient(lake.profile()).table("s.db.plain").to_arrow()
    finally:
        table.storage_credentials = ()


def test_the_decoded_stored_tables_lie_here() -> None:
    assert len(ANSWERS) >= 15
    assert Path(STORED / "lake").is_dir()


def test_credentials_are_asked_for_alone_where_that_is_announced(lake: IcebergLake) -> None:
    expected = rows(pq.ParquetFile(STORED / "answers" / "vectors.parquet").read())
    shared = lake.iceberg.tables["s", "db", "vectors"]
    shared.storage_credentials = [
        {"prefix": "s3", "config": {"s3.access-key-id": "none", "s3.secret-access-key": "none"}},
        {"prefix": "s3://lake/db/vectors/", "config": lake.vended},
        {"prefix": "gs://elsewhere/", "config": {"gcs.oauth2.token": "none"}},
    ]
    lake.iceberg.announces_credentials = True
    try:
        before = lake.iceberg.loads
        lake.ends = 4
        assert rows(SharingClient(lake.profile()).table("s.db.vectors").to_arrow()) == expected
        assert lake.iceberg.loads == before + 1
        assert lake.iceberg.renewals
    finally:
        shared.storage_credentials, lake.iceberg.announces_credentials = (), False


def test_a_load_asks_the_catalog_twice() -> None:
    """What the server refuses, the table's format, the catalog's configuration and the table; then its storage alone."""
    with IcebergLake() as lake:
        SharingClient(lake.profile()).table("s.db.plain").to_arrow()
        assert [lake.count(kind) for kind in ("metadata", "table", "iceberg", "data")] == [1, 1, 2, 5]
