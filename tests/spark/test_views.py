"""client.register(spark) gives names that are free, and takes none from the user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import AddressError
from delta_sharing_spark.sharing.wire_records import Table
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

pytestmark = pytest.mark.connect
SHARED = 7


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return DeltaTableBuilder(tmp_path / "t", pa.schema([("n", pa.int64())])).append([{"n": SHARED}]).path


@pytest.fixture
def own(table: Path) -> Iterator[SharingServer]:
    """A server of the test's own."""
    with SharingServer() as running:
        for name in ("free", "mine", "kept"):
            running.add_table(f"s.names.{name}", table)
        yield running


def _rows(spark: Any, view: str) -> list[int]:
    return [row.n for row in spark.table(view).collect()]


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_names_of_the_user_are_left_alone(spark: Any, own: SharingServer, engine: str, tmp_path: Path) -> None:
    client = SharingClient(own.write_profile(tmp_path / "p.share"), engine)
    spark.createDataFrame([(1,)], "n bigint").createOrReplaceTempView("Names_Mine")
    spark.sql("CREATE TABLE names_kept (n BIGINT) USING parquet")
    try:
        for _ in range(2):
            made = {view.view: view.problem for view in client.register(spark)}
            assert sorted(made) == ["names_free", "names_kept", "names_mine"]
            assert made["names_free"] == ""
            left_alone = (
                r"exists that was not registered here, and is left alone.*register\(spark, {'%s': 's.names.%s'}\)"
            )
            assert re.search(left_alone % ("names_mine", "mine"), made["names_mine"])
            assert re.search(left_alone % ("names_kept", "kept"), made["names_kept"])
            assert _rows(spark, "names_free") == [SHARED], "our own is registered again"
            assert _rows(spark, "names_mine") == [1]
            assert _rows(spark, "names_kept") == []
        (problem,) = client.register(spark, ["s.names.mine"])
        assert "is left alone" in problem.problem
        # A view that the user has put in the place of ours is the user's.
        spark.createDataFrame([(2,)], "n bigint").createOrReplaceTempView("names_free")
        again = {view.view: view.problem for view in client.register(spark, "s")}
        assert "is left alone" in again["names_free"]
        assert [bool(view.problem) for view in client.refresh(spark)] == [True]
        assert _rows(spark, "names_free") == [2]
        # A mapping decides.
        assert client.register(spark, {"names_mine": "s.names.mine", "names_free": "s.names.free"})[0].problem == ""
        assert _rows(spark, "names_mine") == _rows(spark, "names_free") == [SHARED]
        assert [view.problem for view in client.refresh(spark)] == ["", ""]
    finally:
        spark.sql("DROP TABLE IF EXISTS names_kept")
        for name in ("names_mine", "names_free"):
            spark.catalog.dropTempView(name)


def test_another_servers_view_is_left_alone(spark: Any, own: SharingServer, table: Path, tmp_path: Path) -> None:
    profile = own.write_profile(tmp_path / "p.share")
    try:
        assert SharingClient(profile).register(spark, ["s.names.free"])[0].problem == ""
        assert SharingClient(profile).register(spark, ["s.names.free"])[0].problem == "", (
            "the notebook's cell runs again"
        )
        with SharingServer() as other:
            other.add_table("s.names.free", table)
            (view,) = SharingClient(other.write_profile(tmp_path / "q.share")).register(spark)
            assert f"is registered already, of s.names.free of {own.endpoint}, and is left alone" in view.problem
    finally:
        spark.catalog.dropTempView("names_free")


def test_odd_names_of_a_provider_stop_no_others(
    spark: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["good", "same", "caf\u00e9", "a b", "`", "2024"]
    with SharingServer() as server:
        for name in names:
            server.add_table(f"s.odd.`{name.replace('`', '``')}`", table)
        client = SharingClient(server.write_profile(tmp_path / "p.share"))
        listed = [*client.list_all_tables(), Table("Same", "s", "odd"), Table("", "s", "odd"), Table("x", "s", "")]
        monkeypatch.setattr(client, "list_all_tables", lambda share=None: listed)
        made = client.register(spark)
        assert len(made) == len(listed)
        problems = {view.table: view.problem for view in made if view.problem}
        assert "s.odd.same and s.odd.Same would both be the view odd_same" in problems.pop("s.odd.Same")
        assert "s.odd.same and s.odd.Same would both be the view odd_same" in problems.pop("s.odd.same")
        assert len(problems) == 2
        assert all("name is empty" in problem for problem in problems.values())
        good = [view.view for view in made if not view.problem]
        assert set(good) == {"odd_good", "odd_caf\u00e9", "odd_a_b", "odd__", "odd_2024"}
        for view in good:
            assert _rows(spark, f"`{view}`") == [SHARED]
            spark.catalog.dropTempView(view)
        with pytest.raises(AddressError, match="would both be the view"):
            client.register(spark, ["s.odd.Same", "s.odd.same"])
        with pytest.raises(AddressError, match="the views A and a are one in Spark"):
            client.register(spark, {"A": "s.odd.good", "a": "s.odd.good"})
        with pytest.raises(AddressError, match="has an empty name"):
            client.register(spark, {"": "s.odd.good"})
