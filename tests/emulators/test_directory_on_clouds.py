"""Directory access against the real protocols of S3, Azure and GCS, with credentials that end and may not list."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.access.directory.access import StorageToken, issue
from delta_sharing_spark.errors import CredentialError, FileGoneError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.scan.split_reader import read_split
from delta_sharing_spark.sharing.wire_records import parse_credentials
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from emulators.clouds import Cloud, put_table
from support.refusals import not_refused
from unit.access.shared_tables import NAME, head_of, opened, rows, whole_split

pytestmark = pytest.mark.emulators

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string())])
PARTS = ["plain", "with space", "per%cent", "pl+us", "ünï", "a=b", "q?mark", "ha#sh", "semi;colon", "quo'te"]


_HOUR = 3600.0


@dataclass(eq=False)
class CloudIssuer:
    """Asks a cloud as the sharing server would, through the wire form of the answer: all credentials are for an hour.

    ``late`` are those that have ended when they come, the first ones, though they are announced for an hour as well.
    """

    cloud: Cloud
    listing: bool = True
    late: int = 0
    asked: list[Location] = field(default_factory=list)
    settings: NetworkSettings = field(default_factory=NetworkSettings, repr=False)

    def issue_token(self, location: Location, seconds: float | None = None) -> StorageToken:
        self.asked.append(location)
        lifetime = -60 if len(self.asked) <= self.late else _HOUR
        wire = self.cloud.vend(str(location), lifetime=lifetime, listing=self.listing)
        wire["credentials"]["expirationTime"] = int((time.time() + _HOUR) * 1000)
        answer = parse_credentials(wire, str(NAME))
        return issue(answer, location, origin="emulator", now=time.time())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DeltaTableBuilder:
    path = tmp_path_factory.mktemp("delta") / "table"
    built = DeltaTableBuilder(path, SCHEMA, ["part"], {"delta.enableDeletionVectors": "true"})
    data = pa.table({"id": range(len(PARTS) * 10), "part": [p for p in PARTS for _ in range(10)]}, SCHEMA)
    built.append(data).checkpoint().append(pa.table({"id": [1000], "part": ["late"]}, SCHEMA))
    return built.delete(lambda t: pa.array([i % 7 == 3 for i in t["id"].to_pylist()]), deletion_vectors=True)


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def _expected(table: DeltaTableBuilder) -> list[tuple[object, object]]:
    return sorted((row["id"], row["part"]) for row in table.expected().to_pylist())


def _ids_and_values(read: list[dict[str, object]]) -> list[tuple[object, object]]:
    return sorted((row["id"], row["part"]) for row in read)  # type: ignore[type-var]


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
def test_the_same_rows(cloud: Cloud, table: DeltaTableBuilder, name: str, listing: bool) -> None:
    location = put_table(cloud, table.path, name)
    issuer = CloudIssuer(cloud, listing=listing)
    directory = opened(head_of(table, location), endpoint=cloud.endpoint, issuer=issuer)
    assert _ids_and_values(rows(directory)) == _expected(table)
    assert (directory.log.list_from("_delta_log", "") is not None) is listing
    assert len(issuer.asked) == 1


def test_raw_names(cloud: Cloud, name: str) -> None:
    """Whatever a key is called: nothing on the way takes a part of it for a query, a fragment or an escape."""
    names = ["a b", "a%20b", "a+b", "ä", "a#b", "a=b&c", "a;b", "a'b", "a,b@c:d", "a?b", "a%3Fb"]
    for number, one in enumerate(names):
        cloud.put(f"{name}/{one}", f"content {number}".encode())
    root = parse_location(cloud.location(name))
    token = CloudIssuer(cloud).issue_token(root)
    storage = Storage(root, token.secret, StorageSettings(endpoint=cloud.endpoint, retry_seconds=2))
    places = [parse_location(f"{root}/{one}") for one in names]
    contents = [f"content {number}".encode() for number in range(len(names))]
    assert [storage.get(place) for place in places] == contents
    assert [storage.get(place, 3, 7) for place in places] == [b"tent"] * len(names)
    assert [storage.info(place).size for place in places] == [*map(len, contents)]
    assert [entry.name for entry in storage.list_from(root, "")] == sorted(names)


def test_listing_from_a_name(cloud: Cloud, name: str) -> None:
    for version in range(12):
        cloud.put(f"{name}/_delta_log/{version:020d}.json", b"{}")
    cloud.put(f"{name}/_delta_log/_last_checkpoint", b"{}")
    cloud.put(f"{name}/_delta_log/_sidecars/x.parquet", b"{}")
    root = parse_location(cloud.location(name))
    storage = Storage(root, CloudIssuer(cloud).issue_token(root).secret, StorageSettings(endpoint=cloud.endpoint))
    log = parse_location(f"{root}/_delta_log")
    entries = storage.list_from(log, f"{9:020d}.")
    assert [entry.name for entry in entries] == [f"{v:020d}.json" for v in (9, 10, 11)] + ["_last_checkpoint"]
    assert all(entry.size == 2 and abs(entry.modified_ms / 1000 - time.time()) < 600 for entry in entries)
    assert abs(storage.info(parse_location(f"{log}/_last_checkpoint")).modified_ms / 1000 - time.time()) < 600


def test_missing_and_refused_are_told_apart(cloud: Cloud, name: str) -> None:
    cloud.put(f"{name}/a", b"x")
    root = parse_location(cloud.location(name))
    token = CloudIssuer(cloud).issue_token(root)
    storage = Storage(root, token.secret, StorageSettings(endpoint=cloud.endpoint, retry_seconds=2))
    missing = parse_location(f"{root}/missing")
    reads = (lambda: storage.get(missing), lambda: storage.get(missing, 0, 1), lambda: storage.info(missing))
    assert not_refused(FileNotFoundError, "", *reads) == []
    blind = CloudIssuer(cloud, listing=False).issue_token(root)
    refused = Storage(root, blind.secret, StorageSettings(endpoint=cloud.endpoint, retry_seconds=2))
    with pytest.raises(PermissionError):
        refused.list_from(root, "")
    assert refused.get(parse_location(f"{root}/a")) == b"x"


def test_a_sibling_prefix_is_refused(cloud: Cloud, name: str) -> None:
    if not cloud.confined:
        pytest.skip("a SAS of Azurite holds for the whole container, as the reference server's does")
    cloud.put(f"{name}/a", b"x")
    cloud.put(f"{name}2/a", b"secret")
    root = parse_location(cloud.location(name))
    storage = Storage(
        root, CloudIssuer(cloud).issue_token(root).secret, StorageSettings(endpoint=cloud.endpoint, retry_seconds=2)
    )
    assert storage.get(parse_location(f"{root}/a")) == b"x"
    with pytest.raises(PermissionError):
        storage.get(parse_location(f"{root}2/a"))


def test_a_job_outlives_its_credential(
    cloud: Cloud, table: DeltaTableBuilder, name: str, pass_time: Callable[[float], None]
) -> None:
    location = put_table(cloud, table.path, name)
    issuer = CloudIssuer(cloud)
    directory = opened(head_of(table, location), endpoint=cloud.endpoint, issuer=issuer)
    split = whole_split(directory)
    asked = len(issuer.asked)
    pass_time(_HOUR)
    assert _ids_and_values([row for batch in read_split(split) for row in batch.to_pylist()]) == _expected(table)
    assert len(issuer.asked) == asked + 1


def test_a_credential_that_ends_before_it_was_announced_to(cloud: Cloud, table: DeltaTableBuilder, name: str) -> None:
    location = put_table(cloud, table.path, name)
    issuer = CloudIssuer(cloud)
    directory = opened(head_of(table, location), endpoint=cloud.endpoint, issuer=issuer)
    split = whole_split(directory)
    cloud.expire_all()
    assert _ids_and_values([row for batch in read_split(split) for row in batch.to_pylist()]) == _expected(table)


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
def test_a_credential_that_ends_while_the_log_is_read(
    cloud: Cloud, table: DeltaTableBuilder, name: str, listing: bool
) -> None:
    """It was announced for an hour and has ended: renewed once, as the storage itself refuses it."""
    location = put_table(cloud, table.path, name)
    issuer = CloudIssuer(cloud, listing=listing)
    directory = opened(head_of(table, location), endpoint=cloud.endpoint, issuer=issuer)
    asked = len(issuer.asked)
    cloud.expire_all()
    assert _ids_and_values(rows(directory)) == _expected(table)
    assert len(issuer.asked) == asked + 1


def test_a_credential_that_had_ended_when_it_came(cloud: Cloud, table: DeltaTableBuilder, name: str) -> None:
    location = put_table(cloud, table.path, name)
    issuer = CloudIssuer(cloud, late=1)
    assert _ids_and_values(rows(opened(head_of(table, location), endpoint=cloud.endpoint, issuer=issuer))) == _expected(
        table
    )
    assert len(issuer.asked) == 2


def test_markers_of_directories(cloud: Cloud, table: DeltaTableBuilder, name: str) -> None:
    """As hierarchical namespaces and consoles leave them: empty objects named like the directories."""
    location = put_table(cloud, table.path, name)
    for directory in ("", "/_delta_log", "/_delta_log/_sidecars"):
        cloud.put(f"{name}{directory}{'' if location.startswith('abfss') else '/'}", b"")
    assert _ids_and_values(
        rows(opened(head_of(table, location), endpoint=cloud.endpoint, issuer=CloudIssuer(cloud)))
    ) == (_expected(table))


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
def test_a_scope_that_leaves_the_data_out(cloud: Cloud, table: DeltaTableBuilder, name: str, listing: bool) -> None:
    if not cloud.confined:
        pytest.skip("a SAS of Azurite holds for the whole container, as the reference server's does")
    location = put_table(cloud, table.path, name)

    class LogOnly(CloudIssuer):
        def issue_token(self, location: Location, seconds: float | None = None) -> StorageToken:
            log = replace(location, key=f"{location.key}/_delta_log")
            return replace(super().issue_token(log), location=location)

    directory = opened(head_of(table, location), endpoint=cloud.endpoint, issuer=LogOnly(cloud, listing=listing))
    with pytest.raises(
        CredentialError, match=r"scope of the credential .* ask the provider for a credential that may read"
    ):
        rows(directory)


def test_without_a_way_to_renew_expiry_is_an_error(
    cloud: Cloud, table: DeltaTableBuilder, name: str, pass_time: Callable[[float], None]
) -> None:
    location = put_table(cloud, table.path, name)
    issuer = CloudIssuer(cloud)
    directory = opened(head_of(table, location), endpoint=cloud.endpoint, issuer=issuer, carryProfile="false")
    split = whole_split(directory)
    pass_time(_HOUR)
    with pytest.raises(CredentialError, match="carryProfile=false"):
        list(read_split(split))


def test_a_wrong_credential_is_refused_not_replaced(cloud: Cloud, name: str) -> None:
    cloud.put(f"{name}/a", b"x")
    root = parse_location(cloud.location(name))
    wire = cloud.vend(str(root))["credentials"]
    if "awsTempCredentials" in wire:
        wire["awsTempCredentials"]["sessionToken"] = "forged"
    elif "gcpOauthToken" in wire:
        wire["gcpOauthToken"]["oauthToken"] = "forged"
    else:
        sas = wire["azureUserDelegationSas"]["sasToken"]
        wire["azureUserDelegationSas"]["sasToken"] = sas.replace("sig=", "sig=AA")
    token = issue(parse_credentials({"credentials": wire}, "t"), root, origin="emulator", now=time.time())
    storage = Storage(root, token.secret, StorageSettings(endpoint=cloud.endpoint, retry_seconds=2))
    with pytest.raises(PermissionError):
        storage.get(parse_location(f"{root}/a"))


@pytest.mark.parametrize("listing", [True, False], ids=["listing", "get-only"])
def test_a_vacuumed_file(cloud: Cloud, tmp_path: Path, name: str, listing: bool) -> None:
    built = DeltaTableBuilder(tmp_path / "t", SCHEMA).append(pa.table({"id": [1], "part": ["a"]}, SCHEMA))
    data = next(path for path in built.path.glob("*.parquet"))
    data.unlink()
    location = put_table(cloud, built.path, name)
    issuer = CloudIssuer(cloud, listing=listing)
    directory = opened(head_of(built, location), endpoint=cloud.endpoint, issuer=issuer)
    split = whole_split(directory)
    # S3 answers a credential that may not list 403 for what is not there; no other file tells it from a scope.
    is_ambiguous = location.startswith("s3") and not listing
    with pytest.raises(CredentialError if is_ambiguous else FileGoneError, match="reload"):
        list(read_split(split))
