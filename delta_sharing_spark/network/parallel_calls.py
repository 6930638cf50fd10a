"""Makes independent calls at the same time, in daemon threads, and breaks them off when whoever waits for them goes away."""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from functools import partial
from typing import Any, TypeVar

from delta_sharing_spark.network.connections import Canceller, ReadCancelled, check_reader
from delta_sharing_spark.network.process_end import awaiting, closed_at_exit, start_thread, stay_at_end

_T = TypeVar("_T")

#: Calls under way at once.
_AT_ONCE = 8
#: Seconds that one wait for a call lasts at most.
_STEP = 0.2


def in_parallel(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """Make calls that mostly wait for a server or a storage, up to eight at once.

    Ctrl-C and the first error are raised at once: the requests of other calls are broken off, and the rest is not begun.

    Returns:
        Their results, in order.

    Raises:
        Exception: The error of the first call, in order, that failed.
        ReadCancelled: The reader of this thread went away.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    with DaemonPool(_AT_ONCE) as threads:
        results = [threads.submit(call) for call in calls]
        return [result_of(result) for result in results]


def result_of(result: Future[_T]) -> _T:
    """The result of a call, or its error; raises as ``is_done_within``."""
    is_done_within(result)
    return result.result()


def is_done_within(result: Future[Any], seconds: float = math.inf) -> bool:
    """Wait for a call, in steps; returns whether it has ended.

    The system may hand Ctrl-C to any thread, and Python raises it in the main one only when that runs again.

    Raises:
        ReadCancelled: The reader of this thread went away.
    """
    until = time.monotonic() + seconds
    with awaiting():
        while not result.done() and (seconds := until - time.monotonic()) > 0:
            wait([result], min(_STEP, seconds))
            check_reader()
    return result.done()


class DaemonPool(Executor):
    """Makes calls in up to ``at_once`` threads, as a pool of ``concurrent.futures`` does, whose threads are daemons.

    Python's own pools take no call once the main thread has ended, though other threads go on, and Python waits for their threads
    whoever owns them. On exit from its context, calls that have not begun are cancelled, and no call is waited for. If an error
    leaves the context, the requests of running calls are broken off. Calls of a pool that nobody holds any more are made.

    Args:
        name: Of its threads.

    Attributes:
        at_once: The most calls under way; it may be raised.
    """

    def __init__(self, at_once: int, name: str = "delta-sharing-parallel") -> None:
        self.at_once, self._name = at_once, name
        self._calls = _Calls()
        self._lock = threading.Lock()
        self._threads = 0
        # Threads that wait for a call hold none of this; a queue alone may be used in the garbage collector.
        weakref.finalize(self, self._calls.waiting.put, None).atexit = False
        closed_at_exit(self._calls)  # its threads hold it as long as they run

    def submit(self, call: Callable[..., _T], /, *arguments: Any, **keywords: Any) -> Future[_T]:
        """Begin a call as soon as a thread is free; returns its future.

        Where the process is ending and starts no thread any more, the call is made here.

        Raises:
            ReadCancelled: The threads were told to end.
        """
        result: Future[_T] = Future()
        calls = self._calls
        if calls.is_over:
            stay_at_end()
            raise ReadCancelled("the calls were broken off")
        calls.waiting.put((partial(call, *arguments, **keywords), result))
        try:
            calls.idle.get_nowait()
        except queue.Empty:
            self._begin()
        if self._calls.is_over:  # another thread closed the pool meanwhile
            calls.cancel()
        return result

    def _begin(self) -> None:
        """Begin a thread, if there may be another."""
        with self._lock:
            if self._threads >= self.at_once:
                return
            self._threads += 1
        has_begun = False
        try:
            has_begun = start_thread(self._calls.work, self._name)
        finally:
            if not has_begun:
                with self._lock:
                    self._threads -= 1
        if not has_begun:
            self._calls.make_all()

    def close(self) -> None:
        """Cancel calls that have not begun, break off the requests of others, and wait for none. Safe in the garbage collector."""
        self._calls.close()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = True) -> None:
        """Cancel calls that have not begun, and wait for none."""
        self._calls.is_over = True
        self._calls.cancel()

    def __enter__(self) -> DaemonPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.shutdown()
        else:
            self.close()


class _Calls:
    """What the threads of a pool have in common; it does not hold the pool.

    Attributes:
        waiting: Calls that have not begun; None ends the threads.
        idle: One for each thread that waits for a call. A queue: an exception of a signal handler may leave a semaphore locked.
        canceller: Ends the requests of the calls.
        is_over: Whether no more calls are taken.
    """

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self.idle: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.canceller = Canceller("the calls")
        self.is_over = False

    def close(self) -> None:
        self.is_over = True
        self.canceller.break_off()
        self.cancel()

    def cancel(self) -> None:
        """Cancel the calls that have not begun, and let the threads end."""
        try:
            while True:
                item = self.waiting.get_nowait()
                if item is not None and item[1].cancel():
                    item[1].set_running_or_notify_cancel()  # else who waits for it goes on waiting
        except queue.Empty:
            self.waiting.put(None)

    def make_all(self) -> None:
        """Make the calls that have not begun, in this thread."""
        try:
            while (item := self.waiting.get_nowait()) is not None:
                self._make(*item)
        except queue.Empty:
            return
        self.waiting.put(None)

    def work(self) -> None:
        """Make one call after another, as a thread does."""
        while True:
            try:
                item = self.waiting.get_nowait()
            except queue.Empty:
                self.idle.put(None)
                item = self.waiting.get()
            if item is None:
                self.waiting.put(None)  # for the next thread
                return
            self._make(*item)
            del item

    def _make(self, call: Callable[[], Any], result: Future[Any]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            with self.canceller.watching():
                self.canceller.check()
                result.set_result(call())
        except BaseException as error:  # handed to the caller's thread, which raises it
            result.set_exception(error)
        finally:
            del call, result  # an error holds this frame
