"""Shared tables for the behaviour suite: one server, one profile, tables made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder


@pytest.fixture(scope="session")
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running
        assert not running.failures


@pytest.fixture(scope="session")
def profile(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profile") / "config.share"
    server.write_profile(path)
    return str(path)


@pytest.fixture
def share(server: SharingServer, profile: str, tmp_path: Path) -> Callable[..., Any]:
    """Share a builder's table under a name; returns what ``load`` takes."""

    def add(table: DeltaTableBuilder, name: str | None = None, **settings: Any) -> str:
        full = f"share.spark.{name or table.path.name}_{abs(hash(str(table.path))) % 10**9}"
        server.add_table(full, table.path, **settings)
        return f"{profile}#{full}"

    return add


@pytest.fixture
def load(spark: Any) -> Callable[..., Any]:
    """``spark.read.format("deltaSharing")`` with options as keyword arguments."""

    def read(address: str, **options: Any) -> Any:
        return spark.read.format("deltaSharing").options(**options).load(address)

    return read
