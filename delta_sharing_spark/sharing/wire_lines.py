"""Decodes the lines of a query's answer by msgspec: typed bodies of single lines, and blocks of file lines in columns.

Numbers may stand as text, as JavaScript needs those of 64 bits, or as ``7.0``. Unknown fields are skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec

from delta_sharing_spark.errors import ResponseError
from delta_sharing_spark.scan.plan import (
    MAX_FILE_BYTES,
    MAX_FILE_ROWS,
    MAX_MILLIS,
    MAX_VECTOR_BYTES,
    DeletionVector,
    FileTask,
    rows_in_stats,
)
from delta_sharing_spark.schema.typed_json import record_of
from delta_sharing_spark.sharing.wire_records import integer, malformed, quoted

#: A number, as servers write it; ``integer`` reads it.
_Number: TypeAlias = int | float | str | None
#: Numbers as most servers write them, which msgspec checks: what is of another form is decoded once more, as a ``_Number``.
_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
_Long: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Millis: TypeAlias = Annotated[int, msgspec.Meta(ge=-MAX_MILLIS, le=MAX_MILLIS)]


#: Partition values of a line that has none.
_NO_VALUES = msgspec.Raw(b"null")


class _Body(msgspec.Struct, rename="camel", gc=False):
    """The body of a line; its fields stand there in camel case."""


class _VectorBody(_Body):
    """``deletionVector`` of the delta format."""

    storage_type: str | None = None
    path_or_inline_dv: str | None = None
    offset: _Number = None
    size_in_bytes: _Number = None
    cardinality: _Number = None


class _FileAction(_Body):
    """An ``add``, ``remove`` or ``cdc`` of the delta format, as in the Delta log but for ``path``, a presigned URL."""

    path: str | None = None
    size: _Number = None
    partition_values: dict[str, str | None] | None = None
    stats: Any = None
    deletion_vector: _VectorBody | None = None
    data_change: Any = True


class _PlainAdd(_Body, kw_only=True):
    """An ``add`` of the usual forms, in the usual order, which is found faster. Its partition values are text still: those of many files
    are equal, and decoded once."""

    path: str
    partition_values: msgspec.Raw = _NO_VALUES
    size: _Size
    data_change: bool = True
    stats: str | None = None
    deletion_vector: _VectorBody | None = None


class _AddOnly(_Body):
    """``deltaSingleAction`` with an ``add`` alone."""

    add: _PlainAdd
    remove: None = None
    cdc: None = None


class _SingleAction(_Body):
    """``deltaSingleAction``: one action of a file, or one that is no file's."""

    add: _FileAction | None = None
    remove: _FileAction | None = None
    cdc: _FileAction | None = None


class _LineAround(_Body):
    """What a line of a file says in either format."""

    id: str | None = None
    expiration_timestamp: _Number = None
    version: _Number = None
    timestamp: _Number = None


class _DeltaBody(_LineAround, kw_only=True):
    """A file's line of the delta format."""

    delta_single_action: _SingleAction
    deletion_vector_file_id: Any = None


class _PlainAround(_Body):
    """The same in the usual forms."""

    id: str
    expiration_timestamp: _Long | None = None
    version: _Long | None = None
    timestamp: _Millis | None = None


class _AddBody(_PlainAround, kw_only=True):
    """The line of an added file of the delta format."""

    delta_single_action: _AddOnly
    deletion_vector_file_id: Any = None


class _ParquetBody(_LineAround):
    """A file's line of the parquet format."""

    url: str | None = None
    size: _Number = None
    partition_values: dict[str, str | None] | None = None
    stats: Any = None


class _BareBody(_ParquetBody):
    """The same where nothing says that the line is of the other format: it has no action, for which there is no value."""

    delta_single_action: Literal["\0"] | msgspec.UnsetType = msgspec.UNSET


class _PlainBody(_PlainAround, kw_only=True):
    """The same in the usual forms."""

    url: str
    size: _Size
    partition_values: msgspec.Raw = _NO_VALUES
    stats: str | None = None
    delta_single_action: Literal["\0"] | msgspec.UnsetType = msgspec.UNSET


