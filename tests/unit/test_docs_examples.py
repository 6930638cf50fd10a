"""The blocks of the pages and of the README that need no Spark run in order, as they stand, beside the sample share.

Pages with a block that needs Spark run whole in ``tests/spark/test_pages_in_spark.py``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer
from support.pages import PAGES, ROOT, blocks, run


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the profile of a server that runs, as ``delta-sharing-spark serve`` writes it."""
    directory = tmp_path_factory.mktemp("pages")
    with SharingServer() as server:
        share_sample(server, directory / "tables", trips=20_000)
        server.write_profile(directory / "profile.share")
        yield directory


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p) and not any(b.uses_spark for b in blocks(p))], ids=lambda p: p.name
)
def test_the_page_runs(page: Path, share: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(share)
    monkeypatch.setenv("DELTA_SHARING_PROFILE", "profile.share")
    package = logging.getLogger("delta_sharing_spark")
    try:
        run(page)
    finally:
        package.setLevel(logging.NOTSET)


def test_blocks_that_are_not_executed_are_few_and_parse() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert sum(text.count("<!-- not executed: ") for text in texts) <= 3
    for text in texts:
        for source in re.findall(r"(?ms)^```python\n(.*?)^```$", text):
            compile(source, "page", "exec")


def test_extras_that_the_pages_install_exist() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = declared.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    known = set(re.findall(r"(?m)^([\w-]+) = \[", extras))
    named = {
        extra
        for page in PAGES
        for found in re.findall(r"(?:delta-sharing-spark|\"\.)\[([\w,-]+)\]", page.read_text(encoding="utf-8"))
        for extra in found.split(",")
    }
    assert named
    assert named <= known
