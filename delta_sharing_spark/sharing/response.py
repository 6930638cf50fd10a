"""Reads one answer of a server: the lines of its pages, its headers, the table's head in them, and asynchronous answers."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from delta_sharing_spark.errors import (
    NotFoundError,
    RequestRefusedError,
    ResponseError,
    UnavailableError,
    UnsupportedFeatureError,
)
from delta_sharing_spark.network.bodies import header_count
from delta_sharing_spark.network.connections import FIRST, say_waiting
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.retry import RetryableError
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.typed_json import decode_json
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.transport import error_kind, truncated_answer, unreadable_answer
from delta_sharing_spark.sharing.wire_lines import FileBlock, FileLines, blocks_of
from delta_sharing_spark.sharing.wire_records import (
    ERROR_FIELDS,
    EndStreamAction,
    TableSnapshotHead,
    broken,
    no_server,
    parse_end,
    parse_metadata,
    parse_protocol,
    quoted,
    sole_name,
    words,
)

_END_FIELDS = {"refreshToken", "nextPageToken", "minUrlExpirationTimestamp", "errorMessage", "httpStatusErrorCode"}
#: Bytes of a line: a schema of many thousand columns, or an inline deletion vector.
_LONGEST_LINE = 64 << 20
#: Bytes of lines that are read together, and by how many they grow: a limit may need the first lines alone. The objects of larger
#: blocks are beyond the processor's cache, and take new memory each time.
_LARGEST_BLOCK, _BLOCK_GROWS = 256 << 10, 64 << 10
#: Lines of no kind that is known, of one answer; a few may be of a newer protocol.
_MOST_UNKNOWN = 100_000
_FILE_LINES = ("file", "add", "cdf", "remove")
_LINES = (*_FILE_LINES, "protocol", "metaData", "endStreamAction", "queryStatus")


CAPABILITIES = "delta-sharing-capabilities"
_VERSION_HEADER = "delta-table-version"
#: The newest version of the parquet format's own protocol.
_PARQUET_READER = 1


class FileSink(typing.Protocol):
    """Collects the files of one page as they arrive; a page that is asked for again gets another sink."""

    @property
    def is_full(self) -> bool:
        """Whether no more files are needed: the rest of the answer is not read."""

    def append(self, block: FileBlock, /) -> None:
        """Add some files."""


class FileBlocks(list[FileBlock]):
    """A sink that keeps all files."""

    is_full = False


@dataclass(slots=True)
class Page:
    """One answer, parsed.

    Attributes:
        protocol, metadata, response_format: Those of the first such lines.
        historical_metadata, historical_protocols: ``(version, value)`` of later such lines that have a version.
        protocol_version: The version that the first protocol line itself names.
        blocks: The sink of the file lines.
        end: The last line, if it is an ``endStreamAction``.
        query_status: The status of an asynchronous query that is under way.
        has_lines: Whether there is a line that is not blank.
        files, size: The number of lines about files, and the bytes of these files.
        has_end: Whether the last line marks the end.
        is_cut: Whether the rest of the answer was not read, for no more files are needed.
        has_length: Whether a header tells how long the answer is.
        unknown: The number of lines of an unknown kind.
        version: The header ``Delta-Table-Version``.
        file_id_hash: The header ``fileidhash``: the hash that the server used for ids, in lower case.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    response_format: str = "parquet"
    blocks: FileSink = field(default_factory=FileBlocks)
    end: EndStreamAction = field(default_factory=EndStreamAction)
    historical_metadata: list[tuple[int, Metadata]] = field(default_factory=list)
    historical_protocols: list[tuple[int, Protocol]] = field(default_factory=list)
    query_status: Mapping[str, Any] | None = None
    protocol_version: int | None = None
    has_lines: bool = False
    files: int = 0
    size: int = 0
    has_end: bool = False
    is_cut: bool = False
    has_length: bool = False
    unknown: int = 0
    version: int | None = None
    file_id_hash: str | None = None

    def head(self, table: str, formats: Sequence[str]) -> TableSnapshotHead:
        """Version, protocol and metadata of the table.

        Raises:
            ResponseError: A line is missing, or the format is none of ``formats``.
            UnsupportedFeatureError: A parquet format of the future.
        """
        if self.protocol is None or self.metadata is None:
            missing = "protocol" if self.protocol is None else "metaData"
            raise no_server(f"the server's answer for {table} has no {missing} line")
        # The parquet format needs no reader feature, so it is never a surprise; the delta format may need one.
        if self.response_format == "delta" and "delta" not in formats:
            raise ResponseError(
                f"the server answered in the delta format for {table}, asked for was parquet; set the option responseFormat to delta, or leave it out"
            )
        if self.response_format == "parquet" and self.protocol.min_reader_version > _PARQUET_READER:
            raise UnsupportedFeatureError(
                f"{table} asks for version {self.protocol.min_reader_version} of the sharing protocol's parquet format, this release "
                f"reads {_PARQUET_READER}; upgrade delta-sharing-spark",
                features=(f"minReaderVersion={self.protocol.min_reader_version}",),
            )
        version = self.version if self.version is not None else self.metadata.version
        return TableSnapshotHead(version, self.response_format, self.protocol, replace(self.metadata, version=version))


