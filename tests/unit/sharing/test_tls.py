"""What servers and certificates do that TLS refuses: alike for the sharing server and for storage, at once, with what to do about it."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from delta_sharing_spark.errors import NetworkError
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.range_reader import StorageSettings
from support.certificates import certificate_of, context_of
from support.cloud_secrets import aws_session
from support.refusals import not_refused
from unit.sharing.scripted_server import NAME, Clock, Rest, ScriptedServer


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"ends": -0.5}, "certificate has expired.*; check the clock of this machine, and ask who runs localhost"),
        ({"begins": 0.5}, "certificate is not yet valid.*; check the clock of this machine"),
        ({"host": "other.example"}, "Hostname mismatch.*; check the address: the certificate is that of another host"),
        ("unknown", "self.signed certificate.*; set the option caBundle .* all of its chain"),
        ("empty", r"no certificate or crl found.*; the file of the option caBundle \(or of .*\) holds no certificates"),
        ("old", "protocol.*; ask who runs localhost to offer a newer TLS"),
    ],
    ids=str,
)
def test_what_no_other_try_changes(
    tmp_path: Path, rest_of: Rest, settings: NetworkSettings, clock: Clock, what: dict[str, float] | str, words: str
) -> None:
    of = what if isinstance(what, dict) else {}
    certificate = certificate_of(tmp_path, **of)  # type: ignore[arg-type]
    context = context_of(certificate)
    trusted: Path | None = certificate
    if what == "old":
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1
    elif what in ("unknown", "empty"):
        trusted = None if what == "unknown" else tmp_path / "empty.pem"
        (tmp_path / "empty.pem").touch()
    bundle = None if trusted is None else str(trusted)
    with ScriptedServer(context) as server:
        endpoint = server.endpoint.replace("127.0.0.1", "localhost")
        storage = Storage(
            parse_location("s3://bucket/t"),
            aws_session("id", "s3cret", "token"),
            StorageSettings(endpoint=endpoint, ca_bundle=bundle, sleep=clock.sleep, clock=clock),
        )
        asked = (
            lambda: rest_of(server, replace(settings, ca_bundle=bundle), endpoint=endpoint).table_version(NAME),
            lambda: storage.get(parse_location("s3://bucket/t/f"), 0, 10),
        )
        assert not_refused(NetworkError, rf"TLS with localhost failed \(.*{words}", *asked) == []
        assert server.asked == []
    assert clock.slept == []


def test_a_proxy_whose_certificate_is_not_trusted_is_named(
    tmp_path: Path, rest_of: Rest, settings: NetworkSettings, clock: Clock
) -> None:
    with ScriptedServer(context_of(certificate_of(tmp_path))) as proxy:
        through = replace(settings, proxy=proxy.endpoint.replace("127.0.0.1", "localhost").rpartition("/")[0])
        with pytest.raises(NetworkError, match=r"TLS with the proxy on the way to sharing\.example failed"):
            rest_of(proxy, through, endpoint="https://sharing.example/x").table_version(NAME)
    assert clock.slept == []


def test_tls_that_breaks_off_is_tried_again(server: ScriptedServer, rest_of: Rest, clock: Clock) -> None:
    """The other end goes away in the middle of the handshake, as behind a balancer that is restarted."""
    import socket
    import threading

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with accepted:
                    accepted.recv(1)

        threading.Thread(target=hang_up, daemon=True).start()
        client = rest_of(server, endpoint=f"https://127.0.0.1:{listener.getsockname()[1]}/x")
        with pytest.raises(
            NetworkError,
            match=r"could not be reached \((TLS with 127.0.0.1 broke off|127.0.0.1 closed the connection)\)",
        ):
            client.table_version(NAME)
        listener.shutdown(socket.SHUT_RDWR)
    assert len(clock.slept) > 2
