"""Parses URLs, once, and tells which hosts are this machine or its network, and where a secret or a redirect may go.

What is checked are the parts that a request is made of. What two parsers could read differently is refused.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::([0-9]{0,5}))?")
_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?")
#: The last label of what resolvers read as an IPv4 address.
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?")
#: What ends a line or a word, what some parsers drop (tabs) and what browsers read as a slash.
_REFUSED = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\\]")
#: All other ASCII: looked at without an expression, which takes 20 times as long over a signature.
_PLAIN = bytes(byte for byte in range(0x21, 0x7F) if byte != ord("\\"))
_LONGEST_NAME = 254


class UrlError(ValueError):
    """A text is no URL that can be asked. The message says why and quotes nothing of it: ``it names a user``."""


@dataclass(frozen=True, slots=True)
class Url:
    """The parts of a URL (RFC 3986, section 3). The query may be a secret: only scheme, host and port are shown.

    Attributes:
        scheme: In lower case.
        host: What is connected to: a name or an address in lower-case ASCII; an IPv6 address without brackets.
        port: The stated port, else the scheme's; 0 for a scheme without one.
        path, query, fragment: Letter by letter, but for letters beyond ASCII, which are percent-encoded; None where there is none.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str | None
    fragment: str | None = None

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port, which must stay the same for a secret to follow a redirect."""
        return self.scheme, self.host, self.port

    @property
    def name(self) -> str:
        """The host as lists of hosts name it: without a dot at its end."""
        return self.host.rstrip(".")

    @property
    def authority(self) -> str:
        """Host and port as the header ``Host`` names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS.get(self.scheme, 0) else f"{host}:{self.port}"

    @property
    def target(self) -> str:
        """What is asked of the host: path and query."""
        return (self.path or "/") + ("" if self.query is None else f"?{self.query}")

    @property
    def root(self) -> str:
        """The URL without path and query, which shows no secret."""
        return f"{self.scheme}://{self.authority}"

    @property
    def text(self) -> str:
        """The URL that is sent: without its fragment. It may hold a secret."""
        return self.root + self.target

    def __repr__(self) -> str:
        return f"Url({self.root})"

    __str__ = __repr__


def parse_url(text: str) -> Url:
    """The parts of a URL with a host.

    Raises:
        UrlError: The text is none, or one that parsers read differently: with a user, a backslash, a blank, a control
            character, a number as its host.
    """
    is_plain = text.isascii() and not text.encode("ascii").translate(None, _PLAIN)
    if not is_plain and _REFUSED.search(text):
        raise UrlError("it has a backslash, a blank or a control character")
    scheme, is_url, rest = text.partition("://")
    if not is_url or not _SCHEME.fullmatch(f"{scheme}:"):
        raise UrlError("it is not a URL")
    scheme = scheme.lower()
    rest, has_fragment, fragment = rest.partition("#")
    rest, has_query, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if "@" in authority:
        raise UrlError("it names a user")
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        raise UrlError("it names no host" if not authority else "its host or port is none")
    port = int(parts[2]) if parts[2] else _PORTS.get(scheme, 0)
    if not 0 < port < 1 << 16 and (parts[2] or scheme in _PORTS):
        raise UrlError("its port is none")
    return Url(
        scheme,
        canonical_host(parts[1]),
        port,
        _encoded(slash + path),
        _encoded(query) if has_query else None,
        fragment if has_fragment else None,
    )


@lru_cache(256)
def canonical_host(text: str) -> str:
    """The one spelling of a host's name or address: in lower case, international names by IDNA, IPv6 without brackets.

    Raises:
        UrlError: It is neither, or an IPv4 address in a spelling that some read as another one (``127.1``, ``0177.0.0.1``).
    """
    name = text.lower()
    if name.startswith("["):
        try:
            return ipaddress.IPv6Address(name[1:-1]).compressed
        except ValueError:
            raise UrlError("its host is no IPv6 address") from None
    if not name.isascii():
        name = _by_idna(name)
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise UrlError("its host is no name")
    if _NUMBER.fullmatch(name):
        try:
            ipaddress.IPv4Address(name)
        except ValueError:
            raise UrlError("its host is a number, where a name or four decimal numbers belong") from None
    return name


def _by_idna(name: str) -> str:
    import idna

    try:
        return idna.encode(name, uts46=True).decode("ascii")
    except UnicodeError:  # idna's own errors are such
        raise UrlError("its host is no name") from None


def _encoded(part: str) -> str:
    """A path or query whose letters beyond ASCII are percent-encoded; all else stays as it was written."""
    if part.isascii():
        return part
    try:
        return "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in part.encode("utf-8"))
    except UnicodeEncodeError:
        raise UrlError("it has half a character") from None


def host_name(text: str) -> str:
    """A host as a user writes it, as ``Url.name`` spells it; a text that is no host in lower case."""
    try:
        return canonical_host(f"[{text}]" if ":" in text and text[0] != "[" else text).rstrip(".")
    except UrlError:
        return text.lower()


def url_or_none(text: str) -> Url | None:
    """The parts of a URL; None where the text is none."""
    try:
        return parse_url(text)
    except UrlError:
        return None


def host_of(text: str) -> str:
    """The host of a URL; empty where the text is none."""
    url = url_or_none(text)
    return "" if url is None else url.host


def scheme_of(text: str) -> str:
    """The scheme of what may be a URL, in lower case, at most twenty letters of it; empty where there is none."""
    match = _SCHEME.match(text)
    return "" if match is None else match[0][:-1][:20].lower()


def redirect_target(url: Url, location: str) -> Url:
    """Where an answer of ``url`` with this header ``Location`` leads to (RFC 9110, section 10.2.2).

    Raises:
        UrlError: The header holds no URL.
    """
    try:
        # http.client reads headers as Latin-1; servers that do not encode a path write it in UTF-8.
        reference = location.strip(" \t").encode("latin-1").decode("utf-8")
    except UnicodeError:
        raise UrlError("its target is not a URL") from None
    if _SCHEME.match(reference):
        return parse_url(reference)
    if reference.startswith("//"):
        return parse_url(f"{url.scheme}:{reference}")
    if reference.startswith(("/", "?")):
        return parse_url(url.root + ("" if reference[0] == "/" else url.path) + reference)
    if not reference or reference[0] == "#":
        return replace(url, fragment=None)
    path, mark, query = reference.partition("?")
    merged = _resolved([*url.path.split("/")[1:-1], *path.split("/")])
    return parse_url(f"{url.root}/{'/'.join(merged)}{mark}{query}")


def _resolved(segments: list[str]) -> list[str]:
    """The segments of a path without ``.`` and ``..`` (RFC 3986, section 5.2.4)."""
    resolved: list[str] = []
    for segment in segments:
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    return [*resolved, ""] if segments[-1] in (".", "..") else resolved


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
