"""Writes partition values as rows of Spark's own memory format (``UnsafeRow``), so that thousands reach the JVM as one array of bytes."""

from __future__ import annotations

import decimal
import struct
from collections.abc import Sequence

import pyarrow as pa

from delta_sharing_spark.schema.types import DataType, Decimal

#: How numbers of a type lie in the first bytes of their eight, in this machine's order, which is the JVM's.
_FIXED = {"boolean": "=?7x", "byte": "=b7x", "short": "=h6x", "integer": "=i4x", "long": "=q", "date": "=i4x",
          "timestamp": "=q", "timestamp_ntz": "=q", "float": "=f4x", "double": "=d"}  # fmt: skip
#: Digits of decimals that lie in eight bytes, and bytes that are kept for longer ones.
_SHORT_DECIMAL, _LONG_DECIMAL_BYTES = 18, 16


def unsafe_row(values: Sequence[pa.Scalar], types: Sequence[DataType]) -> bytes:
    """A row of scalar values.

    Args:
        values: One of each column, as ``schema.partition_values`` reads them.
    """
    words = (len(types) + 63) // 64
    nulls = [0] * words
    fixed, variable = bytearray(), bytearray()
    start = 8 * (words + len(types))
    for place, (scalar, kind) in enumerate(zip(values, types, strict=True)):
        if not scalar.is_valid:
            nulls[place // 64] |= 1 << place % 64
            fixed += bytes(8)
            continue
        content = _fixed(scalar, kind)
        if isinstance(content, bytes):
            fixed += content
            continue
        reference, padded = content
        fixed += struct.pack("=q", start + len(variable) << 32 | len(reference))
        variable += reference + bytes(padded - len(reference))
    return struct.pack(f"={words}Q", *nulls) + bytes(fixed) + bytes(variable)


def _fixed(scalar: pa.Scalar, kind: DataType) -> bytes | tuple[bytes, int]:
    """The eight bytes of a value, or the bytes that they point to and how many are kept for these."""
    if isinstance(kind, Decimal):
        sign, digits, exponent = scalar.as_py().as_tuple()
        unscaled = int(decimal.Decimal((sign, digits, 0))) * 10 ** (int(exponent) + kind.scale)
        if kind.precision <= _SHORT_DECIMAL:
            return struct.pack("=q", unscaled)
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True), _LONG_DECIMAL_BYTES
    name = str(kind)
    if name in _FIXED:
        is_count = pa.types.is_timestamp(scalar.type) or pa.types.is_date(scalar.type)
        return struct.pack(_FIXED[name], scalar.value if is_count else scalar.as_py())
    value = scalar.as_py()
    data = value.encode() if isinstance(value, str) else bytes(value)
    return data, -(-len(data) // 8) * 8
