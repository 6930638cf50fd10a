"""Holds the settings of requests, and the pooled sessions that send them with the right proxy, authorities and certificate."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import platform
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.cookiejar import DefaultCookiePolicy
from importlib.util import find_spec
from typing import Any, ClassVar

import requests
import urllib3
from requests.utils import get_environ_proxies, select_proxy

from delta_sharing_spark._version import __version__
from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.network.client_certificate import ClientCertificate
from delta_sharing_spark.network.connections import BreakableAdapter, pause
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.urls import UrlError, parse_url

#: How often one read asks for another URL or credential after a refusal, in every access mode.
MAX_RENEWALS = 2
#: Seconds before a new credential or URL is tried again that was refused: the servers of a storage learn of it one by one.
SETTLING = 2.0
#: Errors of a request that cannot be sent at all, so that no retry helps.
UNSENDABLE = (
    requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema, requests.exceptions.MissingSchema,
    requests.exceptions.InvalidHeader, urllib3.exceptions.LocationValueError, UnicodeError,
)  # fmt: skip
#: Letters of ``callerOrg`` in the User-Agent; servers commonly refuse headers beyond 8 KiB.
_LONGEST_NAME = 200
#: Bounds of a request that renews what still works, in seconds: of its retries, and of the silence between two bytes.
_EARLY_RETRIES, _EARLY_SILENCE = 5.0, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Time-outs and retries of requests, their proxy and certificates. The defaults are those of the options of a load.

    Attributes:
        connect_timeout: Seconds to open a connection.
        read_timeout: Seconds between two bytes of an answer.
        retry_seconds: Seconds from the first try of a call until it is tried no more.
        first_contact_seconds: The same for a host that has never answered this process, so that a mistyped endpoint fails soon.
        first_wait, longest_wait: Seconds before the first retry, and at most before any.
        proxy: A proxy for http and https, instead of the environment's. Not shown: it may hold a password.
        ca_bundle: A file or directory of certificates to trust, instead of the environment's and certifi's.
        client_certificate: Shown to the sharing server and its token endpoint, never to data hosts.
        caller_org: The option ``callerOrg``, for the User-Agent.
        engine: The engine that asks, for the User-Agent (``Spark/4.3.0``).
        table: The table that is asked for, for metrics; empty where it is no single one.
        sleep, clock: Functions that wait for seconds and return the time in seconds. Tests replace them so as not to wait.
    """

    #: Whom the requests go to, for metrics.
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
        """The settings of a request that renews a value which still works: it waits out neither an outage nor a silent server.

        Args:
            seconds: How long the value still works; None where it does not, so that the request is as patient as others.
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
            caller = "".join(c if " " < c < "\x7f" else "_" for c in self.caller_org)
            parts.append(f"callerOrg-{caller[:_LONGEST_NAME]}")
        return " ".join(parts)


#: The environment's variables, of which the first one that is set counts: those of requests and curl, then OpenSSL's two together.
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_FILE, _DIRECTORIES = "SSL_CERT_FILE", "SSL_CERT_DIR"


@dataclass(frozen=True, slots=True)
class _Authorities:
    """Certificates to trust instead of certifi's.

    Attributes:
        file: A file of PEM certificates.
        directories: Directories whose files are named by hashes (OpenSSL, ``c_rehash``), parted as in ``PATH``.
    """

    file: str | None = None
    directories: str | None = None


def _authorities_of(option: str | None) -> _Authorities | None:
    """The authorities that the option ``caBundle`` names, else the environment; None where neither names any.

    Raises:
        OptionError, ConfigError: The option or the variable names a path that does not exist.
    """
    if option:
        if not os.path.exists(option):
            raise OptionError(
                f"the option caBundle names the certificates {option}, which do not exist here; correct the path",
                option="caBundle",
            )
        return _authorities_at(option)
    for variable in _BUNDLES:
        if path := os.environ.get(variable):
            _check_exists(variable, path, [path])
            return _authorities_at(path)
    file, directories = (os.environ.get(variable) or None for variable in (_FILE, _DIRECTORIES))
    if file is not None:
        _check_exists(_FILE, file, [file])
    if directories is not None:
        _check_exists(_DIRECTORIES, directories, directories.split(os.pathsep))
    return None if file is None and directories is None else _Authorities(file, directories)


def _authorities_at(path: str) -> _Authorities:
    return _Authorities(directories=path) if os.path.isdir(path) else _Authorities(path)


def _check_exists(variable: str, value: str, paths: list[str]) -> None:
    if not any(map(os.path.exists, paths)):
        raise ConfigError(
            f"the environment variable {variable} names the certificates {value}, which do not exist here; correct or unset it"
        )


class _TlsAdapter(BreakableAdapter):
    """An adapter with authorities and a TLS context of its own, where they are not None."""

    def __init__(self, authorities: _Authorities | None, context: ssl.SSLContext | None, **more: Any) -> None:
        self._authorities = authorities
        self._own = {} if context is None else {"ssl_context": context}
        super().__init__(**more)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, **self._own)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        return super().proxy_manager_for(*args, **kwargs, **self._own)

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        """As requests has it, but with both a file and directories, and with our context: some versions of requests set their own."""
        host, pool = super().build_connection_pool_key_attributes(*args, **kwargs)
        ours: dict[str, Any] = dict(self._own)
        if self._authorities is not None:
            ours |= {"ca_certs": self._authorities.file, "ca_cert_dir": self._authorities.directories}
        return host, {**pool, **ours}

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """As requests has it, but with both a file and directories."""
        if self._authorities is None or not url.lower().startswith("https"):
            super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]
            return
        conn.cert_reqs = "CERT_REQUIRED"
        conn.ca_certs, conn.ca_cert_dir = self._authorities.file, self._authorities.directories


#: Sessions of a process: one for each purpose and combination of proxy, authorities and certificate.
_SESSIONS = 16
#: Hosts of a session to which connections stay open, and connections to each. The native lane uses 144 at once.
_HOSTS, _CONNECTIONS = 32, 160


class _Session(requests.Session):
    """A session with the proxies and authorities of the settings, else of the environment.

    It serves many recipients, so that it keeps no cookies and reads no passwords from ``~/.netrc``.
    """

    def __init__(self, settings: NetworkSettings, certificate: ClientCertificate | None) -> None:
        super().__init__()
        # With trust_env, requests prefers the environment to our options, and reads ~/.netrc for each host.
        self.trust_env = False
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=()))
        authorities, context = (
            _authorities_of(settings.ca_bundle),
            None if certificate is None else certificate.context(),
        )
        adapter = _TlsAdapter(authorities, context, pool_connections=_HOSTS, pool_maxsize=_CONNECTIONS, max_retries=0)
        self.mount("https://", adapter)
        self.mount("http://", adapter)
        self.headers["User-Agent"] = settings.user_agent
        self.verify = True if authorities is None else authorities.file or authorities.directories or True
        self._proxy = settings.proxy

    def resolve_redirects(self, *_: Any, **__: Any) -> Iterator[Any]:
        """Yields nothing: callers follow redirects themselves, because requests reads the whole body of each first."""
        return iter(())

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        return {"proxies": proxies_for(url, self._proxy), "stream": bool(stream), "verify": self.verify, "cert": cert}


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
        OptionError, ConfigError: The option or the environment names certificates that do not exist.
    """
    return _session(settings, "data", None)


