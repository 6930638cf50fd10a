"""Sends requests: one set of bounds for the sharing server, its token endpoint, data URLs and storage; pooled sessions."""

from __future__ import annotations

import json
import logging
import platform
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.cookiejar import DefaultCookiePolicy
from typing import Any, ClassVar

import requests
import urllib3

from delta_sharing_spark._version import __version__
from delta_sharing_spark.network.client_certificate import ClientCertificate
from delta_sharing_spark.network.connections import pause
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.proxies import proxies_for
from delta_sharing_spark.network.tls import TlsAdapter, trusted

#: How often one read asks for another URL or credential after a refusal, in both access modes.
MAX_RENEWALS = 2
#: Seconds after which what was refused again, though it is new, is tried once more: storages learn of it one after the other.
SETTLING = 2.0
#: What no second try changes: the request itself cannot be made.
UNSENDABLE = (
    requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema,
    requests.exceptions.InvalidHeader, urllib3.exceptions.LocationValueError, UnicodeError,
)  # fmt: skip
_LONGEST_NAME = 200
#: Seconds of an early renewal, which asks for another value while one still works: for its retries, and at most without a byte.
_EARLY_RETRIES, _EARLY_SILENCE = 5.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Bounds of requests, their proxy and certificates; the defaults are those of the options.

    Attributes:
        connect_timeout: Seconds to open a connection.
        read_timeout: Seconds between two bytes of an answer.
        retry_seconds: How long transient failures of one call are repeated.
        first_contact_seconds: The same while the host has never answered this process: a mistyped endpoint is told
            sooner than an outage is given up.
        first_wait, longest_wait: Seconds before the first retry, and at most before any.
        proxy: A proxy for http and https, instead of the environment's.
        ca_bundle: A file of certificates to trust, instead of the environment's and certifi's.
        client_certificate: Shown to the sharing server and its token endpoint, never to data hosts.
        caller_org: Free text for the User-Agent.
        engine: What runs the request, for the User-Agent (``Spark/4.3.0``).
        table: What the requests are for, for metrics; empty where it is no single table.
        sleep, clock: Functions that wait and tell the time; tests replace them so as not to wait.
    """

    #: Who is asked, for metrics.
    server: ClassVar[str] = "sharing"

    connect_timeout: float = 10.0
    read_timeout: float = 320.0
    retry_seconds: float = 600.0
    first_contact_seconds: float = 15.0
    first_wait: float = 0.5
    longest_wait: float = 30.0
    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    client_certificate: ClientCertificate | None = None
    caller_org: str | None = None
    engine: str | None = None
    table: str = field(default="", repr=False, compare=False)
    sleep: Callable[[float], None] = field(default=pause, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @property
    def request_seconds(self) -> float:
        """Seconds that one request may take, from its connection to the last byte of its answer."""
        return self.connect_timeout + max(self.read_timeout, self.retry_seconds)

    def early(self, seconds: float | None) -> NetworkSettings:
        """The settings of a request that renews what still works for some seconds: it waits out no outage and no silent server.

        Args:
            seconds: None where nothing works, so that the request is as patient as others.
        """
        if seconds is None:
            return self
        silence = max(_EARLY_RETRIES, min(_EARLY_SILENCE, seconds / 2))
        return replace(
            self,
            retry_seconds=min(_EARLY_RETRIES, seconds, self.retry_seconds),
            read_timeout=min(silence, self.read_timeout),
        )

    @property
    def user_agent(self) -> str:
        """``Delta-Sharing-Spark-Python/<version> Spark/<v> Python/<v> System/<os> callerOrg-<x>``."""
        parts = [f"Delta-Sharing-Spark-Python/{__version__}"]
        if self.engine:
            parts.append(self.engine)
        parts += [f"Python/{platform.python_version()}", f"System/{platform.system()}"]
        if self.caller_org:
            parts.append(f"callerOrg-{_header_text(self.caller_org)}")
        return " ".join(parts)


def _header_text(text: str) -> str:
    return "".join(c if " " < c < "\x7f" else "_" for c in text)[:_LONGEST_NAME]


_SESSIONS = 16
#: Hosts to which connections are kept, and how many to each: the native lane asks a far storage over 144 at once.
_HOSTS, _CONNECTIONS = 32, 160


class _Session(requests.Session):
    """A session whose proxies and authorities are the settings', else the environment's, and that keeps nothing of
    one recipient for another: no cookies, no passwords from ``~/.netrc``."""

    def __init__(self, settings: NetworkSettings, certificate: ClientCertificate | None) -> None:
        super().__init__()
        # With trust_env requests would put the environment before our options, and send ~/.netrc after redirects.
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        authorities, context = trusted(settings.ca_bundle), None if certificate is None else certificate.context()
        adapter = TlsAdapter(authorities, context, pool_connections=_HOSTS, pool_maxsize=_CONNECTIONS, max_retries=0)
        self.mount("https://", adapter)
        self.mount("http://", adapter)
        self.headers["User-Agent"] = settings.user_agent
        self.verify = True if authorities is None else authorities.file or authorities.directories or True
        self._proxy = settings.proxy

    def resolve_redirects(self, *_: Any, **__: Any) -> Iterator[Any]:
        """Yield none: callers follow redirects themselves, because requests would first read their whole bodies."""
        return iter(())

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        proxies_used = proxies_for(url, self._proxy)
        return {"proxies": proxies_used, "stream": bool(stream), "verify": self.verify, "cert": cert}


_sessions: ProcessCache[tuple[object, ...], requests.Session] = ProcessCache(_SESSIONS)


def rest_session(settings: NetworkSettings) -> requests.Session:
    """The process's pooled session for the sharing server, without authentication but the client's certificate.

    Raises:
        OptionError, ConfigError: As ``data_session`` and ``ClientCertificate.context``.
    """
    return _session(settings, "rest", settings.client_certificate)


def data_session(settings: NetworkSettings) -> requests.Session:
    """The process's pooled session for data URLs. It never carries a token or a certificate of the client.

    Raises:
        OptionError, ConfigError: What the option or the environment names as certificates does not exist.
    """
    return _session(settings, "data", None)


def _session(settings: NetworkSettings, purpose: str, certificate: ClientCertificate | None) -> requests.Session:
    # One that goes is not closed: a request of another thread may still be using it.
    state = certificate and certificate.state()
    key = (purpose, settings.proxy, settings.ca_bundle, settings.user_agent, certificate, state)
    return _sessions.get_or_make(key, lambda: _Session(settings, certificate))


_QUERY = re.compile(r"\?.*", re.DOTALL)


def _without_queries(record: logging.LogRecord) -> bool:
    """Cut queries off the paths that urllib3 logs at DEBUG: the query of a presigned URL is a secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(_QUERY.sub("?[redacted]", a) if isinstance(a, str) else a for a in record.args)
    return True


for _name in ("urllib3.connectionpool", "urllib3.poolmanager", "urllib3.util.retry"):
    logging.getLogger(_name).addFilter(_without_queries)


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """The object that a JSON text holds; None where it holds none."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return tree if isinstance(tree, dict) else None


def parse_count(text: str) -> int | None:
    """A decimal number of at most 18 digits, as headers and URLs write counts; None for anything else."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
