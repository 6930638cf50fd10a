"""A warning, once per process, where credentials go to Spark Connect as options: its event log shows options in clear.

Only the client knows what its session is: the worker that a data source runs in cannot tell classic from Connect.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from delta_sharing_spark.options import OPTIONS

_SENSITIVE = frozenset(option.name.lower() for option in OPTIONS if option.sensitive)
_warned: set[str] = set()


def warn_of_inline_secrets(spark: Any, options: Mapping[str, str]) -> None:
    """Warn if ``options`` hold a secret and ``spark`` is a Connect session."""
    if not type(spark).__module__.startswith("pyspark.sql.connect") or "connect" in _warned:
        return
    named = sorted(name for name in options if name.lower() in _SENSITIVE)
    if named:
        _warned.add("connect")
        warnings.warn(
            f"Spark Connect writes options into its event log in clear, among them {', '.join(named)}; "
            f"give SharingClient the path of a profile that the server can read, or set DELTA_SHARING_PROFILE",
            UserWarning,
            stacklevel=3,
        )
