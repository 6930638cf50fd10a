"""Reads small files of the user: tokens, keys and certificates of this machine, profiles from any storage.

What is of this machine is a regular file, of bounded size, in any Unicode coding. What is elsewhere is read by fsspec or by Spark's
Hadoop, with the identity of the user's environment.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

from delta_sharing_spark.errors import ConfigError
from delta_sharing_spark.storage.own_files import is_of_user

#: Bytes of a file with a token or a key, and of one with the certificates of authorities.
LARGEST_SECRET, LARGEST_CERTIFICATES = 64 << 10, 4 << 20
#: A URL or another file system's path; one letter before a colon is a drive of Windows.
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class UnfitFile(Exception):
    """A file is none that may be read, or cannot be. The message says why and quotes nothing of it: ``is not a regular file``."""


def read_text(path: str, limit: int = LARGEST_SECRET, *, decides: bool = False) -> str:
    """The text of a local regular file.

    Args:
        path: Of this machine; ``~`` is the user's home. No URL.
        limit: The most bytes that it may have.
        decides: Whether it says who may do something, so that other users of this machine may not write it.

    Raises:
        UnfitFile: It is none, is larger, cannot be read, or others may write what decides.
    """
    if _ELSEWHERE.match(path):
        raise UnfitFile("is not a path of this machine")
    try:
        # Opened without waiting: a named pipe may have nobody who writes.
        flag = getattr(os, "O_NONBLOCK", 0)
        with open(Path(path).expanduser(), "rb", opener=lambda name, flags: os.open(name, flags | flag)) as file:
            # Nothing else has an end that is sure to come.
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UnfitFile("is not a regular file")
            if decides and not is_of_user(status):
                raise UnfitFile(
                    "belongs to another user of this machine, who could change it: copy it to a file of your own"
                )
            if decides and hasattr(os, "geteuid") and status.st_mode & 0o022:
                raise UnfitFile(
                    "can be changed by other users of this machine: take that right from them by chmod go-w"
                )
            data = file.read(limit + 1)
    except (OSError, ValueError, RuntimeError) as error:
        raise UnfitFile(f"cannot be read on this machine ({type(error).__name__})") from None
    if len(data) > limit:
        raise UnfitFile(f"has more than {limit >> 10} KiB")
    try:
        return decoded(data)
    except UnicodeDecodeError:
        raise UnfitFile("is not text in UTF-8 or UTF-16") from None


def decoded(data: bytes) -> str:
    """The text of bytes in UTF-8, or in UTF-16 as PowerShell's ``>`` writes it; raises UnicodeDecodeError for others."""
    return data.decode(json.detect_encoding(data))


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
