"""Decodes row groups by Polars' own decoder where its rows are those of pyarrow, which reads all others.

It is three to five times as quick. It sees a file of ours (``parquet.own_file``), never the provider's footer, and only
columns at the top whose type is stored as declared. What it cannot decode, or decodes as another type, pyarrow
reads once more: errors are those of any other read, and so are rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.types as pt
from polars.exceptions import PanicException

from delta_sharing_spark.errors import SchemaError
from delta_sharing_spark.frames.unfit_values import refuse_bad_text
from delta_sharing_spark.parquet.footer import chunk_range
from delta_sharing_spark.parquet.own_file import OwnSchema, own_column
from delta_sharing_spark.scan.column_resolution import leaf_count
from delta_sharing_spark.scan.plan import FileAccess, ReadSpec, Split
from delta_sharing_spark.scan.row_decoder import Layout, OpenSlice, RowDecoder
from delta_sharing_spark.scan.row_group_reader import RowGroup
from delta_sharing_spark.scan.split_reader import decoded, read_split
from delta_sharing_spark.scan.transform import Columns, Default, Node, Whole, plan_columns
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.schema.arrow_bridge import empty_table

#: Of a row group, decoded bytes for each that a reader may hold fetched, at most.
_MOST_DECODED = 2


def may_decode(schema: pa.Schema) -> bool:
    """Whether Polars may decode rows of some columns; else all rows are read before they become a frame.

    Polars joins no frames with lists of extension types, and decodes no nested column here.
    """
    return not (_is_limited() or any(pt.is_nested(field.type) or field.metadata for field in schema))


def _is_limited() -> bool:
    """Whether this process is refused memory from some size on: Polars ends it then, where pyarrow raises an error."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    limits = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits)


def read_frames(split: Split, *, is_filtered: bool = True) -> Generator[pl.DataFrame, None, None]:
    """The rows of a split as frames; raises as ``read_split``, and ConversionError for a string that is not UTF-8.

    Args:
        split: The split.
        is_filtered: Whether its predicate is applied to the rows of files, rather than by whoever takes them.
    """
    spec, access = split.spec, split.access
    if not is_filtered:
        spec = replace(spec, predicate=None, full_schema=spec.schema)
    if isinstance(access, FileAccess) and spec.predicate is None and spec.limit is None and not _is_limited():
        yield from decoded(replace(split, spec=spec), access, FrameDecoder(spec).frames)
        return
    with closing(read_split(split)) as batches:
        for batch in batches:
            yield frame_of(batch, spec.table)


def frame_of(batch: pa.RecordBatch, table: str) -> pl.DataFrame:
    """A batch as a frame; raises ConversionError for a string that is not UTF-8."""
    refuse_bad_text(batch, table)
    frame: pl.DataFrame = pl.from_arrow(batch)
    return frame


@dataclass(slots=True)
class _Form:
    """How files of one layout are decoded, whose Parquet columns are alike.

    Attributes:
        layout, parquet: The layout, and ``pyarrow.parquet.ParquetSchema``.
        own: The columns of the files that Polars is given; None where pyarrow decodes these files.
        columns: For each of the table's columns its place among them, None for one that is not read from a file, and its node.
    """

    layout: Layout
    parquet: Any
    own: OwnSchema | None = None
    columns: Columns = ()


