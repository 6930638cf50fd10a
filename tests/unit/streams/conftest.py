"""Shared tables for streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

#: Each way to a table's files, as options.
WAYS = {
    "url-parquet": {"accessMode": "url", "responseFormat": "parquet"},
    "url-delta": {"accessMode": "url", "responseFormat": "delta"},
    "dir": {"accessMode": "dir"},
}


@pytest.fixture
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        yield running
        assert not running.failures


@pytest.fixture
def share(server: SharingServer, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Share a builder's table; returns the options that load it."""
    profile = server.write_profile(tmp_path / "config.share")

    def add(table: DeltaTableBuilder, **settings: Any) -> dict[str, str]:
        server.add_table(f"s.d.{table.path.name}", table.path, **{"access_modes": ("url", "dir"), **settings})
        # Writing a version takes less than a millisecond: a step after it must ask.
        return {"path": f"{profile}#s.d.{table.path.name}", "pollInterval": "0.001ms"}

    return add


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> dict[str, str]:
    """Options that choose an access mode and a response format."""
    return WAYS[request.param]


@pytest.fixture(params=[False, True], ids=["rows", "changes"])
def feed(request: pytest.FixtureRequest) -> dict[str, str]:
    """Options of a table stream, or of a change stream."""
    return {"readChangeFeed": "true"} if request.param else {}
