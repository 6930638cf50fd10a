"""Warns in the log of long waits. Terminals and notebooks show warnings unless logging is configured otherwise."""

from __future__ import annotations

import logging
import sys
from typing import Any

from delta_sharing_spark.network.process_cache import ProcessCache

_log = logging.getLogger(__name__)

#: Seconds of silence until the first warning, and between two warnings.
FIRST, AGAIN = 10.0, 60.0
#: The time of the last warning, by its reason: parallel reads wait for the same thing.
_latest: ProcessCache[str, float] = ProcessCache(64)


def say_waiting(what: str, why: str, now: float, waited: float, bound: float, option: str) -> None:
    """Warn of a wait, unless it will end in an error soon, or runs in a Spark task, whose log nobody watches.

    Args:
        what: What is waited for.
        why: Who does not answer, and how.
        now: Seconds of the clock that the wait is measured by.
        waited: Seconds since the wait began.
        bound: Seconds after which it is given up.
        option: The option that sets the bound.
    """
    latest = _latest.get(why)
    if bound < 2 * FIRST or (latest is not None and 0 <= now - latest < AGAIN) or _is_in_task():
        return
    _latest.put(why, now)
    _log.warning(
        "%s: no answer for %.0f s (%s); it is waited for up to %.0f s, which the option %s changes",
        what,
        waited,
        why,
        bound,
        option,
    )


def _is_in_task() -> bool:
    module: Any = sys.modules.get("pyspark.taskcontext")
    return module is not None and module.TaskContext.get() is not None
