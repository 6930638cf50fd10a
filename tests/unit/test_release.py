"""What is said in several places about releases is said alike: versions, Pythons, Sparks, sessions, tools."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

import delta_sharing_spark

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NOX = (ROOT / "noxfile.py").read_text(encoding="utf-8")
PYTHONS = re.findall(r'"(3\.\d+)"', re.findall(r"(?m)^PYTHONS = \[(.*)\]", NOX)[0])
SPARKS = re.findall(r'(?m)^    "(4\.\d)": \[', NOX)
#: What the releases of PySpark say of themselves (``Requires-Python`` and classifiers).
TAKES = {spark: [p for p in PYTHONS if (spark, p) not in {("4.0", "3.14"), ("4.3", "3.10")}] for spark in SPARKS}


def test_one_version() -> None:
    assert (ROOT / PROJECT["tool"]["hatch"]["version"]["path"]).samefile(delta_sharing_spark._version.__file__)
    headings = re.findall(r"(?m)^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert headings[0] == ("Unreleased", "")
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", name) and day for name, day in headings[1:])


def test_pythons_and_sparks_are_the_same_everywhere() -> None:
    oldest, newest = PYTHONS[0], PYTHONS[-1]
    assert PROJECT["project"]["requires-python"] == f">={oldest}"
    named = [c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if "Python :: 3." in c]
    assert named == PYTHONS
    said = f"Python {oldest} to {newest}, Spark {SPARKS[0]} to {SPARKS[-1]}"
    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/index.md")}
    assert [page for page, text in pages.items() if said not in text] == []
    assert re.findall(r"python: \[(.*)\]", WORKFLOWS["ci.yml"]) == [", ".join(f'"{p}"' for p in PYTHONS)]
    ends = re.findall(r'{spark: "(\S+)", python: "(\S+)"}', WORKFLOWS["ci.yml"])
    assert ends == [(spark, python) for spark in SPARKS for python in (TAKES[spark][0], TAKES[spark][-1])]
    left_out = re.findall(r'{spark: "(\S+)", python: "(\S+)"}', WORKFLOWS["nightly.yml"])
    assert left_out == [(spark, python) for spark in SPARKS for python in PYTHONS if python not in TAKES[spark]]
    assert re.findall(r"(?:spark|python): \[(.*)\]", WORKFLOWS["nightly.yml"]) == [
        ", ".join(f'"{one}"' for one in some) for some in (SPARKS, PYTHONS)
    ]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_run_nox_and_ci_run_alone(name: str) -> None:
    """Actions are pinned to commits; what is run is a session that exists, or ``.ci/run``."""
    sessions = {*re.findall(r"(?m)^def (\w+)\(session: nox", NOX), *re.findall(r'nox\.session\(name="([\w-]+)"', NOX)}
    for command in re.findall(r"(?m)^ +- run: (.+)$", WORKFLOWS[name]):
        if command in ("bash .ci/run", "python -m pip install nox", 'nox -s "$SESSION"', 'nox -s unit -P "$PYTHON"'):
            continue
        words = command.partition(" -- ")[0].split()
        assert words[:2] == ["nox", "-s"], command
        assert set(words[2:]) <= sessions, command
    for session in re.findall(r"session: \[(.*)\]", WORKFLOWS[name]):
        assert set(session.split(", ")) <= sessions
    assert all(
        re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v[\d.]+", used) for used in re.findall(r"uses: (.+)", WORKFLOWS[name])
    )


def test_hooks_before_commits_are_those_of_lint() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    tools = re.findall(r"additional_dependencies: \[(.+)\]", hooks)
    assert dict.fromkeys(tools) == dict.fromkeys(PROJECT["dependency-groups"]["lint"])
