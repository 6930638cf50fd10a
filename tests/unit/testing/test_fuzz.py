"""The fuzzer lives: a few cases of each surface here, minutes of them by ``nox -s fuzz``."""

from __future__ import annotations

import pytest

from fuzz.surfaces import SURFACES
from fuzz.worker import outcome_of


@pytest.mark.parametrize("name", sorted(SURFACES))
def test_a_few_damaged_inputs_are_read_or_refused(name: str) -> None:
    surface = SURFACES[name]()
    surface.expected()
    try:
        outcomes = [outcome_of(surface, number, seed=1) for number in range(8)]
    finally:
        surface.close()
    assert set(outcomes) <= {"same", "refused", "other"}
