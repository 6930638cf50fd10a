"""Hands what the package counts to hooks of a platform: requests, bytes, retries, renewals and files, by table."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from delta_sharing_spark.redaction import redact

_log = logging.getLogger(__name__)

#: Names a hook as ``module:function``, for processes in which nobody can call ``add_hook``: Spark's Python workers.
ENVIRONMENT = "DELTA_SHARING_METRICS"


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter.

    Attributes:
        name: Its name.
        unit: What is counted, as OpenTelemetry writes units (UCUM).
        description: What an increment means.
        attributes: The names of its attributes.
    """

    name: str
    unit: str
    description: str
    attributes: tuple[str, ...]


_OF_REQUESTS = ("table", "server")
REQUESTS = Metric(
    "deltasharing.requests",
    "{request}",
    "HTTP requests to the sharing server, its token endpoint and the storage; each try is one",
    _OF_REQUESTS,
)
BYTES = Metric("deltasharing.bytes", "By", "Bytes of bodies that arrived from the storage", ("table",))
RETRIES = Metric("deltasharing.retries", "{retry}", "Requests that are made again after a failure", _OF_REQUESTS)
RENEWALS = Metric(
    "deltasharing.renewals",
    "{renewal}",
    "Requests for URLs that replace older ones, and for storage credentials and access tokens, the first ones included",
    ("table", "kind"),
)
FILES_LISTED = Metric("deltasharing.files.listed", "{file}", "Files that the server or the log named", ("table",))
FILES_SKIPPED = Metric(
    "deltasharing.files.skipped", "{file}", "Files of those that are not read, by the rule", ("table", "rule")
)
#: All metrics.
METRICS = (REQUESTS, BYTES, RETRIES, RENEWALS, FILES_LISTED, FILES_SKIPPED)

#: Takes the name of a metric, how much it grows by, and its attributes.
Hook: TypeAlias = Callable[[str, int, Mapping[str, str]], None]


class _Hooks:
    """The hooks of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hooks: tuple[Hook, ...] = ()
        self._failures: tuple[Hook, ...] = ()
        self._variable = os.environ.get(ENVIRONMENT)

    def add(self, hook: Hook) -> None:
        with self._lock:
            if hook not in self._hooks:
                self._hooks += (hook,)

    def remove(self, hook: Hook) -> None:
        with self._lock:
            self._hooks = tuple(other for other in self._hooks if other != hook)

    def count(self, metric: Metric, value: int, attributes: Mapping[str, str]) -> None:
        if self._variable is not None:
            self._read_variable()
        for hook in self._hooks:
            try:
                hook(metric.name, value, dict(attributes))
            except Exception as error:
                self._note_failure(hook, error)

    def _read_variable(self) -> None:
        with self._lock:
            variable, self._variable = self._variable, None
        if not variable:
            return
        module, _, name = variable.partition(":")
        try:
            from importlib import import_module

            hook = getattr(import_module(module), name)
            if not callable(hook):
                raise TypeError(f"{name} is no function")
        except Exception as error:
            _log.warning(
                "nothing is counted: the environment variable %s=%s names no hook (%s: %s); write module:function",
                ENVIRONMENT,
                variable,
                type(error).__name__,
                redact(str(error)),
            )
            return
        self.add(hook)

    def _note_failure(self, hook: Hook, error: Exception) -> None:
        with self._lock:
            is_first = hook not in self._failures
            if is_first:
                self._failures += (hook,)
        if is_first:
            _log.warning(
                "the metrics hook %r raised %s: %s; reading goes on, and later failures of it are not logged",
                hook,
                type(error).__name__,
                redact(str(error)),
            )


_hooks = _Hooks()


def add_hook(hook: Hook) -> None:
    """Call ``hook`` in this process whenever a metric grows, until ``remove_hook``.

    It is called in the thread that counts, and in several at once, so it should not block. What it raises is logged the
    first time, and changes nothing for whoever reads.

    Args:
        hook: Takes the name of one of ``METRICS``, how much it grows by, and its attributes. ``table`` is
            ``share.schema.table``, or empty where a request is for no single table.

    >>> add_hook(lambda name, value, attributes: None)
    """
    _hooks.add(hook)


def remove_hook(hook: Hook) -> None:
    """Call a hook no longer; one that was never added changes nothing."""
    _hooks.remove(hook)


def count(metric: Metric, value: int, **attributes: str) -> None:
    """Hand an increment to the hooks; neither a URL nor a secret may be an attribute."""
    if value and (_hooks._hooks or _hooks._variable is not None):
        _hooks.count(metric, value, attributes)
