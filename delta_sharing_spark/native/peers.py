"""Finds out whose process is at the other end of a loopback connection, where the system tells it."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from pathlib import Path

#: Of linux/sock_diag.h and linux/inet_diag.h: one socket, looked up by its addresses and ports.
_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_HEADER, _REQUEST, _SOCKET_ID = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("!HH16s16s")
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
#: What an answer tells of the socket: seconds to its end, bytes not read by its process, bytes not sent, its owner.
_TOLD, _TOLD_AT = struct.Struct("=IIII"), _HEADER.size + 4 + _SOCKET_ID.size + len(_ANY)
_TABLES = (Path("/proc/net/tcp6"), Path("/proc/net/tcp"))

Address = tuple[str, int]


def is_own_process(peer: socket.socket) -> bool:
    """Whether a loopback connection comes from a process of this user. True where the system does not tell."""
    theirs, ours = peer.getpeername()[:2], peer.getsockname()[:2]
    told = _by_kernel(theirs, ours)
    owner = _by_table(theirs, ours) if told is None else told[1]
    return owner is None or owner == os.geteuid()


def unread_by_peer(peer: socket.socket) -> int | None:
    """Bytes that have reached the other end of a loopback connection and were not read; None where the system does not tell."""
    told = _by_kernel(peer.getpeername()[:2], peer.getsockname()[:2])
    return None if told is None else told[0]


def _by_kernel(theirs: Address, ours: Address) -> tuple[int, int] | None:
    """The unread bytes of the other socket and its owner's uid, as Linux's kernel tells; None where it does not."""
    family = getattr(socket, "AF_NETLINK", None)
    if family is None:
        return None
    source, target = (ipaddress.ip_address(address) for address, _ in (theirs, ours))
    inet = socket.AF_INET if source.version == 4 else socket.AF_INET6
    body = _REQUEST.pack(inet, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
    body += _SOCKET_ID.pack(theirs[1], ours[1], source.packed, target.packed) + _ANY
    try:
        with socket.socket(family, socket.SOCK_DGRAM, _SOCK_DIAG) as asked:
            asked.settimeout(1)
            asked.sendto(
                _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body, (0, 0)
            )
            answer = asked.recv(4096)
    except OSError:
        return None
    if len(answer) < _TOLD_AT + _TOLD.size or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    _, unread, _, owner = _TOLD.unpack_from(answer, _TOLD_AT)
    return unread, owner


def _by_table(theirs: Address, ours: Address) -> int | None:
    """The owner's uid by the kernel's table of sockets; None where there is no table, -1 where the socket is not in it."""
    is_told = False
    for table in _TABLES:
        try:
            text = table.read_bytes()
        except OSError:
            continue
        is_told = True
        is_ipv6 = table.name == "tcp6"
        place = text.find(f"{_hex(theirs, is_ipv6)} {_hex(ours, is_ipv6)} ".encode())
        if place >= 0:
            line = text[place : text.find(b"\n", place)].split()
            return int(line[6])
    return -1 if is_told else None


def _hex(address: Address, is_ipv6: bool) -> str:
    packed = ipaddress.ip_address(address[0]).packed
    if is_ipv6 and len(packed) == 4:
        packed = b"\0" * 10 + b"\xff\xff" + packed
    # The kernel prints each word of four bytes as a number of this machine.
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
