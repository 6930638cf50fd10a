"""The Python of the pages and of the README runs: statement by statement, against the sample share, without Spark.

Statements that use Spark are compiled and left out, and so is whatever needs a name that only they bind: those run in
``tests/spark/test_pages_in_spark.py``. A block after
``<!-- not executed: why -->`` is compiled only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer
from support.pages import PAGES, blocks

#: Names that stand for a Spark session or are bound by a cluster alone.
_SPARK = frozenset({"spark", "pyspark", "SparkSession"})
#: Pages whose blocks all need Spark, a cloud or a gateway.
_NOTHING_RUNS = frozenset(
    {"credentials.md", "identities.md", "native.md", "predicates.md", "streaming.md", "versions.md"}
)


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the profiles of the pages, of a server that runs."""
    directory = tmp_path_factory.mktemp("pages")
    with SharingServer() as server:
        share_sample(server, directory / "tables", trips=20_000)
        for name in ("profile.share", "config.share"):
            server.write_profile(directory / name)
        yield directory


def names_in(node: ast.AST) -> set[str]:
    """Every name that a statement mentions, imports included."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    names |= {a.name.partition(".")[0] for n in ast.walk(node) if isinstance(n, ast.Import) for a in n.names}
    return names | {(n.module or "").partition(".")[0] for n in ast.walk(node) if isinstance(n, ast.ImportFrom)}


def bound_by(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def run(page: Path) -> int:
    """Run what of a page needs no Spark; returns the number of statements that ran."""
    namespace: dict[str, object] = {"__name__": page.stem}
    of_spark = set(_SPARK)
    ran = 0
    for line, source, executed in blocks(page):
        tree = ast.parse("\n" * line + source, str(page))
        for statement in tree.body:
            names = names_in(statement)
            if not executed or names & of_spark or "to_spark" in ast.dump(statement):
                of_spark |= bound_by(statement)
                continue
            of_spark -= bound_by(statement)
            exec(compile(ast.Module([statement], []), str(page), "exec"), namespace)
            ran += 1
    return ran


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_the_python_of_the_page_runs(page: Path, share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(share)
    monkeypatch.setenv("DELTA_SHARING_PROFILE", "profile.share")
    assert run(page) > 0 or page.name in _NOTHING_RUNS


def test_most_pages_have_python_that_runs() -> None:
    assert sum(bool(blocks(page)) for page in PAGES) >= 10
