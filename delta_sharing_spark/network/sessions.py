"""Keeps the pooled sessions that a process sends its requests with."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.utils import get_environ_proxies

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.network.connections import BreakableAdapter
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.settings import NetworkSettings

_SESSIONS = 16
_POOL = 32
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


class _Session(requests.Session):
    """A session whose proxies and certificates are the settings', else the environment's, and that keeps nothing of
    one recipient for another: no cookies, no passwords from ``~/.netrc``."""

    def __init__(self, settings: NetworkSettings) -> None:
        super().__init__()
        # With trust_env requests would put the environment before our options, and send ~/.netrc after redirects.
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        adapter = BreakableAdapter(pool_connections=_POOL, pool_maxsize=2 * _POOL, max_retries=0)
        self.mount("https://", adapter)
        self.mount("http://", adapter)
        self.headers["User-Agent"] = settings.user_agent
        self.verify = _certificates(settings.ca_bundle)
        self._proxy = settings.proxy

    def resolve_redirects(self, *_: Any, **__: Any) -> Iterator[Any]:
        """Yield none: callers follow redirects themselves, because requests would first read their whole bodies."""
        return iter(())

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        if self._proxy:
            proxies_used = {"http": self._proxy, "https": self._proxy}
        else:
            proxies_used = get_environ_proxies(url, no_proxy=None)
        return {"proxies": proxies_used, "stream": bool(stream), "verify": self.verify, "cert": cert}


_sessions: ProcessCache[tuple[str, str | None, str | None, str], requests.Session] = ProcessCache(_SESSIONS)


def rest_session(settings: NetworkSettings) -> requests.Session:
    """The process's pooled session for the sharing server; each request adds its own authentication.

    Raises:
        OptionError: The certificates' file does not exist.
    """
    return data_session(settings, "rest")


def data_session(settings: NetworkSettings, purpose: str = "data") -> requests.Session:
    """The process's pooled session for data URLs. It never carries a token; raises OptionError where the certificates' file does not exist."""
    # One that goes is not closed: a request of another thread may still be using it.
    key = (purpose, settings.proxy, settings.ca_bundle, settings.user_agent)
    return _sessions.get_or_make(key, lambda: _Session(settings))


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


_QUERY = re.compile(r"\?.*", re.DOTALL)


def _without_queries(record: logging.LogRecord) -> bool:
    """Cut queries off the paths that urllib3 logs at DEBUG: the query of a presigned URL is a secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(_QUERY.sub("?[redacted]", a) if isinstance(a, str) else a for a in record.args)
    return True


for _name in ("urllib3.connectionpool", "urllib3.poolmanager", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_without_queries)
