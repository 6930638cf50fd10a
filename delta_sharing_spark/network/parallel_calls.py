"""Makes independent calls at the same time, in threads that do not keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

_T = TypeVar("_T")

#: Calls under way at once.
_AT_ONCE = 8


def in_parallel(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Make calls that mostly wait for a server, up to eight at once.

    Ctrl-C and the first error leave at once; what is under way then ends by itself, and the rest is not begun.

    Returns:
        Their results, in order.

    Raises:
        Exception: The error of the first call, in order, that failed.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    results = begin(calls, _AT_ONCE)
    try:
        return [result.result() for result in results]
    finally:
        for result in results:
            result.cancel()


def begin(calls: Sequence[Callable[[], _T]], at_once: int) -> list[Future[_T]]:
    """Begin calls in up to ``at_once`` threads; returns their results to come. One that is cancelled first is not begun."""
    waiting: queue.SimpleQueue[tuple[Callable[[], _T], Future[_T]]] = queue.SimpleQueue()
    results: list[Future[_T]] = []
    for call in calls:
        results.append(Future())
        waiting.put((call, results[-1]))
    for _ in range(min(at_once, len(calls))):
        # Daemons, not a pool's threads: the interpreter waits for those when it ends.
        threading.Thread(target=_work, args=(waiting,), name="delta-sharing-parallel", daemon=True).start()
    return results


def _work(waiting: queue.SimpleQueue[tuple[Callable[[], _T], Future[_T]]]) -> None:
    while True:
        try:
            call, result = waiting.get_nowait()
        except queue.Empty:
            return
        if not result.set_running_or_notify_cancel():
            continue
        try:
            result.set_result(call())
        except BaseException as error:  # handed to the caller's thread, which raises it
            result.set_exception(error)
