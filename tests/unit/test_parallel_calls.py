"""Independent calls at the same time: their order, their errors, what is not begun after one."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import wait
from functools import partial

import pytest

from delta_sharing_spark.network.parallel_calls import DaemonPool, in_parallel
from support import HANGS


def test_calls_are_made_at_once_and_answered_in_order() -> None:
    barrier = threading.Barrier(3)

    def call(number: int) -> int:
        barrier.wait(HANGS)
        return number

    assert in_parallel([partial(call, n) for n in range(3)]) == [0, 1, 2]
    assert in_parallel([]) == []


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to processes here")
def test_an_interrupt_that_another_thread_gets_ends_the_wait() -> None:
    ended: list[bool] = []
    is_over = threading.Event()

    def interrupted() -> bool:
        time.sleep(0.3)  # until the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        is_over.wait(HANGS)
        ended.append(True)
        return True

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
    try:
        with pytest.raises(KeyboardInterrupt):
            in_parallel([interrupted, partial(is_over.wait, 10)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert not ended
    is_over.set()


def test_the_first_error_in_order_leaves_and_the_rest_is_not_begun() -> None:
    begun: list[int] = []
    go_on = threading.Event()

    def call(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise LookupError("first")
        if number == 1:
            raise ValueError("second")
        go_on.wait(HANGS)

    before = threading.active_count()
    with pytest.raises(LookupError, match="first"):
        in_parallel([partial(call, n) for n in range(100)])
    go_on.set()
    while threading.active_count() > before:
        time.sleep(0.01)
    assert len(begun) < 100


def test_who_waits_for_calls_is_told_of_those_that_were_cancelled() -> None:
    """A download that failed waited half a minute for the pieces that it had not begun."""
    go_on = threading.Event()
    with DaemonPool(1) as pool:
        calls = [pool.submit(go_on.wait, HANGS) for _ in range(3)]
    go_on.set()
    assert not wait(calls, HANGS).not_done
