"""Parses commits: protocol and metadata actions, and file actions into Arrow columns (Delta protocol, "Actions").

Arrow's JSON reader parses file actions where it takes a commit's lines; else they are parsed line by line.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from delta_sharing_spark.deltalog.paths import decode_uri, join
from delta_sharing_spark.errors import LogError, out_of_memory
from delta_sharing_spark.scan.deletion_vector import z85_decode
from delta_sharing_spark.scan.plan import MAX_FILE_BYTES, MAX_FILE_ROWS, MAX_VECTOR_BYTES, DeletionVector
from delta_sharing_spark.schema.arrow_bridge import empty_table
from delta_sharing_spark.schema.table_records import Metadata, Protocol, read_metadata, read_protocol
from delta_sharing_spark.schema.typed_json import decode_json, record_of

_T = TypeVar("_T")
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
CHANGE_DATA_FEED = "delta.enableChangeDataFeed"

VECTOR_TYPE = pa.struct([
    ("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()),
    ("sizeInBytes", pa.int32()), ("cardinality", pa.int64()),
])  # fmt: skip


def file_action_schema(partition_columns: Collection[str]) -> pa.Schema:
    """The columns of JSON commits that a snapshot needs; partition values as a struct of their keys."""
    partitions = pa.struct([(name, pa.string()) for name in sorted(set(partition_columns))])
    add = pa.struct([
        ("path", pa.string()), ("partitionValues", partitions), ("size", pa.int64()),
        ("modificationTime", pa.int64()), ("stats", pa.string()), ("deletionVector", VECTOR_TYPE),
    ])  # fmt: skip
    remove = pa.struct([("path", pa.string()), ("deletionVector", VECTOR_TYPE)])
    return pa.schema([("add", add), ("remove", remove)])


def protocol_from(tree: Mapping[str, Any], where: str) -> Protocol:
    """A ``protocol`` action from JSON or a checkpoint's row of the file ``where``; raises LogError where it is malformed."""
    return _record("protocol", read_protocol, tree, where)


def metadata_from(tree: Mapping[str, Any], where: str) -> Metadata:
    """A ``metaData`` action from JSON or a checkpoint's row. Raises as ``protocol_from``."""
    return _record("metaData", read_metadata, tree, where)


def _record(kind: str, read: Callable[[Mapping[str, Any]], _T], tree: Mapping[str, Any], where: str) -> _T:
    try:
        return read(tree)
    except ValueError as error:
        why = f"the {kind} action in {where} is malformed: {error}; the table's log is corrupt"
        raise LogError(why) from None


#: Bytes of lines that are parsed together.
PARSED_BYTES = 1 << 20
#: A line that does not begin an object. Arrow's reader dies of a block that begins with ``null``.
_NO_OBJECT = re.compile(rb"(?:\A|[\r\n])[ \t]*[^{ \t\r\n]")
#: Half of a surrogate pair, as JSON escapes it; alone it is no character.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def find_actions(data: bytes, kind: str, where: str) -> Iterator[dict[str, Any]]:
    """The actions of one kind (``protocol``, ``metaData``, ``commitInfo``...) in a commit, in order, as JSON objects.

    Only lines that hold the quoted name are parsed, so this is cheap on large commits.

    Raises:
        LogError: Such a line is not JSON, or its action is not an object.
    """
    needle = f'"{kind}"'.encode()
    position = data.find(needle)
    while position >= 0:
        start = data.rfind(b"\n", 0, position) + 1
        end = data.find(b"\n", position)
        end = len(data) if end < 0 else end
        action = action_of(parse_line(data[start:end], where), kind, where)
        if action is not None:
            yield action
        position = data.find(needle, end)


def action_of(tree: dict[str, Any], kind: str, where: str) -> dict[str, Any] | None:
    """The action of one kind on a parsed line, None if it holds another; raises LogError where it is not an object."""
    action = tree.get(kind)
    if action is not None and not isinstance(action, dict):
        raise _corrupt(where, f"the action {kind!r} of a line is not an object")
    return action


