"""Commits after a checkpoint, reconciled: of each logical file the newest action counts.

A logical file is a path with a deletion vector's id. Commits are parsed oldest first, so the last occurrence wins;
nothing but columns is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.deltalog.adds import AddBatch, decode_paths, from_struct, normalize_vectors
from delta_sharing_spark.deltalog.commits import parse_file_actions
from delta_sharing_spark.deltalog.paths import qualify
from delta_sharing_spark.errors import LogError

#: Between path and vector id in a key; no path holds it.
_SEPARATOR = "\0"


class CommitTail:
    """Actions of consecutive commits. Feed with :meth:`append`, then :meth:`finish`, then read.

    Args:
        suppresses: Whether a checkpoint lies below, whose files these actions may supersede.
    """

    def __init__(self, root: str, *, suppresses: bool) -> None:
        self._suppresses, self._root = suppresses, root
        self._adds: list[pa.StructArray] = []
        self._is_add: list[npt.NDArray[np.bool_] | None] = []
        self._keys: list[pa.StringArray] = []
        self._alive: list[npt.NDArray[np.bool_] | None] = []
        self._seen_keys: pa.StringArray | None = None
        self._seen_paths: pa.StringArray | None = None
        self._any_vectors = False

    def append(self, files: list[tuple[str, bytes]], partition_columns: Collection[str]) -> None:
        """Parse commits (names and contents, oldest first).

        Raises:
            LogError: A corrupt commit.
        """
        table = parse_file_actions(files, partition_columns)
        for batch in table.to_batches():
            self._append(batch.column("add"), batch.column("remove"), files)

    def _append(self, adds: pa.StructArray, removes: pa.StructArray, files: list[tuple[str, bytes]]) -> None:
        is_add, is_remove = np.asarray(adds.is_valid()), np.asarray(removes.is_valid())
        if (is_add & is_remove).any():
            raise LogError(f"a line of {_span(files)} is both an add and a remove; the table's log is corrupt")
        if not (is_add | is_remove).all():
            file_actions = pa.array(is_add | is_remove)
            adds, removes = adds.filter(file_actions), removes.filter(file_actions)
            is_add = np.asarray(adds.is_valid())
        if not len(adds):
            return
        if is_add.all():
            keys = self._make_keys(adds)
            self._is_add.append(None)
        else:
            mask = pa.array(is_add)
            keys = pc.if_else(mask, self._make_keys(adds), self._make_keys(removes))
            adds = adds.filter(mask)
            self._is_add.append(is_add)
        if keys.null_count:
            raise LogError(f"an add or remove in {_span(files)} has no path; the table's log is corrupt")
        self._adds.append(adds)
        self._keys.append(keys)

    def _make_keys(self, actions: pa.StructArray) -> pa.StringArray:
        paths = canonical_paths(decode_paths(actions.field("path")), self._root)
        vectors = normalize_vectors(actions.field("deletionVector"))
        if vectors is None:
            return paths
        self._any_vectors = True
        return file_keys(paths, vectors)

    def finish(self) -> None:
        """Find which adds are alive; the keys are kept only for a checkpoint below."""
        chunked = pa.chunked_array(self._keys, pa.string())
        self._keys = []
        encoded = pc.dictionary_encode(chunked).unify_dictionaries()
        count = len(encoded.chunk(0).dictionary) if encoded.num_chunks else 0
        if count == len(chunked) and count:
            self._alive = [None] * len(self._is_add)
        elif count:
            last = np.zeros(count, np.int64)
            offset = 0
            codes = [np.asarray(chunk.indices) for chunk in encoded.chunks]
            for code in codes:
                last[code] = np.arange(offset, offset + len(code))
                offset += len(code)
            newest = np.zeros(len(chunked), np.bool_)
            newest[last] = True
            offset = 0
            for code, is_add in zip(codes, self._is_add, strict=True):
                part = newest[offset : offset + len(code)]
                self._alive.append(part if is_add is None else part[is_add])
                offset += len(code)
        self._is_add = []
        if self._suppresses and count:
            self._seen_keys = encoded.chunk(0).dictionary
            self._seen_paths = _paths_of(self._seen_keys) if self._any_vectors else self._seen_keys

    def adds(self, partition_columns: Collection[str], *, stats: bool) -> Iterator[AddBatch]:
        """The adds that are alive, in batches."""
        for chunk, alive in zip(self._adds, self._alive, strict=True):
            kept = chunk if alive is None or alive.all() else chunk.filter(pa.array(alive))
            if len(kept):
                yield from_struct(kept, self._root, partition_columns, stats=stats)

    def survivors(self, batch: AddBatch) -> AddBatch:
        """A checkpoint's files without those that these commits name."""
        if self._seen_keys is None:
            return batch
        paths = canonical_paths(batch.paths, self._root)
        touched = pc.is_in(paths, value_set=self._seen_paths)
        if not touched.true_count:
            return batch
        if self._any_vectors or batch.vectors is not None:
            keys = paths if batch.vectors is None else file_keys(paths, batch.vectors)
            touched = pc.is_in(keys, value_set=self._seen_keys)
        return batch.filter(pc.invert(touched))


def file_keys(paths: pa.StringArray, vectors: pa.StructArray) -> pa.StringArray:
    """Path and, where there is one, ``storageType + pathOrInlineDv [+ "@" + offset]``."""
    offset = vectors.field("offset")
    suffix = pc.if_else(
        offset.is_valid(), pc.binary_join_element_wise("@", pc.cast(offset, pa.string()).fill_null(""), ""), ""
    )
    joined = pc.binary_join_element_wise(
        paths,
        _SEPARATOR,
        vectors.field("storageType").fill_null(""),
        vectors.field("pathOrInlineDv").fill_null(""),
        suffix,
        "",
    )
    return pc.if_else(vectors.is_valid(), joined, paths)


def _paths_of(keys: pa.StringArray) -> pa.StringArray:
    return pa.array([key.partition(_SEPARATOR)[0] for key in keys.to_pylist()], pa.string())


def canonical_paths(paths: pa.StringArray, root: str) -> pa.StringArray:
    """Paths as they are compared: absolute ones written in one way, relative ones as they stand."""
    absolute = pc.match_substring_regex(paths, r"^/|^[A-Za-z][A-Za-z0-9+.-]*:").fill_null(False)
    if not absolute.true_count:
        return paths
    texts = paths.to_pylist()
    for index in np.flatnonzero(np.asarray(absolute)).tolist():
        texts[index] = qualify(root, texts[index])
    return pa.array(texts, pa.string())


def _span(files: list[tuple[str, bytes]]) -> str:
    return files[0][0] if len(files) == 1 else f"{files[0][0]} to {files[-1][0]}"
