"""URLs are parsed once: the host that was checked is the one that a socket is opened to, and what parsers read differently is refused."""

from __future__ import annotations

import ipaddress
import socket
from unittest import mock
from urllib.parse import urljoin, urlsplit

import pytest
import requests
import urllib3
from hypothesis import example, given
from hypothesis import strategies as st

from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.network.connections import AddressRefusedError, refusing_local_addresses
from delta_sharing_spark.network.http import NetworkSettings, data_session, rest_session
from delta_sharing_spark.network.pooled_connections import send
from delta_sharing_spark.network.urls import (
    UrlError,
    host_name,
    is_local_address,
    is_loopback,
    parse_url,
    redirect_target,
    url_or_none,
)
from delta_sharing_spark.storage.presigned import url_reader
from delta_sharing_spark.storage.range_reader import StorageSettings
from support.one_url import OneUrl

SETTINGS = NetworkSettings(connect_timeout=1, read_timeout=1)


# What is a URL

REFUSED = [
    *(
        "http://127.0.0.1:80\\@minio.corp/x",
        "http://minio.corp\\.evil/x",
        "http://h/a\\b",
        "http:\\\\h/x",
        "http://h\\",
    ),
    *(
        "http://user@h/x",
        "http://user:pw@h/x",
        "http://@h/x",
        "http://a@b@h/x",
        "http://h:80@evil/x",
        "http://h%40evil/x",
    ),
    *(
        " http://h/",
        "http://h/ ",
        "http://h /x",
        "http://h/a b",
        "http://h/\tx",
        "ht\ntp://h/",
        "http://h\r\n/x",
        "http://h/\x00",
    ),
    *("http://h/\x7f", "http://h\xa0/x", "http://h/\u2028", "http://h/\x85", "http://\u3000h/"),
    *(
        "http:h/x",
        "http:/h/x",
        "http:///h/x",
        "//h/x",
        "h/x",
        "/x",
        "",
        "http://",
        "https://?x",
        "http://:80/",
        "http://#@h/",
    ),
    *(
        "http://h:port/",
        "http://h:0/",
        "http://h:65536/",
        "http://h:-1/",
        "http://h:+80/",
        "http://h:8 0/",
        "http://h:80:81/",
    ),
    *(
        "http://h:\u0668\u0660/",
        "http://a..b/",
        "http://.a/",
        "http://a../",
        "http://h!/",
        "http://a,b/",
        "http://a%2eb/",
        "http://*/",
    ),
    *(
        f"http://{'x' * 64}.example/",
        f"http://{'x.' * 127}xx/",
        "http://h[::1]/",
        "http://[::1/",
        "http://::1/",
        "http://[::1]x/",
    ),
    *(
        "http://[fe80::1%25eth0]/",
        "http://[fe80::1%eth0]/",
        "http://[v1.x]/",
        "http://[::1::]/",
        "http://[127.0.0.1]/",
        "http://[]/",
    ),
    *(
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.0.0.1./",
        "http://0x7f000001/",
    ),
    *(
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
        "http://a.0x/",
        "http://\uff11\uff12\uff17.1/",
        "http://xn--\ud800/",
        "http://h/\ud800",
    ),
    "http://\u2488\u2489/",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_and_why_quotes_nothing_of_it(text: str) -> None:
    with pytest.raises(UrlError) as refused:
        parse_url(text)
    assert url_or_none(text) is None
    assert all(word not in str(refused.value) for word in ("evil", "minio", "pw", "127"))


@pytest.mark.parametrize(
    ("text", "root", "target"),
    [
        ("https://b.s3.amazonaws.com/k%7e?X=%2f", "https://b.s3.amazonaws.com", "/k%7e?X=%2f"),
        ("HTTPS://My_Bucket.Example.:443/", "https://my_bucket.example.", "/"),
        ("http://h", "http://h", "/"),
        ("http://h:/x", "http://h", "/x"),
        ("http://h:0080?", "http://h", "/?"),
        ("http://h:8080//k?#f?g", "http://h:8080", "//k?"),
        ("http://[2001:DB8:0::1]:9000/x", "http://[2001:db8::1]:9000", "/x"),
        ("https://b\u00fccher.example/\u00fc?\u20ac=1", "https://xn--bcher-kva.example", "/%C3%BC?%E2%82%AC=1"),
        ("https://\uff4dinio.corp/", "https://minio.corp", "/"),
        ("http://1e3.example/", "http://1e3.example", "/"),
        ("http://8.8.8.8/@x:y", "http://8.8.8.8", "/@x:y"),
    ],
)
def test_the_parts_of_a_url(text: str, root: str, target: str) -> None:
    url = parse_url(text)
    assert (url.root, url.target) == (root, target)
    assert parse_url(url.text).text == url.text
    assert repr(url) == str(url) == f"Url({root})"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Minio.Corp", "minio.corp"),
        ("h.", "h"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("B\u00fccher.example", "xn--bcher-kva.example"),
    ],
)
def test_hosts_as_users_write_them(written: str, name: str) -> None:
    assert host_name(written) == name


