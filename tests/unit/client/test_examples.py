"""The example notebooks run, cell by cell; their last expressions show themselves."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.ipynb"))


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_notebook(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"], "notebooks are kept without outputs"
        tree = ast.parse("".join(cell["source"]), path.name)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, path.name, "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown = eval(compile(ast.Expression(last.value), path.name, "eval"), namespace)
            html = getattr(shown, "_repr_html_", None)
            assert html is None or html().startswith("<table>")
    assert "to read" in capsys.readouterr().out
