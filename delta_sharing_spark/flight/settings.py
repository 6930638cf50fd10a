"""Defines where a Flight gateway listens and whom it admits."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.network.urls import is_loopback
from delta_sharing_spark.sharing.identity import is_header_text
from delta_sharing_spark.storage.user_files import LARGEST_CERTIFICATES, UnfitFile, read_text

#: Schemes of addresses (Flight RPC, "Location URIs").
PLAIN, ENCRYPTED, UNIX = "grpc+tcp", "grpc+tls", "grpc+unix"
#: What a server listens on and no client connects to.
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  # compared only


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The address, admission and bounds of a gateway.

    Attributes:
        listen: ``grpc+tcp://host:port`` or ``grpc+tls://host:port``; port 0 takes a free one.
        tokens: The tokens that callers send. None draws one, unless callers have certificates; an empty tuple asks for none.
        certificate, private_key: PEM files of the server's certificate, for ``grpc+tls``.
        client_authority: A PEM file of the authority whose certificates callers must have (mutual TLS).
        key: 32 bytes that seal tickets; gateways that serve each other's tickets share it. None draws one.
        advertised: Addresses that endpoints name as their locations; none means the connection the client has.
        ticket_seconds: The longest time a ticket is good for; URLs or credentials that end earlier shorten it.
        memory_budget: Bytes that all reads together may hold fetched and not yet decoded.
        max_streams: Reads at one time; a further one is refused, to be tried again later.
        poll_port: The port, on the host of ``listen``, that answers ``PollFlightInfo`` (0 takes a free one); None for none.
    """

    listen: str = "grpc+tcp://127.0.0.1:0"
    tokens: tuple[str, ...] | None = field(default=None, repr=False)
    certificate: Path | None = None
    private_key: Path | None = field(default=None, repr=False)
    client_authority: Path | None = None
    key: bytes | None = field(default=None, repr=False)
    advertised: tuple[str, ...] = ()
    ticket_seconds: float = 3600.0
    memory_budget: int = 512 << 20
    max_streams: int = 256
    poll_port: int | None = None

    def checked(self) -> GatewaySettings:
        """The settings with their tokens, unless they would give the share to anyone on the network.

        Raises:
            ConfigError: A token cannot be sent; the address is malformed, or not on loopback and without TLS or a token; says what to add.
        """
        settings = self
        if settings.tokens is None:
            drawn = () if settings.client_authority else (secrets.token_urlsafe(24),)
            settings = replace(settings, tokens=drawn)
        if not all(map(is_header_text, settings.tokens or ())):
            raise ConfigError(
                "a token of the gateway is empty, or has a blank or a letter beyond ASCII, which no header carries, so that "
                "it would let nobody in; make one with: openssl rand -hex 24"
            )
        parts = urlsplit(self.listen)
        if parts.scheme == UNIX:
            if self.poll_port is not None:
                raise ConfigError(
                    f"{self.listen} has no ports, so that none answers polls; listen on grpc+tcp://127.0.0.1:0"
                )
            return settings
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in (PLAIN, ENCRYPTED) or not parts.hostname or port is None:
            raise ConfigError(
                f"the gateway cannot listen on {self.listen!r}; write grpc+tcp://127.0.0.1:0 or grpc+tls://host:port"
            )
        if parts.scheme == ENCRYPTED and (self.certificate is None or self.private_key is None):
            raise ConfigError(f"{self.listen} needs a certificate; add --cert cert.pem --key key.pem")
        if parts.scheme == PLAIN and (self.certificate or self.client_authority):
            raise ConfigError(
                f"{self.listen} would not use the certificate; write grpc+tls:// for an encrypted connection"
            )
        if self.poll_port is not None:
            self._check_poll_port(self.poll_port, parts.hostname)
        if is_loopback(parts.hostname):
            return settings
        if parts.scheme != ENCRYPTED:
            raise ConfigError(
                f"{self.listen} is not on loopback, and without TLS tokens and rows would cross the network in clear; "
                f"listen on {self.listen.replace(PLAIN, ENCRYPTED)} with --cert cert.pem --key key.pem"
            )
        if self.tokens == () and self.client_authority is None:
            raise ConfigError(
                f"{self.listen} is not on loopback, and without a token anyone could read the share; "
                f"add --token-file FILE, or --mtls-ca ca.pem"
            )
        return settings

    def _check_poll_port(self, port: int, host: str) -> None:
        if not 0 <= port < 1 << 16:
            raise ConfigError(f"polls cannot be answered on port {port}; give one of 0 to 65535, 0 for a free one")
        if host in _ALL_ADDRESSES and not self.advertised:
            raise ConfigError(
                f"the endpoints of polled flights name where their rows are, and {self.listen} is no address to connect to; "
                "add --advertise grpc+tls://HOST:PORT (advertised=) with the name that clients reach"
            )

    def address(self, port: int) -> str:
        """The address of a port of the host that ``listen`` names."""
        scheme, _, rest = self.listen.partition("://")
        return f"{scheme}://{rest.rpartition(':')[0]}:{port}"

    def tls_arguments(self) -> dict[str, Any]:
        """The arguments of pyarrow's server for TLS; raises ConfigError where a file cannot be read."""
        if self.certificate is None or self.private_key is None:
            return {}
        arguments: dict[str, Any] = {
            "tls_certificates": [(_pem(self.certificate), _pem(self.private_key))],
            "verify_client": self.client_authority is not None,
        }
        if self.client_authority is not None:
            arguments["root_certificates"] = _pem(self.client_authority)
        return arguments


def _pem(path: Path) -> bytes:
    try:
        content = read_text(str(path), LARGEST_CERTIFICATES)
    except UnfitFile as why:
        raise ConfigError(f"{path} {why}; give a PEM file") from None
    if "-----BEGIN" not in content:
        raise ConfigError(f"{path} is not a PEM file; convert it, for example with openssl x509 -outform pem")
    return content.encode()