def _session(settings: NetworkSettings, purpose: str, certificate: ClientCertificate | None) -> requests.Session:
    # A session that leaves the cache is not closed: another thread may still be using it.
    state = certificate and certificate.state()
    key = (purpose, settings.proxy, settings.ca_bundle, settings.user_agent, certificate, state)
    return _sessions.get_or_make(key, lambda: _Session(settings, certificate))


_QUERY = re.compile(r"\?.*", re.DOTALL)


def _without_queries(record: logging.LogRecord) -> bool:
    """Removes the queries of the paths that urllib3 logs at DEBUG: the query of a presigned URL is a secret."""
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


_PROXY_SCHEMES = ("http", "https", "socks4", "socks4a", "socks5", "socks5h")


def proxies_for(url: str, option: str | None) -> Mapping[str, str]:
    """The proxies for a request, by scheme, as requests takes them; empty where it goes without.

    Args:
        url: What is asked.
        option: The proxy of the option, instead of the environment's.

    Raises:
        OptionError, ConfigError: The address is none, or needs a package that is not there; names the option or the variable.
    """
    if option:
        _check_proxy(option, None)
        return {"http": option, "https": option}
    if _is_excluded(url):
        return {}
    proxies: Mapping[str, str] = get_environ_proxies(url, no_proxy=None)
    address = select_proxy(url, proxies)
    if address:
        _check_proxy(address, _variable_of(url, address))
    return proxies


def _variable_of(url: str, address: str) -> str:
    for name in (f"{url.partition(':')[0].lower()}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if os.environ.get(variable) == address:
                return f"the environment variable {variable}"
    return "this system's setting of a proxy"


def _check_proxy(address: str, origin: str | None) -> None:
    """Refuse a proxy's address that requests would find fault with as if it were the URL; it may hold a password."""
    scheme, _, rest = (address if "://" in address else f"http://{address}").partition("://")
    place = rest.rpartition("@")[2]
    why = None
    try:
        parse_url(f"{scheme}://{place}")
    except UrlError as error:
        why = f"is no address ({error}): write http://host:port, with a port from 1 to 65535"
    if why is None and scheme.lower() not in _PROXY_SCHEMES:
        why = f"is of the scheme {scheme[:20]!r}, where http, https or socks5h belongs"
    if why is None and scheme.lower().startswith("socks") and find_spec("socks") is None:
        why = "is a SOCKS proxy, which needs the package PySocks: pip install 'requests[socks]', or name an http proxy"
    if why is None:
        return
    if origin is None:
        raise OptionError(f"the proxy of the option proxy {why}", option="proxy")
    raise ConfigError(f"the proxy of {origin} {why}, or unset it")


def _is_excluded(url: str) -> bool:
    """Whether ``NO_PROXY`` names a URL's host in a way that requests does not know: by port, by an IPv6 address or network, by ``*.``."""
    text = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    if not text:
        return False
    try:
        target = parse_url(url)
    except UrlError:
        return False  # said where it is asked
    return any(_excludes(entry.lower(), target.name, target.port) for entry in text.replace(",", " ").split())


def _excludes(entry: str, host: str, port: int) -> bool:
    name, _, number = entry.rpartition(":")
    if entry.startswith("["):  # an IPv6 address, maybe with a port
        name, _, number = entry[1:].partition("]")
        number = number.removeprefix(":")
    elif not number.isdigit() or ":" in name:  # no port, or an IPv6 address without brackets
        name, number = entry, ""
    if number and number != str(port):
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = name.removeprefix("*").lstrip(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
    try:
        return address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False
