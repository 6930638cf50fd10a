"""Keeps values between uses in one process: bounded, shared by its threads, and not inherited by a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")

_caches: weakref.WeakSet[ProcessCache[Any, Any]] = weakref.WeakSet()


class ProcessCache(Generic[_K, _V]):
    """Values by key; the longest unused go first.

    A forked process begins with an empty cache: sockets, event loops and locks of its parent are not its own.

    Args:
        size: The maximum number of values.
        weigh: Returns a value's weight, which may change while it is kept; None bounds only the number of values.
        max_weight: The maximum weight of all values together; the newest is kept whatever it weighs.
    """

    def __init__(self, size: int, weigh: Callable[[_V], int] | None = None, max_weight: int = 0) -> None:
        self._size, self._weigh, self._max_weight = size, weigh, max_weight
        self._lock = threading.RLock()
        self._values: OrderedDict[_K, _V] = OrderedDict()
        self._inherited: list[Any] = []
        _caches.add(self)

    def get(self, key: _K) -> _V | None:
        """The value of a key, marked as used; None if there is none."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def get_or_make(self, key: _K, make: Callable[[], _V]) -> _V:
        """The value of a key, marked as used; made under the cache's lock if there is none."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            self._values.move_to_end(key)
            self._trim()
            return self._values[key]

    def put(self, key: _K, value: _V) -> None:
        """Keep a value under a key, in place of an earlier one."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            self._trim()

    def forget(self, key: _K) -> None:
        """Remove the value of a key, if there is one."""
        with self._lock:
            self._values.pop(key, None)

    def items(self) -> list[tuple[_K, _V]]:
        """The keys and values kept now, the longest unused first."""
        with self._lock:
            return list(self._values.items())

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def _trim(self) -> None:
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        if self._weigh is not None:
            while len(self._values) > 1 and sum(map(self._weigh, self._values.values())) > self._max_weight:
                self._values.popitem(last=False)

    def _begin_in_fork(self) -> None:
        self._lock = threading.RLock()
        # Kept, not closed: closing could speak on a connection that the parent still uses.
        self._inherited.append(self._values)
        self._values = OrderedDict()


def _begin_all_in_fork() -> None:
    for cache in list(_caches):
        cache._begin_in_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all_in_fork)
