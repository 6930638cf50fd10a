"""Makes independent calls at the same time, in threads that do not keep the process from ending."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from functools import partial
from typing import Any, TypeVar

_T = TypeVar("_T")

#: Calls under way at once.
_AT_ONCE = 8
#: Seconds that one wait for a call lasts at most.
_STEP = 0.2


def in_parallel(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Make calls that mostly wait for a server or a storage, up to eight at once.

    Ctrl-C and the first error are raised at once: calls that have begun end by themselves, and the rest is not begun.

    Returns:
        Their results, in order.

    Raises:
        Exception: The error of the first call, in order, that failed.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    with CallingThreads(_AT_ONCE) as threads:
        results = [threads.submit(call) for call in calls]
        return [result_of(result) for result in results]


def result_of(result: Future[_T]) -> _T:
    """The result of a call, or its error; waited for in steps.

    The system may hand Ctrl-C to any thread, and Python raises it in the main one only when that runs again.
    """
    while not result.done():
        wait([result], _STEP)
    return result.result()


def begin(calls: Sequence[Callable[[], _T]], at_once: int) -> list[Future[_T]]:
    """Begin calls in up to ``at_once`` threads; returns their futures. A call whose future is cancelled before it begins is not made."""
    threads = CallingThreads(at_once)
    results = [threads.submit(call) for call in calls]
    threads.finish()
    return results


class CallingThreads(Executor):
    """Makes calls in up to ``at_once`` threads. On exit from its context, calls that have not begun are cancelled; it does not wait for others.

    The threads are daemons, unlike an executor's, for which its context and the interpreter's end wait.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._threads = 0
        self._is_left = False
        self._waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()

    def submit(self, call: Callable[..., _T], /, *arguments: Any, **named: Any) -> Future[_T]:
        """Begin a call as soon as a thread is free; returns its future. Only one thread may call this at a time."""
        result: Future[_T] = Future()
        self._waiting.put((partial(call, *arguments, **named), result))
        if self._threads < self._at_once:
            self._threads += 1
            threading.Thread(target=self._work, name="delta-sharing-parallel", daemon=True).start()
        return result

    def finish(self) -> None:
        """End the threads once all calls are made."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def __enter__(self) -> CallingThreads:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_left = True
        self.finish()

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            call, result = item
            if self._is_left:
                result.cancel()
            if not result.set_running_or_notify_cancel():
                continue
            try:
                result.set_result(call())
            except BaseException as error:  # handed to the caller's thread, which raises it
                result.set_exception(error)
            del call, result, item
