"""The blocks of Python that use Spark, of every page and the README, run in one session against a server on loopback."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.pages import PAGES, blocks

#: Files and directories that the pages name; they lie in the test's directory here.
_PLACES = ("profile.share", "config.share", "/secure/", "/data/", "/tmp/")
_DAY = 86_400_000
_JANUARY_27 = 1_769_472_000_000
_NAMES = {"spark", "SparkSession"}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the profiles that the pages name, of a server with the sample and the pages' other tables."""
    directory = tmp_path_factory.mktemp("pages")
    columns = {"city": pa.string(), "price": pa.float64(), "total": pa.float64(), "day": pa.date32()}
    days = iter(range(_JANUARY_27, _JANUARY_27 + 20 * _DAY, _DAY))
    feed = {"delta.enableChangeDataFeed": "true"}
    table = DeltaTableBuilder(directory / "table", pa.schema(columns), (), feed, clock=lambda: next(days))
    for number in range(9):
        row = {"city": "Lisbon", "price": number + 0.5, "total": 9.0 + number, "day": date(2026, 1, 1)}
        table.append([row])
    with SharingServer() as server:
        share_sample(server, directory / "sample", trips=20_000)
        server.add_table("share.schema.table", table.path, access_modes=("url", "dir"))
        server.add_table("share.shop.orders", table.path, access_modes=("url", "dir"))
        for name in ("profile.share", "config.share"):
            server.write_profile(directory / name)
        yield directory


class _InPlace(ast.NodeTransformer):
    """Paths of a page become paths below ``places``; the session is the test's own."""

    def __init__(self, places: Path) -> None:
        self._places = places

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, str) and node.value.startswith(_PLACES):
            _, _, below = node.value.rpartition("/")
            return ast.copy_location(ast.Constant(str(self._places / below)), node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        (target, *_) = node.targets
        return None if isinstance(target, ast.Name) and target.id == "spark" else self.generic_visit(node)


def _uses_spark(source: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id in _NAMES for node in ast.walk(ast.parse(source)))


def _pages() -> list[Path]:
    return [page for page in PAGES if any(executed and _uses_spark(source) for _, source, executed in blocks(page))]


@pytest.mark.parametrize("page", _pages(), ids=lambda page: page.name)
def test_the_spark_of_the_page_runs(
    page: Path, spark: Any, spark_mode: str, places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spark_mode == "connect":
        pytest.skip("the pages are run on classic Spark, once")
    monkeypatch.chdir(tmp_path)
    profile = places / "profile.share"
    namespace: dict[str, object] = {
        "__name__": page.stem,
        "spark": spark,
        "client": (client := SharingClient(profile)),
        "trips": client.table("demo.city.trips"),
        "address": f"{profile}#share.schema.table",
    }
    before = {view.name for view in spark.catalog.listTables()}
    try:
        for line, source, executed in blocks(page):
            if executed and _uses_spark(source):
                tree = ast.fix_missing_locations(_InPlace(places).visit(ast.parse("\n" * line + source, str(page))))
                exec(compile(tree, str(page), "exec"), namespace)
    finally:
        for query in spark.streams.active:
            query.stop()
        for view in spark.catalog.listTables():
            if view.name not in before:
                spark.sql(f"DROP {'VIEW' if view.isTemporary else 'TABLE'} `{view.name}`")


def test_pages_show_spark() -> None:
    assert len(_pages()) >= 8


def test_the_notebooks_spark_prints_what_is_kept(
    spark: Any, spark_mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if spark_mode == "connect":
        pytest.skip("the notebook's session is a classic one")
    (notebook,) = (Path(__file__).parents[2] / "examples").glob("*.ipynb")
    cells = [
        cell for cell in json.loads(notebook.read_text("utf-8"))["cells"] if "spark" in cell["metadata"].get("tags", ())
    ]
    assert cells
    monkeypatch.setattr(spark, "stop", lambda: None)
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    with SharingServer() as server:
        share_sample(server, tmp_path, trips=100_000)
        namespace: dict[str, object] = {"client": SharingClient(server.write_profile(tmp_path / "demo.share"))}
        namespace["spark"] = spark
        for cell in cells:
            exec(
                compile(_InPlace(tmp_path).visit(ast.parse("".join(cell["source"]))), notebook.name, "exec"), namespace
            )
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    kept = [line for cell in cells for output in cell["outputs"] for line in output["text"]]
    assert capsys.readouterr().out == "".join(kept).replace("local[1]", spark.sparkContext.master)
