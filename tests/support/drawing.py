"""Hypothesis' examples that builders make by chance, each by one draw.

Of an example that is put together by many draws, Hypothesis tries up to five mutations before it draws another: of 300 of a
condition and rows, 93 had a condition of their own, and the draws took four fifths of the time. The price: what fails is not
made smaller. Builders make little, and a test that fails shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

T = TypeVar("T")


def cases(count: int, **others: Any) -> settings:
    """Settings of a drawn test that needs another number of examples than the 100 of most; profiles have shares of it.

    By day 40 in 100 are drawn, the same each time; ``nox -s drawn`` draws anew, ten times as many.
    """
    return settings(max_examples=count * settings.default.max_examples // 100, **others)


def drawn(*builders: Callable[[Random], Any]) -> st.SearchStrategy[Any]:
    """Tuples of what each of the builders makes."""

    def build(seed: bytes) -> tuple[Any, ...]:
        random = Random(seed)
        return tuple(builder(random) for builder in builders)

    return st.binary(min_size=16, max_size=16).map(build)


def one_of(*choices: T) -> Callable[[Random], T]:
    return lambda random: random.choice(choices)


def some_of(choices: Sequence[T], least: int, most: int) -> Callable[[Random], set[T]]:
    return lambda random: set(random.sample(choices, random.randint(least, most)))
