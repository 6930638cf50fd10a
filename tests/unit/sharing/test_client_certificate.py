"""Client certificates: whom they are shown to, what is wrong with one, and what executors are handed."""

from __future__ import annotations

import pickle
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.access.asking import transport_of
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import NetworkError, OptionError, RequestRefusedError
from delta_sharing_spark.network.client_certificate import PASSWORD_VARIABLE, ClientCertificate
from delta_sharing_spark.network.http import NetworkSettings, data_session
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.sharing.auth import carried_settings
from delta_sharing_spark.spark.session_settings import refuse_identity_options
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support.certificates import certificate_of, context_of, pair_of
from unit.sharing.scripted_server import NAME, OK, Clock, Reply, Rest, ScriptedServer

#: Makes a certificate that signs itself, with its key.
Issue = Callable[..., Path]


@pytest.fixture
def issue(tmp_path: Path) -> Issue:
    def make(name: str, **fields: float) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        return certificate_of(directory, "127.0.0.1", **fields)

    return make


@pytest.fixture
def own(issue: Issue) -> Path:
    return issue("own")


@pytest.fixture
def serve(issue: Issue, own: Path) -> Iterator[Callable[..., ScriptedServer]]:
    """Starts a server that asks its clients for the certificate ``own``, or demands it."""
    running: list[ScriptedServer] = []
    certificate = issue("server")

    def start(demands: bool = True, *, is_old: bool = False) -> ScriptedServer:
        context = context_of(certificate)
        context.load_verify_locations(own)
        context.verify_mode = ssl.CERT_REQUIRED if demands else ssl.CERT_OPTIONAL
        if is_old:  # since TLS 1.3 a server refuses when the client has sent its request, and may reset the connection
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        running.append(ScriptedServer(context).__enter__())
        running[-1].on("", OK)
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture
def trusting(settings: NetworkSettings, serve: object, tmp_path: Path) -> NetworkSettings:
    return replace(settings, ca_bundle=str(tmp_path / "server" / "certificate.pem"), retry_seconds=0.0)


def with_certificate(settings: NetworkSettings, *files: Path, password: str | None = None) -> NetworkSettings:
    return replace(settings, client_certificate=ClientCertificate(*map(str, files), password=password))


