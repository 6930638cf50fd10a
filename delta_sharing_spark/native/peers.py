"""Finds out whose process is at the other end of a loopback connection, where the system tells it."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
import threading
import weakref
from pathlib import Path

#: Of linux/sock_diag.h and linux/inet_diag.h: one socket, looked up by its addresses and ports.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_HEADER, _REQUEST, _SOCKET_ID = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("!HH16s16s")
#: Where an answer repeats the socket's ports and addresses: after a family, a state, a timer and a number of retries.
_ID_AT, _PORTS = _HEADER.size + 4, 4
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
#: What an answer tells of the socket: seconds to its end, bytes not read by its process, bytes not sent, its owner.
_TOLD, _TOLD_AT = struct.Struct("=IIII"), _ID_AT + _SOCKET_ID.size + len(_ANY)
_TABLES = (Path("/proc/net/tcp6"), Path("/proc/net/tcp"))

Address = tuple[str, int]


def is_own_process(peer: socket.socket) -> bool:
    """Whether a loopback connection comes from a process of this user. True where the system does not tell."""
    theirs, ours = peer.getpeername()[:2], peer.getsockname()[:2]
    owner_of_ends = _by_kernel(theirs, ours)
    owner = _by_table(theirs, ours) if owner_of_ends is None else owner_of_ends[1]
    return owner is None or owner == os.geteuid()


def unread_by_peer(peer: socket.socket) -> int | None:
    """Bytes that have reached the other end of a loopback connection and were not read; None where the system does not tell."""
    owner_of_ends = _by_kernel(peer.getpeername()[:2], peer.getsockname()[:2])
    return None if owner_of_ends is None else owner_of_ends[0]


class _Kernel(threading.local):
    """This thread's socket for questions to Linux's kernel, which is closed with the thread."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def answer(self, question: bytes) -> bytes:
        """The kernel's answer, which it has given when a question is sent; empty where there is none."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
                weakref.finalize(threading.current_thread(), self._socket.close)
            self._socket.sendto(question, (0, 0))
            return self._socket.recv(4096, socket.MSG_DONTWAIT)
        except OSError:
            self.forget()
            return b""

    def forget(self) -> None:
        """Close the socket: an answer that comes late is none to the next question."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_kernel = _Kernel()


def _by_kernel(theirs: Address, ours: Address) -> tuple[int, int] | None:
    """The unread bytes of the other socket and its owner's uid, as Linux's kernel tells; None where it does not."""
    if not hasattr(socket, "AF_NETLINK"):
        return None
    family = socket.AF_INET6 if ":" in theirs[0] else socket.AF_INET
    addresses = (socket.inet_pton(family, address) for address, _ in (theirs, ours))
    identity = _SOCKET_ID.pack(theirs[1], ours[1], *addresses)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + identity + _ANY
    question = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body
    answer = _kernel.answer(question)
    if len(answer) < _TOLD_AT + _TOLD.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    # Not the addresses: Java's sockets have those of IPv4 in the form of IPv6.
    if answer[_ID_AT : _ID_AT + _PORTS] != identity[:_PORTS]:
        _kernel.forget()
        return None
    _, unread, _, owner = _TOLD.unpack_from(answer, _TOLD_AT)
    return unread, owner


def _by_table(theirs: Address, ours: Address) -> int | None:
    """The owner's uid by the kernel's table of sockets; None where there is no table, -1 where the socket is not in it."""
    is_listed = False
    for table in _TABLES:
        try:
            text = table.read_bytes()
        except OSError:
            continue
        is_listed = True
        is_ipv6 = table.name == "tcp6"
        place = text.find(f"{_hex(theirs, is_ipv6)} {_hex(ours, is_ipv6)} ".encode())
        if place >= 0:
            line = text[place : text.find(b"\n", place)].split()
            return int(line[6])
    return -1 if is_listed else None


def _hex(address: Address, is_ipv6: bool) -> str:
    packed = ipaddress.ip_address(address[0]).packed
    if is_ipv6 and len(packed) == 4:
        packed = b"\0" * 10 + b"\xff\xff" + packed
    # The kernel prints each word of four bytes as a number of this machine.
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
