"""Reads profile files from any storage that fsspec or Spark's Hadoop knows, with the identity of the user's environment."""

from __future__ import annotations

import sys
from typing import Any

from delta_sharing_spark.errors import ConfigError

#: Schemes of Hadoop's file systems: a job that names one has its settings in Spark.
_HADOOP = frozenset(
    (
        "hdfs", "viewfs", "webhdfs", "s3a", "s3n", "dbfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs", "oss", "cosn", "o3fs",
        "ofs",
    )
)  # fmt: skip


def read_bytes(url: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file. A profile is the user's own file, so the user's own identity reads it.

    Raises:
        FileNotFoundError, OSError: The file is not there, or cannot be read.
        ImportError, ValueError: The scheme's package is not installed, or the scheme is unknown.
        ConfigError: The scheme is one of Hadoop's, and neither this process has a Spark session nor fsspec can read it.
    """
    scheme = url.partition(":")[0].lower()
    if scheme in _HADOOP and (spark := _spark_context()) is not None:
        return _through_hadoop(spark, url, limit)
    import fsspec

    try:
        if scheme in _HADOOP and "://" not in url:
            raise ValueError("the address names no host")  # fsspec would look for a local file of that name
        with fsspec.open(url, "rb") as file:
            data: bytes = file.read(limit)
            return data
    except FileNotFoundError:
        raise
    except Exception as error:  # each of fsspec's packages has errors of its own
        if scheme not in _HADOOP:
            raise
        raise ConfigError(
            f"Spark's Hadoop can read {scheme}: and this process, which is not the Spark driver's Python, cannot "
            f"({type(error).__name__}: {error}); call delta_sharing_spark.register(spark) or SharingClient(...) in the driver of a "
            f"classic session, or copy the profile to a local path"
        ) from None


def only_spark_reads(url: str) -> bool:
    """Whether Spark's Hadoop reads a profile in this process, so that other processes are to be told what it says."""
    return url.partition(":")[0].lower() in _HADOOP and _spark_context() is not None


def _spark_context() -> Any:
    """The classic Spark context of this process; None where there is none."""
    pyspark = sys.modules.get("pyspark")
    context = None if pyspark is None else pyspark.SparkContext._active_spark_context
    return None if context is None or context._jsc is None else context


def _through_hadoop(spark: Any, url: str, limit: int) -> bytes:
    path = spark._jvm.org.apache.hadoop.fs.Path(url)
    try:
        files = path.getFileSystem(spark._jsc.hadoopConfiguration())
        if not files.exists(path):
            raise FileNotFoundError(url)
        stream = files.open(path)
        try:
            return bytes(stream.readNBytes(limit))
        finally:
            stream.close()
    except FileNotFoundError:
        raise
    except Exception as error:  # py4j's, whose text is a whole Java trace
        cause = getattr(error, "java_exception", error)
        raise OSError(f"Spark's Hadoop: {str(cause).splitlines()[0]}") from None
