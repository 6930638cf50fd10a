"""Starts the threads of reads, and closes what is open when the process ends.

Reads go on until every thread has ended that Python waits for. Then the other reads are broken off. Threads that wait for their
rows stay where they are until the process is gone, because nobody could handle an error any more.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

#: Seconds that the end of a process waits for the threads of reads that it broke off, and seconds between two looks at them.
_PATIENCE, _LOOK = 2.0, 0.002
#: Seconds that it goes on waiting after a look that saw one of them run, as on a busy machine, and the most of all.
_RUNNING, _MOST_PATIENCE = 0.5, 30.0
#: Seconds in which threads that have a batch at hand come back for the next one.
_GRACE = 0.02


class Closable(Protocol):
    """What can be closed while other threads use it."""

    def close(self) -> None: ...


_T = TypeVar("_T", bound=Closable)
_I = TypeVar("_I")
_OVER: Any = object()


class OpenResources(Generic[_T]):
    """Weak references to the open resources of one owner, to close them together. Safe to call from several threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin with no resource, and close none."""
        self._lock = threading.RLock()  # the garbage collector may close what the thread is adding to
        #: By id, for a resource need not be hashable.
        self._open: weakref.WeakValueDictionary[int, _T] = weakref.WeakValueDictionary()
        self._is_closed = False

    def add(self, one: _T) -> _T:
        """Add a resource, and return it; it is closed at once where the others have been closed."""
        with self._lock:
            self._open[id(one)] = one
            is_closed = self._is_closed
        if is_closed:
            one.close()
        return one

    def close(self) -> None:
        """Close all resources, and each that is added later."""
        with self._lock:
            self._is_closed = True
        self.close_open()

    def close_open(self) -> bool:
        """Close the resources that are open now; returns whether there were any."""
        with self._lock:
            still_open = list(self._open.values())
        for one in still_open:
            one.close()
        return bool(still_open)


#: Resources with threads of their own. They are closed at the end of the process.
CLOSED_AT_EXIT: OpenResources[Closable] = OpenResources()
#: Threads that ``start`` began; threads that are within ``awaiting``, by their ids, and what a library takes by ``awaited``.
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_awaiting: set[object] = set()
_is_ending = False


def start(thread: threading.Thread, *, is_awaited: bool = True) -> bool:
    """Start a daemon thread.

    Args:
        is_awaited: Whether the end of the process waits a moment for it, as for threads that end with what is closed then.

    Returns:
        False where the interpreter starts no thread any more (Python 3.12, as soon as the main thread has ended): the caller
        does the thread's work.

    Raises:
        RuntimeError: The system gives no more threads.
    """
    if is_awaited:
        stay_at_end()  # what began now would be in the midst of a library when the interpreter is taken down
    try:
        _awaiting.add(thread)  # it may run before this one goes on
        thread.start()
        if is_awaited:
            _threads.add(thread)
    except RuntimeError as error:
        if "interpreter shutdown" in str(error):
            return False
        raise
    finally:
        _awaiting.discard(thread)
    return True


def start_thread(work: Callable[[], object], name: str, *, is_awaited: bool = True) -> bool:
    """Start a daemon thread that does some work; as ``start``."""
    return start(threading.Thread(target=work, name=name, daemon=True), is_awaited=is_awaited)


def closed_at_exit(one: _T) -> _T:
    """Have a resource closed at the end of the process, and return it; a daemon that opens one after that stays where it is."""
    stay_at_end()
    CLOSED_AT_EXIT.add(one)
    return one


@contextmanager
def awaiting() -> Iterator[None]:
    """Within this context a thread waits for others. At the end of the process it waits for ever.

    Python ends such a thread, which is a daemon, with the process. An error of what was broken off would be printed, and
    a thread that Python ends within a library's own frames may take the whole process with it.
    """
    stay_at_end()
    try:
        _awaiting.add(threading.get_ident())
        yield
    finally:
        _awaiting.discard(threading.get_ident())
        stay_at_end()


def awaited(items: Generator[_I, None, None], *, is_pulled: bool = False) -> Generator[_I, None, None]:
    """The same items for a caller in a library's frames, by a thread that is ``awaiting`` until each of them is there.

    Args:
        is_pulled: Whether the library asks for the next item as soon as it can, as Polars does. The end of the process
            waits for that, because a thread of Polars that comes back later aborts the process.
    """
    taker = object()
    try:
        with closing(items):
            while True:
                with awaiting():
                    _awaiting.discard(taker)
                    item = next(items, _OVER)
                    if is_pulled and item is not _OVER and not _is_ending:
                        _awaiting.add(taker)
                if item is _OVER:
                    return
                yield item
    finally:
        _awaiting.discard(taker)


def is_ending() -> bool:
    """Whether the process is ending, and no thread is left that Python waits for."""
    return _is_ending


def stay_at_end() -> None:
    """Wait for ever where the process is ending and the thread is neither the main one nor of a read, whose owner waits."""
    if _is_ending:
        thread = threading.current_thread()
        if thread is not threading.main_thread() and thread not in _threads:
            _awaiting.discard(threading.get_ident())
            never = threading.Lock()
            never.acquire()
            never.acquire()


def leave_no_core_file() -> None:
    """Have this process and those that it starts leave no file of their memory, in which credentials are, where a fault ends them."""
    with suppress(ImportError, OSError, ValueError):  # a system without such files
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _end() -> None:
    """Break off what is open, and wait a moment for its threads: none should run while the interpreter is taken down."""
    global _is_ending
    _is_ending = True
    had_any = CLOSED_AT_EXIT.close_open()
    began = time.monotonic()
    until = began + _PATIENCE
    while (now := time.monotonic()) < until and (_awaiting or any(thread.is_alive() for thread in list(_threads))):
        time.sleep(_LOOK)
        CLOSED_AT_EXIT.close_open()  # what a thread opened that had not noticed
        if any(map(_is_running, list(_threads))):
            until = min(max(until, now + _RUNNING), began + _MOST_PATIENCE)
    if had_any:
        time.sleep(_GRACE)


def _is_running(thread: threading.Thread) -> bool:
    """Whether a thread runs, or would if a processor were free; False where the system does not tell (all but Linux)."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[:1] == [b"R"]
    except OSError:
        return False


# Called when all threads have ended that are no daemons: what they read is read to its end.
atexit.register(_end)


def _begin_in_fork() -> None:
    """Begin anew in a forked process: its parent's threads are not there, and its parent still uses what is open."""
    global _is_ending
    CLOSED_AT_EXIT.forget()
    _threads.clear()
    _awaiting.clear()
    _is_ending = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_fork)
