"""Defines the queries of the protocol, which tasks carry to ask them again."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Query:
    """The body of a table query; fields that are None are not sent. Timestamps are ISO-8601 with zone."""

    version: int | None = None
    timestamp: str | None = None
    starting_version: int | None = None
    ending_version: int | None = None
    predicate_hints: tuple[str, ...] = ()
    json_predicate_hints: str | None = None
    limit_hint: int | None = None
    max_files: int | None = None
    include_refresh_token: bool = False
    refresh_token: str | None = field(default=None, repr=False)
    include_historical_metadata: bool = False
    include_historical_protocol: bool = False
    file_id_hash: str | None = None
    idempotency_key: str | None = None

    def body(self) -> dict[str, Any]:
        """The JSON body, without paging."""
        return _sent(self)

    @property
    def asks_for_all_files(self) -> bool:
        """Whether an answer with fewer files than the table's version has cannot be right."""
        narrowing = (self.starting_version, self.json_predicate_hints, self.limit_hint)
        return not self.predicate_hints and narrowing == (None, None, None)


@dataclass(frozen=True, slots=True)
class ChangesQuery:
    """The parameters of a change data feed query; both ends are inclusive."""

    starting_version: int | None = None
    starting_timestamp: str | None = None
    ending_version: int | None = None
    ending_timestamp: str | None = None
    max_files: int | None = None
    include_historical_metadata: bool = False
    include_historical_protocol: bool = False
    file_id_hash: str | None = None

    def params(self) -> dict[str, str]:
        """The URL's parameters, without paging."""
        return {name: "true" if value is True else str(value) for name, value in _sent(self).items()}


def _sent(query: Query | ChangesQuery) -> dict[str, Any]:
    """The fields of a query that are set, by their names in the protocol, but for the hash of ids, which is a header."""
    from delta_sharing_spark.options.values import camel_case

    values = {camel_case(f.name): getattr(query, f.name) for f in fields(query) if f.name != "file_id_hash"}
    return {name: value for name, value in values.items() if value is not None and value is not False and value != ()}
