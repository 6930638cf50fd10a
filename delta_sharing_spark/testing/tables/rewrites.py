"""Deletes and updates of a table under construction: files written anew, or marked by deletion vectors, which are encoded here."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from delta_sharing_spark.scan.deletion_vector import MAGIC, Z85
from delta_sharing_spark.schema.types import Struct
from delta_sharing_spark.testing.tables.columns import table_of, to_logical
from delta_sharing_spark.testing.tables.data_files import FileWriter, LiveFile, mask_of

#: A file, which of its rows are chosen, and its logical rows.
_Hit = tuple[LiveFile, npt.NDArray[np.bool_], pa.Table]


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What rows to change, and how.

    Attributes:
        where: Chooses rows: an Arrow expression, a function of a logical table, or a mask.
        values: From the chosen rows to those in their place; None deletes.
        storage, prefix, offsets: Of deletion vectors, as ``write_vectors``; ``storage`` None rewrites files.
        change_files: Whether change files are written; None where the table's feed needs them.
    """

    where: Any
    values: Callable[[pa.Table], Any] | None
    storage: str | None
    change_files: bool | None
    prefix: str = ""
    offsets: bool = True


@dataclass(slots=True)
class RewriteResult:
    """A rewrite's outcome: the table's files, the commit's actions, and the change feed's rows by kind."""

    files: tuple[LiveFile, ...] = ()
    actions: list[dict[str, Any]] = field(default_factory=list)
    changes: list[tuple[str, pa.Table]] = field(default_factory=list)


def rewrite(
    files: Sequence[LiveFile], how: Rewrite, schema: Struct, writer: FileWriter, root: Path, stamp: int
) -> RewriteResult:
    """Apply ``how`` to a table's files at the time ``stamp`` (milliseconds)."""
    untouched: list[LiveFile] = []
    hit: list[_Hit] = []
    for file in files:
        rows = to_logical(file.live(), schema)
        mask = mask_of(how.where, rows)
        if mask.any():
            hit.append((file, mask, rows))
        else:
            untouched.append(file)
    out = RewriteResult(actions=[file.remove(stamp) for file, _, _ in hit])
    chosen = [rows.filter(pa.array(mask)) for _, mask, rows in hit]
    rests = [rows.filter(pa.array(~mask)) for _, mask, rows in hit]
    new = [] if how.values is None else [table_of(how.values(rows), schema) for rows in chosen]
    if how.storage is None:
        added: list[LiveFile] = []
        for index, rest in enumerate(rests):
            rows = pa.concat_tables([rest, new[index]]) if new else rest
            added += writer.write(rows, 1, stamp) if rows.num_rows else []
    else:
        added = _mark(hit, how, root, stamp)
        if any(rows.num_rows for rows in new):
            added += writer.write(pa.concat_tables(new), 1, stamp)
    whole = how.values is None and not any(rest.num_rows for rest in rests)
    if hit and how.change_files and not whole:
        kinds = ("delete",) if how.values is None else ("update_preimage", "update_postimage")
        out.changes = [(kinds[0], rows) for rows in chosen] + [(kinds[-1], rows) for rows in new]
        names = [kind for kind, rows in out.changes for _ in range(rows.num_rows)]
        every = pa.concat_tables([rows for _, rows in out.changes])
        out.actions += writer.write_changes(every, pa.array(names, pa.string()))
    elif how.storage is None:
        # Without change files a feed sees whole files leave and come.
        out.changes = [("delete", rows) for _, _, rows in hit] + [("insert", rows) for rows in [*rests, *new]]
    else:
        out.changes = [("delete", rows) for rows in chosen] + [("insert", rows) for rows in new]
    out.files = (*untouched, *added)
    out.actions += [{"add": dict(file.add)} for file in added]
    return out


def _mark(hit: Sequence[_Hit], how: Rewrite, root: Path, stamp: int) -> list[LiveFile]:
    """The files with rows left, each with its new vector."""
    assert how.storage is not None
    chosen = []
    for file, mask, _ in hit:
        assert file.rows is not None
        deleted = np.zeros(file.rows.num_rows, dtype=np.bool_) if file.deleted is None else file.deleted.copy()
        deleted[np.flatnonzero(~deleted)[mask]] = True
        if not deleted.all():
            chosen.append((file, deleted))
    rows = [np.flatnonzero(deleted) for _, deleted in chosen]
    if not rows:
        return []
    descriptors = write_vectors(root, rows, storage=how.storage, prefix=how.prefix, offsets=how.offsets)
    return [f.marked(deleted, d, stamp) for (f, deleted), d in zip(chosen, descriptors, strict=True)]


Rows = npt.NDArray[np.int64]


def write_vectors(
    root: Path, vectors: Sequence[Rows], *, storage: str = "u", prefix: str = "", offsets: bool = True
) -> list[dict[str, Any]]:
    """Lay down one operation's vectors and return their descriptors, in order.

    Args:
        vectors: Positions of deleted rows, one array for each data file.
        storage: ``"u"`` or ``"p"``: all in one file, relative by uuid or by absolute path; ``"i"``: in the log.
        prefix: Directory of a ``u`` vector.
        offsets: Whether descriptors carry an offset; without, every vector has a file of its own.
    """
    if storage == "i":
        payloads = [(encode(rows.tolist()), len(rows)) for rows in vectors]
        return [_descriptor("i", z85_encode(p + b"\0" * (-len(p) % 4)), p, count) for p, count in payloads]
    if not offsets:
        return [d for rows in vectors for d in _in_file(root, [rows], storage, prefix, offsets=False)]
    return _in_file(root, vectors, storage, prefix, offsets=True)


def _descriptor(storage: str, where: str, payload: bytes, cardinality: int, **offset: int) -> dict[str, Any]:
    named = {"storageType": storage, "pathOrInlineDv": where, **offset}
    return {**named, "sizeInBytes": len(payload), "cardinality": cardinality}


def _in_file(root: Path, vectors: Sequence[Rows], storage: str, prefix: str, *, offsets: bool) -> list[dict[str, Any]]:
    name = uuid.uuid4()
    path = root / prefix / f"deletion_vector_{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    where = prefix + z85_encode(name.bytes) if storage == "u" else path.absolute().as_uri()
    content = bytearray([FILE_VERSION])
    descriptors = []
    for rows in vectors:
        payload = encode(rows.tolist())
        offset = {"offset": len(content)} if offsets else {}
        descriptors.append(_descriptor(storage, where, payload, len(rows), **offset))
        content += frame(payload)
    path.write_bytes(content)
    return descriptors


#: First byte of a deletion vector file.
FILE_VERSION = 1


def z85_encode(data: bytes) -> str:
    """Encode bytes, a multiple of four, in Z85."""
    if len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not groups of four")
    out: list[str] = []
    for (value,) in struct.iter_unpack(">I", data):
        group = []
        for _ in range(5):
            value, digit = divmod(value, 85)
            group.append(Z85[digit])
        out += reversed(group)
    return "".join(out)


def encode(positions: Any) -> bytes:
    """The payload of a vector over ``positions`` (an iterable of row numbers)."""
    from pyroaring import BitMap64

    rows = BitMap64(positions)
    rows.run_optimize()
    return struct.pack("<i", MAGIC) + bytes(rows.serialize())


def frame(payload: bytes) -> bytes:
    """A payload as it lies in a file: size, payload, CRC-32."""
    return struct.pack(">i", len(payload)) + payload + struct.pack(">I", zlib.crc32(payload))
