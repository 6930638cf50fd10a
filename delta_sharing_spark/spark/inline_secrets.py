"""Warns, once per process, when credentials go to Spark Connect as options: its event log shows options in clear.

Where the client has this package, it warns. Else (``spark.read`` of a client that has PySpark alone) the server's
worker does, in the server's log: a client cannot be told anything by a data source that does not fail.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

from delta_sharing_spark.options import OPTIONS

_log = logging.getLogger(__name__)

_SENSITIVE = frozenset(
    name.lower() for option in OPTIONS if option.sensitive for name in (option.name, *option.aliases)
)
#: What the process has warned about: at most the two kinds below.
_warned: set[str] = set()


def warn_of_inline_secrets(spark: Any, options: Mapping[str, str]) -> None:
    """On the client: warn if ``options`` hold a secret and ``spark`` is a Connect session."""
    if type(spark).__module__.startswith("pyspark.sql.connect") and (named := _named(options, "client")):
        warnings.warn(
            f"Spark Connect writes options into its event log in clear, among them {named}; "
            f"give SharingClient the path of a profile that the server can read, or set DELTA_SHARING_PROFILE",
            UserWarning,
            stacklevel=3,
        )


def log_inline_secrets(options: Mapping[str, str]) -> None:
    """In a worker on the driver: log a warning if ``options`` hold a secret and the session is one of Connect.

    Spark names each Connect session's artifacts in the environment of its workers; a classic session's are the default.
    """
    connect = os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"
    if connect and (named := _named(options, "worker")):
        _log.warning(
            "Spark Connect writes options into its event log in clear, among them %s; "
            "name a profile by its path, <profile>#<share>.<schema>.<table>, or set DELTA_SHARING_PROFILE on the server",
            named,
        )


def _named(options: Mapping[str, str], kind: str) -> str:
    """The names of secrets among ``options``; empty if there are none, or ``kind`` has warned already."""
    named = sorted(name for name in options if name.lower() in _SENSITIVE)
    if not named or kind in _warned:
        return ""
    _warned.add(kind)
    return ", ".join(named)
