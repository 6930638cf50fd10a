"""The listings of one load, without Spark: what is asked of the server, what is kept, pinned, made anew and told apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import ForbiddenError, VersionError
from delta_sharing_spark.native import table_index
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.plan import VirtualFile
from delta_sharing_spark.native.table_index import TableIndex
from delta_sharing_spark.predicates.sql import parse_where
from delta_sharing_spark.predicates.tree import Expression
from delta_sharing_spark.schema.types import Field, Primitive, Struct
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

ALL = (None, None)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTableBuilder:
    built = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()}))
    for first in range(0, 50, 10):
        built.append([{"id": i} for i in range(first, first + 10)])
    return built


@pytest.fixture
def server(table: DeltaTableBuilder) -> Iterator[SharingServer]:
    with SharingServer() as running:
        running.add_table("s.d.t", table.path, access_modes=("url", "dir"))
        running.add_table("s.d.newest", table.path, history=False)
        yield running


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    running = Gateway()
    yield running
    running.close()


def where(text: str) -> Expression:
    return parse_where(text, Struct((Field("id", Primitive("long")),)))


def index_of(server: SharingServer, gateway: Gateway, name: str = "s.d.t", **options: object) -> TableIndex:
    opener, load = SharingClient(server.profile(), retryTimeout="1s").table(name).scan(**options).opened()  # type: ignore[arg-type]
    index = gateway.open(TableIndex(load, opener, gateway), lambda: False)
    index.begin()
    return index


def members(file: VirtualFile) -> list[str]:
    return [member.task.id for member in file.members]


@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_question_is_asked_once(server: SharingServer, gateway: Gateway, mode: str) -> None:
    index = index_of(server, gateway, accessMode=mode)
    assert server.count("query") == 0, "a load asks for metadata alone"

    def answer(question: Any) -> tuple[int, int, int | None]:
        plan, scan = index.listed((), question)
        asked = server.count("query")
        again, repeated = index.listed((), question)
        assert again is plan
        assert repeated.is_repeated
        assert server.count("query") == asked
        return scan.files, sum(len(file.members) for file in plan.files), scan.spark_files

    conditions = [(where(text), None) for text in ("id < 15", "id = 49", "id >= 0")]
    answers = [answer(question) for question in (*conditions[:2], ALL, (None, 12), conditions[2])]
    assert answers == [(files, files, 1) for files in (2, 1, 5, 2, 5)]
    assert index.listed((), (where("id >= 0"), None))[0] is index.listed((), ALL)[0], (
        "a condition that leaves nothing out"
    )
    assert index.size_in_bytes() == index.listed((), ALL)[0].report.bytes


def test_other_filters_are_answered_by_a_listing_of_all_files(server: SharingServer, gateway: Gateway) -> None:
    """With no request, until files of it cannot be read."""
    index = index_of(server, gateway, accessMode="url")
    index.listed((), ALL)
    asked = server.count("query")
    of_some = [index.listed((), (where(text), None)) for text in ("id < 25", "id = 49")]
    plan, counted = index.listed((), (None, table_index.COUNTED))
    assert [scan.files for scan in (*(scan for _, scan in of_some), counted)] == [3, 1, 5]
    assert [scan.is_repeated for _, scan in of_some] == [True, True]
    assert server.count("query") == asked
    plan.has_failed = True
    failed, _ = index.listed((), (where("id < 25"), None))
    failed.has_failed = True
    again, scan = index.listed((), (where("id < 25"), None))
    assert again is not failed
    assert (scan.is_repeated, server.count("query")) == (False, asked + 1)


@pytest.mark.parametrize("question", [(where("id < 25"), None), (None, 5)], ids=["some", "limit"])
def test_a_listing_that_was_let_go_is_made_anew_with_the_same_names(
    server: SharingServer, gateway: Gateway, question: Any
) -> None:
    index = index_of(server, gateway, accessMode="url")
    plan, _ = index.listed((), question)
    paths = [file.name(number) for number, file in enumerate(plan.files)]
    gateway.release(plan)
    again = index.again(plan.token)
    assert again is not None
    assert again is not plan
    named = [again.number_of(path) for path in paths]
    assert [members(again.files[n]) for n in named if n is not None] == [members(file) for file in plan.files]
    assert index.again(f"{index.token}-99") is None
    failed, _ = index.listed((), ALL)
    failed.has_failed = True
    assert index.listed((), ALL)[0] is not failed


@pytest.mark.parametrize("name", ["s.d.t", "s.d.newest"])
def test_one_version(server: SharingServer, gateway: Gateway, table: DeltaTableBuilder, name: str) -> None:
    """A server that lists its newest version alone is asked for all files once, by later loads when they are loaded."""
    index = index_of(server, gateway, name, accessMode="url")
    table.append([{"id": 50}])
    is_pinned = name == "s.d.t"
    assert index.listed((), (where("id > 100"), None))[1].files == (0 if is_pinned else 6)
    table.append([{"id": 51}])
    assert index.listed((), ALL)[1].files == (5 if is_pinned else 6)
    asked = server.count("query")
    later = index_of(server, gateway, name, accessMode="url")
    assert server.count("query") - asked == (0 if is_pinned else 1)
    table.append([{"id": 52}])
    assert later.listed((), ALL)[1].files == 7


@pytest.mark.parametrize("moves_on", [False, True])
def test_a_version_that_was_read_is_never_replaced(
    server: SharingServer, gateway: Gateway, table: DeltaTableBuilder, moves_on: bool
) -> None:
    """By a server that no longer lists it, as after its log was cleaned: a query over both would mix two versions."""
    index = index_of(server, gateway, accessMode="url")
    first, _ = index.listed((), (where("id < 15"), None))
    if moves_on:
        table.append([{"id": 50}])
    server.add_table("s.d.t", table.path, history=False)
    if moves_on:
        with pytest.raises(
            VersionError, match=r"no longer lists version 5 of s.d.t, which .* but 6: load the table again"
        ):
            index.listed((), (where("id > 30"), None))
        assert index.listed((), (where("id < 15"), None))[0] is first
        return
    fixed, scan = index.listed((), (where("id > 30"), None))
    assert (scan.files, scan.version, first.version) == (5, 5, 5)
    assert first.token != fixed.token
    assert gateway.plan(first.token) is first, "what Spark has planned over it is read all the same"
    table.append([{"id": 50}])
    gateway.release(fixed)
    assert index.again(fixed.token) is fixed is gateway.plan(fixed.token)


def test_a_refusal_is_the_servers_own(server: SharingServer, gateway: Gateway) -> None:
    index = index_of(server, gateway, accessMode="url")
    server.faults.add("query", times=None, status=403)
    with pytest.raises(ForbiddenError):
        index.listed((), ALL)
    server.faults.clear()
    assert index.listed((), ALL)[1].files == 5
    with pytest.raises(VersionError):
        index_of(server, gateway, version=77)


def test_only_equal_loads_are_equal(server: SharingServer, gateway: Gateway, table: DeltaTableBuilder) -> None:
    first = index_of(server, gateway)
    assert index_of(server, gateway) is first
    others = [
        index_of(server, gateway, **options)
        for options in ({"where": "id > 1"}, {"version": 2}, {"timeZone": "Asia/Tokyo"}, {"accessMode": "dir"})
    ]
    profile = server.profile()
    opener, load = SharingClient(profile).table("s.d.newest").scan().opened()
    others.append(gateway.open(TableIndex(load, opener, gateway), lambda: False))
    table.append([{"id": 50}])
    others.append(index_of(server, gateway))
    assert len({index.identity for index in (first, *others)}) == 1 + len(others)
    object.__setattr__(load, "version", None)
    assert table_index.identity_of(load) != table_index.identity_of(load)
