"""A scripted server, a clock that need not be waited for, and a client of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.sharing import transport
from delta_sharing_spark.sharing.identity import KeyConsent
from delta_sharing_spark.sharing.profile import load_profile
from delta_sharing_spark.sharing.rest import SharingRest
from support.certificates import context_of
from unit.sharing.scripted_server import OK, TOKEN, Clock, ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings(clock: Clock) -> NetworkSettings:
    return NetworkSettings(connect_timeout=5, read_timeout=5, retry_seconds=100, sleep=clock.sleep, clock=clock)


@pytest.fixture
def rest_of(settings: NetworkSettings) -> Callable[..., SharingRest]:
    """A client of a server, with a profile of the given fields (a bearer token's by default)."""

    def make(
        server: ScriptedServer, settings: NetworkSettings = settings, key: KeyConsent | None = None, **fields: Any
    ) -> SharingRest:
        profile = {"shareCredentialsVersion": 1, "endpoint": server.endpoint, "bearerToken": TOKEN} | fields
        return SharingRest(load_profile(profile, key=key), settings)

    return make


@pytest.fixture
def secure(certificate: Path) -> Iterator[ScriptedServer]:
    with ScriptedServer(context_of(certificate)) as running:
        running.on("", OK)
        yield running


@pytest.fixture
def rest(server: ScriptedServer, rest_of: Callable[..., SharingRest]) -> SharingRest:
    return rest_of(server)


@pytest.fixture(autouse=True)
def _no_host_known() -> Iterator[None]:
    """Each test begins as a process that no server has answered yet."""
    transport._answered.clear()
    yield
    transport._answered.clear()
