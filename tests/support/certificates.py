"""Certificates for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)


def certificate_of(directory: Path, host: str = "localhost", begins: float = -1, ends: float = 1) -> Path:
    """A certificate of a name or an address that signs itself, with its key; it begins and ends so many days from now."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.timezone.utc)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    try:
        subject: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        subject = x509.DNSName(host)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins * _DAY)
        .not_valid_after(now + ends * _DAY)
        .add_extension(x509.SubjectAlternativeName([subject]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    written = directory / "certificate.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    written.write_bytes(signed.public_bytes(serialization.Encoding.PEM) + secret)
    return written


def context_of(certificate: Path) -> ssl.SSLContext:
    """A server's, with a certificate and its key in one file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def pair_of(certificate: Path, password: str | None = None) -> tuple[Path, Path]:
    """The certificate of a file of both, and its key, encrypted where there is a password, in files of their own beside it."""
    begin = b"-----BEGIN PRIVATE KEY-----"
    public, _, secret = certificate.read_bytes().partition(begin)
    if password is not None:
        key = serialization.load_pem_private_key(begin + secret, None)
        encryption = serialization.BestAvailableEncryption(password.encode())
        encrypted = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    alone, key_file = certificate.with_name("alone.pem"), certificate.with_name("key.pem")
    alone.write_bytes(public)
    key_file.write_bytes(begin + secret if password is None else encrypted)
    return alone, key_file
