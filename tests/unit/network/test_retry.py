"""Retries: what they cost what succeeds, what passes them by, and what they leave behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from delta_sharing_spark.errors import FileGoneError
from delta_sharing_spark.network.connections import ReadCancelled
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.retry import RetryableError, retry

SETTINGS = NetworkSettings(sleep=lambda _: None)
_SUCCEEDS = """
import sys
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.retry import RetryableError, retry
import delta_sharing_spark.client, delta_sharing_spark.storage.objects
failures = [RetryableError("one")]
def fails_once():
    if failures:
        raise failures.pop()
settings = NetworkSettings(sleep=lambda _: None)
retry(lambda: None, settings)
print("tenacity" in sys.modules)
retry(fails_once, settings)
print("tenacity" in sys.modules)
"""


def test_what_succeeds_at_once_imports_no_engine_of_retries() -> None:
    ran = subprocess.run([sys.executable, "-c", _SUCCEEDS], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


def failing(*errors: BaseException) -> Callable[[], str]:
    """A call that raises one error after the other, and then succeeds."""
    remaining = list(errors)

    def call() -> str:
        if remaining:
            raise remaining.pop(0)
        return "rows"

    return call


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ReadCancelled("gone"), FileGoneError("gone"), SystemExit()])
def test_what_no_retry_mends_is_raised_at_once_and_as_it_is(error: BaseException, before: int) -> None:
    call = failing(*(RetryableError(f"{number}") for number in range(before)), error)
    with pytest.raises(type(error)) as caught:
        retry(call, SETTINGS)
    assert caught.value is error
    assert caught.value.__context__ is None
    assert "tenacity" not in "".join(traceback.format_tb(caught.value.__traceback__))
    assert call() == "rows", "it was called no more"


@pytest.mark.parametrize("kind", [RetryableError, ReadCancelled])
def test_a_failed_read_leaves_no_bytes_for_the_garbage_collector(kind: type[Exception]) -> None:
    class Buffer(bytearray):
        pass

    buffers: list[weakref.ref[Buffer]] = []

    def call() -> None:
        buffer = Buffer(100)
        buffers.append(weakref.ref(buffer))
        raise RetryableError("again") if len(buffers) < 3 else kind("last")

    def read() -> None:
        with suppress(kind):
            retry(call, NetworkSettings(sleep=lambda _: None, clock=count(0, 100).__next__))

    gc.disable()
    try:
        read()
        assert len(buffers) > 2
        assert [buffer() for buffer in buffers] == [None] * len(buffers)
    finally:
        gc.enable()


def test_a_wait_that_ends_the_tries_is_raised() -> None:
    """As that of a reader who goes away meanwhile."""

    def gone(_: float) -> None:
        raise ReadCancelled("gone")

    with pytest.raises(ReadCancelled):
        retry(failing(RetryableError("one")), SETTINGS, sleep=gone)
