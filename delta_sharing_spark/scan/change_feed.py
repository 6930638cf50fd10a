"""Makes one version's change data feed of its adds, removes and change files (Delta protocol, "Change Data Files").

A version with change files is read from those alone; else its adds are inserts and its removes deletes. A file that one
version both removes and adds changed its deletion vector: only rows in one vector and not in the other changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from delta_sharing_spark.scan.plan import DeletionVector, FileTask

_INSERT, _DELETE = "insert", "delete"


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """One add, remove or change file of a version: what makes its vector, and its task, which is made only if it is read."""

    vector: Callable[[], DeletionVector | None]
    task: Callable[[], FileTask]


def change_files(
    adds: Mapping[str, ChangedFile], removes: Mapping[str, ChangedFile], change_data: Sequence[ChangedFile]
) -> Iterator[FileTask]:
    """The files whose rows are the changes of one version, with their kind of change.

    Args:
        adds, removes: Files that the version adds and removes with ``dataChange``, by id or path.
        change_data: Its change files, which hold a column of their own for the kind of change.
    """
    if change_data:
        for file in change_data:
            yield file.task()
        return
    for name, removed in removes.items():
        added = adds.get(name)
        if added is None:
            yield replace(removed.task(), change_type=_DELETE)
        else:
            yield from _changed_vector(removed.vector(), added)
    for name, added in adds.items():
        if name not in removes:
            yield replace(added.task(), change_type=_INSERT)


def _changed_vector(before: DeletionVector | None, added: ChangedFile) -> Iterator[FileTask]:
    """Rows deleted since ``before``, and rows that came back."""
    after = added.vector()
    if before is not None and after is not None and before.unique_id == after.unique_id:
        return
    task = added.task()
    if after is not None:
        yield replace(task, change_type=_DELETE, invert_deletion_vector=True, excluded=before)
    if before is not None:
        yield replace(task, change_type=_INSERT, deletion_vector=before, invert_deletion_vector=True, excluded=after)
