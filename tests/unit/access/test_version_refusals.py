"""What servers say of versions becomes a VersionError; what they say of features names a way on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import RequestRefusedError, ServerError, UnavailableError, VersionError
from delta_sharing_spark.sharing.transport import is_about_versions
from delta_sharing_spark.table import SharedTable
from delta_sharing_spark.testing.server import ServerSettings, SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.mark.parametrize(
    ("words", "about"),
    [
        ("You can only query table data since version 1.", True),
        ("Cannot load table version 5 as it does not exist. The latest available version is 3.", True),
        ("Reading table by version or timestamp is not supported because history sharing is not enabled on table: a.b.c", True),
        ("Not a valid starting timestamp", True),
        ("The provided timestamp 1 ms (1970) is after the latest available version 7.", True),
        ("Delta protocol version (3,7) is too new for this version of Delta Standalone Reader/Writer (1,2).", False),
        ("The refresh token has expired. Please restart the query.", False),
        ("maxFiles must be positive.", False),
        ("table containing absolute paths cannot be shared", False),
        ("", False),
    ],
)  # fmt: skip
def test_what_a_refusal_is_about(words: str, about: bool) -> None:
    assert is_about_versions(RequestRefusedError("", server_message=words)) == about


@pytest.mark.parametrize("engine", ["protocol", "reference"])
@pytest.mark.parametrize(
    ("shared", "read"),
    [
        ({"start_version": 2}, {"version": 1}),
        ({}, {"version": 9}),
        ({"history": False}, {"version": 1}),
        ({"history": False}, {"timestamp": "2020-01-01T00:00:00Z"}),
        ({}, {"timestamp": "2020-01-01T00:00:00Z"}),
    ],
)
def test_versions_that_are_not_there(
    tmp_path: Path, engine: str, shared: dict[str, object], read: dict[str, object]
) -> None:
    table = DeltaTableBuilder(tmp_path, SCHEMA).append([{"id": 1}]).append([{"id": 2}]).append([{"id": 3}])
    with SharingServer(settings=ServerSettings(engine=engine)) as server:  # type: ignore[arg-type]
        server.add_table("s.d.t", table.path, **shared)
        with pytest.raises(VersionError):
            SharingClient(server.profile()).table("s.d.t").scan(**read).to_arrow()  # type: ignore[arg-type]


@pytest.mark.parametrize("feature", ["delta.enableDeletionVectors", "delta.columnMapping.mode"])
def test_feeds_that_a_server_cannot_list_name_the_way_on(tmp_path: Path, feature: str) -> None:
    properties = {"delta.enableChangeDataFeed": "true", feature: "name" if "mode" in feature else "true"}
    table = DeltaTableBuilder(tmp_path, SCHEMA, (), properties).append([{"id": 1}])
    with SharingServer(settings=ServerSettings(engine="reference")) as server:
        server.add_table("s.d.t", table.path)
        shared: SharedTable = SharingClient(server.profile()).table("s.d.t")
        with pytest.raises(VersionError, match=r"too new for this version of Delta Standalone.*accessMode=dir"):
            shared.changes(0).to_arrow()
        assert shared.scan().to_arrow().num_rows == 1


def test_permanent_failure_is_told_in_the_servers_words(tmp_path: Path) -> None:
    table = DeltaTableBuilder(tmp_path, SCHEMA).append([{"id": 1}])
    with SharingServer() as server:
        server.add_table("s.d.t", table.path)
        client = SharingClient(server.profile())
        load = client.table("s.d.t").scan()
        server.faults.add("query", times=None, status=500)
        with pytest.raises(ServerError, match="the server fails on this request each time") as error:
            load.to_arrow()
        assert isinstance(error.value, UnavailableError)
        assert error.value.permanent