HOSTS = st.sampled_from(
    [
        "minio.corp",
        "127.0.0.1",
        "localhost",
        "[::1]",
        "169.254.169.254",
        "evil.example.",
        "0x7f.1",
        "\uff4cocalhost",
        "2130706433",
        "h",
    ]
)
BETWEEN = st.text(st.sampled_from("\\/@#?:%[]. \t\n;&=.,\u3002\uff20\uff0f\u2100a0"), max_size=4)
URLS = st.builds(
    lambda scheme, pieces: scheme + "".join(pieces),
    st.sampled_from(["http://", "https://", "http:/", "http:", "HTTP://", "http:\\\\", "//", "http:///"]),
    st.lists(st.one_of(HOSTS, BETWEEN, st.sampled_from([":80", ":9000", "user:pw@", "/x", "%00", "%2e"])), max_size=6),
)


@given(URLS)
@example("http://127.0.0.1:1\\@minio.corp/x")
def test_the_host_that_was_checked_is_the_one_that_is_connected_to(text: str) -> None:
    """For data requests and for those of requests; and no other parser reads another host."""
    url = url_or_none(text)
    if url is None:
        return
    opened: list[object] = []

    def refuse(address: object, *_: object, **__: object) -> socket.socket:
        opened.append(address)
        raise OSError("no connection")

    with mock.patch("urllib3.util.connection.create_connection", refuse):
        with pytest.raises(urllib3.exceptions.NewConnectionError):
            send(data_session(SETTINGS), "GET", url, {}, (1.0, 1.0))
        with pytest.raises(requests.ConnectionError):
            rest_session(SETTINGS).get(url.text, timeout=1)
    assert opened == [(url.host, url.port)] * 2
    assert (urllib3.util.parse_url(url.text).host or "").strip("[]") == url.host
    if text.isascii():
        assert (urlsplit(text).hostname, urlsplit(text).port or url.port) == (url.host, url.port)
        assert (urllib3.util.parse_url(text).host or "").strip("[]") == url.host


@pytest.mark.parametrize("text", REFUSED[:5])
def test_a_url_that_two_parsers_read_differently_is_not_asked(text: str) -> None:
    policy = StorageSettings(allowed_hosts=("minio.corp", "h"))
    with mock.patch("urllib3.util.connection.create_connection") as connect, pytest.raises(DeltaSharingError):
        url_reader(OneUrl(text), policy, name="f", size=1).read(0, 1)
    connect.assert_not_called()


# Redirects


@pytest.mark.parametrize(
    ("location", "target"),
    [
        *(
            ("https://o/x?", "https://o/x?"),
            ("//o//k", "https://o//k"),
            ("/%7e%2E%2e//k?", "https://h:8443/%7e%2E%2e//k?"),
        ),
        *(("?b", "https://h:8443/d/f?b"), ("", "https://h:8443/d/f?sig=1"), ("#x", "https://h:8443/d/f?sig=1")),
        *(("g", "https://h:8443/d/g"), ("./g/", "https://h:8443/d/g/"), ("../g?x=..", "https://h:8443/g?x=..")),
        *(("../../g", "https://h:8443/g"), ("..", "https://h:8443/"), (" /g ", "https://h:8443/g")),
        ("/\u00fc/\u20ac?\u00fc=1".encode().decode("latin-1"), "https://h:8443/%C3%BC/%E2%82%AC?%C3%BC=1"),
        ("https://b\u00fccher.example/".encode().decode("latin-1"), "https://xn--bcher-kva.example/"),
    ],
)
def test_where_a_redirect_leads(location: str, target: str) -> None:
    assert redirect_target(parse_url("https://h:8443/d/f?sig=1"), location).text == target