class FrameDecoder:
    """Decodes row groups of one split as frames.

    Args:
        spec: What is read of the files.
    """

    def __init__(self, spec: ReadSpec) -> None:
        self._spec, self._by_arrow = spec, RowDecoder(spec)
        schema = arrow_schema(spec.full_schema)
        self._empty: pl.DataFrame = pl.from_arrow(empty_table(schema))
        self._forms: list[_Form] = []

    def frames(self, opened: OpenSlice, group: RowGroup) -> Iterator[pl.DataFrame]:
        """The rows of a row group whose fetching has begun; raises as ``read_split``."""
        form = self._form(opened)
        frame = None if form.own is None else self._decoded(opened, group, form, form.own)
        if frame is None:
            for batch in self._by_arrow.batches(opened, group):
                yield frame_of(batch, self._spec.table)
        elif frame.height:
            yield frame

    def _form(self, opened: OpenSlice) -> _Form:
        layout, parquet = opened.layout, opened.footer.metadata.schema
        for form in self._forms:
            if form.layout is layout and form.parquet.equals(parquet):
                return form
        form = _Form(layout, parquet)
        with suppress(SchemaError):  # pyarrow raises it, if the file has rows
            self._plan(form, opened)
        self._forms.insert(0, form)
        return form

    def _plan(self, form: _Form, opened: OpenSlice) -> None:
        """Set how files are decoded, if they are."""
        layout, first, fields = form.layout, 0, dict[int, pa.Field]()
        for field in layout.schema:
            fields[first] = field
            first += leaf_count(field.type)
        if not layout.leaves or not fields.keys() >= set(layout.leaves):
            return
        source = pa.schema([fields[leaf] for leaf in layout.leaves])
        columns = plan_columns(source, self._spec.full_schema, layout.constants, opened.context)
        own = [own_column(i, source.types[i], form.parquet.column(leaf)) for i, leaf in enumerate(layout.leaves)]
        is_exact = all(node is Whole.KEEP for place, node in columns if place is not None)
        if is_exact and None not in own:
            form.own, form.columns = OwnSchema(tuple(column for column in own if column is not None)), columns

    def _decoded(self, opened: OpenSlice, group: RowGroup, form: _Form, own: OwnSchema) -> pl.DataFrame | None:
        """The rows of a row group; None where pyarrow reads it."""
        footer = opened.footer
        chunks = [footer.row_group(group.index).column(leaf) for leaf in group.leaves]
        ranges = [chunk_range(chunk) for chunk in chunks]
        if group.slides or any(after.start < before.end for before, after in pairwise(ranges)):
            return None
        file = own.write(chunks, [group.views(part) for part in ranges], group.rows)
        if file is None:
            return None
        whole = memoryview(file.data)
        group.hold(ranges, [whole[part.start : part.end] for part in file.chunks])
        try:
            size = own.decoded_bytes(file, group.rows)
            if size > _MOST_DECODED * self._spec.fetch_ahead:
                return None
            pa.allocate_buffer(size)  # raises where there is no room; Polars would end the process
            frame = pl.read_parquet(
                file.data, parallel="columns", use_statistics=False, glob=False, hive_partitioning=False
            )
        except (Exception, PanicException):
            # Whatever it is that Polars does not read, pyarrow reads it, or says why not.
            form.own = None
            return None
        for leaf, series in zip(group.leaves, frame.get_columns(), strict=True):
            statistics = footer.statistics(group.index, leaf)
            # Of some damaged files pyarrow sees that levels are wrong where Polars does not.
            if statistics is not None and statistics.has_null_count and statistics.null_count != series.null_count():
                return None
        if frame.height != group.rows:
            return None
        keep = opened.rows_to_keep(group)
        return self._conformed(frame if keep is None else frame.filter(pl.from_arrow(keep)), opened, form.columns)

    def _conformed(self, frame: pl.DataFrame, opened: OpenSlice, columns: Columns) -> pl.DataFrame | None:
        """The columns of the table; None where one is of another type, or NULL where it must not be."""
        conformed = list[pl.Series]()
        fields = zip(columns, self._spec.full_schema.fields, self._empty.get_columns(), strict=True)
        for (place, node), field, empty in fields:
            if place is None:
                series = _repeated(node, opened.constants.get(field.name), empty, frame.height)
            else:
                series = frame.to_series(place).alias(field.name)
            if series.dtype != empty.dtype or (not field.nullable and series.null_count()):
                return None
            conformed.append(series)
        return pl.DataFrame(conformed)


def _repeated(node: Node, constant: pa.Scalar | None, empty: pl.Series, rows: int) -> pl.Series:
    """A column that is not read from a file: its name and type are those of ``empty``."""
    value = node.value if isinstance(node, Default) else constant
    if value is None or not value.is_valid:
        return empty.clear(rows)
    one: pl.Series = pl.from_arrow(pa.repeat(value, 1))
    return one.new_from_index(0, rows).alias(empty.name)
