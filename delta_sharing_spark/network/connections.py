"""Provides pooled HTTP connections that another thread can break off: when their reader goes away and when a request's time is
over. They also refuse, before a byte is sent, to connect to addresses that may not be asked."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import requests
import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.process_end import start
from delta_sharing_spark.network.urls import Url, is_local_address

_log = logging.getLogger(__name__)


class ReadCancelled(Exception):
    """The reader went away. Reaches a user as ``errors.BrokenOffError``."""


class Canceller:
    """Ends the requests and waits of one reader, from another thread.

    Args:
        name: How ``ReadCancelled`` names the reader.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._broken = threading.Event()
        self._lock = threading.RLock()  # the garbage collector may break off what the thread is using
        #: By thread, what ends the request that it makes.
        self._in_use: dict[int, Callable[[], object]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context, requests and waits of the thread end with the reader."""
        before = _CANCELLER.set(self)
        try:
            yield
        finally:
            _CANCELLER.reset(before)
            with self._lock:
                self._in_use.pop(threading.get_ident(), None)

    def check(self) -> None:
        """Raise ``ReadCancelled`` if the reader has gone away."""
        if self._broken.is_set():
            raise ReadCancelled(f"{self._name}: reading it was broken off")

    @property
    def is_broken(self) -> bool:
        """Whether the reader has gone away."""
        return self._broken.is_set()

    def wait(self, seconds: float) -> None:
        """Wait, and raise ``ReadCancelled`` as soon as the reader goes away."""
        self._broken.wait(seconds)
        self.check()

    def break_off(self) -> None:
        """End the requests and waits under way, and those that begin later."""
        self._broken.set()
        with self._lock:
            in_use = list(self._in_use.values())
        for end in in_use:
            end()

    close = break_off

    def use(self, end: Callable[[], object]) -> None:
        """Set what ends the request of this thread.

        Raises:
            ReadCancelled: The reader has gone away.
        """
        with self._lock:
            self._in_use[threading.get_ident()] = end
        self.check()


_CANCELLER: ContextVar[Canceller | None] = ContextVar("canceller", default=None)


def canceller_here(name: str) -> Canceller:
    """The canceller of this thread's reader; where it has none, one of its own."""
    return _CANCELLER.get() or Canceller(name)


def check_reader() -> None:
    """Raise ``ReadCancelled`` if the reader of this thread has gone away."""
    canceller = _CANCELLER.get()
    if canceller is not None:
        canceller.check()


def pause(seconds: float) -> None:
    """``time.sleep`` that ends when the reader of this thread goes away; raises ReadCancelled where it went away."""
    canceller = _CANCELLER.get()
    if canceller is None:
        time.sleep(seconds)
    else:
        canceller.wait(seconds)


#: Seconds of silence until the first warning, and between two warnings.
FIRST, AGAIN = 10.0, 60.0
#: The time of the last warning, by its reason: parallel reads wait for the same thing.
_latest: ProcessCache[str, float] = ProcessCache(64)


def say_waiting(what: str, why: str, now: float, waited: float, bound: float, option: str) -> None:
    """Warn of a wait, unless it will end in an error soon, or runs in a Spark task, whose log nobody watches.

    Args:
        what: What is waited for.
        why: Who does not answer, and how.
        now: Seconds of the clock that the wait is measured by.
        waited: Seconds since the wait began.
        bound: Seconds after which it is given up.
        option: The option that sets the bound.
    """
    latest, pyspark = _latest.get(why), sys.modules.get("pyspark.taskcontext")
    is_in_task = pyspark is not None and pyspark.TaskContext.get() is not None
    if bound < 2 * FIRST or (latest is not None and 0 <= now - latest < AGAIN) or is_in_task:
        return
    _latest.put(why, now)
    _log.warning(
        "%s: no answer for %.0f s (%s); it is waited for up to %.0f s, which the option %s changes",
        what,
        waited,
        why,
        bound,
        option,
    )


class Deadline:
    """Ends the requests of this thread, answers included, once their time is over, whatever the other side sends.

    A read's time-out begins anew with every byte, a deadline does not. It is a context manager; the innermost one counts. Ten seconds in
    which nothing comes are warned of (``say_waiting``), and each minute after.

    Args:
        seconds: The time from entering the context.
        what: How a warning names what is waited for.
        silence: Seconds after which a read that brings nothing is given up (``readTimeout``).
        late: Makes the error that leaves the context in the place of any other, and of none, once the time is over.

    Attributes:
        is_over: Whether the time is over; what was read since may be cut off, and look complete.
    """

    def __init__(self, seconds: float, what: str, silence: float, late: Callable[[], Exception]) -> None:
        self.is_over = False
        self._what, self._silence, self._late = what, silence, late
        self._last_byte = time.monotonic()
        self._next_word = self._last_byte + FIRST
        self._ends = self._last_byte + seconds
        self._latest = self._ends + _LONGEST_EXTENSION
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Deadline:
        self._before = _DEADLINE.set(self)
        try:
            _watch(self)
        except BaseException as error:  # of a signal's handler: nobody exits from what was not entered
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _DEADLINE.reset(self._before)
        self._connection = None
        with _watched_lock:
            _watched.discard(self)
        is_failure = kind is None or (issubclass(kind, Exception) and not issubclass(kind, ReadCancelled))
        if self.is_over and is_failure:
            raise self._late() from None

    def extend(self, seconds: float) -> None:
        """Allow so many seconds more, up to an hour altogether, for an answer that makes progress."""
        self._ends = min(self._ends + seconds, self._latest)
        self._last_byte = time.monotonic()
        self._next_word = self._last_byte + FIRST

    def use(self, connection: HTTPConnection) -> None:
        """Set the connection that is broken off when the time is over."""
        self._connection = connection
        if self.is_over:
            _hang_up(connection)

    def check(self, now: float) -> None:
        """Break off the connection if the time is over."""
        if now < self._ends:
            if now >= self._next_word:
                self._next_word = now + AGAIN
                connection: Any = self._connection
                host = getattr(connection, "_tunnel_host", None) or getattr(connection, "host", "the other side")
                waited = now - self._last_byte
                say_waiting(self._what, f"{host} is silent", now, waited, self._silence, "readTimeout")
            return
        self.is_over = True
        connection = self._connection
        if connection is not None:
            _hang_up(connection)


def extend_deadline(seconds: float) -> None:
    """Extend this thread's innermost deadline (``Deadline.extend``)."""
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
            start(
                _watcher, is_awaited=False
            )  # without it, at the end of a process, time-outs bound each wait for a byte


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


class AddressRefusedError(Exception):
    """A host is, or leads to, an address that may not be asked. Its text names the address."""


@contextlib.contextmanager
def refusing_local_addresses() -> Iterator[None]:
    """Within this context, the thread connects to no loopback or link-local address, whatever name leads to it: raises AddressRefusedError before it sends."""
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
    # A connection hands its socket over to an answer that ends with it, and its own thread may do so at any time.
    for sock in (connection.sock, getattr(connection, "last_sock", None)):
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # closing would not wake the thread that waits for it


def _note(connection: HTTPConnection) -> None:
    canceller, deadline = _CANCELLER.get(), _DEADLINE.get()
    if canceller is not None:
        canceller.use(partial(_hang_up, connection))
    if deadline is not None:
        deadline.use(connection)


class FinalAnswer(http.client.HTTPResponse):
    """An answer that skips what comes before its final status (103 Early Hints, 102 Processing): http.client skips 100 alone."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]  # not in typeshed
            if not 101 < status < 200:
                return version, status, reason
            http.client.parse_headers(self.fp)


class BreakableConnection(HTTPConnection):
    """A connection that ``Canceller`` and ``Deadline`` can break off, and that refuses addresses as the thread does."""

    response_class = FinalAnswer
    #: The socket of the last request, also once the answer has taken it.
    last_sock: socket.socket | None = None

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        _check_peer(self, sock)
        return sock

    def request(self, *args: Any, **kwargs: Any) -> None:
        _check_peer(self, self.sock)
        _note(self)
        super().request(*args, **kwargs)
        self.last_sock = self.sock
        _note(self)  # who went away while it was connected could not hang up

    def begin(self, connect: Callable[[], None]) -> socket.socket:
        """The socket for another request of the thread; ``connect`` opens the connection first if it is not open.

        Raises:
            AddressRefusedError: It leads to an address that may not be asked.
            ReadCancelled: The reader went away.
            Whatever ``connect`` raises.
        """
        _check_peer(self, self.sock)
        _note(self)
        if self.sock is None:
            connect()
        self.last_sock = self.sock
        _note(self)
        assert self.sock is not None, "it is connected"
        return self.sock


class _SecureConnection(BreakableConnection, HTTPSConnection):
    pass


class _PlainPool(urllib3.HTTPConnectionPool):
    ConnectionCls = BreakableConnection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


#: Pools that an adapter notes, over all origins.
_MOST_POOLS = 64
_PROXY_VARIABLES = tuple(
    variable for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for variable in (name, name.upper())
)


class BreakableAdapter(requests.adapters.HTTPAdapter):
    """Makes requests use these connections, through a proxy as well; connections of a SOCKS proxy are left as they are."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pools: dict[tuple[object, ...], Any] = {}
        super().__init__(*args, **kwargs)

    def pool_for(self, url: Url, session: requests.Session) -> urllib3.HTTPConnectionPool:
        """The pool of connections to a URL's host, or to the proxy on the way there, as a session's requests use it.

        Raises:
            requests.RequestException, OSError: The proxy's address is none, or the certificates cannot be read.
        """
        # Mostly none is set, as ``in`` tells sooner than ``get``.
        by_proxy = ((name, os.environ.get(name)) for name in _PROXY_VARIABLES if name in os.environ)
        way = (*url.origin, str(session.verify), *by_proxy)
        pool = self._pools.get(way)
        if pool is None or pool.pool is None:  # closed, as one of too many hosts
            if len(self._pools) >= _MOST_POOLS:
                self._pools.clear()
            pool = self._pools[way] = self._pool_of(f"{url.root}/", session)
        return pool

    def _pool_of(self, root: str, session: requests.Session) -> Any:
        how = session.merge_environment_settings(root, {}, True, None, None)
        if not hasattr(self, "get_connection_with_tls_context"):  # before requests 2.32.2
            pool = self.get_connection(root, how["proxies"])
            self.cert_verify(pool, root, how["verify"], how["cert"])  # type: ignore[no-untyped-call]
            return pool
        request = requests.Request("GET", root).prepare()
        return self.get_connection_with_tls_context(request, how["verify"], proxies=how["proxies"], cert=how["cert"])

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


def _forget_in_fork() -> None:
    """Begin anew in a forked process: its parent's threads are not there, and its parent still uses what is open."""
    global _watched_lock, _watcher
    _watched_lock, _watcher = threading.Lock(), None
    _watched.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_fork)