def parse_page(
    blocks: Iterable[bytes], table: str, *, expects_end: bool = False, sink: Callable[[], FileSink] = FileBlocks
) -> Page:
    """Parse an answer's lines, as they arrive.

    Args:
        blocks: Whole lines, as ``line_blocks`` gives them; empty ones are skipped.
        expects_end: Whether the response header promised an ``endStreamAction``.
        sink: Makes the sink of the files: a list, or something that keeps less of them.

    Raises:
        RetryableError: The answer is truncated: a line at its end is no JSON, or the promised action is missing. Another line is no
            JSON; or the errorMessage has a status worth a retry.
        ResponseError: The answer breaks the protocol.
        ServerError: The answer's last line has an errorMessage.
    """
    page, lines = Page(blocks=sink()), FileLines(table)
    waiting: bytes | None = None
    for block in blocks:
        if not block or block.isspace():
            continue
        if waiting is not None:
            page.has_end = _add_block(page, lines, waiting, table, is_last=False)
            if page.blocks.is_full:
                page.is_cut = True
                return page
        waiting = block
    if waiting is not None:
        page.has_end = _add_block(page, lines, waiting, table, is_last=True)
    if expects_end and not page.has_end:
        raise truncated_answer(f"the query of {table}")
    return page


def _add_block(page: Page, files: FileLines, block: bytes, table: str, *, is_last: bool) -> bool:
    """Add whole lines to the page; returns whether the last of them is an ``endStreamAction``."""
    page.has_lines = True
    if _is_file_line(block) and _add_files(page, files.blocks(block)):
        return False
    lines = [line for line in block.split(b"\n") if line and not line.isspace()]
    has_ended = False
    for is_file, run in itertools.groupby(enumerate(lines, 1), lambda numbered: _is_file_line(numbered[1])):
        numbered = list(run)
        if is_file and _add_files(page, files.blocks(b"\n".join(line for _, line in numbered))):
            has_ended = False
            continue
        for number, line in numbered:
            has_ended = _add_line(page, _loads(line, table, is_last=is_last and number == len(lines)), table)
    return has_ended


def _is_file_line(line: bytes) -> bool:
    return line.startswith(b'{"file"')


def _add_files(page: Page, blocks: Sequence[FileBlock] | None) -> bool:
    """Add files, each of a line of its own; returns False for None."""
    for block in blocks or ():
        page.files += len(block)
        page.size += sum(block.sizes)
        page.blocks.append(block)
    return blocks is not None


def _loads(line: bytes, table: str, *, is_last: bool) -> dict[str, Any]:
    try:
        tree = decode_json(line)
    except (ValueError, RecursionError):
        # A line that was cut off still starts as an object does; a login page does not.
        if is_last and line.lstrip().startswith(b"{"):
            raise truncated_answer(f"the query of {table}") from None
        raise unreadable_answer(
            no_server(f"the server's answer for {table} has a line that is not JSON"), line
        ) from None
    if not isinstance(tree, dict):
        raise unreadable_answer(no_server(f"the server's answer for {table} has a line that is not an object"), line)
    return tree


def _add_line(page: Page, tree: dict[str, Any], table: str) -> bool:
    """Add one line to the page; returns whether it is an ``endStreamAction``. A null field counts as missing."""
    if len(tree) > 1:
        sole_name(tree, _LINES, "a line", table)
    for kind in _FILE_LINES:
        body = tree.get(kind)
        if body is not None:
            _add_files(page, blocks_of(body, kind, table))
            return False
    if tree.get("protocol") is not None:
        _take_protocol(page, tree["protocol"], table)
    elif tree.get("metaData") is not None:
        _take_metadata(page, tree["metaData"], table)
    elif tree.get("endStreamAction") is not None:
        _take_end(page, tree["endStreamAction"], table)
        return True
    elif _END_FIELDS & tree.keys():
        _take_end(page, tree, table)
        return True
    elif isinstance(tree.get("queryStatus"), dict):
        page.query_status = tree["queryStatus"]
    elif errors := [words(tree[name]) for name in ERROR_FIELDS if tree.get(name)]:
        _raise_error(EndStreamAction(error_message=": ".join(errors)), table)
    else:
        page.unknown += 1
        if page.unknown > _MOST_UNKNOWN:
            raise no_server(
                f"the server's answer for {table} has more than {_MOST_UNKNOWN} lines of no kind that is known"
            )
    return False


def _take_protocol(page: Page, body: Any, table: str) -> None:
    protocol, response_format, version = parse_protocol(body, table)
    if page.protocol is None:
        page.protocol, page.response_format, page.protocol_version = protocol, response_format, version
    elif version is not None:
        page.historical_protocols.append((version, protocol))
    elif (protocol, response_format) != (page.protocol, page.response_format):
        raise broken(f"the server's answer for {table} has two protocol lines that differ")


