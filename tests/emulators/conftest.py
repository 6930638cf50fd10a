"""The emulated clouds, each started when a test first asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from emulators.clouds import CLOUDS, Cloud


@pytest.fixture(scope="session")
def _clouds() -> Iterator[tuple[ExitStack, dict[str, Cloud]]]:
    with ExitStack() as stack:
        yield stack, {}


@pytest.fixture(params=sorted(CLOUDS))
def cloud(request: pytest.FixtureRequest, _clouds: tuple[ExitStack, dict[str, Cloud]]) -> Cloud:
    stack, started = _clouds
    name: str = request.param
    if name not in started:
        started[name] = stack.enter_context(CLOUDS[name]())
    return started[name]
