"""Holds one complete answer of a server: its page and headers, and the table's head in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from delta_sharing_spark.errors import ResponseError, UnsupportedFeatureError
from delta_sharing_spark.sharing.response_lines import Page
from delta_sharing_spark.sharing.wire_records import TableSnapshotHead

CAPABILITIES = "delta-sharing-capabilities"
_VERSION_HEADER = "delta-table-version"
_VERSION = re.compile(r"\s*[0-9]{1,18}\s*")
#: The newest version of the parquet format's own protocol.
_PARQUET_READER = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete page, with the facts in its headers.

    Attributes:
        version: The header ``Delta-Table-Version``.
        file_id_hash: The header ``fileidhash``: the hash that the server used, in lower case.
    """

    page: Page
    version: int | None
    file_id_hash: str | None

    def head(self, table: str, formats: Sequence[str]) -> TableSnapshotHead:
        """Version, protocol and metadata of the table.

        Raises:
            ResponseError: A line is missing, or the format is none of ``formats``.
            UnsupportedFeatureError: A parquet format of the future.
        """
        page = self.page
        for line, name in ((page.protocol, "protocol"), (page.metadata, "metaData")):
            if line is None:
                raise ResponseError(
                    f"the server's answer for {table} has no {name} line; check that the endpoint is a Delta Sharing server's"
                )
        assert page.protocol is not None
        assert page.metadata is not None
        # The parquet format needs no reader feature, so it is never a surprise; the delta format may need one.
        if page.response_format == "delta" and "delta" not in formats:
            raise ResponseError(
                f"the server answered in the delta format for {table}, asked for was parquet; set the option responseFormat to delta, or leave it out"
            )
        if page.response_format == "parquet" and page.protocol.min_reader_version > _PARQUET_READER:
            raise UnsupportedFeatureError(
                f"{table} asks for version {page.protocol.min_reader_version} of the sharing protocol's parquet format, this release "
                f"reads {_PARQUET_READER}; upgrade delta-sharing-spark",
                features=(f"minReaderVersion={page.protocol.min_reader_version}",),
            )
        version = self.version if self.version is not None else page.metadata.version
        return TableSnapshotHead(version, page.response_format, page.protocol, replace(page.metadata, version=version))


def expects_end_action(headers: Mapping[str, str]) -> bool:
    """Whether an answer's headers promise a last line that marks its end."""
    capabilities = headers.get(CAPABILITIES, "").lower().replace(" ", "")
    return "includeendstreamaction=true" in capabilities.split(";")


def header_version(headers: Mapping[str, str], table: str) -> int | None:
    """The table's version by the headers.

    Raises:
        ResponseError: The header is no number.
    """
    text = headers.get(_VERSION_HEADER)
    if text is None:
        return None
    if _VERSION.fullmatch(text) is None:
        raise ResponseError(
            f"the server's answer for {table} has the version {text[:100]!r}; ask the provider to check the server"
        )
    return int(text)