def _take_metadata(page: Page, body: Any, table: str) -> None:
    metadata = parse_metadata(body, table)
    metadata.check_format(table)
    if page.metadata is None:
        page.metadata = metadata
    elif metadata.version is not None:
        page.historical_metadata.append((metadata.version, metadata))
    elif metadata.shape != page.metadata.shape:
        raise broken(f"the server's answer for {table} has two metaData lines that differ")


def _take_end(page: Page, body: Any, table: str) -> None:
    if page.end != EndStreamAction():
        raise broken(f"the server's answer for {table} has more than one endStreamAction")
    page.end = parse_end(body, table)
    if page.end.error_message or (page.end.http_status_error_code or 0) >= 400:
        _raise_error(page.end, table)


def _raise_error(end: EndStreamAction, table: str) -> NoReturn:
    status = end.http_status_error_code
    error = error_kind(status)(
        f"the query of {table}: the server gave up in the middle of its answer"
        f"{f' ({status})' if status else ''}: {end.error_message or 'it gives no reason'}; try again, and ask the provider if it goes on",
        status=status,
    )
    raise RetryableError(error) if isinstance(error, UnavailableError) else error


def line_blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines of a body that arrives in chunks, several at once, and more of them the longer it gets.

    Raises:
        ResponseError: A line is longer than any that a server would send.
    """
    begun: list[bytes] = []
    size = line = least = 0
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        line = len(chunk) - end if end else line + len(chunk)
        size += len(chunk)
        if end and size >= least:
            yield b"".join((*begun, memoryview(chunk)[:end]))
            begun, size, chunk = [], line, chunk[end:]
            least = min(_LARGEST_BLOCK, least + _BLOCK_GROWS)
        begun.append(chunk)
        if line > _LONGEST_LINE:
            raise no_server(f"the server's answer has a line of more than {_LONGEST_LINE >> 20} MiB")
    if size:
        yield b"".join(begun)


def expects_end_action(headers: Mapping[str, str]) -> bool:
    """Whether an answer's headers promise a last line that marks its end."""
    capabilities = headers.get(CAPABILITIES, "").lower().replace(" ", "")
    return "includeendstreamaction=true" in capabilities.split(";")


def header_version(headers: Mapping[str, str], table: str) -> int | None:
    """The table's version by the headers; raises ResponseError where the header is no number."""
    text = headers.get(_VERSION_HEADER)
    if text is None:
        return None
    version = header_count(text)
    if version is None:
        raise broken(f"the server's answer for {table} has the version {quoted(text)}")
    return version


_FIRST_POLL, _LONGEST_POLL = 0.5, 10.0
#: ``failed`` is the protocol's; the others could only ever be polled until the time is up.
_FAILED = ("failed", "error", "expired", "canceled", "cancelled")
_MESSAGES = ("error", "errorMessage", "message", "error_message")


def await_query(
    settings: NetworkSettings, table: TableName, status: Mapping[str, Any], poll: Callable[[str], Page]
) -> tuple[str, Page]:
    """Poll a submitted query until it has succeeded; returns its id, for further pages, and its first page.

    Args:
        settings: The clock, and how long to wait.
        status: The server's answer to the submitted query.
        poll: Asks the server once for the answer, by the query's id.

    Raises:
        RequestRefusedError: The query failed; with the server's message.
        NotFoundError: The server no longer knows the query.
        UnavailableError: The query is still pending after ``retry_seconds``, at least ten minutes.
    """
    began, bound = settings.clock(), max(settings.retry_seconds, 600.0)
    pause = _FIRST_POLL
    while True:
        query_id = _pending(status, table)
        now = settings.clock()
        if now > began + bound:
            raise UnavailableError(
                f"the asynchronous query of {table} is still pending; set asyncQuery=false, or ask the provider about the server"
            )
        if now + pause - began >= FIRST:
            say_waiting(
                f"the query of {table}", "the server still works on it", now, now - began, bound, "retryTimeout"
            )
        settings.sleep(pause)
        pause = min(pause * 2, _LONGEST_POLL)
        try:
            answer = poll(query_id)
        except NotFoundError as error:
            raise NotFoundError(
                f"the asynchronous query of {table} has expired on the server; load the table again",
                status=error.status,
            ) from None
        if answer.query_status is None:
            return query_id, answer
        status = {"queryId": query_id, **answer.query_status}


def _pending(status: Mapping[str, Any], table: TableName) -> str:
    """The id of a query that is still pending; so is one without a status, which the reference server does not send."""
    state = str(status.get("status") or "pending").lower()
    if state in _FAILED:
        message = next((str(status[m]) for m in _MESSAGES if status.get(m)), "the server gives no reason")
        raise RequestRefusedError(
            f"the asynchronous query of {table} failed: {message}; ask the provider, or set asyncQuery=false"
        )
    query_id = status.get("queryId")
    if not isinstance(query_id, str) or not query_id:
        raise ResponseError(
            f"the server answered the query of {table} with a status without queryId; set asyncQuery=false"
        )
    return query_id
