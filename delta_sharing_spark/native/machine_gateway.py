"""The gateway of one machine of a cluster, a process of its own: it fetches the files that executors there read.

It is started by a task of Spark's there (``spark.gateway_starts``), which hands it the application's secret. It listens on
loopback alone, and ends when the driver lets go of it, ends, or is not heard of.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from typing import Any

from delta_sharing_spark.errors import DeltaSharingError, NetworkError
from delta_sharing_spark.native.budget import Bounds
from delta_sharing_spark.native.encrypted_channel import EncryptedChannel, trusting
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.machines import SHOWN_LENGTH, SIGN_OF_LIFE, SILENCE
from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.native.plan_reader import PlanReader
from delta_sharing_spark.native.served_place import ServedPlace
from delta_sharing_spark.network.process_end import leave_no_core_file

#: Seconds for the driver to answer: it may have to list a table anew for a plan.
_FOR_PLAN, _SOON = 300.0, 1.0
#: Bytes that a planned file takes, about.
_OF_A_FILE = 1000


class Driver:
    """The way to the driver. Safe to call from several threads.

    Args:
        certificate: The driver's, as PEM.
        secret: What shows that this machine is the application's.

    Raises:
        ssl.SSLError: What answers there is not the driver.
        OSError: It cannot be reached.
    """

    def __init__(self, host: str, port: int, certificate: str, secret: bytes) -> None:
        self._connection = socket.create_connection((host, port), timeout=SILENCE)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._channel = EncryptedChannel(self._connection, trusting(certificate))
        self._channel.show(secret)
        self._waiting: dict[int, Future[tuple[dict[str, Any], bytes]]] = {}
        self._numbers = itertools.count()

    def join(self, gateway: MachineGateway) -> str | None:
        """Offer a gateway; why it is not needed, where it is not. Raises OSError where the driver does not answer."""
        self._channel.send({"identity": loopback_identity(), "port": gateway.port, "name": gateway.name})
        answer, _ = self._channel.receive()
        return None if answer["kind"] == "welcome" else str(answer.get("why"))

    def ask(self, seconds: float, **message: Any) -> tuple[dict[str, Any], bytes]:
        """Send a question, and wait so many seconds for the answer.

        Raises:
            OSError: There is none.
        """
        number, answer = next(self._numbers), Future[tuple[dict[str, Any], bytes]]()
        self._waiting[number] = answer
        try:
            self._channel.send({**message, "id": number})
            return answer.result(seconds)
        except FutureTimeout:
            raise TimeoutError("the driver did not answer") from None
        finally:
            del self._waiting[number]

    def listen(self, gateway: MachineGateway) -> None:
        """Take in what the driver sends, until it lets go of the gateway or is gone."""
        threading.Thread(target=self._live, name="delta-sharing-native-alive", daemon=True).start()
        with suppress(OSError):
            while True:
                message, content = self._channel.receive()
                match message["kind"]:
                    case "answer":
                        waiting = self._waiting.get(message["id"])
                        if waiting is not None:
                            waiting.set_result((message, content))
                    case "release":
                        gateway.release_named(message["token"])
                    case "end":
                        return

    def _live(self) -> None:
        with suppress(OSError):
            while True:
                self._channel.send({"kind": "alive"})
                time.sleep(SIGN_OF_LIFE)


class MachineGateway(Gateway):
    """Serves the plans and places of one application to the executors of one machine.

    Attributes:
        name: The machine's, for errors.
    """

    shown_length = SHOWN_LENGTH

    def __init__(self, driver: Driver, key_field: str, bounds: Bounds) -> None:
        self.key_field = key_field
        self.name = socket.gethostname()
        self._driver = driver
        self._asked: dict[str, threading.Lock] = {}
        super().__init__(bounds=bounds)

    def release_named(self, token: str) -> None:
        """Stop serving a plan that the driver has let go of."""
        with self._lock:
            entry = self._plans.get(token)
        self._asked.pop(token, None)
        if entry is not None:
            self.release(entry[0].plan)

    def _plan_elsewhere(self, token: str) -> None:
        with self._lock:
            asking = self._asked.setdefault(token, threading.Lock())
        with asking:  # the driver is asked once, however many wait
            if token in self._plans or token in self._places:
                return
            try:
                answer, content = self._driver.ask(_FOR_PLAN, kind="plan", token=token)
            except OSError as error:
                raise NetworkError(f"machine {self.name} was not sent a plan by the driver: {error}") from None
            if "error" in answer:
                raise DeltaSharingError(f"the plan could not be made anew: {answer['error']}")
            if answer.get("is_place"):
                with self._lock:
                    self._places[token] = ServedPlace(pickle.loads(content), token), lambda: False  # noqa: S301 - of this package
            elif content:
                self.add(NativePlan.unpacked(content), lambda: False)

    def _place(self, token: str) -> ServedPlace | None:
        if token not in self._plans:
            self._plan_elsewhere(token)
        return super()._place(token)

    def remember(self, error: DeltaSharingError) -> str:
        return self._report_to_driver(super().remember(self._named(error)), "", None)

    def _failed(self, served: PlanReader | ServedPlace, file: int | str, error: DeltaSharingError) -> str:
        cause = super()._failed(served, file, self._named(error))
        if isinstance(served, PlanReader):
            return self._report_to_driver(cause, served.plan.token, file)
        return self._report_to_driver(cause, served.token if isinstance(error, NetworkError) else "", file)

    def _named(self, error: DeltaSharingError) -> DeltaSharingError:
        if isinstance(error, NetworkError):
            error.args = (f"machine {self.name}: {error}",)
        return error

    def _report_to_driver(self, cause: str, token: str, file: int | str | None) -> str:
        """Tell the driver before the reader is told, who asks the driver next."""
        with suppress(OSError):
            self._driver.ask(_SOON, kind="failed", token=token, number=file, cause=cause)
        return cause


def loopback_identity() -> str:
    """What tells this machine's loopback interface from others, those of containers on the same machine among them."""
    parts = []
    with suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            parts.append(boot.read().strip())
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts) or socket.gethostname()


def run(host: str, port: int, certificate: str, secret: bytes, key_field: str, memory: int) -> None:
    """Serve until the driver lets go; says on standard output whether it does, in a line."""
    outcome, driver, gateway = "", None, None
    try:
        driver = Driver(host, port, certificate, secret)
        gateway = MachineGateway(driver, key_field, Bounds.within(memory))
        gateway.most_files = memory // _OF_A_FILE // 4  # the driver has them all
        refusal = driver.join(gateway)
        outcome = "serves" if refusal is None else f"is not needed: {refusal}"
    except ssl.SSLError as error:
        outcome = f"what answers at {host}:{port} is not the application's driver ({error})"
    except OSError as error:
        outcome = f"the driver at {host}:{port} cannot be reached ({error})"
    print(outcome, flush=True)  # noqa: T201 - the task that started it waits for this line
    for stream, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, mode), stream)
    if outcome == "serves":
        assert driver is not None
        assert gateway is not None
        driver.listen(gateway)
    os._exit(0)  # tasks that still read are told by the end of their connections


def main() -> None:
    """Begin, as a process that its starter's end does not end; settings are a line of JSON on standard input."""
    settings = json.loads(sys.stdin.readline())
    if os.fork():
        os._exit(0)
    os.chdir("/")
    leave_no_core_file()
    names = "host", "port", "certificate", "key_field", "memory"
    run(secret=bytes.fromhex(settings["secret"]), **{name: settings[name] for name in names})


if __name__ == "__main__":
    main()
