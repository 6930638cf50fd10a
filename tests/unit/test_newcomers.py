"""Connections that have shown no key yet."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator

import pytest

from delta_sharing_spark.network import newcomers
from delta_sharing_spark.network.newcomers import IN_ALL, OF_AN_ADDRESS, Newcomers


class Door:
    """Accepts connections from any address of loopback."""

    def __init__(self) -> None:
        self.opened = contextlib.ExitStack()
        self.listener = self.opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=256))
        self.now = 0.0
        self.newcomers = Newcomers(logging.getLogger(__name__), "the door", lambda: self.now)

    def enter(self, address: str, sent: bytes = b"") -> socket.socket:
        """A connection's own end, once the door has taken the other."""
        target = self.listener.getsockname()
        own = self.opened.enter_context(socket.create_connection(target, source_address=(address, 0)))
        accepted = self.opened.enter_context(self.listener.accept()[0])
        if sent:
            own.sendall(sent)
            accepted.recv(1, socket.MSG_PEEK)  # it has come
        self.newcomers.enter(accepted)
        own.settimeout(0)
        return own


def has_ended(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1)
    except BlockingIOError:
        return False


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    with made.opened:
        yield made


def test_an_address_has_a_share_and_all_have_a_bound(door: Door) -> None:
    """The longest silent one of the address ends, else one of the address that has most; none whose request has come."""
    others = [door.enter("127.0.0.2") for _ in range(3)]
    asks = door.enter("127.0.0.3", b"GET")
    silent = [door.enter("127.0.0.3") for _ in range(OF_AN_ADDRESS)]
    assert [has_ended(one) for one in silent[:2]] == [True, False]
    assert not has_ended(asks)
    many = [door.enter(f"127.0.{number}.1") for number in range(IN_ALL - OF_AN_ADDRESS - len(others) + 1)]
    assert len(door.newcomers) == IN_ALL
    assert has_ended(silent[1])
    assert not any(map(has_ended, [*others, *many, asks, silent[2]]))


def test_who_has_just_come_is_not_ended_for_those_whose_heads_wait_to_be_read(door: Door) -> None:
    crowd = [door.enter("127.0.0.2", b"half a head") for _ in range(OF_AN_ADDRESS)]
    asks = door.enter("127.0.0.2")
    assert not has_ended(asks)
    assert [has_ended(one) for one in crowd[:2]] == [True, False]


def test_each_has_its_time_and_a_minute_one_line(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    early = door.enter("127.0.0.2")
    door.now = 5
    late = door.enter("127.0.0.2", b"half a head")
    door.now = 10
    door.newcomers.end_late()
    assert (has_ended(early), has_ended(late)) == (True, False)
    for _ in range(1000):
        door.newcomers.note("it has not the key")
    door.now = 15
    door.newcomers.end_late()
    assert len(door.newcomers) == 0
    door.now = 70
    door.newcomers.end_late()
    door.now = 200
    door.newcomers.end_late()
    assert [record.getMessage() for record in caplog.records] == [
        "the door refused connections: 1 as it did not show the key within 10 seconds",
        "the door refused connections: 1000 as it has not the key; 1 as it did not show the key within 10 seconds",
    ]


@pytest.mark.parametrize(
    ("address", "holder"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "::ffff:10.1.2.3"),
        ("2001:db8::1:2:3:4", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_whose_an_address_is(address: str, holder: str) -> None:
    assert newcomers._holder(address) == holder
