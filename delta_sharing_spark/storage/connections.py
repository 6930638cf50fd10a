"""Pooled HTTP connections, and who may break off the requests and waits of their threads, an answer begun or not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import requests
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection


class ReadCancelled(Exception):
    """The reader went away. Never reaches a user."""


class Breaker:
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
        before = _BREAKER.set(self)
        try:
            yield
        finally:
            _BREAKER.reset(before)
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
            sock = connection.sock  # its own thread may take it away meanwhile
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # closing would not wake the thread that waits for it

    def _use(self, connection: HTTPConnection) -> None:
        with self._lock:
            self._in_use[threading.get_ident()] = connection
        self.check()


_BREAKER: ContextVar[Breaker | None] = ContextVar("breaker", default=None)


def pause(seconds: float) -> None:
    """``time.sleep``, that ends with the reader of this thread.

    Raises:
        ReadCancelled: It did.
    """
    breaker = _BREAKER.get()
    if breaker is None:
        time.sleep(seconds)
    else:
        breaker.wait(seconds)


def _note(connection: HTTPConnection) -> None:
    breaker = _BREAKER.get()
    if breaker is not None:
        breaker._use(connection)


class _Plain(HTTPConnection):
    def request(self, *args: Any, **kwargs: Any) -> None:
        _note(self)
        super().request(*args, **kwargs)
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
