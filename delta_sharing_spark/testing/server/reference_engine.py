"""What the reference server of delta-io/delta-sharing does otherwise than the protocol says, for ``engine="reference"``.

It has two engines. Delta Kernel answers snapshots, metadata and versions; Delta Standalone answers every query that holds
``maxFiles``, ``predicateHints``, ``startingVersion`` or ``pageToken``, and every change feed, and knows no reader feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delta_sharing_spark.deltalog.actions import Protocol
from delta_sharing_spark.deltalog.commit_times import CommitTimes
from delta_sharing_spark.schema.instants import show_millis
from delta_sharing_spark.testing.server.responses import Refusal, bad_request

_OLD_ENGINE = ("maxFiles", "predicateHints", "startingVersion", "pageToken")
_STANDALONE_READER = 1


def takes_old_engine(parameters: Mapping[str, Any]) -> bool:
    """Whether a query's body sends it to Delta Standalone."""
    return any(parameters.get(name) for name in _OLD_ENGINE) or parameters.get("startingVersion") == 0


def check_old_engine(protocol: Protocol) -> None:
    """Refuse a table that Delta Standalone cannot read.

    Raises:
        Refusal: 400, or 500 for a v2 checkpoint, as the reference server answers.
    """
    if "v2Checkpoint" in (protocol.reader_features or ()):
        raise Refusal(500, "INTERNAL_ERROR", "")
    if protocol.min_reader_version > _STANDALONE_READER:
        asked = f"({protocol.min_reader_version},{protocol.min_writer_version})"
        raise Refusal(
            400,
            "UNSUPPORTED_OPERATION",
            f"Delta protocol version {asked} is too new for this version of Delta Standalone Reader/Writer (1,2). "
            f"Please upgrade to a newer release.",
        )


def version_after(times: CommitTimes, newest: int, timestamp_ms: int) -> int:
    """What ``/version?startingTimestamp`` names: the version that follows the last one at or before the moment.

    Raises:
        Refusal: No version follows.
    """
    if timestamp_ms < times.time(times.first()):
        return 0
    if timestamp_ms > times.time(newest):
        raise Refusal(
            400,
            "MALFORMED_REQUEST",
            f"The provided timestamp {timestamp_ms} ms ({show_millis(timestamp_ms)}) is after the latest available version "
            f"{newest}. Please use a timestamp less than or equal to {times.time(newest)} ms.",
        )
    version = times.at_or_before(timestamp_ms)
    if version == newest:
        raise bad_request("Not a valid starting timestamp")
    return version + 1


def check_feed_start(times: CommitTimes, timestamp_ms: int) -> None:
    """Refuse a change feed that starts before the first commit.

    Raises:
        Refusal: As the reference server answers.
    """
    first = times.first()
    if timestamp_ms < times.time(first):
        raise bad_request(
            f"The provided timestamp ({show_millis(timestamp_ms)}) is before the earliest version available to this table "
            f"({first}). Please use a timestamp greater than or equal to {show_millis(times.time(first))}."
        )
