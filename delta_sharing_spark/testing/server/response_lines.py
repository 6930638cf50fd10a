"""The lines of an answer about a table, in the parquet and the delta format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from delta_sharing_spark.deltalog.actions import Metadata, Protocol
from delta_sharing_spark.deltalog.paths import local_path
from delta_sharing_spark.testing.server.settings import SharedTable
from delta_sharing_spark.testing.server.table_logs import FileAction
from delta_sharing_spark.testing.server.tokens import Signer


def protocol_line(response_format: str, protocol: Protocol, version: int | None = None) -> dict[str, Any]:
    """The ``protocol`` line; ``version`` only of a historical one."""
    if response_format == "parquet":
        return {"protocol": {"minReaderVersion": 1}}
    tree: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.reader_features is not None:
        tree["readerFeatures"] = list(protocol.reader_features)
    if protocol.writer_features is not None:
        tree["writerFeatures"] = list(protocol.writer_features)
    body: dict[str, Any] = {"deltaProtocol": tree}
    if version is not None:
        body["version"] = version
    return {"protocol": body}


def metadata_line(
    response_format: str,
    metadata: Metadata,
    table: SharedTable,
    *,
    version: int | None = None,
    size: int | None = None,
    num_files: int | None = None,
) -> dict[str, Any]:
    """The ``metaData`` line."""
    core: dict[str, Any] = {"id": metadata.id}
    if metadata.name is not None:
        core["name"] = metadata.name
    if metadata.description is not None:
        core["description"] = metadata.description
    core |= {
        "format": {"provider": metadata.provider},
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
    }
    more = {"version": version, "size": size, "numFiles": num_files}
    outer = {k: v for k, v in more.items() if v is not None} | table.directory_fields()
    if response_format == "parquet":
        return {"metaData": core | outer}
    core["format"]["options"] = {}  # the kernel insists on it
    if metadata.created_time is not None:
        core["createdTime"] = metadata.created_time
    return {"metaData": {"deltaMetadata": core, **outer}}


def file_id(path: str, hashed: str) -> str:
    """A file's id: MD5 of its path for ``parquet``, SHA-256 for ``delta``, as the reference server makes them."""
    if hashed == "parquet":
        return hashlib.md5(path.encode("utf-8", "surrogateescape"), usedforsecurity=False).hexdigest()
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


_PARQUET_KIND = {"add": "add", "remove": "remove", "cdc": "cdf"}


@dataclass(frozen=True, slots=True)
class LineWriter:
    """Writes file lines of one answer.

    Attributes:
        response_format: ``parquet`` or ``delta``.
        hashed: Which hash ids are made with.
        base: Scheme and host of data URLs.
        terms: What the URLs of this answer are signed for.
        expires_ms: When they end; None leaves ``expirationTimestamp`` out.
        snapshot: Lines are ``file`` lines of a snapshot.
    """

    response_format: str
    hashed: str
    base: str
    signer: Signer
    terms: str
    expires_ms: int | None
    snapshot: bool

    def line(self, file: FileAction) -> dict[str, Any]:
        url = self.signer.url(self.base, file.location, self.terms)
        if self.response_format == "parquet":
            return self._parquet(file, url)
        return self._delta(file, url)

    def _common(self, file: FileAction) -> dict[str, Any]:
        tree: dict[str, Any] = {"id": file_id(file.path, self.hashed), "size": file.size}
        if file.version is not None:
            tree["version"] = file.version
        if file.timestamp is not None:
            tree["timestamp"] = file.timestamp
        if self.expires_ms is not None:
            tree["expirationTimestamp"] = self.expires_ms
        return tree

    def _parquet(self, file: FileAction, url: str) -> dict[str, Any]:
        tree = {"url": url, **self._common(file), "partitionValues": file.body.get("partitionValues") or {}}
        if "stats" in file.body:
            tree["stats"] = file.body["stats"]
        return {"file" if self.snapshot else _PARQUET_KIND[file.kind]: tree}

    def _delta(self, file: FileAction, url: str) -> dict[str, Any]:
        body: dict[str, Any] = {**file.body, "path": url}
        tree = self._common(file)
        if file.vector is not None:
            body["deletionVector"] = self._vector(file)
            if file.vector.storage != "i":
                tree["deletionVectorFileId"] = file_id(file.vector.path, self.hashed)
        return {"file": {**tree, "deltaSingleAction": {file.kind: body}}}

    def _vector(self, file: FileAction) -> Mapping[str, Any]:
        descriptor: Mapping[str, Any] = file.body["deletionVector"]
        assert file.vector is not None
        if file.vector.storage == "i":
            return descriptor
        url = self.signer.url(self.base, local_path(file.vector.path), self.terms)
        return {**descriptor, "storageType": "p", "pathOrInlineDv": url}


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode_line(line: Mapping[str, Any]) -> bytes:
    return _encode(line).encode("utf-8", "surrogateescape")