@given(st.text(st.sampled_from("abc./?=&:@%2E~"), max_size=12).filter(lambda text: ":" not in text.partition("/")[0]))
def test_a_relative_redirect_leads_where_urljoin_says(location: str) -> None:
    """But for dots in a path from the root, and empty queries, which are left as they came."""
    if location.startswith(("/", "?")) or location.endswith("?") or "//" in location:
        return
    base = "https://h/d/e/f?x"
    assert redirect_target(parse_url(base), location).text == urljoin(base, location)


@pytest.mark.parametrize(
    "location",
    ["https://u@o/x", "https:/o/x", "mailto:x", "/\xff", "/a b", "/a\\b", "//", "http://[", "/\u20ac", "javascript:1"],
)
def test_redirects_that_lead_nowhere(location: str) -> None:
    with pytest.raises(UrlError):
        redirect_target(parse_url("https://h/d/f"), location)


# Addresses of this machine and its network

LOCAL = [
    *(
        "127.0.0.1",
        "127.255.1.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
    ),
    *(
        "0.0.0.0",
        "0",
        "0.1.2.3",
        "169.254.169.254",
        "169.254.170.2",
        "0xa9fea9fe",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
    ),
    *(
        "::1",
        "[::1]",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:127.0.0.1",
        "::ffff:a9fe:a9fe",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
    ),
    *(
        "64:ff9b::127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:7f00:0:100::",
        "64:ff9b:1::a9:fea9:fe00:0",
    ),
    *("2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::", "2001:0:808:808::80ff:fffe", "fe80::5efe:1.1.1.1"),
    *(
        "2001:db8::5efe:127.0.0.1",
        "2001:db8::200:5efe:a9fe:a9fe",
        "fd00:ec2::254",
        "fd00:ec2:0:1::23",
        "fd20:ce::254",
        "fd00:42::42",
    ),
    "fd00:c1::a9fe:a9fe",
]
ELSEWHERE = [
    *("8.8.8.8", "10.0.0.1", "192.168.1.1", "134744072", "2606:4700::1111", "64:ff9b::8.8.8.8", "64:ff9b:1::8.8.8.8"),
    *(
        "2002:808:808::",
        "::ffff:8.8.8.8",
        "fd12::1",
        "2001:0:808:808::f7f7:f7f7",
        "localhost.evil.example",
        "127.0.0.1.nip.io",
        "",
    ),
]


@pytest.mark.parametrize("address", LOCAL)
def test_local_addresses_in_every_spelling(address: str) -> None:
    assert is_local_address(address)


@pytest.mark.parametrize("address", ELSEWHERE)
def test_addresses_elsewhere(address: str) -> None:
    assert not is_local_address(address)
    assert not is_loopback(address)


@given(st.ip_addresses(v=4))
def test_an_address_within_another_is_local_where_it_is_itself(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    holders = [(0x64FF9B << 96, 0), (0xFFFF << 32, 0), (0x2002 << 112, 80), (0x20010000 << 96, 64)]
    held = [str(ipaddress.IPv6Address(prefix | number << shift)) for prefix, shift in holders]
    if str(inner).startswith("0."):
        return
    # The client of this Teredo address is 255.255.255.255, which is nowhere.
    assert {is_local_address(one) for one in (*held, str(number), hex(number))} == {is_local_address(str(inner))}


@pytest.fixture
def rebinding(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name that leads elsewhere when it is looked up first, and to this machine when it is connected to."""
    asked: list[str] = []
    lookup = socket.getaddrinfo

    def answered(host: str, *arguments: object, **named: object) -> object:
        if host != "data.example":
            return lookup(host, *arguments, **named)  # type: ignore[arg-type]
        asked.append(host)
        return lookup("192.0.2.1" if len(asked) == 1 else "127.0.0.1", *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", answered)
    return asked


def test_a_name_that_leads_elsewhere_another_time_is_looked_at_where_it_is_connected_to(rebinding: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert socket.getaddrinfo("data.example", port)[0][4][0] == "192.0.2.1"
        url = parse_url(f"http://data.example:{port}/f")
        with refusing_local_addresses(), pytest.raises(AddressRefusedError, match=r"127\.0\.0\.1"):
            send(data_session(SETTINGS), "GET", url, {}, (5.0, 5.0))
    assert len(rebinding) == 2
