"""Tells when a presigned URL ends, by the server and the URL itself, and when to ask for another."""

from __future__ import annotations

import os
import random
import re
import socket
from datetime import datetime, timezone
from urllib.parse import unquote

from delta_sharing_spark.network.bodies import parse_count
from delta_sharing_spark.schema.instants import parse_instant

#: A URL is renewed this many seconds before it ends, or a quarter of its life if that is less.
MARGIN, MARGIN_SHARE = 60.0, 0.25
#: So much earlier still, by a share that differs from process to process: they do not all ask at one moment.
JITTER, JITTER_SHARE = 30.0, 0.125

_SIGNED = re.compile(r"[?&]X-(Amz|Goog)-(Date|Expires)=([^&]+)", re.IGNORECASE)
_SAS_END = re.compile(r"[?&]se=([^&]+)")
_EPOCH_END = re.compile(r"[?&]Expires=([0-9]{9,11})(?:&|$)")


def url_end(url: str) -> float | None:
    """When a URL ends by its own query (S3, GCS and Azure SAS, old signatures), in seconds since the epoch.

    >>> url_end("https://b/f?X-Amz-Date=20261121T080000Z&X-Amz-Expires=3600") == url_end("https://b/f?se=2026-11-21T09%3A00%3A00Z")
    True
    """
    ends = [_signed_end(url), _sas_end(url)]
    if (epoch := _EPOCH_END.search(url)) is not None:
        ends.append(float(epoch[1]))
    known = [end for end in ends if end is not None]
    return min(known) if known else None


def _signed_end(url: str) -> float | None:
    parameters = {name.lower(): value for _, name, value in _SIGNED.findall(url)}
    seconds = parse_count(parameters.get("expires", ""))
    if seconds is None:
        return None
    try:
        began = datetime.strptime(parameters.get("date", ""), "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return began.timestamp() + seconds


def _sas_end(url: str) -> float | None:
    match = _SAS_END.search(url)
    if match is None:
        return None
    end = parse_instant(unquote(match[1]))
    return None if end is None else end.timestamp()


def earliest(*ends: float | None) -> float | None:
    """The earliest of the ends that are not None; None if there is none."""
    known = [end for end in ends if end is not None]
    return min(known) if known else None


def renew_at(end: float | None, since: float) -> float | None:
    """When to renew a URL that was given out at ``since`` and ends at ``end``; None to wait for the storage's refusal.

    A URL that had ended when it was given out tells that clocks differ: only the storage's clock counts then.
    """
    if end is None or end <= since:
        return None
    life = end - since
    return end - min(MARGIN, MARGIN_SHARE * life) - process_share() * min(JITTER, JITTER_SHARE * life)


def process_share() -> float:
    """A number in [0, 1) that differs between processes, so that they do not renew all at once."""
    return random.Random(f"{socket.gethostname()}/{os.getpid()}").random()
