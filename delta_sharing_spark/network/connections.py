"""Pooled HTTP connections that can be broken off from outside: by a reader that goes away, when a request's time is over,
and before a byte is sent to an address that may not be asked."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import requests
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from delta_sharing_spark.network.hosts import is_local_address


class ReadCancelled(Exception):
    """The reader went away. Never reaches a user."""


class Canceller:
    """Ends the requests and waits of one reader, from another thread.

    Args:
        name: How ``ReadCancelled`` names the reader.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._broken = threading.Event()
        self._lock = threading.Lock()
        #: By thread, the connection it uses.
        self._in_use: dict[int, HTTPConnection] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Meanwhile, requests and waits of this thread are the reader's."""
        before = _CANCELLER.set(self)
        try:
            yield
        finally:
            _CANCELLER.reset(before)
            with self._lock:
                self._in_use.pop(threading.get_ident(), None)

    def check(self) -> None:
        """Raise ``ReadCancelled`` once the reader went away."""
        if self._broken.is_set():
            raise ReadCancelled(f"{self._name}: reading it was broken off")

    def wait(self, seconds: float) -> None:
        """Wait, at most until the reader goes away; then as ``check``."""
        self._broken.wait(seconds)
        self.check()

    def break_off(self) -> None:
        """End what is under way, and whatever begins later."""
        self._broken.set()
        with self._lock:
            in_use = list(self._in_use.values())
        for connection in in_use:
            _hang_up(connection)

    def _use(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._in_use[threading.get_ident()] = connection
        self.check()


_CANCELLER: ContextVar[Canceller | None] = ContextVar("canceller", default=None)


def pause(seconds: float) -> None:
    """``time.sleep``, that ends with the reader of this thread.

    Raises:
        ReadCancelled: It did.
    """
    canceller = _CANCELLER.get()
    if canceller is None:
        time.sleep(seconds)
    else:
        canceller.wait(seconds)


class Deadline:
    """Ends the requests of this thread, answers included, once their time is over: whatever the other side does.

    A read's time-out begins anew with every byte; this does not. Used as a context; the innermost one counts.

    Args:
        seconds: How long.

    Attributes:
        expired: Whether the time is over; what was read since is not to be believed.
    """

    def __init__(self, seconds: float) -> None:
        self.expired = False
        self._ends = time.monotonic() + seconds
        self._latest = self._ends + _LONGEST_EXTENSION
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Deadline:
        self._before = _DEADLINE.set(self)
        _watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        _DEADLINE.reset(self._before)
        self._connection = None
        with _watched_lock:
            _watched.discard(self)

    def extend(self, seconds: float) -> None:
        """Allow so much more, up to an hour altogether: for an answer that makes progress."""
        self._ends = min(self._ends + seconds, self._latest)

    def use(self, connection: HTTPConnection) -> None:
        """Note the connection that is to be broken off."""
        self._connection = connection
        if self.expired:
            _hang_up(connection)

    def check(self, now: float) -> None:
        """Break off what is under way if the time is over."""
        if now < self._ends:
            return
        self.expired = True
        connection = self._connection
        if connection is not None:
            _hang_up(connection)


def extend_deadline(seconds: float) -> None:
    """Allow this thread's innermost deadline so much more, as ``Deadline.extend``."""
    deadline = _DEADLINE.get()
    if deadline is not None:
        deadline.extend(seconds)


_LONGEST_EXTENSION = 3600.0
_WATCH_SECONDS = 0.1
_DEADLINE: ContextVar[Deadline | None] = ContextVar("deadline", default=None)
_watched: set[Deadline] = set()
_watched_lock = threading.Lock()
_watcher: threading.Thread | None = None


def _watch(deadline: Deadline) -> None:
    global _watcher
    with _watched_lock:
        _watched.add(deadline)
        if _watcher is None or not _watcher.is_alive():
            _watcher = threading.Thread(target=_watch_all, name="delta-sharing-deadlines", daemon=True)
            _watcher.start()


def _watch_all() -> None:
    """Look at all deadlines a few times a second; ends when there are none for a while."""
    global _watcher
    idle = 0
    while True:
        time.sleep(_WATCH_SECONDS)
        with _watched_lock:
            deadlines = list(_watched)
            idle = 0 if deadlines else idle + 1
            if idle > 2:
                _watcher = None
                return
        now = time.monotonic()
        for deadline in deadlines:
            deadline.check(now)


def _forget_in_fork() -> None:
    global _watched_lock, _watcher
    _watched_lock, _watcher = threading.Lock(), None
    _watched.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_fork)


class AddressRefusedError(Exception):
    """A host is, or leads to, an address that may not be asked. Its text names the address."""


@contextlib.contextmanager
def refusing_local_addresses() -> Iterator[None]:
    """Meanwhile, this thread connects to no loopback or link-local address, whatever name leads there.

    Raises:
        AddressRefusedError: It would have; nothing was sent.
    """
    before = _REFUSING.set(True)
    try:
        yield
    finally:
        _REFUSING.reset(before)


_REFUSING: ContextVar[bool] = ContextVar("refusing_local_addresses", default=False)


def _check_peer(connection: HTTPConnection, sock: socket.socket | None) -> None:
    # The other end of a proxy's connection is the proxy, which is the user's choice.
    if sock is None or connection.proxy is not None or not _REFUSING.get():
        return
    address = str(sock.getpeername()[0])
    if is_local_address(address):
        connection.close()
        sock.close()
        raise AddressRefusedError(address)


def _hang_up(connection: HTTPConnection) -> None:
    # A connection gives its socket away where the answer ends with it; its own thread may take it away meanwhile.
    for sock in (connection.sock, getattr(connection, "used_sock", None)):
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # closing would not wake the thread that waits for it


def _note(connection: HTTPConnection) -> None:
    canceller, deadline = _CANCELLER.get(), _DEADLINE.get()
    if canceller is not None:
        canceller._use(connection)
    if deadline is not None:
        deadline.use(connection)


class _Plain(HTTPConnection):
    #: The socket of the last request, also once the answer has taken it.
    used_sock: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        _check_peer(self, sock)
        return sock

    def request(self, *args: Any, **kwargs: Any) -> None:
        _check_peer(self, self.sock)
        _note(self)
        super().request(*args, **kwargs)
        self.used_sock = self.sock
        _note(self)  # who went away while it was connected could not hang up


class _Secure(_Plain, HTTPSConnection):
    pass


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Secure


class BreakableAdapter(requests.adapters.HTTPAdapter):
    """requests' adapter over such connections, through a proxy as well; those of a SOCKS proxy are left as they are."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        _equip(self.poolmanager)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):
            _equip(manager)
        return manager


def _equip(manager: urllib3.PoolManager) -> None:
    manager.pool_classes_by_scheme = {"http": _PlainPool, "https": _SecurePool}
