"""What Spark is shown of a column chunk is what its footer says of it, but for its path, its places and what may mislead Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.parquet.file_footer import FooterReader
from delta_sharing_spark.parquet.footer import Footer, read_footer
from delta_sharing_spark.parquet.schema_match import NotNativeError
from delta_sharing_spark.parquet.thrift import BINARY, I64, LIST, STRUCT, Struct, ThriftList, read_struct
from delta_sharing_spark.storage.ranges import MemorySource
from delta_sharing_spark.testing.tables.columns import schema_from_arrow

#: Of ``ColumnMetaData``: places, statistics, Bloom filters; what is unknown to us is from 17 on.
_PATH, _DATA, _INDEX, _DICTIONARY, _STATISTICS, _BLOOM, _SIZES = 3, 9, 10, 11, 12, (14, 15), 16
_INT96, _FLOATS, _TEXTS = 3, (4, 5), (6, 7)


def footers_of_many_writers() -> Iterator[bytes]:
    """Files of Spark, and of pyarrow with all that it writes of a chunk or leaves out."""
    spark = sorted((Path(__file__).parents[2] / "data" / "delta_spark").glob("*/**/*.parquet"))
    yield from (path.read_bytes() for path in spark if "_delta_log" not in path.parts)
    texts = ["", "a" * 63, "b" * 127, "c" * 128, "d" * 300, None]
    rows = {f"text{n}": [text] * 7 for n, text in enumerate(texts)} | {"x": np.arange(7) / 3, "n" * 70: range(7)}
    rows |= {
        "s": [{"l": [n] * n, "deep": {"er": {"still": {"x": n}}}} for n in range(7)],
        "flags": [True, None] * 3 + [False],
    }
    for options in (
        {},
        {"write_statistics": False, "use_dictionary": False},
        {"compression": "none", "store_schema": False, "data_page_version": "2.0"},
        {"write_page_index": True, "write_page_checksum": True, "row_group_size": 3, "version": "1.0"},
        {"column_encoding": {"text0": "DELTA_BYTE_ARRAY", "x": "BYTE_STREAM_SPLIT"}, "use_dictionary": ["s.l"]},
    ):
        pq.write_table(pa.table(rows), out := pa.BufferOutputStream(), **options)
        yield out.getvalue().to_pybytes()


def damaged_footers(footer: Footer) -> Iterator[Footer]:
    """Of which nothing may be believed later: ends that are missing, numbers and lengths that are others."""
    draw, end = random.Random(len(footer.raw)), footer.raw[-8:]
    for _ in range(30):
        raw = bytearray(footer.raw[: draw.randrange(len(footer.raw) - 8)])
        for place in draw.choices(range(len(raw)), k=draw.randrange(3)) if raw else ():
            raw[place] = draw.randrange(256)
        yield replace(footer, raw=bytes(raw) + end)


@pytest.mark.parametrize("may_move", [True, False])
def test_a_chunk_is_shown_as_its_footer_describes_it(may_move: bool) -> None:
    """Read by a reader that has seen other files, damaged ones too, and by a new one.

    What chunks have in common is compared and not walked.
    """
    readers: dict[str, FooterReader] = {}
    walked = 0
    for content in footers_of_many_writers():
        source = MemorySource("f", content)
        footer = read_footer(source, "t")
        schema = schema_from_arrow(footer.schema)
        warm_reader = readers.setdefault(repr(schema), FooterReader(schema, "none"))
        for damaged in damaged_footers(footer):
            with suppress(NotNativeError):
                warm_reader.read(damaged, source.size, may_move=may_move)
        results: list[Any] = []
        for reader in (FooterReader(schema, "none"), warm_reader):
            try:
                results.append(reader.read(footer, source.size, may_move=may_move))
            except NotNativeError as error:
                results.append(str(error))
        fresh, warm = results
        assert fresh == warm
        if isinstance(fresh, str):
            continue
        stored = [group for group in read_struct(footer.raw)[0][4][1].items if group[3][1]]
        for group, of_file in zip(warm.groups, stored, strict=True):
            assert (group.rows, group.bytes) == (of_file[3][1], of_file[2][1])
            chunks = of_file[1][1].items
            for leaf, cut in zip(warm.columns.leaves, group.chunks, strict=True):
                shown, end = read_struct(cut.described(5))
                assert end == len(cut.described(5))
                assert shown == expected(chunks[leaf.number], leaf.path, 5, may_move, footer.metadata.created_by)
                walked += 1
    assert walked > 300


def expected(stored: Struct, path: tuple[bytes, ...], by: int, may_move: bool, created_by: str) -> Struct:
    """What is shown of a chunk of the file where it stands ``by`` bytes further on."""
    metadata = {number: value for number, value in stored[3][1].items() if number <= _SIZES and number != _INDEX}
    metadata[_PATH] = (LIST, ThriftList(BINARY, list(path)))
    metadata[_DATA] = (I64, metadata[_DATA][1] + by)
    if metadata.get(_DICTIONARY, (0, 0))[1] > 0:
        metadata[_DICTIONARY] = (I64, metadata[_DICTIONARY][1] + by)
    else:
        metadata.pop(_DICTIONARY, None)
    for number in _BLOOM if may_move else ():
        metadata.pop(number, None)
    physical, statistics = metadata[1][1], metadata.get(_STATISTICS, (0, {}))[1]
    is_misleading = physical == _INT96 or (physical in _FLOATS and not created_by.startswith("parquet-mr"))
    if is_misleading or (may_move and physical in _TEXTS and (1 in statistics or 2 in statistics)):
        metadata.pop(_STATISTICS, None)
    shown = () if may_move else (4, 5) if is_misleading else (4, 5, 6, 7)
    return {2: (I64, 0), 3: (STRUCT, metadata), **{number: stored[number] for number in shown if number in stored}}
