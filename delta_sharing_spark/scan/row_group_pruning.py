"""Skips row groups in which no row can pass the predicate, by the statistics in the file's footer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from delta_sharing_spark.scan.column_resolution import Context, SourceFields, find_source, leaf_count
from delta_sharing_spark.scan.footer import Footer
from delta_sharing_spark.scan.plan import ReadSpec
from delta_sharing_spark.schema.types import fields_along

if TYPE_CHECKING:
    from delta_sharing_spark.predicates.row_groups import RowGroupSkipping
    from delta_sharing_spark.predicates.tree import Expression


def row_group_filter(
    spec: ReadSpec, footer: Footer, constants: Mapping[str, pa.Scalar], context: Context
) -> Callable[[int], bool] | None:
    """Returns a test of row groups by index: whether one may hold a row that passes. None where nothing is filtered.

    A file whose row groups are all left out may still be corrupt: only its footer is read then.
    """
    if spec.prune is None:
        return None
    from delta_sharing_spark.predicates.row_groups import leaf_of

    skipping = _compiled(spec.prune)
    leaves: dict[tuple[str, ...], int | None] = {}
    for path in skipping.paths:
        fields = fields_along(spec.full_schema, path)
        if fields is not None:
            leaves[path] = leaf_of(
                footer.schema, fields, lambda f, among: find_source(f, SourceFields(among), context), leaf_count
            )
    return skipping.bind(footer.metadata, leaves, constants, footer.statistics)


@lru_cache(maxsize=8)
def _compiled(expression: Expression) -> RowGroupSkipping:
    from delta_sharing_spark.predicates.row_groups import RowGroupSkipping

    return RowGroupSkipping(expression)
