"""Defines the columns and rows that a query needs of one of its tables."""

from __future__ import annotations

from dataclasses import dataclass

from delta_sharing_spark.schema.types import Struct


@dataclass(frozen=True, slots=True)
class TableNeed:
    """The columns and rows that a query needs of one table.

    Attributes:
        columns: The columns, structs narrowed to their fields; None for all.
        where: A condition in the language of ``where`` that every needed row fulfils; None if there is none.
        left: Conditions that are left to Spark, with the reasons.
        reason: Why it is not less, or another remark for ``explain``.
    """

    columns: Struct | None = None
    where: str | None = None
    left: tuple[str, ...] = ()
    reason: str | None = None
