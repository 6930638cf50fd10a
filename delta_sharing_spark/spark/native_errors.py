"""Lets a query that fails by a file of the native lane raise that file's error, in a line, as the Python source does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j import java_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import QueryExecutionException

from delta_sharing_spark.spark.file_index import end_listings_at_interrupts

ErrorIn = Callable[[Sequence[str]], str | None]

#: Exceptions of Java within one another that are looked at.
_DEEPEST = 20


def raise_causes(error_in: ErrorIn) -> None:
    """Have PySpark raise a ``QueryExecutionException`` with the lane's own words where a failed read ends a query.

    PySpark has no class for such an error of Java's, and would print sixty lines of it. This wraps the function by which
    PySpark itself turns Java's exceptions into its own; PySpark replaces that with each new session, hence the call
    with each load.

    Args:
        error_in: The lane's error for the messages of a Java exception, as ``Gateway.error_in``.
    """
    if not isinstance(java_gateway.get_return_value, _CauseRaiser):
        java_gateway.get_return_value = _CauseRaiser(java_gateway.get_return_value, error_in)


@dataclass(frozen=True, slots=True)
class _CauseRaiser:
    """Stands for ``py4j.java_gateway.get_return_value``."""

    get_return_value: Callable[..., Any]
    error_in: ErrorIn

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        end_listings_at_interrupts()  # a notebook sets its own handler anew for each cell
        try:
            return self.get_return_value(*arguments, **named)
        except Py4JJavaError as error:
            cause = self._cause(error)
            if cause is None:
                raise
        raise QueryExecutionException(cause)

    def _cause(self, error: Py4JJavaError) -> str | None:
        messages: list[str] = []
        exception = error.java_exception
        while exception is not None and len(messages) < _DEEPEST:
            messages.append(str(exception.getMessage()))
            exception = exception.getCause()
        return self.error_in(messages)
