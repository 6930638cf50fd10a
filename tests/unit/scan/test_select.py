"""Rows chosen column by column are the rows that Arrow's own filter chooses, of every type and slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delta_sharing_spark.scan.filter_rows import keep_rows
from delta_sharing_spark.schema.arrow_bridge import mask

LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int16(), st.integers(-9, 9)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=4)),
    (pa.binary(), st.binary(max_size=4)),
    (pa.large_string(), st.text(max_size=4)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.null(), st.none()),
]


def deeper(inner: Any) -> Any:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        inner.map(lambda i: (pa.list_(i[0]), st.lists(st.none() | i[1], max_size=3))),
        inner.map(lambda i: (pa.large_list(i[0]), st.lists(st.none() | i[1], max_size=3))),
        inner.map(lambda i: (pa.list_(i[0], 2), st.lists(st.none() | i[1], min_size=2, max_size=2))),
        inner.map(
            lambda i: (
                pa.map_(pa.string(), i[0]),
                st.lists(st.tuples(st.text(max_size=2), st.none() | i[1]), max_size=3),
            )
        ),
        several.map(
            lambda inners: (
                pa.struct([(f"f{n}", i[0]) for n, i in enumerate(inners)]),
                st.fixed_dictionaries({f"f{n}": st.none() | i[1] for n, i in enumerate(inners)}),
            )
        ),
        st.just((pa.struct([]), st.just({}))),
    )


KINDS = st.recursive(st.sampled_from(LEAVES), deeper, max_leaves=5)


@settings(max_examples=300)
@given(st.data())
def test_any_column_as_arrow_filters_it(data: st.DataObject) -> None:
    kind, values = data.draw(KINDS)
    rows = data.draw(st.lists(st.none() | values, max_size=20))
    start, length = data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, 20))
    array = pa.array(rows, kind).slice(start, length)
    few = data.draw(st.lists(st.integers(0, max(len(array) - 1, 0)), max_size=3) | st.none())
    keep = (
        data.draw(st.lists(st.sampled_from([True, False, None]), min_size=len(array), max_size=len(array)))
        if few is None
        else [i not in few for i in range(len(array))]
    )
    coded = pa.array([str(i % 3) for i in range(len(array))], pa.string()).dictionary_encode()
    batch = pa.RecordBatch.from_arrays([array, coded], ["c", "d"])
    got = keep_rows(batch, pa.array(keep, pa.bool_()))
    got.validate(full=True)
    assert got.schema.equals(batch.schema, check_metadata=True)
    assert got.to_pylist() == [row for row, k in zip(batch.to_pylist(), keep, strict=True) if k]
    assert got.column(0).null_count == sum(r is None for r in got.column(0).to_pylist())


def test_values_under_a_null_list_leave_with_it() -> None:
    """Arrow lets a NULL list have values all the same."""
    hidden = pa.ListArray.from_arrays([0, 2, 4, 5], pa.array([1, 2, 3, 4, 5]), mask=pa.array([False, True, False]))
    batch = pa.record_batch({"l": hidden})
    for keep, left in (([True, False, True], [[1, 2], [5]]), ([False, True, True], [None, [5]])):
        got = keep_rows(batch, pa.array(keep))
        got.validate(full=True)
        assert got.column(0).to_pylist() == left


def test_rows_without_columns_are_counted() -> None:
    bare = pa.RecordBatch.from_struct_array(pa.nulls(3, pa.struct([])))
    assert keep_rows(bare, pa.array([True, False, True])).num_rows == 2


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 64, 65])
def test_packed_masks_hold_their_bits(length: int) -> None:
    bits = np.arange(length) % 3 != 0
    array = mask(bits)
    array.validate(full=True)
    assert array.to_pylist() == bits.tolist()
