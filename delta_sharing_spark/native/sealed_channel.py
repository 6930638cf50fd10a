"""Carries messages between two holders of a key over a connection that others may listen to: each is encrypted and signed.

Python's library has no AES, and TLS by a shared key only from 3.13 on. The key stream is SHAKE-256 of the connection's own
key and the message's number; what is encrypted is signed by HMAC-SHA256, and opened only if that is right.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import struct
import threading
from typing import Any

_TAG, _LENGTH, _NONCE = 32, struct.Struct(">Q"), 32
#: More than a plan of half a million files takes.
_LONGEST = 1 << 30


class SealError(OSError):
    """A message that the holder of the key has not written, or not now."""


class SealedChannel:
    """One end of a connection; a message is a JSON object and bytes. Sending is safe from several threads.

    Args:
        nonces: What the two ends drew for this connection, in the order of who connected.
        is_first: Whether this end connected.
    """

    def __init__(self, connection: socket.socket, key: bytes, nonces: bytes, *, is_first: bool) -> None:
        self._connection = connection
        first, second = (hmac.digest(key, name + nonces, "sha512") for name in (b"first", b"second"))
        self._sealing, self._opening = (first, second) if is_first else (second, first)
        self._sent = self._received = 0
        self._lock = threading.Lock()

    @staticmethod
    def nonce() -> bytes:
        """What one end draws for a connection."""
        return secrets.token_bytes(_NONCE)

    def send(self, message: dict[str, Any], content: bytes = b"") -> None:
        """Send a message; raises OSError where the connection has ended."""
        text = json.dumps(message).encode()
        plain = _LENGTH.pack(len(text)) + text + content
        with self._lock:
            number = _LENGTH.pack(self._sent)
            self._sent += 1
            sealed = _masked(plain, self._sealing, number)
            self._connection.sendall(_LENGTH.pack(len(sealed)) + sealed + _tag(sealed, self._sealing, number))

    def receive(self, longest: int = _LONGEST) -> tuple[dict[str, Any], bytes]:
        """Wait for the next message, of so many bytes at most.

        Raises:
            SealError: It is not the other end's next one.
            OSError: The connection has ended, or nothing came in its time.
        """
        (length,) = _LENGTH.unpack(received(self._connection, _LENGTH.size))
        if length > longest:
            raise SealError("a message of another protocol")
        sealed = received(self._connection, length)
        number = _LENGTH.pack(self._received)
        if not hmac.compare_digest(received(self._connection, _TAG), _tag(sealed, self._opening, number)):
            raise SealError("a message that the holder of the key did not write")
        self._received += 1
        plain = _masked(sealed, self._opening, number)
        end = _LENGTH.size + _LENGTH.unpack_from(plain)[0]
        message: dict[str, Any] = json.loads(plain[_LENGTH.size : end])
        return message, plain[end:]


def received(connection: socket.socket, length: int) -> bytes:
    """Exactly so many bytes of a connection; raises OSError where it has ended before, or nothing came in its time."""
    parts = bytearray()
    while len(parts) < length:
        part = connection.recv(min(1 << 20, length - len(parts)))
        if not part:
            raise ConnectionError("the connection has ended")
        parts += part
    return bytes(parts)


def _masked(data: bytes, keys: bytes, number: bytes) -> bytes:
    stream = hashlib.shake_256(keys[:32] + number).digest(len(data))
    return (int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")).to_bytes(len(data), "little")


def _tag(sealed: bytes, keys: bytes, number: bytes) -> bytes:
    return hmac.digest(keys[32:], number + sealed, "sha256")
