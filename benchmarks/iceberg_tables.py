"""Iceberg tables for benchmarks, by pyiceberg: the rows of other tables, and one whose manifest lists many files that are not there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.written_iceberg import catalog_at, metadata_file

#: The bucket, whose root is the directory of the tables.
LAKE = "s3://lake"
_PLANNED_COLUMNS = 10


def write_copies(tables: Mapping[str, Path], directory: Path) -> dict[str, Path]:
    """Tables with the rows of those directories, a file for each of their files; returns their metadata documents."""
    catalog = catalog_at(LAKE, directory)
    documents = {}
    for name, path in tables.items():
        files = sorted(path.glob("*.parquet"))
        merged = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}
        table = catalog.create_table(f"db.{name}", pq.read_schema(files[0]).remove_metadata(), properties=merged)
        with table.transaction() as transaction:
            for file in files:
                transaction.append(pq.ParquetFile(file).read())
        documents[name] = metadata_file(table, catalog)
    return documents


def write_many(directory: Path, files: int) -> Path:
    """A table whose one manifest lists so many files with bounds of ten columns; returns its metadata document."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import LongType

    catalog = catalog_at(LAKE, directory)
    table = catalog.create_table("db.many", pa.schema([(f"c{n}", pa.int64()) for n in range(_PLANNED_COLUMNS)]))
    ids = range(1, _PLANNED_COLUMNS + 1)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for number in range(files):
            low, high = (to_bytes(LongType(), number * 1000 + end) for end in (0, 999))
            append.append_data_file(
                DataFile.from_args(
                    content=DataFileContent.DATA,
                    file_path=f"{table.location()}/data/{number:032x}.parquet",
                    file_format=FileFormat.PARQUET,
                    partition=Record(),
                    record_count=1000,
                    file_size_in_bytes=1_000_000 + number,
                    column_sizes=dict.fromkeys(ids, 90_000),
                    value_counts=dict.fromkeys(ids, 1000),
                    null_value_counts=dict.fromkeys(ids, 0),
                    nan_value_counts={},
                    lower_bounds=dict.fromkeys(ids, low),
                    upper_bounds=dict.fromkeys(ids, high),
                    key_metadata=None,
                    split_offsets=[4],
                    equality_ids=None,
                    sort_order_id=0,
                    spec_id=0,
                )
            )
    return metadata_file(table, catalog)