@pytest.mark.parametrize("form", ["one file", "two files", "password", "password of the environment"])
def test_a_server_that_demands_one(
    serve: Callable[..., ScriptedServer],
    rest_of: Rest,
    trusting: NetworkSettings,
    own: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    server, password = serve(), "p\u00e4ss" if "password" in form else None
    files = (own,) if form == "one file" else pair_of(own, password)
    if form == "password of the environment":
        monkeypatch.setenv(PASSWORD_VARIABLE, password or "")
        password = None
    assert rest_of(server, with_certificate(trusting, *files, password=password)).table_version(NAME) == 7
    assert [asked.has_certificate for asked in server.asked] == [True]


def test_the_token_endpoint_is_shown_it_too(
    serve: Callable[..., ScriptedServer], rest_of: Rest, trusting: NetworkSettings, own: Path
) -> None:
    server, tokens = serve(), serve()
    tokens.on("/token", Reply({"access_token": "t", "expires_in": 3600}))
    fields = {
        "shareCredentialsVersion": 2,
        "type": "oauth_client_credentials",
        "clientId": "c",
        "clientSecret": "s3cret",
    }
    client = rest_of(server, with_certificate(trusting, own), **fields, tokenEndpoint=f"{tokens.endpoint}/token")
    assert client.table_version(NAME) == 7
    assert [asked.has_certificate for asked in (*tokens.asked, *server.asked)] == [True, True]


def test_neither_storage_nor_another_host_is_shown_it(
    serve: Callable[..., ScriptedServer], rest_of: Rest, trusting: NetworkSettings, own: Path
) -> None:
    first, other = serve(demands=False), serve(demands=False)
    settings = with_certificate(trusting, own)
    assert data_session(settings).get(other.endpoint, timeout=60).status_code == 200
    first.on("/version", Reply(status=307, headers={"Location": f"{other.endpoint}/elsewhere"}))
    assert rest_of(first, settings).table_version(NAME) == 7
    assert [asked.has_certificate for asked in first.asked] == [True]
    assert [asked.has_certificate for asked in other.asked] == [False, False]
    assert [asked.headers.get("authorization") for asked in other.asked] == [None, None]
    # Within its host it goes along.
    first.on("/version", Reply(status=307, headers={"Location": "/prefix/here"}))
    assert rest_of(first, settings).table_version(NAME) == 7
    assert [asked.has_certificate for asked in first.asked] == [True] * 3


@pytest.mark.parametrize("shown", ["none", "another"])
def test_a_server_that_is_not_content(
    serve: Callable[..., ScriptedServer],
    rest_of: Rest,
    trusting: NetworkSettings,
    issue: Issue,
    clock: Clock,
    shown: str,
) -> None:
    server = serve(is_old=True)
    settings = trusting if shown == "none" else with_certificate(trusting, issue("another"))
    words = (
        r"TLS with 127\.0\.0\.1 failed .* wants a certificate of its clients .*options clientCertificate and clientKey"
    )
    with pytest.raises(NetworkError, match=words):
        rest_of(server, replace(settings, retry_seconds=60.0)).table_version(NAME)
    assert server.asked == clock.slept == []


def test_a_gateway_that_says_so_in_http(server: ScriptedServer, rest_of: Rest) -> None:
    page = "<html><head><title>400 No required SSL certificate was sent</title></head></html>"
    server.on("/version", Reply(page, 400))
    with pytest.raises(
        RequestRefusedError, match=r"No required SSL certificate.*; set the options clientCertificate and"
    ):
        rest_of(server).table_version(NAME)


BROKEN = {
    "missing": (["nowhere.pem"], None, r"nowhere.pem of the option clientCertificate cannot be read \(No such file"),
    "key missing": (["alone.pem", "nowhere.key"], None, "nowhere.key of the option clientKey cannot be read"),
    "no file": (["."], None, "of the option clientCertificate cannot be read .it is no regular file"),
    "no key": (["alone.pem"], None, "alone.pem holds no private key in PEM; name the file of its key in clientKey"),
    "no certificate": (["key.pem"], None, "key.pem holds no certificate in PEM"),
    "DER": (["own.der"], None, "own.der holds no certificate in PEM; name a PEM file, made of another form by openssl"),
    "damaged": (["damaged.pem", "key.pem"], None, "damaged.pem"),
    "damaged key": (["alone.pem", "damaged.key"], "x", r"damaged.key cannot be read \(.*\); check both files"),
    "mismatched": (
        ["alone.pem", "../other/key.pem"],
        None,
        "key.pem is not that of the client certificate .*alone.pem",
    ),
    "expired": (
        ["../ended/certificate.pem"],
        None,
        r"certificate.pem expired at 20\d\d-\d\d-\d\dT.*Z; ask whoever issued",
    ),
    "early": (["../early/certificate.pem"], None, "is not valid before 20.*check the clock"),
    "no password": (["alone.pem", "encrypted.pem"], None, "encrypted.pem is encrypted, and its password is missing"),
    "wrong password": (
        ["alone.pem", "encrypted.pem"],
        "wrong",
        "its password is not the right one; give it by the option",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_with_one_is_told_in_one_line(
    issue: Issue, own: Path, server: ScriptedServer, rest_of: Rest, settings: NetworkSettings, case: str
) -> None:
    beside = own.parent
    pair_of(own, "s3cret")[1].rename(beside / "encrypted.pem")
    alone, key = pair_of(own)
    (beside / "own.der").write_bytes(ssl.PEM_cert_to_DER_cert(alone.read_text()))
    for damaged, whole in (("damaged.pem", alone), ("damaged.key", key)):
        lines = whole.read_text().splitlines()
        (beside / damaged).write_text("\n".join([lines[0], "AAAA", *lines[2:]]))
    pair_of(issue("other"))
    issue("ended", ends=-0.5)
    issue("early", begins=0.5)
    names, password, words = BROKEN[case]
    with pytest.raises(OptionError, match=words) as caught:
        rest_of(
            server, with_certificate(settings, *(beside / name for name in names), password=password)
        ).table_version(NAME)
    assert "\n" not in str(caught.value)
    assert server.asked == []


def test_a_certificate_that_is_written_anew_is_shown_from_then_on(
    serve: Callable[..., ScriptedServer], rest_of: Rest, trusting: NetworkSettings, own: Path, issue: Issue
) -> None:
    server, good = serve(), own.read_bytes()
    own.write_bytes(issue("former").read_bytes())
    client = rest_of(server, with_certificate(trusting, own))
    with pytest.raises(NetworkError):
        client.table_version(NAME)
    own.write_bytes(good)
    assert client.table_version(NAME) == 7


@pytest.mark.parametrize("password", [None, "pass"])
def test_executors_need_no_files(
    serve: Callable[..., ScriptedServer], rest_of: Rest, trusting: NetworkSettings, own: Path, password: str | None
) -> None:
    server = serve()
    settings = with_certificate(trusting, *pair_of(own, password), password=password)
    carried = pickle.loads(pickle.dumps(carried_settings(settings, True)))
    assert (
        carried_settings(settings, "token").client_certificate
        is carried_settings(settings, False).client_certificate
        is None
    )
    for file in own.parent.iterdir():
        file.unlink()
    assert rest_of(server, carried).table_version(NAME) == 7
    with pytest.raises(OptionError, match="cannot be read"):
        rest_of(server, settings).table_version(NAME)


def test_the_environment_may_name_it(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = pair_of(own)
    monkeypatch.chdir(own.parent)
    monkeypatch.setenv("DELTA_SHARING_CLIENT_CERTIFICATE", certificate.name)
    monkeypatch.setenv("DELTA_SHARING_CLIENT_KEY", str(key))
    named = transport_of(parse_options({"path": "a.b.c"})).client_certificate
    assert named == ClientCertificate(str(certificate), str(key))
    stated = transport_of(parse_options({"path": "a.b.c", "clientCertificate": str(own)})).client_certificate
    assert stated == ClientCertificate(str(own))


def test_a_client_of_connect_does_not_name_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "a client's")
    with pytest.raises(OptionError, match="option 'clientcertificate' is refused: on Spark Connect"):
        refuse_identity_options({"clientcertificate": "/etc/server.pem"})


@pytest.mark.parametrize("mode", ["url", "dir"])
@pytest.mark.parametrize(("carry", "is_carried"), [("true", True), ("token", False), ("false", False)])
def test_what_a_split_holds(own: Path, tmp_path: Path, mode: str, carry: str, is_carried: bool) -> None:
    table = DeltaTableBuilder(tmp_path / "t", pa.schema({"id": pa.int64()})).append([{"id": 1}])
    certificate, key = pair_of(own)
    with SharingServer() as server:
        server.add_table("s.d.t", table.path, access_modes=("url", "dir"))
        options = {"accessMode": mode, "carryProfile": carry, "clientKeyPassword": "unneeded-s3cret"}
        client = SharingClient(server.profile(), clientCertificate=str(certificate), clientKey=str(key), **options)
        (split,) = client.table("s.d.t").scan().plan().splits
    pickled = pickle.dumps(split)
    assert (key.read_bytes() in pickled) is is_carried
    assert (b"unneeded-s3cret" in pickled) is is_carried
    assert "s3cret" not in repr(split)
    assert "PRIVATE" not in repr(split)
