"""The example notebooks run, cell by cell, but for those that need Spark; they are kept with their outputs."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_notebooks_are_kept_with_their_outputs(path: Path) -> None:
    for cell in code_cells(path):
        last = ast.parse("".join(cell["source"])).body[-1]
        shows = isinstance(last, ast.Expr) and "close" not in ast.dump(last) and "cleanup" not in ast.dump(last)
        assert bool(cell["outputs"]) == shows, cell["source"]
        assert not [o for o in cell["outputs"] if o["output_type"] == "error" or o.get("name") == "stderr"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_notebook(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell prints what is kept of it, and what it shows is a table where one is kept."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    namespace: dict[str, object] = {}
    for cell in code_cells(path):
        tree = ast.parse("".join(cell["source"]), path.name)
        if "spark" in cell["metadata"].get("tags", ()):
            continue
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), path.name, "eval"), namespace)
            html = getattr(shown, "_repr_html_", None)
            assert html is None or "<table" in html()
        kept = [line for output in cell["outputs"] if output.get("name") == "stdout" for line in output["text"]]
        assert capsys.readouterr().out == "".join(kept)
