"""Has each machine that runs executors of an application serve files by a gateway there, as long as it runs some."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from contextlib import suppress
from importlib.metadata import version
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import RDD, SparkContext, cloudpickle

from delta_sharing_spark._version import install_line
from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.native.machines import ClusterGateway
from delta_sharing_spark.network.connections import FIRST
from delta_sharing_spark.spark import start_gateway

_log = logging.getLogger(__name__)

#: Seconds between two looks at the executors.
_LOOK = 1.0
#: Looks at Spark's queue for a job that was begun.
_TRIES = 50
#: Seconds after which a machine that could not be given a gateway is tried again; for its executors to be registered.
_AGAIN = 30.0
#: Seconds after which the gateway of a machine without executors ends.
_UNUSED = 15.0
#: Seconds that a load waits for the gateways: Spark's first Python workers on a busy machine may take 18.
PATIENCE = 120.0
cloudpickle.register_pickle_by_value(start_gateway)  # type: ignore[no-untyped-call]
#: Hosts that files may prefer: each file is hashed with all of them.
_MOST_HOSTS = 100


class GatewayStarts:
    """Starts the gateways of an application's machines, in the background.

    Args:
        memory: Bytes of memory that a machine's gateway may use.
    """

    def __init__(self, context: SparkContext, gateway: ClusterGateway, memory: int) -> None:
        self._context, self._gateway, self._memory = context, gateway, memory
        self._is_dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
        self._changed = threading.Condition()
        #: Hosts on which a job is starting gateways. Hosts that could not be given one: since when, and what they lack.
        self._starting: set[str] = set()
        self._lacks: dict[str, tuple[float, dict[str, Any]]] = {}
        #: The hosts of the executors, by their ids; and the machines that hosts are.
        self._seen: dict[str, str] = {}
        self._machine_of: dict[str, str] = {}
        #: When a machine was last seen to run executors: one that was lost is replaced on the same machine, mostly.
        self._used: dict[str, float] = {}
        self._has_looked = False
        #: Whether a machine had a gateway: then those to come are not waited for. And whether a load waits for an executor.
        self._has_served, self._asks = False, True
        threading.Thread(target=self._watch, name="delta-sharing-gateway-starts", daemon=True).start()

    def why_not(self) -> str | None:
        """Which machines have no gateway, and what they lack, once all starts have ended; None where all have one.

        Raises:
            ConfigError: The package is missing on all of them.
        """
        until = time.monotonic() + PATIENCE
        is_logged = False
        with self._changed:
            self._asks = True
            while (
                (waits := self._waits_for())
                and (remaining := until - time.monotonic()) > 0
                and not self._gateway.is_closed
            ):
                self._changed.wait(min(remaining, _LOOK))
                if not is_logged and remaining < PATIENCE - FIRST:
                    is_logged = True
                    _log.warning(
                        "%s so far; it is waited for up to %.0f s, then the native lane is given up", waits, PATIENCE
                    )
            hosts = self._without()
            lacks = [report for host, (_, report) in self._lacks.items() if host in hosts]
            number = len(set(self._seen.values()))
        if not hosts and not waits:
            return None
        missing = [report["name"] for report in lacks if "is_missing" in report]
        if missing and len(missing) == number:
            raise ConfigError(
                f"the Python of Spark's executors lacks this package, on all machines ({', '.join(sorted(missing))}), so that "
                f"neither way of reading works; run there: {install_line()}"
            )
        reasons = [f"machine {report['name']}: {report['lacks']}" for report in lacks]
        return "; ".join(reasons) or f"{waits or 'some machines have no gateway yet'} after {PATIENCE:.0f} s"

    def _waits_for(self) -> str | None:
        if not self._has_looked or not (self._seen or self._has_served):
            return "Spark had no executor"
        waiting = self._without() - set(self._lacks)
        return f"no gateway was started on {', '.join(sorted(waiting))}" if waiting else None

    def _prefer(self) -> None:
        """Have files prefer the hosts that have a gateway."""
        without = self._without()
        self._gateway.hosts = sorted(set(self._seen.values()) - without)[:_MOST_HOSTS]

    def _without(self) -> set[str]:
        """The hosts of executors that have no gateway."""
        running = {machine.identity for machine in self._gateway.machines()}
        return {host for host in self._seen.values() if self._machine_of.get(host) not in running}

    def _watch(self) -> None:
        while not self._gateway.is_closed:
            try:
                self._look()
            except (Py4JError, OSError, TypeError, AttributeError) as error:  # the application is ending
                _log.debug("Spark does not tell its executors (%s)", type(error).__name__)
            time.sleep(_LOOK)
        with self._changed:
            self._changed.notify_all()

    def _look(self) -> None:
        """Start gateways on machines that have none, and let go of those on machines that have no executor."""
        seen = self._executors()
        now = time.monotonic()
        with self._changed:
            self._seen, self._has_looked = seen, True
            self._lacks = {
                host: (since, report) for host, (since, report) in self._lacks.items() if now - since < _AGAIN
            }
            hosts = self._without() - self._starting - set(self._lacks)
            self._asks = self._asks and not seen and not self._has_served
            if self._asks and not self._starting and self._is_dynamic:
                hosts = {""}  # the job has Spark ask for an executor, once: it lets those go that nothing runs on
            self._starting |= hosts
            self._prefer()
            used = {self._machine_of.get(host) for host in seen.values()}
            self._changed.notify_all()
        if hosts:
            threading.Thread(
                target=self._start, args=(sorted(hosts),), name="delta-sharing-gateway-start", daemon=True
            ).start()
        for machine in self._gateway.machines():
            if machine.identity in used or self._starting:
                self._used[machine.identity] = now
            elif now - self._used.setdefault(machine.identity, now) > _UNUSED:
                _log.info("machine %s runs no executor any more: its gateway ends", machine.name)
                self._gateway.dismiss(machine)

    def _executors(self) -> dict[str, str]:
        listed = self._context._jsc.sc().statusStore().executorList(True)
        executors = (listed.apply(place) for place in range(listed.size()))
        hosts = {str(e.id()): str(e.hostPort()).rpartition(":")[0].strip("[]") for e in executors}
        return {number: host for number, host in hosts.items() if number != "driver" and host}

    def _start(self, hosts: list[str]) -> None:
        """Run a job with a task for each host."""
        places = [[f"executor_{host}_{number}" for number, at in self._seen.items() if at == host] for host in hosts]
        try:
            reports = self._run(hosts, places)
        except Exception as error:  # whatever ends a job: the application's end above all
            _log.debug("the gateways could not be started: %s", error)
            why = f"a job failed ({' '.join(str(error).split())[:300]})"
            reports = [{"name": host, "hosts": [host], "lacks": why} for host in hosts]
        with self._changed:
            now = time.monotonic()
            for outcome in reports:
                for host in outcome["hosts"]:
                    if "lacks" in outcome:
                        _log.warning("machine %s has no gateway of the native lane: %s", host, outcome["lacks"])
                        self._lacks[host] = now, outcome
                    else:
                        self._machine_of[host], self._has_served = outcome["identity"], True
            self._starting.difference_update(hosts)
            self._prefer()
            self._changed.notify_all()

    def _run(self, hosts: list[str], places: list[list[str]]) -> list[dict[str, Any]]:
        context, jvm = self._context, self._context._jvm
        assert jvm is not None
        settings = {
            "version": version("delta-sharing-spark"),
            "running": [machine.identity for machine in self._gateway.machines()],
            "hosts": hosts,
            "host": self._gateway.advertised,
            "port": self._gateway.port,
            "certificate": self._gateway.certificate,
            "secret": self._gateway.secret.hex(),
            "key_field": self._gateway.key_field,
            "memory": self._memory,
        }
        name = f"delta-sharing-spark: gateways on {len(places)} machines"
        context.setLocalProperty("spark.job.description", name)
        context.setLocalProperty("spark.scheduler.pool", "delta-sharing-spark")
        threading.Thread(target=self._go_first, args=(name,), daemon=True).start()
        tasks = jvm.java.util.ArrayList()
        for number, preferred in enumerate(places):
            tasks.add(jvm.scala.Tuple2(pickle.dumps([number]), jvm.PythonUtils.toSeq(preferred)))
        byte_arrays = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        scala_rdd = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(tasks), byte_arrays)
        rdd: RDD[Any] = RDD(scala_rdd.toJavaRDD(), context)
        return rdd.map(lambda _: start_gateway.start(settings)).collect()

    def _go_first(self, name: str) -> None:
        """Have the job's tasks take the next slot: by order they would wait for queries that began before, which need them."""
        with suppress(Py4JError, TypeError, AttributeError):  # inner parts of Spark: without them the job waits
            waiting = self._context._jsc.sc().taskScheduler().rootPool().schedulableQueue()
            for _ in range(_TRIES):
                for tasks in waiting.toArray():
                    if str(tasks.getClass().getSimpleName()) != "TaskSetManager":
                        return  # pools of their own take turns
                    if tasks.taskSet().properties().getProperty("spark.job.description") == name:
                        getattr(tasks, "priority_$eq")(-1)
                        return
                time.sleep(_LOOK / 10)
