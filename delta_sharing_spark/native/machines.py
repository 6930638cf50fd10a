"""The driver's gateway of a cluster: it answers what a plan is, and sends who reads on to the gateway of the reader's machine.

The gateways of the machines (``machine_gateway``) connect to it by TLS, and show the application's secret. They ask it for
plans, tell it what failed, and end with the connection. A reader is a JVM of Spark's: it shows a key of its own by a field of its
header, which Spark's own configuration of the scan names.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError, NetworkError
from delta_sharing_spark.native import webhdfs
from delta_sharing_spark.native.answers import Pieces, ReaderState
from delta_sharing_spark.native.encrypted_channel import EncryptedChannel, draw_certificate
from delta_sharing_spark.native.gateway import Gateway, authority_of
from delta_sharing_spark.native.plan import NativePlan, VirtualFile
from delta_sharing_spark.native.plan_reader import PlanReader
from delta_sharing_spark.native.scan_columns import ScanColumns
from delta_sharing_spark.native.served_place import ServedPlace
from delta_sharing_spark.native.webhdfs import Request
from delta_sharing_spark.network.process_cache import ProcessCache

_log = logging.getLogger(__name__)

#: The length that Spark is told of each file, whose footer is said to end there: so the driver need not fetch it.
SHOWN_LENGTH = 1 << 50
#: Seconds between two heartbeats, and seconds without one after which either side takes the other for ended.
SIGN_OF_LIFE, SILENCE = 2.0, 10.0
#: Bytes of the message by which a gateway joins, at most; the first one of a connection by TLS.
_HELLO, _TLS = 64 << 10, b"\x16"
#: A host is preferred for at most this multiple of the mean number of bytes.
_FAIR = 1.2
#: Packed plans that are kept: all machines ask for the same ones.
_PACKED = 8
#: Seconds for a gateway that did not answer a reader to be seen to have ended.
_LEAVING = 0.3
#: Seconds that a reader waits for its machine's gateway where no file passes the driver; then it frees its slot for that.
_JOINING = 5.0
#: Seconds for which the driver, which could not reach the storage, does not try again.
_UNREACHABLE = 60.0


@dataclass(eq=False, slots=True)
class Machine:
    """A machine that has a gateway.

    Attributes:
        identity: Tells its loopback interface from others.
        name: How errors and logs name it.
        address: The one that its readers come from.
        port: The port of its gateway on its loopback interface.
    """

    identity: str
    name: str
    address: str
    port: int
    channel: EncryptedChannel = field(repr=False)

    @property
    def authority(self) -> str:
        """The gateway's host and port, as its machine's readers reach it."""
        return authority_of("127.0.0.1", self.port)


class ClusterGateway(Gateway):
    """Serves plans and places to a cluster.

    Args:
        bind: The address to bind.
        host: The host by which executors reach it.
        port: The port to bind; 0 for a free one.
        driver_bytes: So many bytes of files may pass the driver, for readers on machines that have no gateway yet.

    Attributes:
        advertised: The host by which executors reach it.
        secret: What its machines' gateways show.
        certificate: The one that they trust, as PEM.
        bytes_sent: Bytes of files that passed the driver.

    Raises:
        OSError: The address cannot be bound.
    """

    shown_length = SHOWN_LENGTH

    def __init__(self, *, bind: str, host: str, port: int, driver_bytes: int) -> None:
        self.secret = secrets.token_bytes(32)
        self._context, self.certificate = draw_certificate()
        # Spark redacts, wherever it shows or logs settings, those whose value names a token.
        self.key_field = f"x-delta-sharing-token-{secrets.token_hex(32)}"
        self.bytes_sent = 0
        self._driver_bytes = driver_bytes
        #: Until when the driver does not try to reach the storage.
        self._tries_again = 0.0
        #: Addresses of machines that readers came from, which had no gateway.
        self._helped: set[str] = set()
        self._machines: dict[str, Machine] = {}
        self._machines_lock = threading.Condition()
        self._packed: ProcessCache[NativePlan, bytes] = ProcessCache(_PACKED)
        self.advertised = host
        super().__init__(host=bind, port=port, admits=lambda _: True)

    @property
    def authority(self) -> str:
        return authority_of(self.advertised, self.port)

    def machines(self) -> list[Machine]:
        """The machines that have a gateway."""
        with self._machines_lock:
            return list(self._machines.values())

    def dismiss(self, machine: Machine) -> None:
        """Let a machine's gateway end."""
        with self._machines_lock:
            if self._machines.get(machine.identity) is machine:
                del self._machines[machine.identity]
        _tell(machine, {"kind": "end"})

    def _end(self) -> None:
        for machine in self.machines():
            self.dismiss(machine)
        super()._end()

    def _close(self, reader: PlanReader) -> None:
        for machine in self.machines():
            _tell(machine, {"kind": "release", "token": reader.plan.token})
        self._packed.forget(reader.plan)
        super()._close(reader)

    # --- readers ------------------------------------------------------------------------------------------------------

    def _answer(self, connection: socket.socket, request: Request) -> bool:
        if request.target.startswith("http:"):
            why = "executors send requests by a proxy (http.proxyHost), which must not catch those for the driver"
            connection.sendall(
                self._failure(f"{why}: add |{self.advertised} to -Dhttp.nonProxyHosts of their Java options")
            )
            return False
        return super()._answer(connection, request)

    def _open(
        self, connection: socket.socket, reader: PlanReader, number: int, request: Request, columns: ScanColumns | None
    ) -> bool:
        if self._is_sent_on(connection, request):
            return True
        return super()._open(connection, reader, number, request, columns)

    def _open_place(self, connection: socket.socket, request: Request, served: ServedPlace, path: str) -> bool:
        if self._is_sent_on(connection, request):
            return True
        with self._lock:
            self.bytes_sent += max(0, served.info(path).size - request.offset)
        return super()._open_place(connection, request, served, path)

    def _is_sent_on(self, connection: socket.socket, request: Request) -> bool:
        """Whether a reader was sent on to its machine's gateway; else its bytes may pass the driver.

        Raises:
            DeltaSharingError: They may not.
        """
        address = str(connection.getpeername()[0])
        machine = self._machine_at(address)
        if machine is not None and machine.authority in request.refused_hosts:
            gone = machine.identity
            with self._machines_lock:  # it may have ended a moment ago, but an error of a file is no sign of it
                self._machines_lock.wait_for(lambda: gone not in self._machines, _LEAVING)
            machine = self._machine_at(address)
        why_not = self._why_no_bytes()
        if machine is None and why_not:
            with self._machines_lock:
                self._machines_lock.wait_for(lambda: self._machine_at(address) is not None, _JOINING)
            machine = self._machine_at(address)
        if machine is not None:
            connection.sendall(webhdfs.redirect(machine.authority, request.target))
            return True
        if why_not:
            raise DeltaSharingError(f"machine {address} has no gateway of the native lane yet, and {why_not}")
        if address not in self._helped:
            self._helped.add(address)
            _log.warning("machine %s has no gateway of the native lane yet: its files pass the driver", address)
        return False

    def _failed(self, served: PlanReader | ServedPlace, file: int | str, error: DeltaSharingError) -> str:
        """See ``Gateway._failed``. A machine's gateway may reach what the driver cannot, so the failure is answered to nobody else."""
        if isinstance(error, NetworkError):  # no file passes the driver for a while
            self._tries_again = time.monotonic() + _UNREACHABLE
        return self._note_failure(served, file, f"{type(error).__name__}: {error}", is_of_network=False)

    def _why_no_bytes(self) -> str | None:
        """Why no file passes the driver; None where some may."""
        if not self._driver_bytes:
            return "Spark's traffic is encrypted, so that no file passes the driver; run the query again"
        if self.bytes_sent >= self._driver_bytes:
            return (
                f"{self.bytes_sent} bytes for such machines have passed the driver, the most that may; run the query again, or "
                f"raise spark.deltasharing.gateway.driverBytes"
            )
        if time.monotonic() < self._tries_again:
            return "the driver cannot reach the storage itself; run the query again"
        return None

    def _pieces(self, reader: PlanReader, number: int, offset: int, columns: ScanColumns | None) -> Pieces:
        """See ``Gateway._pieces``: those that pass the driver are counted."""
        pieces = super()._pieces(reader, number, offset, columns)
        state: ReaderState | None = None
        try:
            while True:
                piece = pieces.send(state)
                if isinstance(piece, memoryview):
                    with self._lock:
                        self.bytes_sent += len(piece)
                state = yield piece
        except StopIteration:
            return
        finally:
            pieces.close()

    def _machine_at(self, address: str) -> Machine | None:
        with self._machines_lock:
            return next((m for m in self._machines.values() if m.address == address), None)

    # --- gateways of machines -----------------------------------------------------------------------------------------

    def _is_taken_over(self, connection: socket.socket) -> bool:
        if connection.recv(len(_TLS), socket.MSG_PEEK) != _TLS:
            return False
        self._converse_with(connection)
        return True

    def _converse_with(self, connection: socket.socket) -> None:
        """Answer a machine's gateway until either ends."""
        connection.settimeout(SILENCE)
        channel = EncryptedChannel(connection, self._context)
        if not channel.has_proof(self.secret):
            self._newcomers.note("it has not the secret of a machine")
            channel.send({"kind": "end", "why": "it does not hold the application's secret"})
            return
        self._newcomers.leave(connection)
        hello, _ = channel.receive(_HELLO)
        address = str(connection.getpeername()[0])
        machine = Machine(hello["identity"], hello["name"], address, hello["port"], channel)
        refusal = self._join(machine)
        channel.send({"kind": "end", "why": refusal} if refusal else {"kind": "welcome"})
        if refusal:
            return
        _log.info("machine %s has a gateway of the native lane", machine.name)
        try:
            with self._beside_workers():
                while True:
                    message, _ = channel.receive()
                    self._hear(machine, message)
        finally:
            with self._machines_lock:
                if self._machines.get(machine.identity) is machine:
                    del self._machines[machine.identity]
                    _log.info("the gateway of machine %s has ended", machine.name)
                self._machines_lock.notify_all()

    def _join(self, machine: Machine) -> str | None:
        """Take in a machine; why not, where it is not taken in."""
        with self._machines_lock:
            if self.is_closed:
                return "the application has let go of its gateways"
            if machine.identity in self._machines:
                return "the machine has a gateway"
            other = next((m for m in self._machines.values() if m.address == machine.address), None)
            if other is not None:
                return f"its address is that of machine {other.name} too, so that their readers cannot be told apart"
            self._machines[machine.identity] = machine
            self._machines_lock.notify_all()
            return None

    def _hear(self, machine: Machine, message: dict[str, Any]) -> None:
        match message["kind"]:
            case "alive":
                machine.channel.send({"kind": "alive"})
            case "plan":
                # A listing that was let go is made anew, which may take longer than a gateway may be silent.
                threading.Thread(target=self._send_plan, args=(machine, message), daemon=True).start()
            case "failed":
                self._remember(message["cause"])
                with self._lock:
                    reader, _ = self._plans.get(message["token"], (None, None))
                    place, _ = self._places.get(message["token"], (None, None))
                served = reader or place
                if served is not None:
                    self._note_failure(served, message["number"], message["cause"], is_of_network=True)
                machine.channel.send({"kind": "answer", "id": message["id"]})

    def _send_plan(self, machine: Machine, message: dict[str, Any]) -> None:
        answer = {"kind": "answer", "id": message["id"]}
        try:
            if (served := self._place(message["token"])) is not None:
                _tell(machine, {**answer, "is_place": True}, pickle.dumps(served.place))
                return
            reader = self._reader(message["token"])
        except DeltaSharingError as error:
            _tell(machine, {**answer, "error": self.remember(error)})
            return
        _tell(machine, answer, b"" if reader is None else self._packed.get_or_make(reader.plan, reader.plan.packed))


def preferred_hosts(files: Sequence[VirtualFile], hosts: Sequence[str]) -> list[int]:
    """The host that each file prefers, by its number; -1 where there are none to choose from.

    It is the same in each listing as far as the hosts are, so that what a gateway holds of a file serves again. But
    none is preferred for much more bytes than others.
    """
    if not hosts:
        return [-1] * len(files)
    fair = _FAIR * sum(file.size for file in files) / len(hosts)
    loads, preferred = [0] * len(hosts), []
    seeds = [hashlib.blake2b(host.encode(), digest_size=8).digest() for host in hosts]
    for file in files:
        ranks = [hashlib.blake2b(file.digest.to_bytes(8, "big") + seed, digest_size=8).digest() for seed in seeds]
        order = sorted(range(len(hosts)), key=ranks.__getitem__)
        chosen = next((host for host in order if loads[host] + file.size <= fair), min(order, key=loads.__getitem__))
        loads[chosen] += file.size
        preferred.append(chosen)
    return preferred


def _tell(machine: Machine, message: dict[str, Any], content: bytes = b"") -> None:
    """Send a message to a machine's gateway, which may have ended."""
    with suppress(OSError):
        machine.channel.send(message, content)
