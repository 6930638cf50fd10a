"""The suite itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
#: Calls that go over the values of what they are called with or on.
OVER_VALUES = {"enumerate", "items", "keys", "product", "reversed", "sorted", "values", "zip"}
ASSERTS = re.compile(r"^ +(assert|with pytest\.raises)\b", re.MULTILINE)


def test_the_catalogue_names_every_stored_table_and_every_module_that_builds_one() -> None:
    """``python tests/catalogue.py`` writes it."""
    named = set(re.findall(r"^\| `([^`]+)`", (TESTS / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    stored = {path.name for path in (TESTS / "data" / "delta_spark").iterdir() if path.is_dir()}
    building = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("test_*.py")
        if " DeltaTableBuilder(" in path.read_text(encoding="utf-8")
    }
    assert (stored | building) - named == set()


def is_table(node: ast.AST | None, names: set[str]) -> bool:
    """Whether an expression is a display of values, the name of one, or goes over one."""
    if isinstance(node, ast.Call):
        over = node.args or [node.func.value] if isinstance(node.func, ast.Attribute) else node.args
        return ast.unparse(node.func).rpartition(".")[2] in OVER_VALUES and all(is_table(one, names) for one in over)
    if isinstance(node, ast.Name):
        return node.id in names or node.id.isupper()
    return bool(getattr(node, "elts", None) or getattr(node, "keys", None))


def tables_in(nodes: Iterable[ast.AST]) -> set[str]:
    assigned = [node for node in nodes if isinstance(node, ast.Assign | ast.AnnAssign) and is_table(node.value, set())]
    return {ast.unparse(name) for node in assigned for name in getattr(node, "targets", None) or [node.target]}


def loops_over_tables(module: ast.Module) -> Iterator[ast.For]:
    """Those that assert something, but for those of what Hypothesis draws."""
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef) or "given(" in "".join(map(ast.unparse, function.decorator_list)):
            continue
        loops = [loop for loop in ast.walk(function) if isinstance(loop, ast.For) and ASSERTS.search(ast.unparse(loop))]
        names = tables_in([*module.body, *ast.walk(function)]) if loops else set()
        yield from (loop for loop in loops if is_table(loop.iter, names))


def test_tables_are_cases_and_not_loops() -> None:
    """The first failure of a loop hides the others: inputs are parameters, and results are compared as one collection."""
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py")}
    found = {(path, loop.lineno) for path, module in modules.items() for loop in loops_over_tables(module)}
    assert sorted(f"{path.relative_to(TESTS)}:{line}" for path, line in found) == []
