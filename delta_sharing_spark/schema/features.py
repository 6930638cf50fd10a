"""Registers the Delta table features: those that this reader does, and what the others ask of a reader.

It drives the gate (:func:`check_protocol`) that every table passes whichever way it came, and the ``readerfeatures`` capability
sent to sharing servers; ``docs/generate.py`` documents them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from delta_sharing_spark.errors import LogError, UnsupportedFeatureError
from delta_sharing_spark.schema.types import TYPE_CHANGES, DataType, Decimal, decimal_of, inner_fields

#: Reader versions of the Delta protocol: 1 asks nothing, 2 column mapping, 3 lists its features by name.
FEATURES_READER_VERSION = 3
#: The table property that says how columns are found in files.
MAPPING_MODE = "delta.columnMapping.mode"
_COLUMN_MAPPING_READER_VERSION = 2


_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
#: Digits that a decimal needs before its point to hold every value. The protocol lists 10 for types up to INT and 20 for
#: LONG; writers of narrower changes lose nothing, and the reference client reads them.
_DECIMALS = {"byte": Decimal(3, 0), "short": Decimal(5, 0), "integer": Decimal(10, 0), "long": Decimal(19, 0)}


#: Reader features that this reader does, in both access modes, as the log spells them. Of those that only add types it reads
#: the columns of other types, and refuses a load that has one of theirs (``schema.projections.check_types``).
SUPPORTED = frozenset({
    "columnMapping", "deletionVectors", "timestampNtz", "timestampWithoutTimezone", "typeWidening", "typeWidening-preview",
    "v2Checkpoint", "vacuumProtocolCheck", "variantType", "variantType-preview", "variantShredding",
    "variantShredding-preview", "materializedVoidType", "geospatial", "geospatial-dev", "timestampNanos", "intervalTypes",
})  # fmt: skip
#: What each other reader feature that has a name asks of a reader.
REFUSED: Mapping[str, str] = {
    "catalogManaged": "Ask the table's catalog which commits count; the log alone does not tell.",
    "catalogOwned-preview": "The preview of `catalogManaged`.",
    "adaptiveMetadata": "Read a metadata tree in place of checkpoints.",
    "adaptiveMetadata-preview": "The preview of `adaptiveMetadata`.",
    "redirectReaderWriter-preview": "Follow the table to where it has moved.",
}


def check_protocol(min_reader_version: int, reader_features: Iterable[str] | None, *, table: str) -> None:
    """Refuse a table that asks for more than this reader does (Delta protocol, "Protocol Evolution").

    Args:
        min_reader_version: ``minReaderVersion`` of the protocol action.
        reader_features: ``readerFeatures``; None where the protocol has none, which with version 3 is a list of none, as
            in Delta Lake.

    Raises:
        UnsupportedFeatureError: A version or a feature that this reader does not know or does not do, by its name.
        LogError: The protocol contradicts itself.
    """
    features = None if reader_features is None else tuple(reader_features)
    if min_reader_version > FEATURES_READER_VERSION:
        raise UnsupportedFeatureError(
            f"{table} asks for Delta reader version {min_reader_version}; this reader knows versions 1 to "
            f"{FEATURES_READER_VERSION}; upgrade delta-sharing-spark, or ask the provider for a table of a lower version",
            features=(f"minReaderVersion={min_reader_version}",),
        )
    if min_reader_version < 1:
        raise LogError(
            f"the protocol of {table} is invalid: minReaderVersion is {min_reader_version}, and versions start at 1; "
            f"ask the provider to repair the table"
        )
    if min_reader_version < FEATURES_READER_VERSION:
        if features:
            raise LogError(
                f"the protocol of {table} is invalid: it lists readerFeatures ({', '.join(features)}) with "
                f"minReaderVersion {min_reader_version}, and they are allowed with version {FEATURES_READER_VERSION} "
                f"only; ask the provider to repair the table"
            )
        return
    refused = [name for name in features or () if name not in SUPPORTED]
    if refused:
        raise UnsupportedFeatureError(
            f"{table} uses table features that this reader does not support: {'; '.join(map(_refusal, refused))}",
            features=tuple(refused),
        )


def _refusal(name: str) -> str:
    if name in REFUSED:
        return (
            f"{name!r} ({REFUSED[name]} Ask the provider to share a copy without the feature, or a materialized view.)"
        )
    return f"{name!r} (unknown to this version; upgrade delta-sharing-spark, or ask the provider to drop the feature)"


def check_type_changes(data_type: DataType, *, table: str, path: str = "") -> None:
    """Raise UnsupportedFeatureError for a type change that the protocol does not list ("Type Widening", "Type Change Metadata"); names its column."""
    for field in inner_fields(data_type):
        name = f"{path}.{field.name}" if path else field.name
        changes = field.metadata.get(TYPE_CHANGES) or ()
        for change in changes if isinstance(changes, (list, tuple)) else (changes,):
            _check_change(change, name, table)
        check_type_changes(field.type, table=table, path=name)


def _check_change(change: object, column: str, table: str) -> None:
    before = change.get("fromType") if isinstance(change, Mapping) else None
    after = change.get("toType") if isinstance(change, Mapping) else None
    if isinstance(before, str) and isinstance(after, str) and widens(before, after):
        return
    raise UnsupportedFeatureError(
        f"column {column!r} of {table} changed its type from {before!r} to {after!r}, which the Delta protocol does not "
        f"list among type widenings; ask the provider to rewrite the table, or upgrade delta-sharing-spark",
        features=("typeWidening",),
    )


def widens(before: str, after: str) -> bool:
    """Whether a column of type ``before`` may become ``after`` (Delta protocol, "Type Widening"): every value fits."""
    if after in _WIDER.get(before, ()):
        return True
    target, source = decimal_of(after), _DECIMALS.get(before) or decimal_of(before)
    if target is None or source is None:
        return False
    return target.precision - source.precision >= target.scale - source.scale >= 0


def mapping_mode(
    configuration: Mapping[str, str], min_reader_version: int, reader_features: Iterable[str] | None, *, table: str
) -> str:
    """``"none"``, ``"name"`` or ``"id"``; counts only where the protocol allows column mapping. Raises UnsupportedFeatureError for an unknown one."""
    mode = configuration.get(MAPPING_MODE, "none").lower()
    is_listed = min_reader_version >= FEATURES_READER_VERSION and "columnMapping" in set(reader_features or ())
    if not is_listed and min_reader_version != _COLUMN_MAPPING_READER_VERSION:
        return "none"
    if mode not in ("none", "name", "id"):
        raise UnsupportedFeatureError(
            f"{table} has the column mapping mode {mode!r}; known are 'none', 'name' and 'id': upgrade delta-sharing-spark",
            features=("columnMapping",),
        )
    return mode


def reader_features_header() -> str:
    """The value of ``readerfeatures`` in the header ``delta-sharing-capabilities``: lower-case names, by commas.

    Sharing protocol, "Delta Sharing Capabilities Header". Features of the log alone are named too: servers
    compare the list with the table's protocol as it stands.
    """
    return ",".join(sorted(map(str.lower, SUPPORTED)))
