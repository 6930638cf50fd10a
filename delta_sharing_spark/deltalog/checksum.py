"""Compares a checkpoint with what the log says beside it (Delta protocol, "Version Checksum File" and "Last Checkpoint File").

A checkpoint whose writer failed can be a valid file that lists too few files, of which nothing in it tells. The checksum file of a
version and ``_last_checkpoint`` say how many there are. Both are optional: what cannot be read of them is not compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from delta_sharing_spark.deltalog.actions import metadata_from, protocol_from
from delta_sharing_spark.deltalog.checkpoint import Checkpoint
from delta_sharing_spark.deltalog.log_store import CachedLogStore
from delta_sharing_spark.deltalog.paths import LAST_CHECKPOINT, LogStore, read_if_there
from delta_sharing_spark.deltalog.segment import Segment
from delta_sharing_spark.errors import LogError
from delta_sharing_spark.schema import features
from delta_sharing_spark.schema.table_records import Metadata, Protocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Checksum:
    """What a file of the log says of one version.

    Attributes:
        path: The file.
        version: The version of which it tells.
        files, size: How many live files the version has, and their bytes together.
        actions: How many actions its checkpoint has.
        protocol, metadata: Those in effect at the version.
    """

    path: str
    version: int
    files: int | None = None
    size: int | None = None
    actions: int | None = None
    protocol: Protocol | None = None
    metadata: Metadata | None = None

    def check_files(self, files: int, size: int, checkpoint: Checkpoint) -> None:
        """Compare the live files of the version; raises LogError where they are others."""
        if self.files is not None and files != self.files:
            raise checkpoint.contradiction(self.path, f"{files} files instead of {self.files}")
        if self.size is not None and size != self.size:
            raise checkpoint.contradiction(self.path, f"files of {size} bytes instead of {self.size}")
        # Which removed files a checkpoint still has depends on when it was written: more say nothing.
        if self.files is None and self.actions is not None and checkpoint.num_actions < self.actions:
            raise checkpoint.contradiction(self.path, f"{checkpoint.num_actions} actions instead of {self.actions}")

    def check_head(self, protocol: Protocol, metadata: Metadata, checkpoint: Checkpoint) -> None:
        """Compare what readers use of the version's protocol and metadata; raises LogError where it is something else."""
        if self.protocol is not None and _read_of_protocol(self.protocol) != _read_of_protocol(protocol):
            raise checkpoint.contradiction(self.path, "another protocol")
        if self.metadata is not None and _read_of_metadata(self.metadata) != _read_of_metadata(metadata):
            raise checkpoint.contradiction(self.path, "other metadata")


def _read_of_protocol(protocol: Protocol) -> tuple[int, frozenset[str]]:
    return protocol.min_reader_version, frozenset(protocol.reader_features)


def _read_of_metadata(metadata: Metadata) -> tuple[Any, ...]:
    mode = metadata.configuration.get(features.MAPPING_MODE, "none").lower()
    try:
        schema = json.loads(metadata.schema_string or "null")
    except (ValueError, RecursionError):
        schema = metadata.schema_string
    return metadata.id, schema, metadata.partition_columns, mode


def read_checksum(store: LogStore, segment: Segment) -> Checksum | None:
    """What the first of ``segment.checksums`` says that can be read and is of the segment's version or its checkpoint's."""
    assert segment.checkpoint is not None, "only a checkpoint is compared"
    hinted = store.hinted if isinstance(store, CachedLogStore) else None
    for path in segment.checksums:
        if path == LAST_CHECKPOINT and hinted is not None and (numbers := hinted.get(segment.checkpoint.version)):
            return Checksum(path, segment.checkpoint.version, files=numbers[0], actions=numbers[1])
        if (data := read_if_there(store, path)) is None:
            continue
        try:
            tree = json.loads(data)
            if path == LAST_CHECKPOINT:
                version = _count(tree, "version")
                if version == segment.checkpoint.version:
                    files, actions = _count(tree, "numOfAddFiles"), _count(tree, "size")
                    if hinted is not None:
                        hinted.put(version, (files, actions))
                    return Checksum(path, version, files=files, actions=actions)
            else:
                return _from_crc(path, tree)
        except (ValueError, TypeError, AttributeError, RecursionError, LogError) as error:
            _log.info("%s of %s is corrupt (%s); the checkpoint is not compared with it", path, store.root, error)
    return None


def _from_crc(path: str, tree: Mapping[str, Any]) -> Checksum:
    version = int(path.rpartition("/")[2].partition(".")[0])
    protocol, metadata = tree.get("protocol"), tree.get("metadata")
    return Checksum(
        path,
        version,
        _count(tree, "numFiles"),
        _count(tree, "tableSizeBytes"),
        protocol=None if protocol is None else protocol_from(protocol, path),
        metadata=None if metadata is None else metadata_from(metadata, path),
    )


def _count(tree: Mapping[str, Any], name: str) -> int | None:
    value = tree.get(name)
    return value if type(value) is int and value >= 0 else None
