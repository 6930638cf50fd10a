"""What a client says it can do, and the response format that follows from it and from the table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from delta_sharing_spark.deltalog.actions import Metadata, Protocol
from delta_sharing_spark.schema.features import FEATURES_READER_VERSION
from delta_sharing_spark.testing.server.responses import bad_request
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedTable

#: Reader features that change nothing for a client of URLs.
_LOG_ONLY = frozenset({"v2checkpoint", "vacuumprotocolcheck"})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The header ``delta-sharing-capabilities``, lower-cased."""

    formats: tuple[str, ...] = ("parquet",)
    reader_features: frozenset[str] = frozenset()
    end_stream_action: bool = False
    asynchronous: bool = False


def parse_capabilities(header: str | None, settings: ServerSettings) -> Capabilities:
    """Read the header; an old server does not know it."""
    if header is None or not settings.capabilities:
        return Capabilities()
    values: dict[str, tuple[str, ...]] = {}
    for part in header.lower().split(";"):
        key, separator, value = part.partition("=")
        if separator:
            values[key.strip()] = tuple(v.strip() for v in value.split(",") if v.strip())
    unknown = sorted(set(values.get("readerfeatures", ())) - {name.lower() for name in settings.known_features or ()})
    if settings.known_features is not None and unknown:
        raise bad_request(f"Unknown reader feature: {unknown[0]}")
    return Capabilities(
        tuple(f for f in values.get("responseformat", ()) if f in ("parquet", "delta")) or ("parquet",),
        frozenset(values.get("readerfeatures", ())),
        settings.end_stream_action and values.get("includeendstreamaction") == ("true",),
        settings.async_polls is not None and values.get("asyncquery") == ("true",),
    )


def choose_format(
    capabilities: Capabilities,
    settings: ServerSettings,
    table: SharedTable,
    protocol: Protocol,
    metadata: Metadata,
    *,
    has_vectors: bool,
) -> str:
    """``parquet`` or ``delta``.

    Raises:
        Refusal: The table needs the delta format, or a reader feature that the client does not list; 400, by name.
    """
    if protocol.min_reader_version > FEATURES_READER_VERSION and "delta" in capabilities.formats:
        return "delta"  # nobody knows what it takes; the client must see the protocol and refuse
    needed = _needed(protocol, metadata, has_vectors)
    if "delta" not in capabilities.formats:
        if needed:
            raise bad_request(
                f"table {table} uses the reader features {', '.join(sorted(needed))}, which the parquet response "
                f"format cannot express; ask with responseformat=delta"
            )
        return "parquet"
    if "parquet" in capabilities.formats and not needed and settings.prefer == "parquet":
        return "parquet"
    missing = sorted(name for name in needed if name.lower() not in capabilities.reader_features)
    if missing:
        raise bad_request(
            f"table {table} requires the reader features {', '.join(missing)}, "
            f"which the client does not list in readerfeatures"
        )
    return "delta"


def _needed(protocol: Protocol, metadata: Metadata, has_vectors: bool) -> Collection[str]:
    """Features of the table that a reader of its files must know, as the log spells them."""
    listed = set(protocol.reader_features or ())
    if protocol.min_reader_version > FEATURES_READER_VERSION:
        listed.add(f"of reader version {protocol.min_reader_version}")
    if protocol.min_reader_version == 2:
        listed.add("columnMapping")
    needed = {name for name in listed if name.lower() not in _LOG_ONLY}
    if metadata.configuration.get("delta.columnMapping.mode", "none") == "none":
        needed.discard("columnMapping")
    if not has_vectors and not metadata.is_enabled("delta.enableDeletionVectors"):
        needed.discard("deletionVectors")
    if "delta.typeChanges" not in metadata.schema_string:
        needed -= {"typeWidening", "typeWidening-preview"}
    return needed


def answer_header(response_format: str, capabilities: Capabilities, settings: ServerSettings) -> Mapping[str, str]:
    """The header of the answer."""
    if not settings.capabilities:
        return {}
    text = f"responseformat={response_format}"
    if capabilities.end_stream_action:
        text += ";includeEndStreamAction=true"
    return {"delta-sharing-capabilities": text}
