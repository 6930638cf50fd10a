"""What the environment says of proxies and certificate authorities: which variable counts, and whose fault a wrong one is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import requests

from delta_sharing_spark.errors import ConfigError, DeltaSharingError, NetworkError
from delta_sharing_spark.network import http
from delta_sharing_spark.network.http import NetworkSettings, data_session, proxies_for
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from support.certificates import certificate_of
from support.cloud_secrets import aws_session
from unit.sharing.scripted_server import NAME, Clock, Rest, ScriptedServer

VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
#: OpenSSL's hash of the name of the tests' certificates, by which a directory's files are called.
HASHED = "756b76dc.0"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    proxies = [
        name for scheme in ("http", "https", "all", "no") for name in (f"{scheme}_proxy", f"{scheme}_PROXY".upper())
    ]
    for name in (*VARIABLES, *proxies):
        monkeypatch.delenv(name, raising=False)
    http._sessions.clear()
    yield
    http._sessions.clear()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return certificate_of(tmp_path, "127.0.0.1")


@pytest.fixture
def places(tmp_path: Path, certificate: Path) -> dict[str, str]:
    """What variables may name: the server's authority as a file, in directories, or another one."""
    hashed, empty = tmp_path / "hashed", tmp_path / "empty"
    hashed.mkdir()
    empty.mkdir()
    (hashed / HASHED).write_bytes(certificate.read_bytes())
    return {
        "file": str(certificate),
        "directory": str(hashed),
        "directories": os.pathsep.join([str(empty), str(hashed)]),
        "empty": str(empty),
        "other": requests.certs.where(),
        "nowhere": str(tmp_path / "nowhere"),
    }


@pytest.mark.parametrize(
    ("variables", "is_trusted"),
    [
        ({"SSL_CERT_FILE": "file"}, True),
        ({"SSL_CERT_DIR": "directory"}, True),
        ({"SSL_CERT_DIR": "directories"}, True),
        ({"SSL_CERT_FILE": "other", "SSL_CERT_DIR": "directory"}, True),  # both, as OpenSSL reads them
        ({"SSL_CERT_FILE": "file", "SSL_CERT_DIR": "empty"}, True),
        ({"REQUESTS_CA_BUNDLE": "directory"}, True),
        ({"REQUESTS_CA_BUNDLE": "file", "SSL_CERT_FILE": "nowhere"}, True),
        ({"CURL_CA_BUNDLE": "file", "SSL_CERT_FILE": "other"}, True),
        ({"REQUESTS_CA_BUNDLE": "other", "CURL_CA_BUNDLE": "file"}, False),
        ({"CURL_CA_BUNDLE": "other", "SSL_CERT_DIR": "directory"}, False),
        ({"SSL_CERT_FILE": "other"}, False),
        ({"SSL_CERT_DIR": "empty"}, False),
        ({"SSL_CERT_FILE": ""}, False),
    ],
    ids=str,
)
def test_authorities(
    secure: ScriptedServer,
    rest_of: Rest,
    settings: NetworkSettings,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    is_trusted: bool,
) -> None:
    for name, place in variables.items():
        monkeypatch.setenv(name, places.get(place, ""))
    if is_trusted:
        assert rest_of(secure, settings).table_version(NAME) == 7
        assert data_session(settings).get(secure.endpoint, timeout=60).status_code == 200
        return
    with pytest.raises(NetworkError, match="certificate verify failed"):
        rest_of(secure, settings).table_version(NAME)
    assert rest_of(secure, replace(settings, ca_bundle=places["file"])).table_version(NAME) == 7


