"""A Spark with Iceberg's runtime, whose tables lie in a lake that is shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from data.write_with_iceberg import session
from support.iceberg_lake import IcebergLake


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        first = metafunc.config.getoption("--drawn-seed")
        count = metafunc.config.getoption("--drawn-histories")
        metafunc.parametrize("seed", range(first, first + count))


@pytest.fixture(scope="session")
def lake_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    (folder / "db").mkdir()
    return folder


@pytest.fixture(scope="session")
def spark(lake_folder: Path) -> Iterator[Any]:
    if not pyspark.__version__.startswith("4.1."):
        pytest.skip(
            f"Iceberg's runtime is of Spark 4.1, and this is {pyspark.__version__}; nox -s iceberg has that one"
        )
    running = session(lake_folder)
    running.sql("CREATE NAMESPACE IF NOT EXISTS db")
    yield running
    running.stop()


@pytest.fixture(scope="session")
def lake(lake_folder: Path) -> Iterator[IcebergLake]:
    with IcebergLake(lake_folder) as serving:
        yield serving
        assert not serving.failures
