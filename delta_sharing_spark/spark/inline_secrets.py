"""Warns, once per process, when credentials go to Spark Connect as options: its event log shows options in clear. Refuses there
the options by which a client would have the server run a command, read a file or use its identity.

Where the client has this package, it warns. Else (``spark.read`` of a client that has PySpark alone) the server's
worker does, in the server's log: a client cannot be told anything by a data source that does not fail.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

from delta_sharing_spark.errors import OptionError
from delta_sharing_spark.options import IDENTITY, OPTIONS
from delta_sharing_spark.spark.session_settings import is_connect

_log = logging.getLogger(__name__)

_SENSITIVE = frozenset(
    name.lower() for option in OPTIONS if option.sensitive for name in (option.name, *option.aliases)
)
_IDENTITY = frozenset(option.name.lower() for option in OPTIONS if option.group == IDENTITY)
#: The environment variable by which whoever runs the driver allows or refuses these options.
IDENTITY_OPTIONS = "DELTA_SHARING_IDENTITY_OPTIONS"
#: What the process has warned about: at most the two kinds below.
_warned: set[str] = set()


def warn_of_inline_secrets(spark: Any, options: Mapping[str, str]) -> None:
    """On the client: warn if ``options`` hold a secret and ``spark`` is a Connect session."""
    if is_connect(spark) and (named := _named(options, "client")):
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
    if _serves_connect() and (named := _named(options, "worker")):
        _log.warning(
            "Spark Connect writes options into its event log in clear, among them %s; "
            "name a profile by its path, <profile>#<share>.<schema>.<table>, or set DELTA_SHARING_PROFILE on the server",
            named,
        )


def refuse_identity_options(options: Mapping[str, str]) -> None:
    """In a worker on the driver: refuse the options of an identity where a client of Spark Connect wrote them.

    Options travel inside the plan. A client could have the server run a command, or show its files and its identity to an
    endpoint of the client's choice. ``DELTA_SHARING_IDENTITY_OPTIONS`` in the server's environment decides otherwise: ``allow``, and
    on a classic driver that others send SQL to, ``refuse``.

    Raises:
        OptionError: They are refused.
    """
    said = os.environ.get(IDENTITY_OPTIONS, "").strip().lower()
    if said == "allow" or not (said == "refuse" or _serves_connect()):
        return
    named = sorted(name for name in options if name.lower() in _IDENTITY)
    if named:
        raise OptionError(
            f"option '{named[0]}' is refused: on Spark Connect it would run, read or sign in as the server, for any of its clients; "
            f"whoever runs the server can set DELTA_SHARING_IDENTITY_ENDPOINT and the others in its environment, or allow the "
            f"options by {IDENTITY_OPTIONS}=allow",
            option=named[0],
        )


def _serves_connect() -> bool:
    return os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"


def _named(options: Mapping[str, str], kind: str) -> str:
    """The names of secrets among ``options``; empty if there are none, or ``kind`` has warned already."""
    named = sorted(name for name in options if name.lower() in _SENSITIVE)
    if not named or kind in _warned:
        return ""
    _warned.add(kind)
    return ", ".join(named)
