"""Finds the proxy that leads to a URL, by the option or the environment, and says whose fault an address is that is none."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from importlib.util import find_spec

from requests.utils import get_environ_proxies, select_proxy

from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.network.urls import UrlError, parse_url

_SCHEMES = ("http", "https", "socks4", "socks4a", "socks5", "socks5h")


def proxies_for(url: str, option: str | None) -> Mapping[str, str]:
    """The proxies for a request, by scheme, as requests takes them; empty where it goes without.

    Args:
        url: What is asked.
        option: The proxy of the option, instead of the environment's.

    Raises:
        OptionError, ConfigError: The address is none, or needs a package that is not there; names the option or the variable.
    """
    if option:
        _check(option, None)
        return {"http": option, "https": option}
    if _is_excluded(url):
        return {}
    proxies: Mapping[str, str] = get_environ_proxies(url, no_proxy=None)
    address = select_proxy(url, proxies)
    if address:
        _check(address, _variable_of(url, address))
    return proxies


def _variable_of(url: str, address: str) -> str:
    for name in (f"{url.partition(':')[0].lower()}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if os.environ.get(variable) == address:
                return f"the environment variable {variable}"
    return "this system's setting of a proxy"


def _check(address: str, origin: str | None) -> None:
    """Refuse a proxy's address that requests would find fault with as if it were the URL; it may hold a password."""
    scheme, _, rest = (address if "://" in address else f"http://{address}").partition("://")
    place = rest.rpartition("@")[2]
    why = None
    try:
        parse_url(f"{scheme}://{place}")
    except UrlError as error:
        why = f"is no address ({error}): write http://host:port, with a port from 1 to 65535"
    if why is None and scheme.lower() not in _SCHEMES:
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
    return any(_names(entry.lower(), target.name, target.port) for entry in text.replace(",", " ").split())


def _names(entry: str, host: str, port: int) -> bool:
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
