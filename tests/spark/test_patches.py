"""What is done to PySpark is what ``spark/patches.py`` names, and this PySpark has each of it."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delta_sharing_spark
from delta_sharing_spark.spark import patches
from delta_sharing_spark.spark.patches import PATCHES, Patch
from delta_sharing_spark.testing.tables import DeltaTableBuilder

CONNECT = "[connect.]"
KINDS = [
    pytest.param(patch, connected, id=f"{patch.name}-{'connect' if connected else 'classic'}")
    for patch in PATCHES
    for connected in ((False, True) if CONNECT in patch.owner else (False,))
]
BY_REFLECTION = (patches.STREAM_SOURCE, patches.STREAM_OPTIONS)


def is_here(patch: Patch) -> bool:
    import pyspark

    return tuple(map(int, patch.since.split("."))) <= tuple(map(int, pyspark.__version__.split(".")[:2]))


@pytest.mark.parametrize(("patch", "connected"), KINDS)
def test_what_is_patched_is_there(patch: Patch, connected: bool, spark: Any) -> None:
    assert patch.why
    assert patch.end
    if patch in BY_REFLECTION:
        patches.private_field(spark.readStream.format("rate")._jreader, patch)
    elif patch is patches.WORKER_PYTHON:
        assert Path(getattr(spark.sparkContext, patch.name)).name.startswith("python")
    else:
        there = patch.current(is_connect=connected)
        assert callable(there) or isinstance(there, signal.Handlers) if is_here(patch) else there is None


@pytest.mark.parametrize(
    ("patch", "connected"), [kind for kind in KINDS if kind.values[0] not in (*BY_REFLECTION, patches.WORKER_PYTHON)]
)
def test_a_patch_is_applied_once_and_undone(patch: Patch, connected: bool) -> None:
    if not is_here(patch):
        pytest.skip(f"from PySpark {patch.since} on")
    before = patch.current(is_connect=connected)
    patch.undo(is_connect=connected)
    own = patch.current(is_connect=connected)
    if not callable(own):
        pytest.skip("the signal is ignored here")

    def replacement(stood_for: Callable[..., Any]) -> Callable[..., Any]:
        assert stood_for is own
        return lambda *arguments: "ours"

    try:
        patch.apply(replacement, is_connect=connected)
        patch.apply(replacement, is_connect=connected)
        stands = patch.current(is_connect=connected)
        assert stands() == "ours"
        assert stands.__name__ == own.__name__
        assert patches.own(stands) is patches.own(own) is own
        patch.undo(is_connect=connected)
        assert patch.current(is_connect=connected) is own
    finally:
        patch._put(before, connected)


def functions_of_pyspark() -> dict[str, Any]:
    """Every function and method that the loaded modules of PySpark and Py4J define, by owner and name."""
    there: dict[str, Any] = {}
    for module in [m for name, m in list(sys.modules.items()) if name.split(".")[0] in ("pyspark", "py4j")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                there[f"{module.__name__}.{name}"] = value
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for member, inner in vars(value).items():
                    if isinstance(inner, types.FunctionType):
                        there[f"{module.__name__}:{name}.{member}"] = inner
    return there


@pytest.mark.connect
def test_nothing_else_of_pyspark_is_changed(spark: Any, spark_mode: str, share: Any, tmp_path: Path) -> None:
    """Over all that ``register``, loads by both engines and an action may change."""
    connected = spark_mode == "connect"
    for patch in PATCHES:
        if patch not in BY_REFLECTION:
            patch.undo(is_connect=connected)
    rows = pa.table({"id": [1, 2, 3]})
    address = share(DeltaTableBuilder(tmp_path / "patched", rows.schema).append(rows))
    import pyspark.sql.datasource
    import pyspark.sql.streaming.readwriter  # noqa: F401 - what the first session imports late

    before = functions_of_pyspark()
    try:

        def counts(engine: str) -> tuple[int, int]:
            delta_sharing_spark.register(spark, engine=engine)
            by_format = spark.read.format("deltaSharing").load(address).where("id > 1").count()
            return by_format, spark.sql(f"SELECT 1 FROM deltaSharing.`{address}`").count()

        assert [counts(engine) for engine in ("auto", "python")] == [(2, 3), (2, 3)]
    finally:
        delta_sharing_spark.register(spark, engine="python")
    names = {f"{patch.owner}.{patch.name}" for patch in PATCHES}
    module = "connect." if connected else ""
    allowed = {name.replace(CONNECT, module) for name in names}
    changed = {name for name, function in functions_of_pyspark().items() if before.get(name, function) is not function}
    assert changed <= allowed
    assert f"pyspark.sql.{module}readwriter:DataFrameReader.load" in changed
