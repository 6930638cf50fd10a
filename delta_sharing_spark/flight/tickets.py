"""Seals tickets, which hold what an endpoint reads, so that a client can neither read nor change them.

A ticket is encrypted and authenticated (AES-256-GCM) under a key of the gateway, or of several gateways that share one.
Its content is read only once its seal is verified.
"""

from __future__ import annotations

import io
import os
import pickle
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.errors import ConfigError, TicketError
from delta_sharing_spark.scan.plan import ReadSpec, Split

#: The name of the format; bytes of the key and of the nonce.
_MAGIC = b"DSF2"
KEY_BYTES, _NONCE_BYTES = 32, 12


@dataclass(frozen=True, slots=True)
class Ticket:
    """One endpoint of a flight.

    Attributes:
        flight: The id of the flight that ``GetFlightInfo`` planned; ``CancelFlightInfo`` names it.
        identity: The caller that the flight was planned for; no other may use it.
        command: The command of the flight, pinned to its version, as canonical JSON.
        endpoint, endpoints: The number of the endpoint in its flight, from 0, and how many there are.
        splits: What the endpoint reads, one after the other.
        issued, expires: Seconds since the epoch.
        about: The endpoint's metadata: the version, for an endpoint of a stream.
    """

    flight: str
    identity: str
    command: str
    endpoint: int
    endpoints: int
    splits: tuple[Split, ...] = field(repr=False)
    issued: float
    expires: float
    about: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the files, or parts of files, that are read."""
        return sum(split_bytes(split) for split in self.splits)


def split_bytes(split: Split) -> int:
    """Bytes of the files, or parts of files, that a split reads."""
    return sum((part.task.size if part.end is None else part.end) - part.start for part in split.slices)


class SharedParts:
    """What the tickets of one flight share, each part packed once: the command, and how rows are read, with the condition."""

    def __init__(self) -> None:
        #: By the text, or by the identity of the object, which is kept so that no other one gets it.
        self._packed: dict[str | int, tuple[object, bytes]] = {}

    def packed(self, part: object) -> bytes:
        """The bytes of a part."""
        key = part if isinstance(part, str) else id(part)
        known = self._packed.get(key)
        if known is None:
            known = self._packed[key] = part, zlib.compress(pickle.dumps(part, pickle.HIGHEST_PROTOCOL), 1)
        return known[1]


class _TicketPickler(pickle.Pickler):
    """Pickles a ticket with numbers in the place of its shared parts, whose bytes it lists."""

    def __init__(self, out: io.BytesIO, ticket: Ticket, parts: SharedParts) -> None:
        super().__init__(out, pickle.HIGHEST_PROTOCOL)
        self._ticket, self._parts = ticket, parts
        self.shared: list[bytes] = []

    def persistent_id(self, part: Any) -> int | None:
        """The number of a shared part (``pickle.Pickler``)."""
        if part is not self._ticket.command and not isinstance(part, ReadSpec):
            return None
        packed = self._parts.packed(part)
        if packed not in self.shared:
            self.shared.append(packed)
        return self.shared.index(packed)


class _TicketUnpickler(pickle.Unpickler):
    """Reads what ``_TicketPickler`` wrote."""

    def __init__(self, body: bytes, shared: list[bytes]) -> None:
        super().__init__(io.BytesIO(body))
        self._shared = shared
        self._known: dict[int, object] = {}

    def persistent_load(self, number: int) -> object:
        """The shared part of a number (``pickle.Unpickler``)."""
        if number not in self._known:
            self._known[number] = pickle.loads(zlib.decompress(self._shared[number]))  # noqa: S301  # sealed
        return self._known[number]


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
                "run: pip install 'delta-sharing-spark[flight]'"
            ) from None
        key = os.urandom(KEY_BYTES) if key is None else key
        if len(key) != KEY_BYTES:
            raise ConfigError(f"the key of the tickets has {len(key)} bytes; give {KEY_BYTES}")
        self._cipher = AESGCM(key)

    def __repr__(self) -> str:
        return "Seal()"

    def close(self, ticket: Ticket, parts: SharedParts | None = None) -> bytes:
        """The bytes of a Flight ticket; ``parts`` is what it shares with other tickets of its flight."""
        nonce, out = os.urandom(_NONCE_BYTES), io.BytesIO()
        pickler = _TicketPickler(out, ticket, parts or SharedParts())
        pickler.dump(ticket)
        plain = pickle.dumps((zlib.compress(out.getvalue(), 1), pickler.shared), pickle.HIGHEST_PROTOCOL)
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
        ticket = _TicketUnpickler(zlib.decompress(body), shared).load()
        if not isinstance(ticket, Ticket) or ticket.identity != identity:
            raise TicketError(
                "the ticket was given to another caller; ask for the flight's info yourself", reason="identity"
            )
        if not may_be_expired and ticket.expires <= time.time():
            raise TicketError(
                "the ticket has expired; renew its endpoint by RenewFlightEndpoint, or ask for the flight's info again",
                reason="expired",
            )
        return ticket
