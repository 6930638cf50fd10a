"""Answers in the parquet format, which a server chose by the newest version, or a proxy made: right rows, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import DeltaSharingError, UnsupportedFeatureError
from delta_sharing_spark.table import SharedTable
from delta_sharing_spark.testing.server import SharingServer, queries
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from unit.changes.feed_tables import FEED, NAME, VECTORS, WAYS, ids, rows, table, texts

T = "s.d.t"
#: The version that the cases of ``TABLES`` ask for.
OLD = 2


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running
        assert not running.failures


def unmapped(path: Path) -> DeltaTableBuilder:
    """A renamed column until version 2; at version 3 all files are written anew, and the mapping ends."""
    built = table(path, NAME).rename_column("n", "square")
    built.properties.pop("delta.columnMapping.mode")
    return built.commit([*(f.remove(0, data_change=False) for f in built.files), built.metadata_action()])


def without_vectors(path: Path) -> DeltaTableBuilder:
    """A deletion vector at version 2; at version 3 the feature is dropped."""
    built = table(path, VECTORS).delete(ids(1, 2), deletion_vectors=True)
    built.properties.pop("delta.enableDeletionVectors")
    plain = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}}
    return built.commit([plain, *(f.remove(0, data_change=False) for f in built.files), built.metadata_action()])


TABLES: dict[str, Callable[[Path], DeltaTableBuilder]] = {
    "columnMapping": unmapped,
    "deletionVectors": without_vectors,
}


def by_newest(request: Any, *_: Any) -> str:
    """A server's choice that looks at no version but the newest, which needs nothing."""
    return "parquet" if "parquet" in request.capabilities.formats else "delta"


def share(server: SharingServer, built: DeltaTableBuilder) -> None:
    server.add_table(T, built.path, access_modes=("url", "dir"))


def read(server: SharingServer, ask: Callable[[SharedTable], Any], **options: str) -> list[str] | str:
    """The rows, or the error's class and first words."""
    try:
        return texts(ask(SharingClient(server.profile(), **options).table(T)).to_arrow())
    except DeltaSharingError as error:
        return f"{type(error).__name__}: {str(error)[:60]}"


ASKED: dict[str, Callable[[SharedTable], Any]] = {
    "feed": lambda shared: shared.changes(OLD),
    "part of the feed": lambda shared: shared.changes(1, OLD),
    "version": lambda shared: shared.scan(version=OLD),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("feature", TABLES)
def test_a_format_chosen_by_the_newest_version(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str, asked: str
) -> None:
    share(server, TABLES[feature](tmp_path / "t"))
    expected = read(server, ASKED[asked], **WAYS["url-delta"])
    assert expected == read(server, ASKED[asked], accessMode="dir")
    monkeypatch.setattr(queries, "choose_format", by_newest)
    assert read(server, ASKED[asked], accessMode="url") == expected
    with pytest.raises(
        UnsupportedFeatureError, match=f"{T} in the parquet format, which cannot express {feature}: rows"
    ):
        ASKED[asked](SharingClient(server.profile(), **WAYS["url-parquet"]).table(T)).to_arrow()


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("feature", TABLES)
def test_a_proxy_that_knows_the_parquet_format_alone(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feature: str, asked: str
) -> None:
    share(server, TABLES[feature](tmp_path / "t"))
    monkeypatch.setattr(queries, "choose_format", lambda *_: "parquet")
    with pytest.raises(UnsupportedFeatureError, match=f"cannot express {feature}.*accessMode=dir"):
        ASKED[asked](SharingClient(server.profile(), accessMode="url").table(T)).to_arrow()


def test_a_feed_whose_head_has_what_its_answer_cannot_say(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of the range says nothing of vectors; the table's protocol, asked for by the delta format, does."""
    share(server, table(tmp_path / "t", VECTORS).delete(ids(1, 2), deletion_vectors=True).append(rows(20, 1)))

    def hidden(line: dict[str, Any]) -> dict[str, Any]:
        line.get("metaData", {}).get("configuration", {}).pop("delta.enableDeletionVectors", None)
        return line

    feed = SharingClient(server.profile(), accessMode="url").table(T).changes(1)
    assert "_change_type" in feed.schema.names
    monkeypatch.setattr(queries, "choose_format", lambda *_: "parquet")
    monkeypatch.setattr(server.settings, "rewrite", hidden)
    with pytest.raises(UnsupportedFeatureError, match="cannot express deletionVectors"):
        feed.to_arrow()


def test_a_mapping_that_renames_nothing_is_no_obstacle(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = table(tmp_path / "t", FEED)
    built.properties["delta.columnMapping.mode"] = "name"
    built.commit([built.metadata_action()])
    share(server, built)
    monkeypatch.setattr(queries, "choose_format", lambda *_: "parquet")
    assert read(server, ASKED["feed"], accessMode="url") == read(server, ASKED["feed"], accessMode="dir")


@pytest.mark.parametrize("asked", ASKED)
def test_a_server_that_refuses_the_delta_format(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    share(server, table(tmp_path / "t", FEED).append(rows(20, 1)))
    expected = read(server, ASKED[asked], accessMode="dir")
    assert len(expected) > 0

    def choose(request: Any, *_: Any) -> str:
        if "parquet" not in request.capabilities.formats:
            raise queries.bad_request("unsupported responseformat: delta")
        return "parquet"

    monkeypatch.setattr(queries, "choose_format", choose)
    assert read(server, ASKED[asked], accessMode="url") == expected
