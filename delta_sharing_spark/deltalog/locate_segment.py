"""Finds the files that a version is replayed from, by a listing where the storage permits one.

The versions just before the one wanted are listed first: they mostly have a checkpoint. Where they have none, or the
version is unknown, ``_last_checkpoint`` tells where to look; it is a hint, and never trusted beyond that.
"""

from __future__ import annotations

import json
import logging

from delta_sharing_spark.deltalog.log_listing import LogListing
from delta_sharing_spark.deltalog.paths import LAST_CHECKPOINT, LISTED_BEFORE, LOG_DIR, LogEntry, LogStore, parse_name
from delta_sharing_spark.deltalog.segment import Hint, Segment
from delta_sharing_spark.deltalog.unlisted_log import UnlistedLog

_log = logging.getLogger(__name__)


def find_segment(store: LogStore, version: int | None, table: str) -> Segment:
    """The files of a version.

    Args:
        store: The table's storage.
        version: None for the newest.
        table: How errors name the table.

    Raises:
        LogError: There is no log, or it has a hole.
        VersionError: The version is not there yet, or no longer.
        CredentialError: The storage refuses to read the log.
    """
    wanted = store.known_version if version is None else version
    entries = [] if wanted is None else list_before(store, wanted)
    listing = LogListing(entries or ())
    if entries is not None and wanted is not None and (wanted <= LISTED_BEFORE or listing.has_checkpoint(version)):
        return listing.segment(version, table)
    hint, refused = _read_hint(store)
    usable = hint if hint is not None and (version is None or version >= hint.version) else None
    if entries is not None:
        entries = store.list_from(LOG_DIR, f"{usable.version if usable else 0:020d}.")
    if entries is None:
        return UnlistedLog(store, table, refused).segment(hint, version)
    listing = LogListing(entries)
    if usable is not None and not listing.has_checkpoint(version):
        _log.info("_last_checkpoint of %s names version %d, which is not there; listing the log", table, usable.version)
        listing = LogListing(store.list_from(LOG_DIR, f"{0:020d}.") or [])
    return listing.segment(version, table)


def list_before(store: LogStore, version: int) -> list[LogEntry] | None:
    """The log from a little before a version on, None where listing is not permitted: the first request for a version."""
    return store.list_from(LOG_DIR, f"{max(0, version - LISTED_BEFORE):020d}.")


def _read_hint(store: LogStore) -> tuple[Hint | None, bool]:
    """The hint, None if it is missing or malformed; and whether the storage refused to read it."""
    try:
        data = store.read(LAST_CHECKPOINT)
    except FileNotFoundError:
        return None, False
    except PermissionError:  # a credential that cannot list is refused what does not exist
        return None, True
    try:
        tree = json.loads(data)
        version, parts = tree["version"], tree.get("parts") or 0
        v2 = tree.get("v2Checkpoint") or {}
        name = v2.get("path")
        if type(version) is not int or type(parts) is not int or version < 0 or not 0 <= parts < 1 << 20:
            raise ValueError("version and parts are not counts")
        named = parse_name(name) if isinstance(name, str) else None
        return Hint(version, parts, name if named and named.kind in {"v2", "classic"} else None), False
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("_last_checkpoint of %s is corrupt (%s); reading the log without it", store.root, error)
        return None, False
