"""Represents a frame of the JVM's, in a Connect session of this process: the server keeps it by a name."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pyspark.sql.connect.plan import CachedRemoteRelation

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


class ServedRelation(CachedRemoteRelation):
    """A frame by its name in the server.

    PySpark's own class sends the server a request when the garbage collector finds it, in the middle of whatever the thread
    does, and waits for the answer: one was seen never to come.

    Args:
        ended: Takes the name when nothing here refers to the frame any more.
    """

    def __init__(self, name: str, spark: SparkSession, ended: deque[str]) -> None:
        super().__init__(name, spark)
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append(self._relation_id)
