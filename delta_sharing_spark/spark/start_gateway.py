"""Starts a machine's gateway from a task of Spark's. It is sent to executors as code: the package may be missing there."""

from __future__ import annotations

from typing import Any


def start(settings: dict[str, Any]) -> dict[str, Any]:
    """Start this machine's gateway, if it has none.

    Args:
        settings: ``version``, that of the driver's package; ``running``, the machines that have a gateway; ``hosts``, names
            that this machine may have; and what ``native.machine_gateway.main`` reads.

    Returns:
        ``name`` and ``identity``, the machine's; ``hosts``, those of the names that are its own. ``lacks`` is what
        keeps it from having a gateway, where something does, with ``is_missing`` where that is the package.
    """
    import json
    import os
    import socket
    import subprocess
    import sys

    def is_own(host: str) -> bool:
        """Whether a name is one of this machine: its addresses can be bound."""
        try:
            for family, kind, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
                with socket.socket(family, kind) as tried:
                    tried.bind(address)
                    return True
        except OSError:
            pass
        return False

    report: dict[str, Any] = {"name": socket.gethostname(), "hosts": [h for h in settings["hosts"] if is_own(h)]}
    try:
        from importlib.metadata import version

        from delta_sharing_spark.native.machine_gateway import loopback_identity

        report["identity"] = loopback_identity()
        if report["identity"] in settings["running"]:
            return report
        own_version = version("delta-sharing-spark")
        if own_version != settings["version"]:
            return {
                **report,
                "lacks": f"its delta-sharing-spark is {own_version}, and the driver's is {settings['version']}",
            }
        where = [os.path.abspath(place) for place in sys.path]
        # What is released goes back to the system: its memory counts in the container's.
        bounded = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "1048576"}
        environment = {**os.environ, **bounded, "PYTHONPATH": os.pathsep.join(where)}
        started = subprocess.Popen(
            [sys.executable, "-m", "delta_sharing_spark.native.machine_gateway"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=environment, start_new_session=True,
        )  # fmt: skip
        out, errors = started.communicate(json.dumps(settings).encode() + b"\n", timeout=60)
        outcome = out.decode().strip()
        if outcome != "serves" and not outcome.startswith("is not needed: the machine has"):
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            report["lacks"] = f"its gateway ended: {outcome or last}"
    except ImportError as error:
        report.update(lacks=f"its Python, {sys.executable}, has no delta-sharing-spark ({error})", is_missing="yes")
    except (OSError, subprocess.SubprocessError) as error:
        report["lacks"] = f"its gateway could not be started: {type(error).__name__}: {error}"
    return report
