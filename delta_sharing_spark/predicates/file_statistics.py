"""Reads the JSON of files' statistics (Delta protocol, "Per-file Statistics"): of one file as a record, of many files in Arrow columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Any

import msgspec
import pyarrow as pa

from delta_sharing_spark.schema.arrow_bridge import int64s
from delta_sharing_spark.schema.typed_json import statistics_object

LOW, HIGH = "minValues", "maxValues"
EPOCH_DAYS = date(1970, 1, 1).toordinal()
#: What msgspec renames no field to.
_NOT_RENAMED = re.compile(r'["\\\x00-\x1f]')


class StatisticsReader:
    """Reads the number of rows, and the bounds and counts of NULL of some top-level columns.

    A record has the attributes ``rows``, ``nulls``, ``low`` and ``high``, each None where the statistics have none. The latter three
    have the attributes that ``attributes`` names.

    Args:
        names: Physical names of the columns.
        ranged: Columns of integers (False) or dates (True) among them, whose bounds ``bounds`` gives in columns.

    Attributes:
        attributes: The attribute of each column, by its name.
        ranged: As given.
    """

    def __init__(self, names: Collection[str], ranged: Mapping[str, bool]) -> None:
        self.attributes = {name: f"column_{number}" for number, name in enumerate(sorted(names))}
        self.ranged = tuple(sorted(ranged.items()))
        is_decoded = not any(map(_NOT_RENAMED.search, names))
        fields = [(attribute, Any, None) for attribute in self.attributes.values()]
        renamed = {attribute: name for name, attribute in self.attributes.items()} if is_decoded else None
        self._bounds: Any = msgspec.defstruct("Bounds", fields, rename=renamed, gc=False)
        bounds_or_none = self._bounds | None
        self._record: Any = msgspec.defstruct(
            "Statistics",
            [
                ("rows", Any, None),
                ("nulls", bounds_or_none, None),
                ("low", bounds_or_none, None),
                ("high", bounds_or_none, None),
            ],
            rename={"rows": "numRecords", "nulls": "nullCount", "low": LOW, "high": HIGH},
            gc=False,
        )
        self._decode = msgspec.json.Decoder(self._record if is_decoded else Any).decode
        self._decode_lines = msgspec.json.Decoder(self._record | None).decode_lines if is_decoded else None

    def read(self, text: str) -> Any:
        """The record of a file's statistics; None where they cannot be read, which leaves nothing out."""
        # Writers may put NaN, halves of surrogate pairs, or a field of another form beside the ones that are looked at.
        tree = statistics_object(text, self._decode)
        if not isinstance(tree, dict):
            return tree
        parts = (tree.get(name) for name in ("nullCount", LOW, HIGH))
        sides = (self._bounds(*map(part.get, self.attributes)) if isinstance(part, dict) else None for part in parts)
        return self._record(tree.get("numRecords"), *sides)

    def bounds(self, texts: Sequence[str | None]) -> pa.StructArray:
        """The bounds of ``ranged`` of many files, as a checkpoint has them in columns; one of another form is null."""
        records = self._records(texts)
        sides = {
            LOW: [record.low or _NOTHING for record in records],
            HIGH: [record.high or _NOTHING for record in records],
        }
        columns = [
            pa.StructArray.from_arrays(
                [self._column(bounds, *named) for named in self.ranged], [n for n, _ in self.ranged]
            )
            for bounds in sides.values()
        ]
        return pa.StructArray.from_arrays(columns, list(sides))

    def _records(self, texts: Sequence[str | None]) -> list[Any]:
        """The record of each file; an empty one where its statistics are missing or cannot be read."""
        together = "\n".join([text or "null" for text in texts])
        records: list[Any] | None = None
        # A text of several lines could be taken for the statistics of several files.
        if self._decode_lines is not None and together.count("\n") == len(texts) - 1:
            with suppress(ValueError, RecursionError):
                records = self._decode_lines(together)
        if records is None or len(records) != len(texts):
            records = [self.read(text) if text else None for text in texts]
        nothing = self._record()
        return [nothing if record is None else record for record in records]

    def _column(self, bounds: list[Any], name: str, is_date: bool) -> pa.Array:
        attribute = self.attributes[name]
        values = [getattr(of_file, attribute, None) for of_file in bounds]
        if is_date:
            days = {text: days_of(text) for text in {value for value in values if isinstance(value, str)}}
            return (
                int64s([days.get(value) if isinstance(value, str) else None for value in values])
                .cast(pa.int32())
                .view(pa.date32())
            )
        if not {int, type(None)}.issuperset(map(type, values)):
            values = [value if type(value) is int else None for value in values]
        try:
            return int64s(values)
        except OverflowError:
            return int64s([value if value is not None and -(1 << 63) <= value < 1 << 63 else None for value in values])


_NOTHING = object()


def days_of(text: str) -> int | None:
    """Days since 1970 of a date; None where it is of another form."""
    try:
        return date.fromisoformat(text).toordinal() - EPOCH_DAYS
    except ValueError:
        return None
