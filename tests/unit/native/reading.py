"""Spark's way of reading from the gateway, without Spark: WebHDFS by sockets, Parquet by pyarrow."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.plan import plan
from delta_sharing_spark.access.resolved_scan import ResolvedScan
from delta_sharing_spark.native.gateway import Gateway
from delta_sharing_spark.native.plan import NativePlan, StepAsideError, renewing_here, why_not
from delta_sharing_spark.schema.arrow import arrow_schema
from delta_sharing_spark.storage.ranges import SeekableFile
from delta_sharing_spark.table import Scan
from support import HANGS


class RemoteError(OSError):
    """What a RemoteException says."""


def ask(address: str, operation: str, **parameters: Any) -> Any:
    """An answer: JSON, or for OPEN the response to read from."""
    query = "&".join(f"{k}={v}" for k, v in {"op": operation, "user.name": "someone", **parameters}.items())
    url = (
        address.replace("webhdfs://", "http://")
        .replace("/", "/webhdfs/v1/", 3)
        .replace("/webhdfs/v1//webhdfs/v1/", "//")
    )
    host, _, path = address.removeprefix("webhdfs://").partition("/")
    url = f"http://{host}/webhdfs/v1/{path}?{query}"
    try:
        response = urllib.request.urlopen(url, timeout=HANGS)
    except urllib.error.HTTPError as error:
        with error:
            raise RemoteError(json.loads(error.read())["RemoteException"]["message"]) from None
    assert response.headers["Content-Type"] is None
    if operation == "OPEN":
        return response
    with response:
        return json.loads(response.read())


class RemoteFile(SeekableFile):
    """A file of the gateway, each read an OPEN of its own that is closed when it has enough, as Hadoop's client does."""

    def __init__(self, address: str) -> None:
        super().__init__(ask(address, "GETFILESTATUS")["FileStatus"]["length"])
        self.address = address

    def read(self, size: int = -1) -> bytes:
        size = self._available(size)
        data = b""
        while len(data) < size:  # bytes that end early are asked for again, once
            with ask(self.address, "OPEN", offset=self._position) as response:
                more = response.read(size - len(data))
            data += more
            self._position += len(more)
            if not more:
                raise RemoteError("no bytes came")
        return data


def files_of(plan: NativePlan, address: str) -> list[str]:
    """The addresses of a listing's files, as Spark is told them: by partition, the largest first."""
    return [f"{address}/{plan.files[n].name(n)}" for numbers in plan.by_partition.values() for n in numbers]


def plan_native(load: ResolvedScan, opener: TableOpener | None = None) -> NativePlan:
    """All files of a load, as its index would list them."""
    if (why := why_not(load)) is not None:
        raise StepAsideError(why)
    load, opener = renewing_here(load, opener)
    return NativePlan(load, plan(load, opener=opener))


@contextmanager
def served(scan: Scan) -> Iterator[tuple[Gateway, NativePlan, str]]:
    """A scan's plan on a gateway of its own."""
    opener, load = scan.opened()
    native = plan_native(load, opener)
    gateway = Gateway()
    try:
        yield gateway, native, gateway.add(native, lambda: False)
    finally:
        gateway.close()


def read_by(plan: NativePlan, address: str, *paths: str) -> str:
    """The address for a scan of columns, by their paths."""
    required: dict[str, Any] = {"fields": []}
    for path in paths:
        *above, name = path.split(".")
        field: dict[str, Any] = {"name": name, "type": "string"}
        for struct in reversed(above):
            field = {"name": struct, "type": {"type": "struct", "fields": [field]}}
        required["fields"].append(field)
    return f"{address.rpartition('/')[0]}/{plan.shown.scans.name(required)}"


def rows_of(plan: NativePlan, address: str) -> pa.Table:
    """The rows as Spark would have them: files read by their footers, deleted rows out, partition values by number."""
    tables = []
    for address_of_file in files_of(plan, address):
        number = plan.number_of(address_of_file.rpartition("/")[2])
        assert number is not None
        file = plan.files[number]
        parquet = pq.ParquetFile(RemoteFile(address_of_file), page_checksum_verification=True, pre_buffer=False)
        check_middles(parquet.metadata, file.size)
        columns = [*plan.shown.columns.names, plan.shown.deletion_column]
        table = parquet.read([n for n in parquet.schema_arrow.names if n in columns])
        if plan.shown.deletion_column in table.column_names:
            table = table.filter(pc.is_null(table[plan.shown.deletion_column])).drop_columns(
                [plan.shown.deletion_column]
            )
        for field, value in zip(plan.partition_columns, plan.partitions[file.partition], strict=True):
            table = table.append_column(field.name, pa.repeat(value, len(table)))
        tables.append(table)
    if not tables:
        return arrow_schema(plan.shown.output).empty_table()
    table = pa.concat_tables(tables, promote_options="default")
    for field in arrow_schema(plan.shown.output):
        if field.name not in table.column_names:  # no file has it
            table = table.append_column(field.name, pa.nulls(len(table), field.type))
    return table.select(list(plan.shown.output.names))


def check_middles(metadata: Any, listed: int) -> None:
    """Every row group's middle lies in the length that Spark cuts into tasks; outside it would be read by none."""
    for number in range(metadata.num_row_groups):
        column = metadata.row_group(number).column(0)
        start = column.data_page_offset
        if column.dictionary_page_offset:
            start = min(start, column.dictionary_page_offset)
        assert start >= 4
    assert metadata.num_row_groups == 0 or listed > 0
