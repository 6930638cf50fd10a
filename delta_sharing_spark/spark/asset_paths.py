"""Gives Spark's own readers paths of volumes, models and skills, which lead through the native lane's gateways."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.spark import native
from delta_sharing_spark.spark.native_errors import raise_causes
from delta_sharing_spark.spark.statement import is_connect
from delta_sharing_spark.storage.place import Place

#: Without it Spark asks for the hosts of each file, which on one machine are all the same.
_LOCALITY = "spark.sql.sources.ignoreDataLocality"


def spark_path(place: Place, pattern: str, spark: SparkSession | None = None) -> str:
    """A path that ``spark.read.csv``, ``json``, ``text``, ``binaryFile`` and ``parquet`` open, without a credential in it.

    Args:
        pattern: A file, a directory, or a pattern of Hadoop's; all by default.
        spark: A classic session; the active one by default.

    Raises:
        ConfigError: There is no session, it is one of Spark Connect, or a machine of its cluster has no gateway.
        AddressError: ``pattern`` is no path within the place.
    """
    below = place.checked(pattern)
    session: Any = spark or SparkSession.getActiveSession()
    if session is None:
        raise ConfigError(f"no Spark session is active to read {place.name}; give spark_path one as spark=")
    if is_connect(session):
        raise ConfigError(
            f"spark_path of {place.name} needs a classic session: over Spark Connect the server is another process; download the "
            f"files to where it reads, or read them by fs()"
        )
    reach = native.reach_of(session)
    if (why := native.why_no_gateways(reach)) is not None:
        raise ConfigError(
            f"spark_path of {place.name} needs a gateway on each machine ({why}); download the files to where they read, or read "
            f"them by fs()"
        )
    gateway = native.gateway_of(reach)
    raise_causes(native.error_in)
    for setting, value in {_LOCALITY: "true", **native.key_options(gateway)}.items():
        session.conf.set(setting, value)
    return f"{gateway.share(place, native.end_of(session))}/{below}".rstrip("/")
