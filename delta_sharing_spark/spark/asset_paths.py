"""Gives Spark's own readers paths of volumes, models and skills, which lead through a gateway in this process."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.native.place_gateway import PlaceGateway
from delta_sharing_spark.spark import native
from delta_sharing_spark.spark.native_errors import raise_causes
from delta_sharing_spark.spark.statement import is_connect
from delta_sharing_spark.storage.place import Place

_GATEWAY = "places"
#: Without it Spark asks for the hosts of each file, which on one machine are all the same.
_LOCALITY = "spark.sql.sources.ignoreDataLocality"


def spark_path(place: Place, pattern: str, spark: SparkSession | None = None) -> str:
    """A path that ``spark.read.csv``, ``json``, ``text``, ``binaryFile`` and ``parquet`` open, without a credential in it.

    Args:
        place: What is read.
        pattern: A file, a directory, or a pattern of Hadoop's; all by default.
        spark: A classic session whose executors run in the driver's process; the active one by default.

    Raises:
        ConfigError: There is no session, or its executors do not reach this process.
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
    master = str(session.sparkContext.master)
    if not master.startswith("local") or master.startswith("local-cluster"):
        raise ConfigError(
            f"spark_path of {place.name} needs a session with master local[...], and this one's executors are other processes "
            f"({master}); download the files to where they read, or read them by fs()"
        )
    with native._gateways_lock:
        gateway = native._gateways.get(_GATEWAY)
        if not isinstance(gateway, PlaceGateway) or gateway.is_closed:
            gateway = native._gateways[_GATEWAY] = PlaceGateway()
    raise_causes(native._error_in)
    session.conf.set(_LOCALITY, "true")
    return f"{gateway.share(place, native._end_of(session))}/{below}".rstrip("/")
