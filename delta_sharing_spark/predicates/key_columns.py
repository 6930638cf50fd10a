"""Holds one bound of a column in many files as keys in arrays: exactly those that ``statistic_keys`` reads one by one."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from delta_sharing_spark.predicates.scalar_types import (
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
)
from delta_sharing_spark.predicates.statistic_keys import CUT_MICROS, TIE_BREAKERS, TRUNCATED, days_of, lower, upper
from delta_sharing_spark.predicates.times import MINUTE, WHOLE_MINUTES
from delta_sharing_spark.schema.arrow_bridge import binaries, bools, integers, strings
from delta_sharing_spark.schema.types import DataType, Decimal

Bools: TypeAlias = "npt.NDArray[np.bool_]"
Integers: TypeAlias = "npt.NDArray[np.int64]"
#: One value of each file: as JSON has it, None where there is none; or an array of integers, dates, booleans or strings.
Values: TypeAlias = "Sequence[Any] | pa.Array"
#: Keys, which files have one, and which of these are to be read one by one.
_Read: TypeAlias = "tuple[Integers | pa.BinaryArray, Bools, Bools | None]"

#: A double holds each whole number up to here, and each decimal of so many digits stands for one double.
_EXACT, _EXACT_POWER = 10**15, 22
_LEAST_MICROS = -62_135_596_800_000_000
#: Forms of timestamps that Arrow reads as we do.
_ISO = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}(?:[0-9]{3})?"


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A bound of a column in some files.

    Attributes:
        keys: Integers, or the bytes of strings; where a file has none, anything.
        is_bound: Which files have one.
        wide: By place, integers beyond 64 bits.
    """

    keys: Integers | pa.BinaryArray
    is_bound: Bools
    wide: Mapping[int, int] = field(default_factory=dict)

    def at(self, place: int) -> Any:
        """The key of a file; None where there is none."""
        if not self.is_bound[place]:
            return None
        key = self.keys[place]
        return self.wide.get(place, int(key)) if isinstance(key, np.integer) else key.as_py()

    def take(self, places: Integers) -> KeyColumn:
        """The bounds of the files at some places."""
        keys = self.keys[places] if isinstance(self.keys, np.ndarray) else self.keys.take(_indices(places))
        wide = {new: self.wide[old] for new, old in enumerate(places.tolist()) if old in self.wide} if self.wide else {}
        return KeyColumn(keys, self.is_bound[places], wide)

    def above(self, other: KeyColumn) -> Bools:
        """In which files this is above another bound of the same column."""
        if isinstance(self.keys, np.ndarray):
            result: Bools = self.keys > other.keys
        else:
            result = bools(pc.greater(self.keys, other.keys))
        result = result & self.is_bound & other.is_bound
        for place in self.wide.keys() | other.wide.keys():
            ours, theirs = self.at(place), other.at(place)
            result[place] = ours is not None and theirs is not None and ours > theirs
        return result

    def ranks(self, splits: Sequence[Any]) -> Integers:
        """The place of each bound among keys in order: two for each below it, one where it is one of them, and one more; 0 for no bound."""
        if isinstance(self.keys, np.ndarray):
            # Keys of the column's type beyond 64 bits are below or above all that stand in the array.
            start = bisect_left(splits, -(1 << 63))
            held = np.array(splits[start : bisect_left(splits, 1 << 63)], np.int64)
            ranks = start * 2 + np.searchsorted(held, self.keys, "left") + np.searchsorted(held, self.keys, "right")
        else:
            ranks = _ranks_of_bytes(self.keys, splits)
        for place, key in self.wide.items():
            first = bisect_left(splits, key)
            ranks[place] = 2 * first + (first < len(splits) and splits[first] == key)
        return np.where(self.is_bound, ranks + 1, 0)

    def numbers(self, among: Bools) -> Integers:
        """For some files a number of their bound, the same for the same bound, from 1; 0 for the others."""
        places = np.flatnonzero(among)
        result = np.zeros(len(among), np.int64)
        numbers: dict[Any, int] = {}
        result[places] = [numbers.setdefault(self.at(place), len(numbers) + 1) for place in places.tolist()]
        return result


def _ranks_of_bytes(keys: pa.BinaryArray, splits: Sequence[bytes]) -> Integers:
    """How many of some keys in order are below each, and how many are not above it, added up."""
    if not splits:
        return np.zeros(len(keys), np.int64)
    among, below = binaries(splits).cast(keys.type), np.zeros(len(keys), np.int64)
    for bit in reversed(range(len(splits).bit_length())):
        further = below + (1 << bit)
        probes = among.take(_indices(np.minimum(further, len(splits)) - 1))
        below = np.where((further <= len(splits)) & bools(pc.greater(keys, probes)), further, below)
    equal = pc.equal(keys, among.take(_indices(np.minimum(below, len(splits) - 1))))
    return 2 * below + (bools(equal) & (below < len(splits)))


