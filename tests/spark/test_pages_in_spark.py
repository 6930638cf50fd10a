"""Pages with blocks that need Spark run whole, in order, as they stand: in a new process with one session for all of them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer
from support import PRELOADED_WORKERS, pages
from support.pages import PAGES, blocks

#: What makes a session of the pages light; it stands in Spark's own file, for the pages say nothing of it.
_SETTINGS = """
spark.master local[2]
spark.ui.enabled false
spark.driver.host 127.0.0.1
spark.driver.memory 1g
spark.sql.shuffle.partitions 2
spark.sql.session.timeZone UTC
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A process in a new directory with the profile of a server that runs; it runs the pages that it is told."""
    directory = tmp_path_factory.mktemp("pages")
    settings = tmp_path_factory.mktemp("conf")
    (settings / "spark-defaults.conf").write_text(_SETTINGS, encoding="utf-8")
    environment = {**os.environ, "SPARK_CONF_DIR": str(settings), "PYTHONPATH": PRELOADED_WORKERS}
    with SharingServer() as server:
        share_sample(server, directory / "tables", trips=20_000)
        server.write_profile(directory / "profile.share")
        command = [sys.executable, str(pages.__file__)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=directory, env=environment, text=True, **pipes) as process:
            yield process
            assert process.stdin is not None
            process.stdin.close()


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.uses_spark for b in blocks(p))], ids=lambda p: p.name)
def test_the_page_runs(page: Path, reader: subprocess.Popen[str]) -> None:
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write(f"{page}\n")
    reader.stdin.flush()
    failure = json.loads(reader.stdout.readline())
    assert failure is None, failure


class _GivenSession(ast.NodeTransformer):
    """The session of a notebook's cells is the test's own."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        (target, *_) = node.targets
        return None if isinstance(target, ast.Name) and target.id == "spark" else self.generic_visit(node)


def test_the_notebooks_spark_prints_what_is_kept(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
            exec(compile(_GivenSession().visit(ast.parse("".join(cell["source"]))), notebook.name, "exec"), namespace)
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    kept = [line for cell in cells for output in cell["outputs"] for line in output["text"]]
    assert capsys.readouterr().out == "".join(kept).replace("local[1]", spark.sparkContext.master)