class FileAction(msgspec.Struct, rename="camel"):
    """An ``add``, ``remove`` or ``cdc`` action, as far as it is read. Numbers may be written otherwise (``whole_count``)."""

    path: str
    size: int | float | str | None = None
    modification_time: int | float | str | None = None
    partition_values: dict[str, str | None] | None = None
    stats: Any = None
    deletion_vector: dict[str, Any] | None = None
    data_change: Any = None

    @property
    def stats_text(self) -> str | None:
        """Its statistics as JSON."""
        return self.stats if isinstance(self.stats, str | None) else json.dumps(self.stats)


def file_action(tree: dict[str, Any], kind: str, where: str) -> FileAction | None:
    """As ``action_of``, of a kind that is about a file; raises LogError where a field of it is missing or of another type."""
    action = action_of(tree, kind, where)
    try:
        return None if action is None else record_of(FileAction, action, kind)
    except ValueError as error:
        raise _corrupt(where, str(error)) from None


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """One line of a commit; raises LogError where it is not a JSON object of Unicode text."""
    try:
        tree = decode_json(str(line, "utf-8"))
        if _SURROGATE.search(line):
            json.dumps(tree, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _corrupt(where, str(error)) from error
    if not isinstance(tree, dict):
        raise _corrupt(where, "a line is not an object")
    return tree


def parse_lines(data: bytes, where: str) -> Iterator[dict[str, Any]]:
    """Every action of a commit, in order. Raises as :func:`parse_line`."""
    for line in data.split(b"\n"):
        if line.strip():
            yield parse_line(line, where)


def split_lines(data: bytes, size: int) -> Iterator[bytes]:
    """Pieces of whole lines, of about ``size`` bytes each (more where a line is longer)."""
    start = 0
    while start < len(data):
        end = len(data)
        if end - start > size:
            end = data.rfind(b"\n", start, start + size) + 1 or data.find(b"\n", start + size) + 1 or end
        yield data[start:end]
        start = end


def parse_file_actions(files: list[tuple[str, bytes]], partition_columns: Collection[str]) -> pa.Table:
    """Adds and removes of commits, in the commits' order.

    Args:
        files: Names and contents, oldest first; of about ``PARSED_BYTES`` together, for they are parsed as one block.
        partition_columns: Keys of the partition values to read.

    Returns:
        A table of :func:`file_action_schema`; rows of other actions are null in both columns.

    Raises:
        LogError: A line that is not JSON, or an action whose fields have the wrong types.
    """
    schema = file_action_schema(partition_columns)
    data = b"\n".join(content for _, content in files if content)
    if _has_objects_only(data):
        try:
            table = _read_arrow(data, schema)
            table.validate(full=True)  # text is UTF-8
            return table
        except (pa.ArrowException, UnicodeDecodeError):
            pass
    # A line that Arrow's reader does not take: Python's tells which file, or takes it.
    tables = [_read_python(content, schema, name) for name, content in files]
    return pa.concat_tables(tables) if tables else empty_table(schema)


def _has_objects_only(data: bytes) -> bool:
    """Whether every line begins an object, decided by each first character where lines look as writers write them."""
    if data.startswith(b"{") and b"\r" not in data:
        characters = np.frombuffer(data, np.uint8)
        first = characters[1:][characters[:-1] == ord("\n")]
        if ((first == ord("{")) | (first == ord("\n"))).all():
            return True
    return _NO_OBJECT.search(data) is None


def _read_arrow(data: bytes, schema: pa.Schema) -> pa.Table:
    import pyarrow.json as arrow_json

    if not data or data.isspace():
        return empty_table(schema)
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    return arrow_json.read_json(
        pa.BufferReader(data),
        read_options=arrow_json.ReadOptions(block_size=len(data) + 2, use_threads=False),
        parse_options=options,
    )


def _read_python(data: bytes, schema: pa.Schema, where: str) -> pa.Table:
    adds: list[dict[str, Any] | None] = []
    removes: list[dict[str, Any] | None] = []
    partitions = [field.name for field in schema.field("add").type.field("partitionValues").type]
    try:
        for tree in parse_lines(data, where):
            add, remove = (file_action(tree, kind, where) for kind in ("add", "remove"))
            if add is not None or remove is not None:
                adds.append(None if add is None else _add(add, partitions))
                removes.append(
                    None if remove is None else {"path": remove.path, "deletionVector": remove.deletion_vector}
                )
        return pa.table(
            [pa.array(adds, schema.field("add").type), pa.array(removes, schema.field("remove").type)], schema=schema
        )
    except MemoryError as error:
        raise out_of_memory(where, error) from None
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _corrupt(where, str(error)) from error


def _add(add: FileAction, partitions: list[str]) -> dict[str, Any]:
    values, modified = add.partition_values, add.modification_time
    return {
        "path": add.path,
        "partitionValues": None if values is None else {name: values.get(name) for name in partitions},
        "size": whole_count(add.size),
        "modificationTime": None if modified is None else whole_count(modified),
        "stats": add.stats_text,
        "deletionVector": add.deletion_vector,
    }


def whole_count(value: Any) -> int:
    """An integer from any spelling of it: ``10``, ``1e1``, ``"10"``."""
    if isinstance(value, bool) or int(value) != float(value):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


def _corrupt(where: str, why: str) -> LogError:
    return LogError(
        f"the commit {where} is corrupt: {why}; if the table is being written, try again, else ask the provider to "
        f"repair its log",
        file=where,
    )


_UUID_CHARACTERS = 20
_FIELDS = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")


def unique_id(storage: str, path_or_inline: str, offset: int | None) -> str:
    """The id that makes a logical file together with its path (Delta protocol, "Deletion Vector Descriptor Schema")."""
    return f"{storage}{path_or_inline}" if offset is None else f"{storage}{path_or_inline}@{offset}"


def relative_vector_path(path_or_inline: str) -> str:
    """The path of a vector with storage ``u`` below the table's root; raises ValueError where the text does not end in a uuid."""
    if len(path_or_inline) < _UUID_CHARACTERS:
        raise ValueError(f"{len(path_or_inline)} characters hold no uuid of {_UUID_CHARACTERS}")
    prefix, encoded = path_or_inline[:-_UUID_CHARACTERS], path_or_inline[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{uuid.UUID(bytes=z85_decode(encoded))}.bin"
    return f"{prefix}/{name}" if prefix else name


def vector_from(descriptor: Mapping[str, Any], root: str, file: str) -> DeletionVector:
    """A descriptor of the log as a plan carries it: its storage is ``i``, or ``p`` with an absolute location.

    Args:
        root: The table's location, where a path of storage ``u`` starts.
        file: The data file, for errors.

    Raises:
        LogError: A descriptor that is incomplete, of wrong types or sizes, or of an unknown storage type.
    """
    storage, path_or_inline, offset, size, cardinality = map(descriptor.get, _FIELDS)
    if not isinstance(storage, str) or not isinstance(path_or_inline, str):
        raise _bad_descriptor(file, "storageType and pathOrInlineDv must both be there, as text")
    if not _is_count(size, MAX_VECTOR_BYTES) or not _is_count(cardinality, MAX_FILE_ROWS):
        raise _bad_descriptor(
            file,
            f"sizeInBytes must be 0 to {MAX_VECTOR_BYTES} and cardinality 0 to {MAX_FILE_ROWS}, they are "
            f"{str(size)[:50]} and {str(cardinality)[:50]}",
        )
    if offset is not None and not _is_count(offset, MAX_FILE_BYTES):
        raise _bad_descriptor(file, f"its offset is {str(offset)[:50]}")
    name = unique_id(storage, path_or_inline, offset)
    if storage == "i":
        return DeletionVector("i", path_or_inline, offset, size, cardinality, name)
    if storage == "p":
        return DeletionVector("p", join(root, decode_uri(path_or_inline)), offset, size, cardinality, name)
    if storage == "u":
        try:
            location = join(root, relative_vector_path(path_or_inline))
        except ValueError as error:
            raise _bad_descriptor(file, f"its path {path_or_inline!r} holds no uuid ({error})") from error
        return DeletionVector("p", location, offset, size, cardinality, name)
    raise _bad_descriptor(file, f"the storage type {storage!r} is unknown")


def _is_count(value: object, most: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= most


def _bad_descriptor(file: str, why: str) -> LogError:
    return LogError(
        f"the deletion vector of {file} cannot be located: {why}; ask the provider to check the table's log", file=file
    )
