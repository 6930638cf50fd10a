"""Reconciles the commits after a checkpoint, so that of each logical file the newest action counts.

A logical file is a path with a deletion vector's id. Commits are parsed oldest first, so the last occurrence wins.
Only columns are kept, paths and statistics compressed. Files that are named more than once are found by a hash of
their key, and then compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.deltalog.add_batch import AddBatch, PartitionKeys, decode_paths, from_struct, normalize_vectors
from delta_sharing_spark.deltalog.paths import is_absolute, qualify
from delta_sharing_spark.errors import LogError
from delta_sharing_spark.schema import arrow_bridge as columns

#: Between path and vector id in a key; no path holds it.
_SEPARATOR = "\0"
#: Odd factors of the words of a key that is hashed; a longer key is hashed by Python.
_WEIGHTS = np.array([pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(1, 65)], np.uint64)


@dataclass(slots=True)
class _Part:
    """Consecutive actions: the adds among them (all, where ``is_add`` is None), and the keys of all.

    ``adds`` lacks the paths and the statistics, which are kept beside it.
    """

    adds: pa.StructArray
    paths: pa.Buffer
    stats: pa.Buffer
    keys: pa.Buffer | None
    is_add: npt.NDArray[np.bool_] | None
    hashes: npt.NDArray[np.uint64]
    alive: npt.NDArray[np.bool_] | None = None


class CommitTail:
    """The actions of consecutive commits: call :meth:`append` for all of them, then :meth:`finish`, then read.

    Args:
        root: The table's location.
        has_checkpoint: Whether a checkpoint comes before, whose files these actions may supersede.
    """

    def __init__(self, root: str, *, has_checkpoint: bool) -> None:
        self._root, self._has_checkpoint = root, has_checkpoint
        self._parts: list[_Part] = []
        self._seen_keys: pa.StringArray | None = None
        self._seen_paths: pa.StringArray | None = None
        self._has_vectors = False

    def append(self, files: list[tuple[str, bytes]], table: pa.Table) -> None:
        """Take in commits (names and contents, oldest first), as ``parse_file_actions`` reads them; raises LogError where one is corrupt."""
        if not table.num_rows:
            return
        adds, removes = (pa.concat_arrays(table.column(name).chunks) for name in ("add", "remove"))
        is_add, is_remove = columns.bools(adds.is_valid()), columns.bools(removes.is_valid())
        if (is_add & is_remove).any():
            raise LogError(f"a line of {_span(files)} is both an add and a remove; the table's log is corrupt")
        if not (is_add | is_remove).all():
            relevant = columns.mask(is_add | is_remove)
            adds, removes, is_add = adds.filter(relevant), removes.filter(relevant), is_add[is_add | is_remove]
        if not len(adds):
            return
        keys = self._make_keys(adds)
        kind = None
        if not is_add.all():
            kind, add_mask = is_add, columns.mask(is_add)
            keys = pc.if_else(add_mask, keys, self._make_keys(removes))
            adds = adds.filter(add_mask)
        if keys.null_count:
            raise LogError(f"an add or remove in {_span(files)} has no path; the table's log is corrupt")
        hashes = key_hashes(keys)
        rest, paths, stats = _packed(adds)
        packed = paths if kind is None and keys.equals(adds.field("path")) else columns.packed(keys)
        self._parts.append(_Part(rest, paths, stats, packed, kind, hashes))
        columns.release_unused()

    def _make_keys(self, actions: pa.StructArray) -> pa.StringArray:
        paths = canonical_paths(decode_paths(actions.field("path")), self._root)
        vectors = normalize_vectors(actions.field("deletionVector"))
        if vectors is None:
            return paths
        self._has_vectors = True
        return file_keys(paths, vectors)

    def finish(self) -> None:
        """Find which adds are alive; keys are kept only if a checkpoint comes before."""
        if not self._parts:
            return
        hashes = np.concatenate([part.hashes for part in self._parts])
        superseded = np.isin(hashes, repeated_hashes(hashes))
        ends = np.cumsum([len(part.hashes) for part in self._parts])[:-1]
        texts: list[str] = []
        for part, suspects in zip(self._parts, np.split(superseded, ends), strict=True):
            if suspects.any():
                assert part.keys is not None
                texts += columns.unpacked(part.keys).filter(columns.mask(suspects)).to_pylist()
        newest = {text: place for place, text in enumerate(texts)}
        superseded[superseded] = [newest[text] != place for place, text in enumerate(texts)]
        for part, old in zip(self._parts, np.split(superseded, ends), strict=True):
            if old.any():
                part.alive = ~old if part.is_add is None else ~old[part.is_add]
        if self._has_checkpoint:
            keys = [columns.unpacked(part.keys) for part in self._parts if part.keys is not None]
            self._seen_keys = pc.unique(pa.chunked_array(keys, pa.string()))
            self._seen_paths = self._seen_keys
            if self._has_vectors:
                self._seen_paths = columns.strings(
                    [key.partition(_SEPARATOR)[0] for key in self._seen_keys.to_pylist()]
                )
        for part in self._parts:
            part.keys, part.is_add, part.hashes = None, None, part.hashes[:0]

    def adds(self, partition_columns: PartitionKeys, *, with_stats: bool) -> Iterator[AddBatch]:
        """The adds that are alive, in batches."""
        for part in self._parts:
            if len(part.adds):
                texts = columns.unpacked(part.stats) if with_stats else None
                names = ["path", *(field.name for field in part.adds.type)]
                adds = pa.StructArray.from_arrays([columns.unpacked(part.paths), *part.adds.flatten()], names)
                batch = from_struct(adds, self._root, partition_columns, stats=texts)
                alive = batch if part.alive is None else batch.filter(part.alive)
                if alive.num_rows:
                    yield alive

    def without_superseded(self, batch: AddBatch) -> AddBatch:
        """A checkpoint's files without those that these commits add again or remove."""
        if self._seen_keys is None:
            return batch
        paths = canonical_paths(batch.paths, self._root)
        touched = pc.is_in(paths, value_set=self._seen_paths)
        if not touched.true_count:
            return batch
        if self._has_vectors or batch.vectors is not None:
            touched = pc.is_in(snapshot_keys(batch), value_set=self._seen_keys)
        return batch.filter(pc.invert(touched))


