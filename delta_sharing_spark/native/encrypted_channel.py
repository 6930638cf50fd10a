"""Carries messages between a cluster's driver and a machine's gateway by TLS 1.3 of Python's library.

The driver draws a certificate for its application, which a machine trusts alone. The machine proves by a secret, within TLS, that
it is the application's. Only the driver needs the package ``cryptography``, which writes the certificate.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import socket
import ssl
import struct
import tempfile
import threading
from functools import lru_cache
from typing import Any

from delta_sharing_spark._version import install_line

_LENGTHS = struct.Struct(">QQ")
#: More than a plan of half a million files takes.
_LONGEST = 1 << 30
#: Bytes that are encrypted, and those that are received, at once.
_ENCRYPTED, _RECEIVED = 1 << 20, 1 << 18
#: The name in the certificate: a driver's address may change, and is no matter.
_NAME = "driver.delta-sharing-spark.invalid"
#: For how long before and after now a certificate is valid: clocks differ, and an application may run for years.
_BEFORE, _AFTER = datetime.timedelta(days=30), datetime.timedelta(days=3650)


@lru_cache(maxsize=1)
def why_no_certificate() -> str | None:
    """Why this Python cannot draw a certificate; None where it can."""
    try:
        from cryptography import x509  # noqa: F401
    except ImportError as error:
        return (
            f"the driver's Python lacks the package cryptography ({error}), by which the gateways of machines know the driver; "
            f"run: {install_line('cluster')}"
        )
    return None


def draw_certificate() -> tuple[ssl.SSLContext, str]:
    """The context of a driver whose key nobody else has, and the certificate that its machines trust, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - _BEFORE, now + _AFTER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, password = signed.public_bytes(serialization.Encoding.PEM), secrets.token_hex(32).encode()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with (
        tempfile.TemporaryDirectory() as directory
    ):  # Python's library takes a key from a file alone: it is encrypted there
        written = os.path.join(directory, "certificate.pem")
        with open(written, "wb") as file:
            file.write(certificate)
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM,
                    serialization.PrivateFormat.PKCS8,
                    serialization.BestAvailableEncryption(password),
                )
            )
        context.load_cert_chain(written, password=password)
    return context, certificate.decode()


def trusting(certificate: str) -> ssl.SSLContext:
    """The context of a machine that trusts one driver's certificate. Raises ssl.SSLError where it is none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=certificate)
    return context


class EncryptedChannel:
    """One end of a connection; a message is a JSON object and bytes. Sending is safe from several threads, beside one that receives.

    Args:
        connection: It has a time-out, within which each part of the handshake has to come.
        context: Of ``draw_certificate`` or ``trusting``.

    Raises:
        ssl.SSLError: The other end has another certificate, or speaks no TLS.
        OSError: The connection has ended, or nothing came in its time.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        is_driver = context.protocol == ssl.PROTOCOL_TLS_SERVER
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        # OpenSSL's state is not safe from several threads, so that none waits for the connection while it holds it.
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_driver, server_hostname=None if is_driver else _NAME
        )
        self._state, self._sending = threading.Lock(), threading.Lock()
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._connection.sendall(self._outgoing.read())
                self._receive()
            except ssl.SSLError:
                self._connection.sendall(self._outgoing.read())  # which tells the other end why
                raise
        self._connection.sendall(self._outgoing.read())

    def show(self, secret: bytes) -> None:
        """Show the driver that this machine is the application's."""
        self._send(secret)

    def has_proof(self, secret: bytes) -> bool:
        """Whether the machine has shown the secret. Raises OSError where it shows nothing."""
        return secrets.compare_digest(self._read(len(secret)), secret)

    def send(self, message: dict[str, Any], content: bytes = b"") -> None:
        """Send a message; raises OSError where the connection has ended."""
        text = json.dumps(message).encode()
        self._send(b"".join((_LENGTHS.pack(len(text), len(content)), text, content)))

    def receive(self, longest: int = _LONGEST) -> tuple[dict[str, Any], bytes]:
        """Wait for the next message, of so many bytes at most.

        Raises:
            OSError: The connection has ended, nothing came in its time, or the message is longer.
        """
        text, content = _LENGTHS.unpack(self._read(_LENGTHS.size))
        if text + content > longest:
            raise OSError("a message is longer than it may be")
        message: dict[str, Any] = json.loads(self._read(text))
        return message, self._read(content)

    def _send(self, data: bytes) -> None:
        plain = memoryview(data)
        with self._sending:
            while plain:
                with self._state:
                    plain = plain[self._tls.write(plain[:_ENCRYPTED]) :]
                    encrypted = self._outgoing.read()
                self._connection.sendall(encrypted)

    def _read(self, length: int) -> bytes:
        """Exactly so many bytes."""
        parts = bytearray()
        while len(parts) < length:
            try:
                with self._state:
                    part = self._tls.read(min(_ENCRYPTED, length - len(parts)))
            except ssl.SSLWantReadError:
                self._receive()
                continue
            if not part:
                raise ConnectionError("the connection has ended")
            parts += part
        return bytes(parts)

    def _receive(self) -> None:
        received = self._connection.recv(_RECEIVED)
        if not received:
            raise ConnectionError("the connection has ended")
        with self._state:
            self._incoming.write(received)
