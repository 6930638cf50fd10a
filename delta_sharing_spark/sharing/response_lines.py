"""Parses a query's answer line by line, and checks that it is complete before it hands on a record."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from delta_sharing_spark.errors import (
    ForbiddenError,
    NotFoundError,
    RequestRefusedError,
    ResponseError,
    ServerError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.network.retry import RetryableError
from delta_sharing_spark.sharing.transport import truncated_answer
from delta_sharing_spark.sharing.wire_records import (
    EndStreamAction,
    FileRecord,
    Metadata,
    Protocol,
    parse_delta_file,
    parse_end,
    parse_metadata,
    parse_parquet_file,
    parse_protocol,
)

_END_FIELDS = frozenset(
    {"refreshToken", "nextPageToken", "minUrlExpirationTimestamp", "errorMessage", "httpStatusErrorCode"}
)
#: Bytes of a line: a schema of many thousand columns, or an inline deletion vector.
_LONGEST_LINE = 64 << 20
#: Lines of no kind that is known, of one answer; a few may be of a newer protocol.
_MOST_UNKNOWN = 100_000
_FILE_LINES = ("add", "cdf", "remove")
_decode = json.JSONDecoder().raw_decode


class RecordSink(typing.Protocol):
    """Collects the file records of one page as they arrive; a page that is asked for again gets another sink."""

    def append(self, record: FileRecord, /) -> None:
        """Add one record."""


@dataclass(slots=True)
class Page:
    """The lines of one answer, parsed.

    Attributes:
        protocol, metadata, response_format: Those of the first such lines.
        historical_metadata, historical_protocols: ``(version, value)`` of later such lines that have a version.
        protocol_version: The version that the first protocol line itself names.
        records: The sink of the ``FileRecord`` lines.
        end: The last line, if it is an ``endStreamAction``.
        query_status: The status of an asynchronous query that is under way.
        lines, files: The number of lines, and of those about files.
        unknown: The number of lines of an unknown kind.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    response_format: str = "parquet"
    records: RecordSink = field(default_factory=list[FileRecord])
    end: EndStreamAction = field(default_factory=EndStreamAction)
    historical_metadata: list[tuple[int, Metadata]] = field(default_factory=list)
    historical_protocols: list[tuple[int, Protocol]] = field(default_factory=list)
    query_status: Mapping[str, Any] | None = None
    protocol_version: int | None = None
    lines: int = 0
    files: int = 0
    unknown: int = 0


def parse_page(
    lines: Iterable[bytes], table: str, *, expects_end: bool = False, sink: Callable[[], RecordSink] = list
) -> Page:
    """Parse an answer's lines, as they arrive.

    Args:
        lines: The lines without their ends; empty ones are skipped.
        table: How errors name the table.
        expects_end: Whether the response header promised an ``endStreamAction``.
        sink: Makes the sink of the records: a list, or something that keeps less of them.

    Raises:
        RetryableError: The answer is truncated (a line that is no JSON at the end, or the promised action missing), or its
            errorMessage has a status worth a retry.
        ResponseError: The answer breaks the protocol.
        ServerError: The answer's last line has an errorMessage.
    """
    page = Page(records=sink())
    has_ended = False
    last: bytes | None = None
    for line in lines:
        if not line or line.isspace():
            continue
        if last is not None:
            has_ended = _add_line(page, _loads(last, table, is_last=False), table)
        last = line
    if last is not None:
        has_ended = _add_line(page, _loads(last, table, is_last=True), table)
    if expects_end and not has_ended:
        raise truncated_answer(f"the query of {table}")
    if page.end.error_message or (page.end.http_status_error_code or 0) >= 400:
        _raise_error(page.end, table)
    return page


def _loads(line: bytes, table: str, *, is_last: bool) -> dict[str, Any]:
    try:
        tree = _parsed(line)
    except (ValueError, RecursionError):
        # A line that was cut off still starts as an object does; a login page does not.
        if is_last and line.lstrip().startswith(b"{"):
            raise truncated_answer(f"the query of {table}") from None
        raise ResponseError(
            f"the server's answer for {table} has a line that is not JSON; check that the endpoint is a Delta Sharing server's"
        ) from None
    if not isinstance(tree, dict):
        raise ResponseError(
            f"the server's answer for {table} has a line that is not an object; check that the endpoint is a Delta Sharing server's"
        )
    return tree


