"""Seals tickets, which hold what an endpoint reads, so that a client can neither read nor change them.

A ticket is encrypted and authenticated (AES-256-GCM) under a key of the gateway, or of several gateways that share one.
Its content is read only once its seal is verified.
"""

from __future__ import annotations

import os
import pickle
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import ConfigError, TicketError
from delta_sharing_spark.flight.commands import Command
from delta_sharing_spark.scan.plan import ReadSpec, Split

#: The name of the format; bytes of the key and of the nonce.
_MAGIC = b"DSF4"
KEY_BYTES, _NONCE_BYTES = 32, 12


@dataclass(frozen=True, slots=True)
class Ticket:
    """One endpoint of a flight.

    Attributes:
        flight: The id of the flight that ``GetFlightInfo`` planned; ``CancelFlightInfo`` names it.
        identity: The caller that the flight was planned for; no other may use it.
        command: The command of the flight, pinned to its version.
        endpoint, endpoints: The number of the endpoint in its flight, from 0, and how many there are.
        splits: What the endpoint reads, one after the other.
        issued, expires: Seconds since the epoch.
        about: The endpoint's metadata: the version, for an endpoint of a stream.
    """

    flight: str
    identity: str
    command: Command
    endpoint: int
    endpoints: int
    splits: tuple[Split, ...] = field(repr=False)
    issued: float
    expires: float
    about: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the files, or parts of files, that are read."""
        return sum(split.nbytes for split in self.splits)


def shared_part(command: Command, spec: ReadSpec) -> bytes:
    """What the tickets of one flight share, packed once: the command, and how rows are read, with the condition."""
    return zlib.compress(pickle.dumps((command, spec), pickle.HIGHEST_PROTOCOL), 1)


class Seal:
    """Seals tickets and opens them again.

    Args:
        key: 32 bytes, the same for all gateways that serve each other's tickets; None draws one.

    Raises:
        ConfigError: The key has another length, or ``cryptography`` is missing.
    """

    def __init__(self, key: bytes | None = None) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigError(
                "the Flight gateway seals its tickets with the package cryptography, which is not installed; "
                f"run: {install_line('flight')}"
            ) from None
        key = os.urandom(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise ConfigError(f"the key of the tickets has {len(key)} bytes; give {KEY_BYTES}")
        self._cipher = AESGCM(key)

    def __repr__(self) -> str:
        return "Seal()"

    def close(self, ticket: Ticket, shared: bytes | None = None) -> bytes:
        """The bytes of a Flight ticket; ``shared`` is what it shares with other tickets of its flight (``shared_part``)."""
        nonce = os.urandom(_NONCE_BYTES)
        shared = shared or shared_part(ticket.command, ticket.splits[0].spec)
        alone = replace(ticket, command=None, splits=())  # type: ignore[arg-type]  # opened with what is shared
        own = alone, [(s.index, s.slices, s.access) for s in ticket.splits]
        body = zlib.compress(pickle.dumps(own, pickle.HIGHEST_PROTOCOL), 1)
        plain = pickle.dumps((body, shared), pickle.HIGHEST_PROTOCOL)
        return _MAGIC + nonce + self._cipher.encrypt(nonce, plain, _MAGIC)

    def open(self, sealed: bytes, identity: str, *, may_be_expired: bool = False) -> Ticket:
        """The ticket of these bytes.

        Args:
            sealed: From ``close``, of this gateway or of one with the same key.
            may_be_expired: Whether an expired ticket is accepted, as for a renewal.

        Raises:
            TicketError: It is forged, cut, of another key, another caller's, or has expired.
        """
        from cryptography.exceptions import InvalidTag

        start = len(_MAGIC) + _NONCE_BYTES
        try:
            if not sealed.startswith(_MAGIC) or len(sealed) <= start:
                raise InvalidTag
            plain = self._cipher.decrypt(sealed[len(_MAGIC) : start], sealed[start:], _MAGIC)
        except InvalidTag:
            raise TicketError(
                "the ticket is not one of this gateway's: its seal does not fit, or the gateway was started anew "
                "with another key; ask for the flight's info again",
                reason="forged",
            ) from None
        body, shared = pickle.loads(plain)  # noqa: S301  # the seal proves that close() wrote it
        ticket, splits = pickle.loads(zlib.decompress(body))  # noqa: S301  # sealed, as is what follows
        command, spec = pickle.loads(zlib.decompress(shared))  # noqa: S301
        if not isinstance(ticket, Ticket) or ticket.identity != identity:
            raise TicketError(
                "the ticket was given to another caller; ask for the flight's info yourself", reason="identity"
            )
        if not may_be_expired and ticket.expires <= time.time():
            raise TicketError(
                "the ticket has expired; renew its endpoint by RenewFlightEndpoint, or ask for the flight's info again",
                reason="expired",
            )
        return replace(ticket, command=command, splits=tuple(Split(index, spec, *rest) for index, *rest in splits))
