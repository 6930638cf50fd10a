"""Says how limits of rows combine, and who may act by them.

- A load's own limit is of the rows that fulfil its ``where``; which rows they are follows from the load alone. Of two such limits
  the smaller one counts, after both conditions.
- So a condition of a query must not skip anything of a load with a limit: other rows would be among its first ones.
- A query's limit says that so many rows of a load are enough, whichever they are. It is of rows that the query filters no more.
- Files may be left out for a limit where each of their rows counts: not where the load has a ``where``.
- A split applies its load's own limit to its rows, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowLimit:
    """The limits of a load that is listed for a query.

    Attributes:
        own: The load's own; None for all its rows.
        enough: So many of these are enough for the query; None for all.
        is_filtered: Whether the load has a ``where``.
    """

    own: int | None
    enough: int | None
    is_filtered: bool

    @property
    def lets_conditions_skip(self) -> bool:
        """Whether a condition of the query may skip files and row groups."""
        return self.own is None

    @property
    def rows_listed(self) -> int | None:
        """The rows whose files are enough to list; None where all files are needed."""
        return None if self.is_filtered else smaller(self.own, self.enough)


def smaller(first: int | None, second: int | None) -> int | None:
    """The limit that two limits are together; None is no limit."""
    return min((rows for rows in (first, second) if rows is not None), default=None)


def has_limit(options: Iterable[str]) -> bool:
    """Whether a load with options of these names has a limit of its own."""
    return "limit" in map(str.lower, options)