class _AddLine(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A line that is an added file's of the delta format, and nothing else."""

    file: _AddBody


class _DeltaLine(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A line that is a file's of the delta format, and nothing else."""

    file: _DeltaBody


class _ParquetLine(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A line that is a file's of the parquet format, and nothing else."""

    file: _BareBody


class _PlainLine(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The same in the usual forms."""

    file: _PlainBody


#: Actions of the delta format, and how the parquet format calls such lines.
_KINDS = {"add": "add", "cdc": "cdf", "remove": "remove"}
_add_lines = msgspec.json.Decoder(_AddLine).decode_lines
_delta_lines = msgspec.json.Decoder(_DeltaLine).decode_lines
_parquet_lines = msgspec.json.Decoder(_ParquetLine).decode_lines
_plain_lines = msgspec.json.Decoder(_PlainLine).decode_lines
#: In a block's beginning, it tells which format the block is decoded by first.
_WRAPPED, _LOOKED_AT = b'"deltaSingleAction"', 4096
_decode_values = msgspec.json.Decoder(dict[str, str | None] | None).decode
#: Partition values of an answer that are numbered together.
_MOST_VALUES = 4096
_T = TypeVar("_T")


class _Partitions(dict[bytes, int]):
    """Numbers partition values by their text, which is decoded once.

    Attributes:
        by_number: The values.
    """

    def __init__(self) -> None:
        self.by_number: list[dict[str, str | None] | None] = []

    def __missing__(self, text: bytes) -> int:
        self.by_number.append(_decode_values(text))
        self[text] = number = len(self.by_number) - 1
        return number


@dataclass(slots=True)
class FileBlock:
    """File lines of one kind in columns of equal length, in the order of the answer.

    Attributes:
        kind: ``"add"``, ``"cdf"`` or ``"remove"``.
        ids, urls, sizes: Of each file; ``urls`` are secrets.
        partition_values: Some, with all of the block's; None where a line has none. Blocks of an answer may share the list, which grows.
        partitions: The place of each file's among them.
        stats: JSON text; None where a line has none.
        expirations, versions, timestamps: Milliseconds since the epoch, but for ``versions``; None where a line has none.
        vectors: Deletion vectors by a file's place.
        unchanged: Places of files whose line says that they change no data.
    """

    kind: str
    ids: list[str]
    urls: list[str] = field(repr=False)
    sizes: list[int]
    partition_values: list[dict[str, str | None] | None]
    partitions: list[int]
    stats: list[str | None] = field(repr=False)
    expirations: list[int | None]
    versions: list[int | None]
    timestamps: list[int | None]
    vectors: Mapping[int, DeletionVector] = field(default_factory=dict)
    unchanged: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.ids)

    def tasks(self) -> Iterator[FileTask]:
        """A task for each file, with the version and the time of its line."""
        for place, stats in enumerate(self.stats):
            expires = self.expirations[place]
            yield FileTask(
                id=self.ids[place],
                location=self.urls[place],
                size=self.sizes[place],
                partition_values=self.partition_values[self.partitions[place]],
                rows=rows_in_stats(stats),
                deletion_vector=self.vectors.get(place),
                commit_version=self.versions[place],
                commit_timestamp=self.timestamps[place],
                expires_at=expires / 1000 if expires else None,
                stats=stats,
            )

    def take(self, places: Sequence[int]) -> FileBlock:
        """The files at some places, in their order."""
        old = dict(enumerate(places))
        return FileBlock(
            self.kind,
            [self.ids[place] for place in places],
            [self.urls[place] for place in places],
            [self.sizes[place] for place in places],
            self.partition_values,
            [self.partitions[place] for place in places],
            [self.stats[place] for place in places],
            [self.expirations[place] for place in places],
            [self.versions[place] for place in places],
            [self.timestamps[place] for place in places],
            {new: self.vectors[place] for new, place in old.items() if place in self.vectors} if self.vectors else {},
            frozenset(new for new, place in old.items() if place in self.unchanged)
            if self.unchanged
            else self.unchanged,
        )


def _body_of(kind: type[_T], tree: Any, table: str) -> _T:
    """The body of a file's line as its type; raises ResponseError, which names the field, where it is of another form."""
    try:
        return record_of(kind, tree, "file")
    except ValueError as error:
        raise malformed(str(error), table) from None


class FileLines:
    """Reads the file lines of one answer, many together; partition values that are equal stand once.

    Args:
        table: How errors name the table.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._partitions = _Partitions()

    def blocks(self, block: bytes) -> list[FileBlock] | None:
        """Blocks of lines that are all files' in one format; None where some are not, or one is of another form than the protocol's.

        Raises:
            ResponseError: A field that the types do not tell is wrong.
        """
        if len(self._partitions) > _MOST_VALUES:
            self._partitions = _Partitions()
        try:
            if _WRAPPED in block[:_LOOKED_AT]:
                with suppress(msgspec.ValidationError):  # there are lines of other actions, or of other forms
                    return [self._adds([line.file for line in _add_lines(block)])]
                return _delta_blocks([line.file for line in _delta_lines(block)], self._table)
            with suppress(msgspec.ValidationError):
                bodies = [line.file for line in _plain_lines(block)]
                return [self._plain(bodies, bodies, [body.url for body in bodies])]
            return [_parquet_block([line.file for line in _parquet_lines(block)], "add", self._table)]
        except (ValueError, RecursionError):
            return None

    def _adds(self, bodies: list[_AddBody]) -> FileBlock:
        actions = [body.delta_single_action.add for body in bodies]
        block = self._plain(bodies, actions, [action.path for action in actions])
        _add_vectors(block, bodies, [action.deletion_vector for action in actions], self._table)
        changes = [action.data_change for action in actions]
        if not all(changes):
            block.unchanged = frozenset(place for place, change in enumerate(changes) if not change)
        return block

    def _plain(
        self, bodies: Sequence[_PlainAround], actions: Sequence[_PlainAdd | _PlainBody], urls: list[str]
    ) -> FileBlock:
        """The columns of lines of the usual forms."""
        texts = map(bytes, [action.partition_values for action in actions])
        return FileBlock(
            "add",
            [body.id for body in bodies],
            urls,
            [action.size for action in actions],
            self._partitions.by_number,
            list(map(self._partitions.__getitem__, texts)),
            [action.stats for action in actions],
            [body.expiration_timestamp for body in bodies],
            [body.version for body in bodies],
            [body.timestamp for body in bodies],
        )


def blocks_of(tree: Any, kind: str, table: str) -> list[FileBlock]:
    """The block of one line of ``kind``, from its body; none for an action that is no file's. Raises ResponseError."""
    body: _DeltaBody | _ParquetBody
    if kind == "file" and isinstance(tree, dict) and "deltaSingleAction" in tree:
        body = _body_of(_DeltaBody, tree, table)
        blocks = _delta_blocks([body], table)
    else:
        body = _body_of(_ParquetBody, tree, table)
        blocks = [_parquet_block([body], "add" if kind == "file" else kind, table)]
    texts = [body.id or ""]
    for block in blocks:
        # Python's JSON reads halves of surrogate pairs. Statistics that hold one tell nothing; a name or a value is wrong.
        block.stats = [text if text is None or _is_unicode(text) else None for text in block.stats]
        texts += [*block.urls, *(text for values in block.partition_values for text in _texts(values))]
    if not all(map(_is_unicode, texts)):
        raise malformed("a file line has an id, a URL or partitionValues that are not Unicode", table)
    return blocks


def _texts(values: Mapping[str, str | None] | None) -> list[str]:
    return [text for pair in (values or {}).items() for text in pair if text]


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _delta_blocks(bodies: list[_DeltaBody], table: str) -> list[FileBlock]:
    """Blocks of consecutive lines of one kind; lines of actions that are no file's are left out."""
    blocks = []
    for name, run in itertools.groupby(bodies, _action_name):
        if name in _KINDS:
            blocks.append(_delta_block(list(run), name, table))
        elif name:
            raise malformed(f"a deltaSingleAction is {name} at once", table)
    return blocks


def _action_name(body: _DeltaBody) -> str:
    """The action in a line: empty where it is no file's, several names where it is."""
    single = body.delta_single_action
    if single.add is not None and single.remove is None and single.cdc is None:
        return "add"
    return " and ".join(name for name in _KINDS if getattr(single, name) is not None)


def _parquet_block(bodies: Sequence[_ParquetBody], kind: str, table: str) -> FileBlock:
    return _block(kind, bodies, bodies, [body.url for body in bodies], "url", table)


def _delta_block(bodies: Sequence[_DeltaBody], name: str, table: str) -> FileBlock:
    actions: list[_FileAction] = [getattr(body.delta_single_action, name) for body in bodies]
    block = _block(_KINDS[name], bodies, actions, [action.path for action in actions], "path", table)
    _add_vectors(block, bodies, [action.deletion_vector for action in actions], table)
    changes = [action.data_change for action in actions]
    if not all(isinstance(change, bool) for change in changes):
        odd = next(change for change in changes if not isinstance(change, bool))
        raise malformed(f"dataChange is {quoted(odd)}", table)
    block.unchanged = frozenset(place for place, change in enumerate(changes) if not change)
    return block


def _add_vectors(
    block: FileBlock, bodies: Sequence[_DeltaBody | _AddBody], vectors: Sequence[_VectorBody | None], table: str
) -> None:
    """Add the deletion vectors of lines to their block."""
    if vectors.count(None) < len(vectors):
        block.vectors = {
            place: _vector(vector, bodies[place], block.versions[place], block.kind, table)
            for place, vector in enumerate(vectors)
            if vector is not None
        }


def _block(
    kind: str,
    bodies: Sequence[_LineAround],
    actions: Sequence[_ParquetBody | _FileAction],
    urls: list[str | None],
    path: str,
    table: str,
) -> FileBlock:
    """The columns of some lines: what their actions say of files (``actions``), and what the lines around them say (``bodies``)."""
    ids = [body.id for body in bodies]
    if None in ids or None in urls:
        raise malformed(f"the line of a file ({kind}) lacks its {path} or id", table)
    sizes = _integers([action.size for action in actions], "the size of a file", table, 0, MAX_FILE_BYTES)
    if None in sizes:
        raise malformed("a file line has no size", table)
    return FileBlock(
        kind,
        cast("list[str]", ids),
        cast("list[str]", urls),
        cast("list[int]", sizes),
        *_different([action.partition_values for action in actions]),
        [action.stats if type(action.stats) is str else None for action in actions],
        _integers([body.expiration_timestamp for body in bodies], "expirationTimestamp", table),
        _integers([body.version for body in bodies], "version", table),
        _integers([body.timestamp for body in bodies], "timestamp", table, -MAX_MILLIS, MAX_MILLIS),
    )


def _different(
    values: Sequence[dict[str, str | None] | None],
) -> tuple[list[dict[str, str | None] | None], list[int]]:
    """The different ones of partition values, and the place of each among them."""
    numbers: dict[Any, int] = {}
    keys = [None if of_file is None else tuple(of_file.items()) for of_file in values]
    partitions = [numbers.setdefault(key, len(numbers)) for key in keys]
    return [None if key is None else dict(key) for key in numbers], partitions


def _integers(
    numbers: list[_Number], name: str, table: str, least: int = -(1 << 63), most: int = (1 << 63) - 1
) -> list[int | None]:
    """The numbers of a column, each as ``integer`` reads it."""
    kinds = set(map(type, numbers))
    if kinds == {type(None)} or (kinds == {int} and least <= min(numbers) <= max(numbers) <= most):  # type: ignore[type-var, operator]
        return cast("list[int | None]", numbers)
    return [integer(number, name, table, least, most) for number in numbers]


def _vector(
    body: _VectorBody, line: _DeltaBody | _AddBody, version: int | None, kind: str, table: str
) -> DeletionVector:
    """The deletion vector of a line; its path is a presigned URL unless it is inline."""
    storage, path = body.storage_type, body.path_or_inline_dv
    size = integer(body.size_in_bytes, "sizeInBytes", table, 0, MAX_VECTOR_BYTES)
    if storage is None or path is None or size is None:
        raise malformed("a deletion vector lacks its storageType, pathOrInlineDv or sizeInBytes", table)
    cardinality = integer(body.cardinality, "cardinality", table, 0, MAX_FILE_ROWS)
    if cardinality is None:
        raise malformed("a deletion vector lacks its cardinality", table)
    offset = integer(body.offset, "offset", table, 0, MAX_FILE_BYTES)
    if storage not in ("i", "p", "u"):
        raise ResponseError(
            f"file {line.id} of {table} has a deletion vector of the unknown storage type {storage!r}; "
            f"upgrade delta-sharing-spark"
        )
    file_id = line.deletion_vector_file_id if isinstance(line.deletion_vector_file_id, str) else None
    # One version may remove a file with one vector and add it with another: both keep their own name.
    name = file_id or f"{line.id}/{kind}/{version}"
    unique_id = f"i{path}" if storage == "i" else f"{name}@{offset}"
    return DeletionVector(storage, path, offset, size, cardinality, unique_id, file_id)