def _indices(places: Integers) -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(np.ascontiguousarray(places, np.int64))])


def no_keys(count: int) -> KeyColumn:
    """The bounds of files that have none."""
    return KeyColumn(np.zeros(count, np.int64), np.zeros(count, np.bool_))


def keys_of(values: Values, kind: DataType, *, is_upper: bool) -> KeyColumn:
    """The bounds that ``values`` of ``minValues`` or ``maxValues`` are for a column of a type: ``lower``, or the second of ``upper``."""

    def read_one(value: Any) -> Any:
        return upper(value, kind)[1] if is_upper else lower(value, kind)

    read = None
    # What an array cannot hold, or Arrow does not read, is read one by one.
    with suppress(ValueError, OverflowError):
        read = _read_together(values, kind, is_upper=is_upper)
    if read is None:
        one_by_one = [read_one(value) for value in _as_list(values)]
        if kind == STRING:
            return KeyColumn(binaries([key or b"" for key in one_by_one]), is_there(one_by_one))
        read = np.zeros(len(one_by_one), np.int64), is_there(one_by_one), np.ones(len(one_by_one), np.bool_)
    keys, is_bound, odd = read
    if odd is None or not odd.any():
        return KeyColumn(keys, is_bound)
    listed, wide = _as_list(values), dict[int, int]()
    if not isinstance(keys, np.ndarray):
        texts = [
            read_one(value) if is_odd else key for value, key, is_odd in zip(listed, keys.to_pylist(), odd, strict=True)
        ]
        return KeyColumn(binaries([key or b"" for key in texts]), is_there(texts) & is_bound)
    keys, is_bound = keys.copy(), is_bound.copy()
    for place in np.flatnonzero(odd).tolist():
        key = read_one(listed[place])
        is_bound[place] = key is not None
        if key is not None and -(1 << 63) <= key < 1 << 63:
            keys[place] = key
        elif key is not None:
            wide[place] = key
    return KeyColumn(keys, is_bound, wide)


def _as_list(values: Values) -> Sequence[Any]:
    listed: Sequence[Any] = values.to_pylist() if isinstance(values, pa.Array) else values
    return listed


def is_there(values: Values) -> Bools:
    """Which of some values are not None."""
    if isinstance(values, pa.Array):
        return bools(values.is_valid())
    if type(None) not in set(map(type, values)):
        return np.ones(len(values), np.bool_)
    return np.fromiter((value is not None for value in values), np.bool_, len(values))


def whole_numbers(values: Values, kind: type = int) -> tuple[Integers, Bools] | None:
    """Integers, and which are there; None where some value is of another type than ``kind``. Raises OverflowError beyond 64 bits."""
    if isinstance(values, pa.Array):
        return integers(values.cast(pa.int64())), bools(values.is_valid())
    types = set(map(type, values))
    if not types <= {kind, type(None)}:
        return None
    present = values if type(None) not in types else [value or 0 for value in values]
    return np.fromiter(present, np.int64, len(values)), is_there(values)


def _read_together(values: Values, kind: DataType, *, is_upper: bool) -> _Read | None:
    """All of some values; None where they are not all of the form that values of the type mostly have."""
    if isinstance(kind, Decimal):
        return _decimals(values, kind.scale)
    if isinstance(values, pa.Array) and kind == STRING and pa.types.is_string(values.type):
        if is_upper and _may_be_cut(values):
            return _strings(values.to_pylist(), is_upper=True)
        keys = pa.Array.from_buffers(pa.binary(), len(values), [None, *values.buffers()[1:]], offset=values.offset)
        return keys, bools(values.is_valid()), None
    if isinstance(values, pa.Array):
        of_kind = (
            pa.types.is_date32 if kind == DATE else pa.types.is_boolean if kind == BOOLEAN else pa.types.is_integer
        )
        if kind not in (DATE, BOOLEAN, *BITS) or not of_kind(values.type):
            return None
        numbers = values.cast(pa.int32()) if kind == DATE else values.cast(pa.uint8()) if kind == BOOLEAN else values
        return (*whole_numbers(numbers), None)  # type: ignore[misc]
    if kind in BITS or kind == BOOLEAN:
        whole = whole_numbers(values, bool if kind == BOOLEAN else int)
        return None if whole is None else (*whole, None)
    if kind in (FLOAT, DOUBLE):
        return _floats(values, kind, is_upper=is_upper)
    if not {str, type(None)}.issuperset(map(type, values)):
        return None
    if kind == DATE:
        days = {text: days_of(text) for text in set(values) if text is not None}
        numbers = [None if text is None else days[text] for text in values]
        return (*whole_numbers(numbers), None)  # type: ignore[misc]
    if kind in (TIMESTAMP, TIMESTAMP_NTZ):
        return _timestamps(values, is_ntz=kind == TIMESTAMP_NTZ, is_upper=is_upper)
    return _strings(values, is_upper=is_upper) if kind == STRING else None


