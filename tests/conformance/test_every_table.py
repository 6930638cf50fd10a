"""Every stored table by every way: the rows, types and errors that are known of it (``stored_tables.py``, ``ways.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conformance.stored_tables import BROKEN, COUNTED, GOLDEN, WRITTEN, Load, golden_tables, loads
from conformance.ways import WAYS, Places, places, unpadded

pytest.importorskip("pyspark.sql.types")

CELLS = [
    pytest.param(load, way, id=f"{load}-{way}", marks=[pytest.mark.spark] if WAYS[way].is_spark else [])
    for load in loads()
    for way in WAYS
    if WAYS[way].takes(load)
]


@pytest.fixture(scope="module")
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    def session() -> Any:
        return request.getfixturevalue("spark")

    with places(tmp_path_factory.mktemp("stored"), session) as served:
        yield served


def test_what_is_known_of_every_table() -> None:
    answered = {path.parent.name for path in GOLDEN.glob("*/expected")}
    assert not GOLDEN.is_dir() or golden_tables().keys() == {*answered, *BROKEN, *COUNTED}
    readme = (WRITTEN / "README.md").read_text(encoding="utf-8")
    assert not [path.parent.name for path in WRITTEN.glob("*/expected.json") if f"`{path.parent.name}`" not in readme]


@pytest.mark.parametrize(("load", "way"), CELLS)
def test_every_table(stored: Places, load: Load, way: str) -> None:
    answer = load.answer()
    refusal = (WAYS[way].refuses or {}).get(load.table)
    if answer.error is not None or refusal is not None:
        with pytest.raises(Exception) as refused:  # noqa: PT011 - ours at the load, Spark's own in a query
            WAYS[way].read(stored, load)
        text = f"{type(refused.value).__name__}: {refused.value}"
        name, words = answer.error or ("", refusal)
        assert words in text
        assert not WAYS[way].names_errors or name in text
        return
    given = WAYS[way].read(stored, load)
    assert len(given.rows) == answer.count
    if answer.rows is not None:
        assert unpadded(load, given.rows) == unpadded(load, answer.rows)
    if answer.types is not None and given.types is not None:
        assert given.types == answer.types
