"""Defines how requests are made: one set of bounds for the sharing server, its token endpoint, data URLs and storage."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from delta_sharing_spark._version import __version__
from delta_sharing_spark.network.connections import pause

#: How often one read asks for another URL or credential after a refusal, in both access modes.
MAX_RENEWALS = 2
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Bounds of requests, their proxy and certificates; the defaults are those of the options.

    Attributes:
        connect_timeout: Seconds to open a connection.
        read_timeout: Seconds between two bytes of an answer.
        retry_seconds: How long transient failures of one call are repeated.
        first_contact_seconds: The same while the host has never answered this process: a mistyped endpoint is told
            sooner than an outage is given up.
        first_wait, longest_wait: Seconds before the first retry, and at most before any.
        proxy: A proxy for http and https, instead of the environment's.
        ca_bundle: A file of certificates to trust, instead of the environment's and certifi's.
        caller_org: Free text for the User-Agent.
        engine: What runs the request, for the User-Agent (``Spark/4.3.0``).
        sleep, clock: Functions that wait and tell the time; tests replace them so as not to wait.
    """

    connect_timeout: float = 10.0
    read_timeout: float = 320.0
    retry_seconds: float = 600.0
    first_contact_seconds: float = 15.0
    first_wait: float = 0.5
    longest_wait: float = 30.0
    proxy: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    caller_org: str | None = None
    engine: str | None = None
    sleep: Callable[[float], None] = field(default=pause, repr=False, compare=False)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)

    @property
    def request_seconds(self) -> float:
        """Seconds that one request may take, from its connection to the last byte of its answer."""
        return self.connect_timeout + max(self.read_timeout, self.retry_seconds)

    @property
    def user_agent(self) -> str:
        """``Delta-Sharing-Spark-Python/<version> Spark/<v> Python/<v> System/<os> callerOrg-<x>``."""
        parts = [f"Delta-Sharing-Spark-Python/{__version__}"]
        if self.engine:
            parts.append(self.engine)
        parts += [f"Python/{platform.python_version()}", f"System/{platform.system()}"]
        if self.caller_org:
            parts.append(f"callerOrg-{_header_text(self.caller_org)}")
        return " ".join(parts)


def _header_text(text: str) -> str:
    return "".join(c if " " < c < "\x7f" else "_" for c in text)[:_LONGEST_NAME]