def _as_floats(values: Values) -> tuple[npt.NDArray[np.float64], Bools] | None:
    values = _as_list(values)
    if not {int, float, type(None)}.issuperset(map(type, values)):
        return None
    nothing = float("nan")
    return np.array([nothing if value is None else value for value in values], np.float64), is_there(values)


def _floats(values: Values, kind: DataType, *, is_upper: bool) -> _Read | None:
    if (read := _as_floats(values)) is None:
        return None
    numbers, valid = read
    width = (np.float32, np.int32) if kind == FLOAT else (np.float64, np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = numbers.astype(width[0])
    bits = narrow.view(width[1]).astype(np.int64)
    keys = np.where(bits >= 0, bits, -(bits & ((1 << 8 * narrow.itemsize - 1) - 1)))
    if kind == FLOAT:
        keys += 1 if is_upper else -1
    return keys, valid, valid & ~np.isfinite(narrow)


def _decimals(values: Values, scale: int) -> _Read | None:
    """Decimals of few digits: the one that reads as a double is found from that double, for no other one does."""
    if scale > _EXACT_POWER or (read := _as_floats(values)) is None:
        return None
    numbers, valid = read
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.rint(numbers * float(10**scale))
        is_exact = (np.abs(scaled) < _EXACT) & (scaled / float(10**scale) == numbers)
    return np.where(is_exact, scaled, 0).astype(np.int64), valid, valid & ~is_exact


def _timestamps(values: Sequence[str | None], *, is_ntz: bool, is_upper: bool) -> _Read | None:
    valid = is_there(values)
    texts = strings([text for text in values if text is not None])
    if not bools(pc.match_substring_regex(texts, _ISO + ("$" if is_ntz else "Z$"))).all():
        return None
    of_texts = integers(pc.utf8_rtrim(texts, characters="Z").cast(pa.timestamp("us")).view(pa.int64()))
    if (of_texts < _LEAST_MICROS).any():
        return None
    slack = 0 if is_ntz else np.where(of_texts < WHOLE_MINUTES, MINUTE, 0)
    micros = np.zeros(len(values), np.int64)
    micros[valid] = of_texts + CUT_MICROS + slack if is_upper else of_texts - slack
    return micros, valid, None


def _may_be_cut(maxima: pa.StringArray) -> bool:
    """Whether one of some strings may be a maximum that a writer has cut, or another one than it seems."""
    offsets, data = maxima.buffers()[1:]
    if data is None:
        return False
    places = np.frombuffer(offsets, np.int32)[maxima.offset : maxima.offset + len(maxima) + 1]
    data = data.slice(int(places[0]), int(places[-1] - places[0])).to_pybytes()
    return bool(np.diff(places).max() >= TRUNCATED or not data.isascii() or TIE_BREAKERS[-1].encode() in data)


def _strings(values: Sequence[str | None], *, is_upper: bool) -> _Read:
    valid, is_odd = is_there(values), None
    present = cast("Sequence[str]", values) if valid.all() else [text or "" for text in values]
    together = "".join(present) if is_upper else ""
    # Characters of two units of UTF-16, by which writers cut.
    has_pairs = not together.isascii() and len(together.encode("utf-16-le", "surrogatepass")) > 2 * len(together)
    least = TRUNCATED // 2 + 1 if has_pairs else TRUNCATED
    if together and (max(map(len, present)) >= least or any(end in together for end in TIE_BREAKERS)):
        if together.isascii():
            cut = [text[:TRUNCATED].rstrip(TIE_BREAKERS) for text in present]
            ends = ("" if text == whole else "\xff" for text, whole in zip(cut, present, strict=True))
            return binaries([(text + end).encode("latin-1") for text, end in zip(cut, ends, strict=True)]), valid, None
        is_odd = valid
    texts = strings(present)
    return texts.cast(pa.large_binary() if texts.type == pa.large_string() else pa.binary()), valid, is_odd