def _parsed(line: bytes) -> Any:
    """The JSON of a line, parsed in two thirds of json.loads' time; where that fails, by json.loads."""
    try:
        text = line.strip().decode()
        tree, end = _decode(text)
        if end == len(text):
            return tree
    except (ValueError, RecursionError):
        pass
    return json.loads(line)


def _add_line(page: Page, tree: dict[str, Any], table: str) -> bool:
    """Add one line to the page; returns whether it is an ``endStreamAction``. A null field counts as missing."""
    page.lines += 1
    body = tree.get("file")
    if body is not None:
        page.files += 1
        if isinstance(body, dict) and "deltaSingleAction" in body:
            record = parse_delta_file(body, table)
            if record is not None:
                page.records.append(record)
        else:
            page.records.append(parse_parquet_file("file", body, table))
        return False
    for kind in _FILE_LINES:
        body = tree.get(kind)
        if body is not None:
            page.files += 1
            page.records.append(parse_parquet_file(kind, body, table))
            return False
    if tree.get("protocol") is not None:
        _take_protocol(page, tree["protocol"], table)
    elif tree.get("metaData") is not None:
        _take_metadata(page, tree["metaData"], table)
    elif tree.get("endStreamAction") is not None:
        page.end = parse_end(tree["endStreamAction"], table)
        return True
    elif _END_FIELDS & tree.keys():
        page.end = parse_end(tree, table)
        return True
    elif isinstance(tree.get("queryStatus"), dict):
        page.query_status = tree["queryStatus"]
    else:
        page.unknown += 1
        if page.unknown > _MOST_UNKNOWN:
            raise ResponseError(
                f"the server's answer for {table} has more than {_MOST_UNKNOWN} lines of no kind that is known; "
                f"check that the endpoint is a Delta Sharing server's"
            )
    return False


def _take_protocol(page: Page, body: Any, table: str) -> None:
    protocol, response_format = parse_protocol(body, table)
    version = body.get("version")
    number = version if type(version) is int else None
    if page.protocol is None:
        page.protocol, page.response_format, page.protocol_version = protocol, response_format, number
    elif number is not None:
        page.historical_protocols.append((number, protocol))


def _take_metadata(page: Page, body: Any, table: str) -> None:
    metadata = parse_metadata(body, table)
    if metadata.provider.lower() != "parquet":
        raise UnsupportedFeatureError(
            f"{table} stores its data as {metadata.provider!r}, this reader reads parquet; ask the provider for a Parquet table",
            features=(metadata.provider,),
        )
    if page.metadata is None:
        page.metadata = metadata
    elif metadata.version is not None:
        page.historical_metadata.append((metadata.version, metadata))


def _raise_error(end: EndStreamAction, table: str) -> None:
    status = end.http_status_error_code
    kinds: dict[int | None, type[ServerError]] = {401: UnauthenticatedError, 403: ForbiddenError, 404: NotFoundError}
    busy = status is not None and (status == 429 or status >= 500)
    kind = kinds.get(status) or (UnavailableError if busy else RequestRefusedError)
    error = kind(
        f"the query of {table}: the server gave up in the middle of its answer"
        f"{f' ({status})' if status else ''}: {end.error_message or 'it gives no reason'}; try again, and ask the provider if it goes on",
        status=status,
    )
    if busy:
        raise RetryableError(error)
    raise error


def iter_lines(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """Lines of a body that arrives in chunks.

    Raises:
        ResponseError: A line is longer than any that a server would send.
    """
    begun: list[bytes] = []
    size = 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        begun.append(first)
        size += len(first)
        if others:
            yield b"".join(begun)
            yield from others[:-1]
            begun, size = [others[-1]], len(others[-1])
        if size > _LONGEST_LINE:
            raise ResponseError(
                f"the server's answer has a line of more than {_LONGEST_LINE >> 20} MiB; "
                f"check that the endpoint is a Delta Sharing server's"
            )
    if size:
        yield b"".join(begun)
