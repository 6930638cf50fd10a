"""The protocol that a table needs by its properties and types."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from delta_sharing_spark.schema.features import FEATURES_READER_VERSION
from delta_sharing_spark.schema.table_records import Protocol
from delta_sharing_spark.schema.types import Struct, schema_to_json

MAPPING_MODE = "delta.columnMapping.mode"
MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
INDEXED_COLUMNS = "delta.dataSkippingNumIndexedCols"

#: The writer version that lists its features by name.
_FEATURES_WRITER_VERSION = 7
#: Properties that switch a feature on, the value that does, and the feature's name; True: readers must know it.
_BY_PROPERTY = (
    ("delta.enableDeletionVectors", "true", "deletionVectors", True),
    ("delta.enableTypeWidening", "true", "typeWidening", True),
    ("delta.checkpointPolicy", "v2", "v2Checkpoint", True),
    (CHANGE_DATA_FEED, "true", "changeDataFeed", False),
    (IN_COMMIT_TIMESTAMPS, "true", "inCommitTimestamp", False),
    ("delta.enableRowTracking", "true", "rowTracking", False),
    ("delta.appendOnly", "true", "appendOnly", False),
)
#: A type in a schema's JSON.
_TYPE_NAME = re.compile(r'"(?:t|elementT|keyT|valueT)ype": "(\w+)')
_BY_TYPE = {
    "timestamp_ntz": "timestampNtz", "variant": "variantType", "geometry": "geospatial", "geography": "geospatial",
    "timestamp_nanos": "timestampNanos", "interval": "intervalTypes",
}  # fmt: skip


def protocol_body(protocol: Protocol) -> dict[str, Any]:
    """The body of a ``protocol`` action."""
    tree: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version or 0,
    }
    if protocol.reader_features or protocol.min_reader_version >= FEATURES_READER_VERSION:
        tree["readerFeatures"] = list(protocol.reader_features)
    if protocol.writer_features or tree["minWriterVersion"] >= _FEATURES_WRITER_VERSION:
        tree["writerFeatures"] = list(protocol.writer_features)
    return tree


def protocol_for(
    schema: Struct, properties: Mapping[str, str], extra: Collection[str] = (), *, legacy: bool = False
) -> Protocol:
    """The lowest protocol that allows a table's types and properties.

    Args:
        schema, properties: The table's.
        extra: Further reader features to list, known to anyone or not.
        legacy: Column mapping alone as reader version 2 without a list of features.
    """
    readers = set(extra)
    writers = set(extra)
    for key, value, feature, binds_readers in _BY_PROPERTY:
        if properties.get(key, "").lower() == value:
            writers.add(feature)
            if binds_readers:
                readers.add(feature)
    by_type = {_BY_TYPE[name] for name in _TYPE_NAME.findall(json.dumps(schema_to_json(schema))) if name in _BY_TYPE}
    readers |= by_type
    writers |= by_type
    mapped = properties.get(MAPPING_MODE, "none") != "none"
    if mapped and legacy and not readers:
        return Protocol(2, min_writer_version=5)
    if mapped:
        readers.add("columnMapping")
        writers.add("columnMapping")
    if readers:
        return Protocol(3, tuple(sorted(readers)), _FEATURES_WRITER_VERSION, tuple(sorted(writers)))
    if writers & {"inCommitTimestamp", "rowTracking"}:
        return Protocol(1, (), _FEATURES_WRITER_VERSION, tuple(sorted(writers)))
    return Protocol(1, min_writer_version=4 if writers else 2)