@pytest.mark.parametrize("variable", VARIABLES)
def test_authorities_that_are_not_there_are_the_variables_fault(
    server: ScriptedServer, rest_of: Rest, places: dict[str, str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, places["nowhere"])
    with pytest.raises(
        ConfigError, match=f"the environment variable {variable} names the certificates .*nowhere, which do"
    ):
        rest_of(server).table_version(NAME)


@pytest.mark.parametrize("reader", ["rest", "storage"])
@pytest.mark.parametrize(
    ("variable", "address", "words"),
    [
        ("ALL_PROXY", "http://", r"is no address \(it names no host\): write http://host:port"),
        (
            "all_proxy",
            "http://user:s3cret@proxy:99999",
            r"is no address \(its port is none\): .*with a port from 1 to 65535",
        ),
        ("HTTP_PROXY", "proxy:port", "is no address"),
        ("http_proxy", "http://[::1", "is no address"),
        ("HTTP_PROXY", "http://proxy:0", "is no address"),
        ("ALL_PROXY", "ftp://proxy:21", "is of the scheme 'ftp', where http, https or socks5h belongs"),
        (
            "ALL_PROXY",
            "socks5h://user:s3cret@proxy:1080",
            r"is a SOCKS proxy, which needs the package PySocks: pip install 'requests\[socks\]'",
        ),
    ],
)
def test_a_proxy_that_is_none_is_the_variables_fault(
    server: ScriptedServer,
    rest_of: Rest,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
    variable: str,
    address: str,
    words: str,
) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)  # as where it is not installed
    monkeypatch.setenv(variable, address)
    reached = StorageSettings(endpoint=server.endpoint, sleep=clock.sleep, clock=clock)
    storage = Storage(parse_location("s3://bucket/t"), aws_session("id", "key", "token"), reached)
    ask: Callable[[], object] = partial(storage.get, parse_location("s3://bucket/t/f"))
    if reader == "rest":
        ask = partial(rest_of(server).table_version, NAME)
    with pytest.raises(ConfigError, match=f"the proxy of the environment variable {variable} {words}") as caught:
        ask()
    assert "profile" not in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert clock.slept == []


def test_a_proxy_of_the_option_is_the_options_fault(
    server: ScriptedServer, rest_of: Rest, settings: NetworkSettings
) -> None:
    with pytest.raises(DeltaSharingError, match="the proxy of the option proxy is no address"):
        rest_of(server, replace(settings, proxy="http://proxy:99999")).table_version(NAME)


@pytest.mark.parametrize(
    ("no_proxy", "url", "goes_without"),
    [
        ("example.com:443", "https://example.com/x", True),
        ("example.com:443", "https://api.example.com", True),
        ("example.com:8443", "https://example.com:8443/x", True),
        ("example.com:8443", "https://example.com/x", False),
        ("example.com:80", "https://example.com/x", False),
        ("example.com:80", "http://example.com", True),
        ("*.example.com", "https://api.example.com", True),
        (".example.com", "https://api.example.com", True),
        ("example.com.", "https://api.example.org", False),
        ("[::1]", "http://[::1]:8080/x", True),
        ("::1", "http://[::1]/x", True),
        ("[::1]:8080", "http://[::1]:8080/x", True),
        ("[::1]:8081", "http://[::1]:8080/x", False),
        ("[::1]:443", "https://[::1]/x", True),
        ("fd00::/8", "https://[fd12:3456::1]/x", True),
        ("fd00::/8", "https://[fe80::1]/x", False),
        ("2001:db8::1", "https://[2001:DB8:0::1]/x", True),
        ("10.0.0.0/8", "https://10.1.2.3/x", True),
        ("10.0.0.0/8", "https://11.1.2.3/x", False),
        ("10.1.2.3:443", "https://10.1.2.3/x", True),
        ("other, 10.0.0.0/8 ,[::1]", "https://10.1.2.3/x", True),
        ("*", "https://example.com", True),
        ("", "https://example.com", False),
        ("[::1", "https://example.com", False),
        ("::1/999", "https://[::1]", False),
        (":443", "https://example.com", False),
    ],
)
@pytest.mark.parametrize("variable", ["NO_PROXY", "no_proxy"])
def test_what_goes_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch, variable: str, no_proxy: str, url: str, goes_without: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    monkeypatch.setenv(variable, no_proxy)
    assert (not proxies_for(url, None)) is goes_without
    assert proxies_for(url, "http://option:1") == {"http": "http://option:1", "https": "http://option:1"}