def _packed(adds: pa.StructArray) -> tuple[pa.StructArray, pa.Buffer, pa.Buffer]:
    """Split adds into the struct without paths and statistics, and these two compressed."""
    arrays = {field.name: adds.field(field.name) for field in adds.type}
    paths, stats = (columns.packed(arrays.pop(name)) for name in ("path", "stats"))
    if normalize_vectors(arrays["deletionVector"]) is None:
        del arrays["deletionVector"]
    return pa.StructArray.from_arrays(list(arrays.values()), list(arrays)), paths, stats


def key_hashes(keys: pa.StringArray) -> npt.NDArray[np.uint64]:
    """A number for each key: the same for equal keys, another, nearly always, for others.

    Keys are padded to one width, so that they are a matrix of words. No key may be null.
    """
    lengths = columns.integers(pc.binary_length(keys))
    is_long = lengths > 8 * len(_WEIGHTS)
    if is_long.any():
        hashes = np.fromiter(map(hash, keys.to_pylist()), np.int64, len(keys)).astype(np.uint64)
        hashes[~is_long] = key_hashes(keys.filter(columns.mask(~is_long)))
        return hashes
    width = -(-int(lengths.max(initial=0)) // 8)
    padded = pc.ascii_rpad(keys, 8 * width, "\0").buffers()[2]
    words = np.frombuffer(padded or b"", np.uint64, len(keys) * width).reshape(len(keys), width)
    mixed = words >> np.uint64(32)
    mixed ^= words
    return mixed @ _WEIGHTS[:width]


def repeated_hashes(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The hashes that occur more than once."""
    ordered = np.sort(hashes)
    return ordered[1:][ordered[1:] == ordered[:-1]]


def file_keys(paths: pa.StringArray, vectors: pa.StructArray) -> pa.StringArray:
    """Path and, where there is one, ``storageType + pathOrInlineDv [+ "@" + offset]``."""
    empty = columns.scalar("")
    offset = pc.cast(vectors.field("offset"), pa.string())
    suffix = pc.if_else(offset.is_valid(), pc.binary_join_element_wise(columns.scalar("@"), offset, empty), empty)
    joined = pc.binary_join_element_wise(
        paths, columns.scalar(_SEPARATOR), vectors.field("storageType"), vectors.field("pathOrInlineDv"), suffix, empty
    )
    return pc.if_else(vectors.is_valid(), joined, paths)


def snapshot_keys(batch: AddBatch) -> pa.StringArray:
    """The key of each file of a snapshot: its path, with its deletion vector if it has one; null if that is malformed."""
    paths = canonical_paths(batch.paths, batch.root)
    return paths if batch.vectors is None else file_keys(paths, batch.vectors)


def canonical_paths(paths: pa.StringArray, root: str) -> pa.StringArray:
    """Paths in the form in which they are compared: absolute ones qualified, relative ones unchanged."""
    if not columns.has_byte(paths, b":") and not pc.starts_with(paths, "/").true_count:
        return paths
    texts = paths.to_pylist()
    return columns.strings([None if t is None else qualify(root, t) if is_absolute(t) else t for t in texts])


def _span(files: list[tuple[str, bytes]]) -> str:
    return files[0][0] if len(files) == 1 else f"{files[0][0]} to {files[-1][0]}"
