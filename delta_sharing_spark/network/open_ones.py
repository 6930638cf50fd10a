"""Closes all open resources of an owner together, whichever threads use them."""

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
    """Weak references to the open resources of one owner, to close them together. Safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
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
            still_open = list(self._open.values())
        for one in still_open:
            one.close()


#: Resources whose threads wait for a network. They are closed when the interpreter ends, before it waits for those threads.
CLOSED_AT_EXIT: OpenOnes[Closable] = OpenOnes()
# Other hooks are called once those threads have ended, perhaps minutes later.
getattr(threading, "_register_atexit", atexit.register)(CLOSED_AT_EXIT.close)
