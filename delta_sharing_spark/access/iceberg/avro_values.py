"""Decodes values by the Avro schema that they were written by (Avro, "Binary Encoding" and "Logical Types")."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from delta_sharing_spark.schema.instants import EPOCH, EPOCH_DAY

#: From bytes and a place among them to the value that begins there, and the place behind it. Beyond the end it raises an
#: exception, or tells a place beyond the end: whoever has the bytes compares the last place with their length.
Decode = Callable[[bytes, int], "tuple[Any, int]"]

#: Bits of the longest number, and the bits that its bytes hold.
_NUMBER_BITS, _MOST_BITS = 64, 70
#: Branches of a union that one byte tells.
_MOST_BRANCHES = 64
#: Parts of a schema whose values take no byte: a partition without fields is one. Many would be much work for few bytes.
_MOST_OF_NOTHING = 64
#: Of a decimal of 38 digits 17 are needed; who has more would wait long for its digits.
_DECIMAL_BYTES = 32
_LOCAL_EPOCH = datetime(1970, 1, 1)


class UnboundedValueError(Exception):
    """A schema by which few bytes would become very many values, or one value without end; its text says why."""


def decoder(schema: Any, keys: Mapping[str, Collection[int]]) -> Decode:
    """How to decode the values of a schema; bytes without end are no danger.

    Args:
        schema: A schema, as JSON has it.
        keys: Of lists of pairs of ``key``, a number, and ``value``, which Iceberg calls maps, the keys that are wanted,
            by the name of the field. They are decoded to a dictionary; of other fields of this form it is empty.

    Raises:
        UnboundedValueError: See there.
        KeyError, TypeError, ValueError: It is no schema.
    """
    decode, takes_bytes = _Schemas(keys).decoder(schema, "", "", frozenset())
    if not takes_bytes:
        raise UnboundedValueError("its records are of nothing")
    return decode


class _Schemas:
    """The types that a schema has named so far, each with whether a value of it takes a byte at least."""

    def __init__(self, keys: Mapping[str, Collection[int]]) -> None:
        self._keys = keys
        self._named: dict[str, tuple[Decode, bool]] = {}
        self._of_nothing = 0

    def decoder(self, schema: Any, field: str, space: str, around: Set[str]) -> tuple[Decode, bool]:
        """The decoder of a schema, and whether a value takes a byte at least.

        Args:
            field: The name of the field that has the type.
            space: The namespace around.
            around: The named types that the schema lies in.
        """
        decode, takes_bytes = self._decoder(schema, field, space, around)
        self._of_nothing += not takes_bytes
        if self._of_nothing > _MOST_OF_NOTHING:
            raise UnboundedValueError("too many of its parts are of nothing")
        return decode, takes_bytes

    def _decoder(self, schema: Any, field: str, space: str, around: Set[str]) -> tuple[Decode, bool]:
        if isinstance(schema, str):
            return self._by_name(schema, space, around)
        if isinstance(schema, list):
            if len(schema) > _MOST_BRANCHES:
                raise ValueError("a union of too many branches")
            branches = [self._decoder(one, field, space, around)[0] for one in schema]  # which one it is takes a byte
            return _union(branches), True
        kind = schema["type"]
        match kind:
            case "array":
                if (keyed := self._pairs(schema["items"], field)) is not None:
                    return keyed, True
                item, takes_bytes = self.decoder(schema["items"], "", space, around)
                if not takes_bytes:
                    raise UnboundedValueError("it holds lists of nothing")
                return _array(item), True
            case "map":
                return _map(self.decoder(schema["values"], "", space, around)[0]), True
            case "record" | "fixed" | "enum":
                name = _full_name(schema["name"], schema.get("namespace", space))
                if name in self._named:
                    raise ValueError("two types of one name")
                self._named[name] = result = self._definition(schema, name, around)
                return result
            case str():
                decode, takes_bytes = self.decoder(kind, field, space, around)
                logical = _LOGICAL.get((kind, schema.get("logicalType")))
                if logical is not None:
                    return _converted(decode, logical(schema)), takes_bytes
                return decode, takes_bytes
        return self.decoder(kind, field, space, around)

    def _by_name(self, name: str, space: str, around: Set[str]) -> tuple[Decode, bool]:
        if (primitive := _PRIMITIVES.get(name)) is not None:
            return primitive, name != "null"
        full = _full_name(name, space)
        if full in around:
            raise UnboundedValueError("a type of it lies within itself")
        decode, takes_bytes = self._named[full if full in self._named else name]
        if not takes_bytes:  # types that have it twice, and each other twice, would be very many values
            raise UnboundedValueError("it has a type of nothing more than once")
        return decode, takes_bytes

    def _definition(self, schema: Mapping[str, Any], name: str, around: Set[str]) -> tuple[Decode, bool]:
        if schema["type"] == "fixed":
            size = schema["size"]
            if type(size) is not int or size < 0:
                raise ValueError("a size that is none")
            decode = _fixed(size)
            if schema.get("logicalType") == "decimal":
                decode = _converted(decode, _decimal(schema))
            return decode, size > 0
        if schema["type"] == "enum":
            return _enum(list(schema["symbols"])), True
        space, within = name.rpartition(".")[0], around | {name}
        decoders = [(one["name"], *self.decoder(one["type"], one["name"], space, within)) for one in schema["fields"]]
        fields = [(name, decode) for name, decode, _ in decoders]
        return _record(fields), any(takes_bytes for _, _, takes_bytes in decoders)

    def _pairs(self, items: Any, field: str) -> Decode | None:
        """The decoder of a list of keys and values; None where its items are another."""
        if not isinstance(items, dict) or items.get("type") != "record":
            return None
        fields = [(one["name"], one["type"]) for one in items["fields"]]
        if fields[:1] != [("key", "int")] or fields[1:] not in ([("value", "long")], [("value", "bytes")]):
            return None
        return _pairs(fields[1][1] == "bytes", frozenset(self._keys.get(field, ())))


def _full_name(name: str, space: str | None) -> str:
    return name if "." in name or not space else f"{space}.{name}"


# --- decoders ---------------------------------------------------------------------------------------------------------


def number(data: bytes, at: int) -> tuple[int, int]:
    """An int or a long."""
    byte = data[at]
    at += 1
    if byte < 128:
        return byte >> 1 ^ -(byte & 1), at
    value, shift = byte & 127, 7
    while byte > 127:
        if shift == _MOST_BITS:
            raise ValueError("a number without end")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
    if value >> _NUMBER_BITS:
        raise ValueError("a number of more bits than a long")
    return value >> 1 ^ -(value & 1), at


def _length(data: bytes, at: int) -> tuple[int, int]:
    length, at = number(data, at)
    if length < 0:
        raise ValueError("a negative length")
    return length, at


def binary(data: bytes, at: int) -> tuple[bytes, int]:
    """Some bytes."""
    length, at = _length(data, at)
    return data[at : at + length], at + length


def _text(data: bytes, at: int) -> tuple[str, int]:
    length, at = _length(data, at)
    return data[at : at + length].decode(), at + length


def _null(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] != 0, at + 1


def _real(form: struct.Struct) -> Decode:
    return lambda data, at: (form.unpack_from(data, at)[0], at + form.size)


_PRIMITIVES: Mapping[str, Decode] = {
    "null": _null,
    "boolean": _boolean,
    "int": number,
    "long": number,
    "float": _real(struct.Struct("<f")),
    "double": _real(struct.Struct("<d")),
    "bytes": binary,
    "string": _text,
}


def _fixed(size: int) -> Decode:
    return lambda data, at: (data[at : at + size], at + size)


def _enum(symbols: Sequence[str]) -> Decode:
    def decode(data: bytes, at: int) -> tuple[str, int]:
        place, at = _length(data, at)
        return symbols[place], at

    return decode


def _union(branches: Sequence[Decode]) -> Decode:
    by_byte = {2 * place: branch for place, branch in enumerate(branches)}
    return lambda data, at: by_byte[data[at]](data, at + 1)


def _record(fields: Sequence[tuple[str, Decode]]) -> Decode:
    def decode(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {}
        for name, field in fields:
            values[name], at = field(data, at)
        return values, at

    return decode


def _block(data: bytes, at: int) -> tuple[int, int]:
    """The number of items in the next block of a list, 0 at its end, and the place of the first."""
    count, at = number(data, at)
    if count < 0:
        count, at = -count, number(data, at)[1]  # the bytes of the block stand behind it
    if count > len(data) - at:
        raise ValueError("more items than bytes")
    return count, at


def _array(item: Decode) -> Decode:
    def decode(data: bytes, at: int) -> tuple[list[Any], int]:
        values = []
        count, at = _block(data, at)
        while count:
            for _ in range(count):
                value, at = item(data, at)
                values.append(value)
            count, at = _block(data, at)
        return values, at

    return decode


def _map(value_of: Decode) -> Decode:
    def decode(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {}
        count, at = _block(data, at)
        while count:
            for _ in range(count):
                key, at = _text(data, at)
                values[key], at = value_of(data, at)
            count, at = _block(data, at)
        return values, at

    return decode


@lru_cache(256)
def _numbers(count: int) -> re.Pattern[bytes]:
    return re.compile(rb"(?:[\x80-\xff]*[\x00-\x7f]){%d}" % count)


def _pairs(has_bytes: bool, keys: Set[int]) -> Decode:
    """Of keys and values those that are wanted. Manifests are mostly these, so what is cheap here stands in the loop itself."""

    def decode(data: bytes, at: int) -> tuple[dict[int, Any], int]:
        values: dict[int, Any] = {}
        count, at = _block(data, at)
        while count:
            if not (has_bytes or keys):
                match = _numbers(2 * count).match(data, at)
                if match is None:
                    raise ValueError("fewer numbers than there should be")
                at = match.end()
                count, at = _block(data, at)
                continue
            for _ in range(count):
                key = data[at]
                at += 1
                if key & 0x81:  # of several bytes, or negative
                    key, at = number(data, at - 1)
                else:
                    key >>= 1
                is_wanted = key in keys
                if is_wanted and key in values:
                    raise ValueError("a key that stands twice")
                if not has_bytes:
                    value, at = number(data, at)
                    if is_wanted:
                        values[key] = value
                    continue
                length = data[at]
                at += 1
                if length & 0x81:
                    length, at = _length(data, at - 1)
                else:
                    length >>= 1
                if is_wanted:
                    values[key] = data[at : at + length]
                at += length
            count, at = _block(data, at)
        return values, at

    return decode


# --- logical types ----------------------------------------------------------------------------------------------------

_Convert = Callable[[Any], Any]


def _converted(decode: Decode, convert: _Convert) -> Decode:
    def converted(data: bytes, at: int) -> tuple[Any, int]:
        value, at = decode(data, at)
        return convert(value), at

    return converted


def _decimal(schema: Mapping[str, Any]) -> _Convert:
    scale, context = int(schema.get("scale", 0)), Context(prec=int(schema["precision"]))

    def decimal(data: bytes) -> Decimal:
        if len(data) > _DECIMAL_BYTES:
            raise ValueError("a decimal of too many digits")
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, context)

    return decimal


def _moment(epoch: datetime, micros: int) -> Callable[[Mapping[str, Any]], _Convert]:
    return lambda _: lambda value: epoch + timedelta(microseconds=value * micros)


def _time(micros: int) -> Callable[[Mapping[str, Any]], _Convert]:
    return lambda _: lambda value: (_LOCAL_EPOCH + timedelta(microseconds=value * micros)).time()


#: Converters of values by the type and the logical type, for a schema that has both.
_LOGICAL: Mapping[tuple[str, Any], Callable[[Mapping[str, Any]], _Convert]] = {
    ("int", "date"): lambda _: lambda days: date.fromordinal(days + EPOCH_DAY),
    ("int", "time-millis"): _time(1000),
    ("long", "time-micros"): _time(1),
    ("long", "timestamp-millis"): _moment(EPOCH, 1000),
    ("long", "timestamp-micros"): _moment(EPOCH, 1),
    ("long", "local-timestamp-millis"): _moment(_LOCAL_EPOCH, 1000),
    ("long", "local-timestamp-micros"): _moment(_LOCAL_EPOCH, 1),
    ("bytes", "decimal"): _decimal,
    ("string", "uuid"): lambda _: UUID,
}
