"""Reads and writes stream offsets as Spark stores them: stable, versioned JSON, which is checked when it is read.

The end of a version is written so that the JVM connector reads it as well, and read as that connector writes it: in the parquet
format (``tableVersion``, ``index`` -1, ``isStartingVersion``) and in delta (``reservoirId``, ``reservoirVersion``). Within a version the
two count files in other orders: there either one refuses the other's offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delta_sharing_spark.access.contract import StreamIdentity
from delta_sharing_spark.access.stream.planner import Position
from delta_sharing_spark.errors import StreamError

#: The version of this format. A checkpoint of another one is refused, never guessed at.
SOURCE_VERSION = 1

#: What the JVM connector counts as no file of a version: in the parquet format and in the forms of delta's.
_NO_FILES = (-1, -100)

#: Where every stream begins, whatever its options: Spark asks for it several times and never stores the answer, so
#: nothing may be resolved in it. The first end offset carries what was resolved, as ``first``.
INITIAL: dict[str, Any] = {"sourceVersion": SOURCE_VERSION, "initial": True}


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A stream's position, its first position, and the identity that the order of files within a version depends on."""

    position: Position
    first: Position
    identity: StreamIdentity

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark stores it."""
        return {
            "sourceVersion": SOURCE_VERSION,
            "tableId": self.identity.table_id,
            "mode": self.identity.mode,
            "format": self.identity.format,
            "fileIdHash": self.identity.hash,
            "first": _position_json(self.first),
            **_position_json(self.position),
            **_for_the_jvm_connector(self.position, self.identity.table_id),
        }


def is_initial(tree: dict[str, Any]) -> bool:
    """Whether an offset is the constant that a stream begins with."""
    return bool(tree.get("initial")) and tree.get("sourceVersion") == SOURCE_VERSION


def parse_offset(tree: dict[str, Any], table: str) -> StreamOffset:
    """An offset that Spark hands back; raises StreamError where it is none of this source, or of another format version."""
    if "version" not in tree and ("reservoirVersion" in tree or "tableVersion" in tree):
        return _of_the_jvm_connector(tree, table)
    _check_version(tree, table)
    identity = StreamIdentity(
        _text(tree, "tableId", table), _text(tree, "mode", table), _text(tree, "format", table), tree.get("fileIdHash")
    )
    first = tree.get("first")
    if not isinstance(first, dict):
        raise _invalid("first", first, table)
    return StreamOffset(_position(tree, table), _position(first, table), identity)


def check_identity(offset: StreamOffset, now: StreamIdentity, table: str) -> None:
    """Compare an offset with what the stream reads now.

    Raises:
        StreamError: Another table; or, in the middle of a version, another order of its files.
    """
    then = offset.identity
    if then.table_id and now.table_id and then.table_id != now.table_id:
        raise StreamError(
            f"the checkpoint belongs to a table with the id {then.table_id}, {table} has the id {now.table_id}: "
            f"the table was replaced. Please delete your streaming query checkpoint and restart"
        )
    if not offset.position.in_the_middle:
        return
    same = then.mode == now.mode and then.hash == now.hash and (then.hash is not None or then.format == now.format)
    if not same:
        raise StreamError(
            f"the stream of {table} stopped in the middle of version {offset.position.version}, read by "
            f"accessMode={then.mode} in the {then.format} format (file ids: {then.hash or 'of that format'}); "
            f"it goes on only in the same way: set accessMode={then.mode}"
            f"{f' and responseFormat={then.format}' if then.mode == 'url' else ''} until that version is read"
        )


def _check_version(tree: dict[str, Any], table: str) -> None:
    version = tree.get("sourceVersion")
    if version is None:
        raise StreamError(
            f"Cannot find 'sourceVersion' in an offset of the stream of {table}; "
            f"the checkpoint belongs to another source: start the stream with another checkpoint"
        )
    if not isinstance(version, int) or isinstance(version, bool):
        raise StreamError(
            f"sourceVersion({version}) is invalid in an offset of the stream of {table}; use another checkpoint"
        )
    if version != SOURCE_VERSION:
        raise StreamError(
            f"an offset of the stream of {table} has sourceVersion {version}, this release reads {SOURCE_VERSION}; "
            f"upgrade delta-sharing-spark, or start the stream with another checkpoint"
        )


def _for_the_jvm_connector(position: Position, table_id: str) -> dict[str, Any]:
    """Fields by which the JVM connector goes on from a position, or fails with what they say; it ignores those it does not know."""
    version: int | str = position.version
    if position.in_the_middle:
        part = f"{'the snapshot of ' if position.snapshot else ''}version {position.version}"
        version = (
            f"delta-sharing-spark has read {part} in part: let it finish that (Trigger.AvailableNow), then this checkpoint goes on; or "
            f"start another one with startingVersion={position.version + position.snapshot} once {part} is read"
        )
    both = {"tableVersion": version, "reservoirId": table_id, "reservoirVersion": version}
    return both if position.in_the_middle else {**both, "index": -1, "isStartingVersion": False}


def _of_the_jvm_connector(tree: dict[str, Any], table: str) -> StreamOffset:
    """An offset of the JVM connector, which is the end of a version; raises StreamError where it lies within a version, or is malformed."""
    is_delta = "reservoirVersion" in tree
    version = tree.get("reservoirVersion" if is_delta else "tableVersion")
    index, snapshot = tree.get("index"), tree.get("isStartingVersion")
    if not isinstance(version, int) or not isinstance(index, int) or not isinstance(snapshot, bool):
        raise _invalid("tableVersion, index, isStartingVersion", (version, index, snapshot), table)
    if index not in _NO_FILES or snapshot:
        part = f"the snapshot of version {version}" if snapshot else f"version {version}"
        raise StreamError(
            f"the checkpoint of the stream of {table} was written by the JVM connector, which had read {part} in part, in an order of its "
            f"own; let it finish that (Trigger.AvailableNow), then this checkpoint goes on here; or remove the rows of {part} and start "
            f"with a new checkpoint and {'no startingVersion' if snapshot else f'startingVersion={version}'}"
        )
    position = Position(version)
    identity = StreamIdentity(_text(tree, "reservoirId" if is_delta else "tableId", table), "url", "parquet", None)
    return StreamOffset(position, position, identity)


def _position_json(position: Position) -> dict[str, Any]:
    return {"version": position.version, "index": position.index, "snapshot": position.snapshot}


def _position(tree: dict[str, Any], table: str) -> Position:
    version, index, snapshot = tree.get("version"), tree.get("index"), tree.get("snapshot")
    index = 0 if index == -1 and not snapshot else index
    for name, number in (("version", version), ("index", index)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise _invalid(name, number, table)
    if not isinstance(snapshot, bool):
        raise _invalid("snapshot", snapshot, table)
    assert isinstance(version, int)
    assert isinstance(index, int)
    return Position(version, index, snapshot)


def _text(tree: dict[str, Any], name: str, table: str) -> str:
    value = tree.get(name)
    if not isinstance(value, str):
        raise _invalid(name, value, table)
    return value


def _invalid(name: str, value: object, table: str) -> StreamError:
    return StreamError(
        f"an offset of the stream of {table} has {name}={value!r}; the checkpoint is damaged: start the stream with another"
    )
