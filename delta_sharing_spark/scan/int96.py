"""Reads timestamps of 96 bits that Arrow C++ before 23 wrote: those before 1970 count nanoseconds back from the end of their day.

pyarrow reads such a number as one without a sign, and so a time 584 years later, which is one as well (apache/arrow, issue 48246).
pandas wrote them by ``flavor="spark"``, and awswrangler. Here pyarrow reads the bytes, by a changed footer.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from delta_sharing_spark.scan.thrift import I32, read_struct, write_struct

_WRITER = re.compile(r"parquet-cpp(?:-arrow)? version (\d+)\.")
_SOUND_SINCE = 23
#: Physical types by their numbers in parquet.thrift, and the bytes of a timestamp: nanoseconds of the day, then the Julian day.
_INT96, _FIXED, _BYTES = 3, 7, 12
_EPOCH_DAY, _DAY = 2_440_588, 86_400_000_000


def has_signed_clocks(metadata: Any) -> bool:
    """Whether timestamps of a file are to be read here.

    Args:
        metadata: The parsed footer: ``pyarrow.parquet.FileMetaData``.
    """
    writer = _WRITER.match(metadata.created_by or "")
    if writer is None or int(writer[1]) >= _SOUND_SINCE:
        return False
    return any(metadata.schema.column(leaf).physical_type == "INT96" for leaf in range(metadata.num_columns))


def with_bytes(footer: bytes) -> bytes:
    """A footer, with its length and the magic behind it, by which timestamps of 96 bits are read as their bytes.

    Raises:
        ValueError: The bytes are no footer.
    """
    fields, _ = read_struct(footer)
    try:
        for element in fields[2][1].items:
            if element.get(1, (I32, None))[1] == _INT96:
                element |= {1: (I32, _FIXED), 2: (I32, _BYTES)}
        for group in fields[4][1].items:
            for chunk in group[1][1].items:
                if chunk[3][1][1][1] == _INT96:
                    chunk[3][1][1] = (I32, _FIXED)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its footer is of an unknown form ({type(error).__name__})") from None
    written = write_struct(fields)
    return written + len(written).to_bytes(4, "little") + footer[-4:]


def is_bytes_of_timestamps(kind: pa.DataType, target: pa.DataType) -> bool:
    """Whether a column of ``kind`` holds the bytes of what becomes ``target``."""
    return bool(kind == pa.binary(_BYTES) and pa.types.is_timestamp(target))


def timestamps_of(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The timestamps, in microseconds, whose bytes an array holds; what a nanosecond leaves over is cut off, as by Spark."""
    import numpy as np

    rows = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * _BYTES :][: len(array) * _BYTES].reshape(
        -1, _BYTES
    )
    nanos, days = rows[:, :8].copy().view("<i8").ravel(), rows[:, 8:].copy().view("<i4").ravel().astype(np.int64)
    micros = (days - _EPOCH_DAY) * _DAY + nanos // 1000 + ((nanos < 0) & (nanos % 1000 != 0))
    valid = array.is_valid().buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(target, len(array), [valid, pa.py_buffer(micros)])
