"""Deletion vectors as writers lay them down: inline, in files by uuid, at absolute paths; several to a file."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from delta_sharing_spark.scan.deletion_vector import FILE_VERSION, encode, frame, z85_encode

Rows = npt.NDArray[np.int64]


def write_vectors(
    root: Path, vectors: Sequence[Rows], *, storage: str = "u", prefix: str = "", offsets: bool = True
) -> list[dict[str, Any]]:
    """Lay down one operation's vectors and return their descriptors, in order.

    Args:
        root: The table's directory.
        vectors: Positions of deleted rows, one array for each data file.
        storage: ``"u"`` or ``"p"``: all in one file, relative by uuid or by absolute path; ``"i"``: in the log.
        prefix: Directory of a ``u`` vector.
        offsets: Whether descriptors carry an offset; without, every vector has a file of its own.
    """
    if storage == "i":
        return [_inline(encode(rows.tolist()), len(rows)) for rows in vectors]
    if not offsets:
        return [d for rows in vectors for d in _in_file(root, [rows], storage, prefix, offsets=False)]
    return _in_file(root, vectors, storage, prefix, offsets=True)


def _inline(payload: bytes, cardinality: int) -> dict[str, Any]:
    padded = payload + b"\0" * (-len(payload) % 4)
    return {
        "storageType": "i",
        "pathOrInlineDv": z85_encode(padded),
        "sizeInBytes": len(payload),
        "cardinality": cardinality,
    }


def _in_file(root: Path, vectors: Sequence[Rows], storage: str, prefix: str, *, offsets: bool) -> list[dict[str, Any]]:
    name = uuid.uuid4()
    path = root / prefix / f"deletion_vector_{name}.bin" if prefix else root / f"deletion_vector_{name}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    where = prefix + z85_encode(name.bytes) if storage == "u" else path.absolute().as_uri()
    content = bytearray([FILE_VERSION])
    descriptors = []
    for rows in vectors:
        payload = encode(rows.tolist())
        descriptor: dict[str, Any] = {"storageType": storage, "pathOrInlineDv": where}
        if offsets:
            descriptor["offset"] = len(content)
        descriptors.append(descriptor | {"sizeInBytes": len(payload), "cardinality": len(rows)})
        content += frame(payload)
    path.write_bytes(content)
    return descriptors
