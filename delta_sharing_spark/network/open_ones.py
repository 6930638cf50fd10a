"""Closes all of what is open at once, whichever threads use it."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - its hook joins executors' threads, and comes after those registered later
import threading
import weakref
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What can be closed while other threads use it."""

    def close(self) -> None: ...


_T = TypeVar("_T", bound=Closable)


class OpenOnes(Generic[_T]):
    """Open things of one owner, which are not kept alive for it. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By id: what is open need not be hashable.
        self._open: weakref.WeakValueDictionary[int, _T] = weakref.WeakValueDictionary()
        self._is_closed = False

    def add(self, one: _T) -> _T:
        """Add one, which is closed at once if all are; returns it."""
        with self._lock:
            self._open[id(one)] = one
            is_closed = self._is_closed
        if is_closed:
            one.close()
        return one

    def close(self) -> None:
        """Close all, and whatever is added from now on."""
        with self._lock:
            self._is_closed = True
            still_open = list(self._open.values())
        for one in still_open:
            one.close()


#: What waits for a network: closed when the interpreter ends, which waits for the executors' threads first of all.
CLOSED_AT_EXIT: OpenOnes[Closable] = OpenOnes()
# Other hooks are called once those threads have ended, perhaps minutes later.
getattr(threading, "_register_atexit", atexit.register)(CLOSED_AT_EXIT.close)
