"""Tells which hosts are this machine or services of its network, and where a redirect may lead."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import SplitResult, urljoin, urlsplit

#: Addresses of clouds' metadata services that are not link-local.
_METADATA = frozenset({"fd00:ec2::254", "100.100.100.200"})


@lru_cache(256)
def is_loopback(host: str | None) -> bool:
    """Whether a host's name or literal address says that it is this machine."""
    name = (host or "").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    address = _address(name)
    return address is not None and address.is_loopback


@lru_cache(256)
def is_local_address(host: str | None) -> bool:
    """Whether a literal address is loopback, link-local, unspecified or a cloud's metadata service; false for a name."""
    address = _address((host or "").lower())
    if address is None:
        return False
    return address.is_loopback or address.is_link_local or address.is_unspecified or str(address) in _METADATA


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_private(url: str) -> bool:
    """Whether a secret may be sent to a URL: over https, or over http on loopback."""
    parts = split_url(url)
    return parts is not None and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname)))


def split_url(url: str) -> SplitResult | None:
    """A URL's parts; None if the text is no URL or has no host."""
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def origin(parts: SplitResult) -> tuple[str, str, int]:
    """Scheme, host and port, which must stay the same for a secret to follow a redirect."""
    return parts.scheme, (parts.hostname or "").lower(), parts.port or {"https": 443}.get(parts.scheme, 80)


def redirect_target(url: str, location: str) -> str | None:
    """The URL that an answer of ``url`` with this ``Location`` redirects to; None if that is no URL."""
    try:
        target = urljoin(url, location.strip())
    except ValueError:
        return None
    return target if target.isascii() else None


def redirect_refusal(url: str, target: str) -> str | None:
    """Why a redirect from one URL to another is not followed; None if it is.

    Never from https to http; never from elsewhere to loopback or link-local addresses (a name that resolves to one is
    refused where it is connected to); to plain http only on loopback.
    """
    before, after = split_url(url), split_url(target)
    if before is None or after is None:
        return "it is not a URL"
    if after.scheme not in ("http", "https"):
        return "it is not https"
    if after.username is not None or after.password is not None:
        return "it names a user"
    local = is_loopback(before.hostname)
    if after.scheme == "http" and not (before.scheme == "http" and local and is_loopback(after.hostname)):
        return "it is not encrypted"
    if is_local_address(after.hostname) or is_loopback(after.hostname):
        return None if local and is_loopback(after.hostname) else "it is an address of this machine or its network"
    return None
