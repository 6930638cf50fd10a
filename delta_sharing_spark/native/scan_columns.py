"""Tells which columns a scan reads, and names scans by them in the paths that Spark asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

#: The name of the scans whose columns nobody told.
UNTOLD = "-"
_SCANS_KNOWN = 256


class ScanColumns:
    """The columns that a scan reads: ``column in columns`` for the path of a column chunk, or of what it is part of.

    Args:
        paths: Paths that stand for what is below them too.

    Attributes:
        part_of_files: The part of a small file's bytes that these columns are; 0 until it is known.
    """

    def __init__(self, paths: frozenset[bytes]) -> None:
        self.paths, self.part_of_files = paths, 0.0
        self._answers: dict[bytes, bool] = {}

    def __contains__(self, column: bytes) -> bool:
        answer = self._answers.get(column)
        if answer is None:
            names = column.split(b".")
            answer = any(b".".join(names[:count]) in self.paths for count in range(1, len(names) + 1))
            self._answers[column] = answer
        return answer


class ScanNames:
    """The names of a load's scans in paths: the columns that each reads, as the bits of a number."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._leaves = leaves
        self._answers: dict[str, ScanColumns] = {}

    def name(self, required: dict[str, Any] | None) -> str:
        """The name of a scan by the schema that Spark requires of it, as JSON; None where it is not told."""
        if required is None:
            return UNTOLD
        columns = ScanColumns(frozenset(leaves_of(required)))
        return f"{sum(1 << place for place, leaf in enumerate(self._leaves) if leaf in columns):x}"

    def columns_of(self, name: str) -> ScanColumns | None:
        """The columns that a scan of a name reads; None where nobody told, or for what is no name."""
        columns_read = self._answers.get(name)
        if columns_read is None:
            try:
                bits = int(name, 16)
            except ValueError:
                return None
            if len(self._answers) >= _SCANS_KNOWN:
                self._answers.clear()
            columns = frozenset(leaf for place, leaf in enumerate(self._leaves) if bits >> place & 1)
            columns_read = self._answers[name] = ScanColumns(columns)
        return columns_read


def leaves_of(struct: dict[str, Any], above: bytes = b"") -> Iterator[bytes]:
    """The paths of the columns of a struct, as Spark's JSON has it; an array, a map or a variant is one column."""
    for field in struct["fields"]:
        path, inner = above + str(field["name"]).encode(), field["type"]
        is_struct = isinstance(inner, dict) and inner["type"] == "struct"
        # Where Spark asks for parts of a variant, each is a field of a struct; a file has the variant's own fields.
        if is_struct and not any("__VARIANT_METADATA_KEY" in part.get("metadata", {}) for part in inner["fields"]):
            yield from leaves_of(inner, path + b".")
        else:
            yield path
