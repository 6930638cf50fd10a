"""Keeps the native lane's DataFrames of a client's latest queries, for its next queries over the same files.

A table that did not change between two queries is planned anew, and the sharing server asked, but Spark's relation over it,
the footers and the bytes that the gateway holds serve again.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.native.plan import NativePlan
from delta_sharing_spark.spark.native import Reach, is_served, planned_frame
from delta_sharing_spark.spark.statement import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delta_sharing_spark.client import SharingClient

#: DataFrames that are kept for a client; the longest unused goes first.
_KEPT = 64

_Kept = OrderedDict[tuple[str, str | None], "tuple[DataFrame, NativePlan]"]
_kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def frame_of_plan(
    client: SharingClient, spark: SparkSession, load: tuple[str, str | None], plan: NativePlan, reach: Reach
) -> DataFrame:
    """A plan as a DataFrame: one that is kept if its plan has the same files of the same version, else a new one.

    Args:
        client: The client that made the plan; others may have other rights.
        spark, reach: The session, and where its executors reach a gateway.
        load: The table with its options, and the condition that left out files.
        plan: The new plan.

    Raises:
        StepAsideError: As ``planned_frame``.
    """
    if is_connect(spark):
        return planned_frame(spark, plan, reach)
    with _lock:
        frames = _kept.setdefault(client, OrderedDict())
        kept = frames.get(load)
        if kept is not None:
            frames.move_to_end(load)
    if kept is not None and kept[0].sparkSession is spark and is_served(kept[1], reach) and kept[1].reads_as(plan):
        return kept[0]
    frame = planned_frame(spark, plan, reach)
    with _lock:
        frames[load] = frame, plan
        frames.move_to_end(load)
        while len(frames) > _KEPT:
            frames.popitem(last=False)
    return frame
