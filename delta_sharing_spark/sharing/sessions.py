"""Connections: how requests are sent, and the pooled sessions of a process that send them."""

from __future__ import annotations

import functools
import logging
import os
import platform
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.utils import get_environ_proxies

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.storage.connections import BreakableAdapter, pause

_SESSIONS = 16
_POOL = 32
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """How requests are sent: the same for the sharing server, its token endpoint and data.

    Attributes:
        connect_timeout, read_timeout: Seconds.
        retry_seconds: How long one call may go on retrying.
        first_contact_seconds: How long it may go on while the host has never answered this process: a mistyped
            endpoint should not take as long to tell as an outage is given to pass.
        proxy: A proxy for http and https, instead of the environment's.
        ca_bundle: A file of certificates to trust, instead of the environment's and certifi's.
        caller_org: Free text for the User-Agent.
        engine: What runs the request, for the User-Agent (``Spark/4.3.0``).
        sleep, clock: Injectable, so that tests need not wait.
    """

    connect_timeout: float = 20.0
    read_timeout: float = 120.0
    retry_seconds: float = 300.0
    first_contact_seconds: float = 15.0
    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    caller_org: str | None = None
    engine: str | None = None
    sleep: Callable[[float], None] = field(default=pause, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @property
    def user_agent(self) -> str:
        """``Delta-Sharing-Spark-Python/<version> Spark/<v> Python/<v> System/<os> callerOrg-<x>``."""
        parts = [f"Delta-Sharing-Spark-Python/{_package_version()}"]
        if self.engine:
            parts.append(self.engine)
        parts += [f"Python/{platform.python_version()}", f"System/{platform.system()}"]
        if self.caller_org:
            parts.append(f"callerOrg-{_header_text(self.caller_org)}")
        return " ".join(parts)


class _Session(requests.Session):
    """A session whose proxies and certificates are the settings', else the environment's, and that keeps nothing of
    one recipient for another: no cookies, no passwords from ``~/.netrc``."""

    def __init__(self, settings: TransportSettings) -> None:
        super().__init__()
        # With trust_env requests would put the environment before our options, and send ~/.netrc after redirects.
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        adapter = BreakableAdapter(pool_connections=_POOL, pool_maxsize=_POOL, max_retries=0)
        self.mount("https://", adapter)
        self.mount("http://", adapter)
        self.headers["User-Agent"] = settings.user_agent
        self.verify = _certificates(settings.ca_bundle)
        self._proxy = settings.proxy

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        if self._proxy:
            found = {"http": self._proxy, "https": self._proxy}
        else:
            found = get_environ_proxies(url, no_proxy=None)
        return {"proxies": found, "stream": bool(stream), "verify": self.verify, "cert": cert}


#: By process, so that a fork does not share its parent's sockets.
_sessions: OrderedDict[tuple[int, str, str | None, str | None, str], requests.Session] = OrderedDict()
_lock = threading.Lock()


def rest_session(settings: TransportSettings) -> requests.Session:
    """The process's pooled session for the sharing server; each request adds its own authentication.

    Raises:
        OptionError: The certificates' file does not exist.
    """
    return _session("rest", settings)


def data_session(settings: TransportSettings) -> requests.Session:
    """The process's pooled session for data URLs. It never carries a token.

    Raises:
        OptionError: The certificates' file does not exist.
    """
    return _session("data", settings)


def _session(purpose: str, settings: TransportSettings) -> requests.Session:
    key = (os.getpid(), purpose, settings.proxy, settings.ca_bundle, settings.user_agent)
    with _lock:
        session = _sessions.pop(key, None) or _Session(settings)
        _sessions[key] = session
        if len(_sessions) > _SESSIONS:
            _sessions.popitem(last=False)  # not closed: a request of another thread may still be using it
    return session


def _certificates(option: str | None) -> str | bool:
    path = option or next((os.environ[v] for v in _CA_VARIABLES if os.environ.get(v)), None)
    if path is None:
        return True
    if not os.path.exists(path):
        origin = (
            "the option caBundle" if option else "the environment (REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE)"
        )
        raise OptionError(f"{origin} names the certificates {path}, which do not exist here; correct the path")
    return path


@functools.cache
def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("delta-sharing-spark")
    except PackageNotFoundError:
        return "0"


def _header_text(text: str) -> str:
    return "".join(c if " " < c < "\x7f" else "_" for c in text)[:200]


_QUERY = re.compile(r"\?.*", re.DOTALL)


def _without_queries(record: logging.LogRecord) -> bool:
    """urllib3 logs every request's path at DEBUG; the query of a presigned URL is a secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(_QUERY.sub("?[redacted]", a) if isinstance(a, str) else a for a in record.args)
    return True


for _name in ("urllib3.connectionpool", "urllib3.poolmanager", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_without_queries)
