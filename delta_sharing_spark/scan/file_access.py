"""Defines the access to splits that are read from the bytes of their files; url and directory mode subclass it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING

from delta_sharing_spark.scan.plan import DeletionVector, FileTask, Split
from delta_sharing_spark.storage.ranges import ByteSource

if TYPE_CHECKING:
    import pyarrow as pa


class FileAccess(ABC):
    """The access to a split whose rows are read from the bytes of its files (``Access``).

    A subclass asks for fresh URLs or credentials by itself when its own end.
    """

    __slots__ = ()

    @abstractmethod
    def open(self, task: FileTask) -> ByteSource:
        """A data file's bytes by range.

        Raises:
            FileGoneError, CredentialError, NetworkError, TableChangedError
        """

    @abstractmethod
    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """The ``frame`` of a vector that lies in a file (storage ``u`` or ``p``), and no more of that file."""

    def ends(self, task: FileTask) -> float | None:
        """See ``Access.ends``."""
        return task.expires_at

    def renewed(self) -> FileAccess:
        """See ``Access.renewed``; URLs come with their files, and are asked for with these."""
        return self

    def rows(self, split: Split) -> Generator[pa.RecordBatch, None, None]:
        """See ``Access.rows``."""
        from delta_sharing_spark.scan.split_reader import read_files

        return read_files(split, self)
