"""Tells which hosts are this machine or services of its network, and where a secret or a redirect may go."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from functools import lru_cache

from delta_sharing_spark.network.urls import Url, url_or_none

#: What answers on this machine or for it, beside loopback and link-local addresses: "this network", and clouds' metadata
#: services (Alibaba, Azure, Oracle; AWS, Google, Oracle and Scaleway by IPv6).
_SERVICES = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128",
        "fd00:c1::a9fe:a9fe/128", "fd00:42::42/128",
    )
)  # fmt: skip
#: Networks whose addresses hold an IPv4 address in their last four bytes: NAT64, IPv4-compatible, IPv4-translated.
_HOLDERS = tuple(ipaddress.IPv6Network(network) for network in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96"))
#: A network's own NAT64 (RFC 8215), whose prefix may have any of these lengths: which bytes hold the IPv4 address (RFC 6052).
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
_NAT64_BYTES = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))
#: The interface of an ISATAP address, before its IPv4 address; the third byte's second bit says that it is a global one.
_ISATAP = (0x00005EFE, 0x02005EFE)
#: What resolvers read as an IPv4 address: 127.1, 2130706433, 0x7f.1, 0177.0.0.1.
_NUMBERS = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@lru_cache(256)
def is_loopback(host: str | None) -> bool:
    """Whether a host's name or literal address says that it is this machine."""
    name = (host or "").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and (getattr(address, "ipv4_mapped", None) or address).is_loopback


@lru_cache(256)
def is_local_address(host: str | None) -> bool:
    """Whether an address is, or leads to, loopback, a link-local or unspecified address or a cloud's metadata service.

    It is looked at in every spelling: a number of any base, and IPv4 addresses within IPv6 ones. False for a name.
    """
    address = _address((host or "").lower().rstrip("."))
    return address is not None and any(
        one.is_loopback
        or one.is_link_local
        or one.is_unspecified
        or any(one in network for network in _SERVICES if network.version == one.version)
        for one in (address, *_embedded(address))
    )


def _address(text: str) -> _Address | None:
    try:
        if _NUMBERS.fullmatch(text):
            return ipaddress.IPv4Address(socket.inet_aton(text))
        return ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except (ValueError, OSError):
        return None


def _embedded(address: _Address) -> Iterator[_Address]:
    """The IPv4 addresses that an IPv6 address is another spelling of, or a way to."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    for inner in (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())):
        if inner is not None:
            yield inner
    if address in _LOCAL_NAT64:
        candidates = (ipaddress.IPv4Address(bytes(address.packed[at] for at in places)) for places in _NAT64_BYTES)
        yield from (one for one in candidates if one not in _SERVICES[0])  # of another length
    last = int(address) & 0xFFFFFFFF
    is_isatap = int(address) >> 32 & 0xFFFFFFFF in _ISATAP
    if is_isatap or (last > 1 and any(address in network for network in _HOLDERS)):
        yield ipaddress.IPv4Address(last)


def is_private(url: Url) -> bool:
    """Whether a secret may be sent to a URL: over https, or over http on loopback."""
    return url.scheme == "https" or (url.scheme == "http" and is_loopback(url.host))


def is_on_loopback(url: str) -> bool:
    """Whether a URL's host says that it is this machine; false for a text that is no URL."""
    parts = url_or_none(url)
    return parts is not None and is_loopback(parts.host)


def redirect_refusal(before: Url, after: Url) -> str | None:
    """Why a redirect from one URL to another is not followed; None if it is.

    A redirect never leads from https to http, and to plain http only on loopback. It never leads from elsewhere to a loopback or
    link-local address; a name that resolves to one is refused when the connection is made.
    """
    if after.scheme not in ("http", "https"):
        return "it is not https"
    local = is_loopback(before.host)
    if after.scheme == "http" and not (before.scheme == "http" and local and is_loopback(after.host)):
        return "it is not encrypted"
    if is_local_address(after.host) or is_loopback(after.host):
        return None if local and is_loopback(after.host) else "it is an address of this machine or its network"
    return None
