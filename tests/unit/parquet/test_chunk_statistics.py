"""Statistics of a chunk are taken from the bytes of a footer only where they stand as Parquet has them."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from delta_sharing_spark.parquet.statistics import ChunkStatistics, find_statistics
from delta_sharing_spark.parquet.thrift import BINARY, I32, I64, STRUCT, write_struct

BOUNDS = {3: (I64, 2), 5: (BINARY, struct.pack("<q", 9)), 6: (BINARY, struct.pack("<q", -4))}


@pytest.mark.parametrize(
    ("others", "is_found"),
    [
        ({}, True),
        ({10: (I64, 70), 11: (I64, 4)}, True),
        ({10: (I32, 70)}, False),
        ({10: (BINARY, b"x")}, False),
        ({1: (I64, 70)}, False),
    ],
)
def test_what_stands_before_statistics(others: dict[int, tuple[int, Any]], is_found: bool) -> None:
    before = write_struct({4: (I32, 0), 5: (I64, 100), 6: (I64, 900), 7: (I64, 800), 9: (I64, 50)})[:-1]
    footer, last = bytearray(before), 9
    for number, field in [*others.items(), (12, (STRUCT, BOUNDS))]:
        # A struct of one field begins with its number; here it follows another field.
        body = write_struct({number: field})[1:-1]
        step = number - last
        footer += bytes([step << 4 | field[0]]) if step > 0 else bytes([field[0], number * 2])
        footer += body
        last = number
    chunk = SimpleNamespace(num_values=100, total_uncompressed_size=900, total_compressed_size=800, data_page_offset=50)
    told, _ = find_statistics(bytes(footer) + b"\0", chunk, "INT64")
    assert told == (ChunkStatistics(True, 2, True, -4, 9) if is_found else None)
