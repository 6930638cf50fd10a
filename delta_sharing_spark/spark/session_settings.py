"""Knows what a session means for its loads: its time zone, the settings of the JVM connector, and what Connect would show of options.

Every face that has a session asks :func:`session_options`. The Python data source has none: Spark tells its planning worker
nothing of the session, and its tasks find the query's settings in their context (``task_session``).

Spark Connect shows options in clear in its event log. Where the client has this package, it warns of credentials among
them, once per process. Else (``spark.read`` of a client that has PySpark alone) the server's worker does, in the server's
log. A data source that does not fail cannot tell a client anything. Options by which a client would have the server run a
command, read a file or use its identity are refused there.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.options.declared import CERTIFICATE, IDENTITY, KEYS, OPTIONS, parse_options
from delta_sharing_spark.spark.task_session import ZONE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from delta_sharing_spark.access.load import Recipient

_NAME = re.compile(r"spark\.(?:sql\.)?delta\.sharing\.[\w.]+")
#: Options of streams that a setting may become.
_STREAM_ONLY = {"pollinterval"}

#: Options that a load through a Flight gateway may not have: settings of the session are no wish for it.
_BEHIND_GATEWAY = frozenset(option.name.lower() for option in OPTIONS if option.behind_gateway)

_lock = threading.Lock()
#: The settings that each session was warned of.
_settings_named: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
_log = logging.getLogger(__name__)
_SENSITIVE = frozenset(
    name.lower() for option in OPTIONS if option.sensitive for name in (option.name, *option.aliases)
)
_IDENTITY = frozenset(option.name.lower() for option in OPTIONS if option.group in (IDENTITY, KEYS, CERTIFICATE))
#: The environment variable by which whoever runs the driver allows or refuses these options.
IDENTITY_OPTIONS = "DELTA_SHARING_IDENTITY_OPTIONS"
#: What the process has warned about: at most the two kinds below.
_warned: set[str] = set()


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def session_options(spark: SparkSession, own: Mapping[str, str], *, is_stream: bool = False) -> dict[str, str]:
    """The options that a session's settings add to those of a load: its zone, and what the JVM connector's settings mean.

    Settings that no option means are named in one warning.

    Args:
        own: The options that the user gave, which come first.

    Raises:
        ConfigError: Settings that belong together contradict each other.
    """
    names = {name.lower() for name in own} | (set() if is_stream else _STREAM_ONLY)
    names |= _BEHIND_GATEWAY if "gateway" in names else set()
    added = {"timeZone": str(spark.conf.get(ZONE))}
    settings = _jvm_settings(spark)
    if settings:
        added |= _translated(spark, settings)
    return {name: value for name, value in added.items() if name.lower() not in names}


def checked_session(spark: SparkSession) -> SparkSession:
    """``spark``, if it is a session, classic or Connect; raises ConfigError where it is none."""
    if not (hasattr(spark, "conf") and hasattr(spark, "createDataFrame")):
        what = "None" if spark is None else f"{str(spark)[:100]!r} ({type(spark).__name__})"
        raise ConfigError(
            f"{what} is no Spark session; pass the session as spark, for example SparkSession.builder.getOrCreate()"
        )
    return spark


def in_session(client: Recipient, spark: SparkSession) -> Recipient:
    """The recipient with a session's settings among its options; raises ConfigError where ``spark`` is no session."""
    spark = checked_session(spark)
    return client.with_options({**session_options(spark, client.options), **client.options})


def _jvm_settings(spark: Any) -> dict[str, str]:
    """The settings of the JVM connector that a session has."""
    jvm = getattr(spark, "_jsparkSession", None)
    # The names alone, by one call: py4j would bring every setting of the session one by one.
    names = set(_NAME.findall(str(jvm.conf().getAll().toString()))) if jvm is not None else spark.conf.getAll
    return {name: spark.conf.get(name) for name in names if _NAME.fullmatch(name)}


def _translated(spark: Any, settings: Mapping[str, str]) -> dict[str, str]:
    """The options that settings of the JVM connector become; warns of the others once in a session."""
    from delta_sharing_spark.spark.jvm_settings import JVM_SETTINGS

    options: dict[str, str] = {}
    named: dict[str, str] = {}
    for name, value in sorted(settings.items()):
        setting = JVM_SETTINGS.get(name)
        if setting is None:
            named[name] = "the JVM connector 4.4 does not know it, either"
        elif value.strip().lower() == setting.default.lower():
            continue
        elif setting.word != "option":
            named[name] = setting.text
        else:
            made = setting.options(value, settings)
            try:
                parse_options({"path": "a.b.c", **made}, is_stream=None)
                options |= made
            except OptionError as error:
                named[name] = f"its value does not fit: {error}"
    with _lock:
        warned_of = _settings_named.setdefault(spark, set())
        news = {name: text for name, text in named.items() if name not in warned_of}
        warned_of.update(news)
    if news:
        listed = "; ".join(f"{name} ({text})" for name, text in news.items())
        warnings.warn(f"settings of the JVM connector have no effect here: {listed}", UserWarning, stacklevel=2)
    return options


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
    if serves_connect() and (named := _named(options, "worker")):
        _log.warning(
            "Spark Connect writes options into its event log in clear, among them %s; "
            "name a profile by its path, <profile>#<share>.<schema>.<table>, or set DELTA_SHARING_PROFILE on the server",
            named,
        )


def refuse_identity_options(options: Mapping[str, str]) -> None:
    """In a worker on the driver: refuse the options of an identity, a key or a certificate where a client of Spark Connect wrote them.

    Options travel inside the plan. A client could have the server run a command, or show its files and its identity to an
    endpoint of the client's choice. ``DELTA_SHARING_IDENTITY_OPTIONS`` in the server's environment decides otherwise: ``allow``, and
    on a classic driver that others send SQL to, ``refuse``.

    Raises:
        OptionError: They are refused.
    """
    rule = os.environ.get(IDENTITY_OPTIONS, "").strip().lower()
    if rule == "allow" or not (rule == "refuse" or serves_connect()):
        return
    named = sorted(name for name in options if name.lower() in _IDENTITY)
    if named:
        raise OptionError(
            f"option '{named[0]}' is refused: on Spark Connect it would run, read or sign in as the server, for any of its clients; "
            f"whoever runs the server can set DELTA_SHARING_IDENTITY_ENDPOINT and the others in its environment, or allow the "
            f"options by {IDENTITY_OPTIONS}=allow",
            option=named[0],
        )


def serves_connect() -> bool:
    """In a worker: whether the session is one of Connect."""
    return os.environ.get("SPARK_JOB_ARTIFACT_UUID", "default") != "default"


def _named(options: Mapping[str, str], kind: str) -> str:
    """The names of secrets among ``options``; empty if there are none, or ``kind`` has warned already."""
    named = sorted(name for name in options if name.lower() in _SENSITIVE)
    if not named or kind in _warned:
        return ""
    _warned.add(kind)
    return ", ".join(named)
