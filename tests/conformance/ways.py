"""Ways to a stored table: each returns the types that it shows and the rows that it gives. A new way is a line of ``WAYS``.

Ways that differ only on the client's side (pandas, Polars, DuckDB) are given the rows of one reading.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet as pq

from conformance.canonical import row_texts
from conformance.stored_tables import PADDED, Load, tables
from delta_sharing_spark import SharingClient
from delta_sharing_spark.cli.main import main as command_line
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.frames.row_source import RowSource
from delta_sharing_spark.schema.types import spark_schema_json
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.spark.native import native_frame, reach_of
from delta_sharing_spark.table import Scan
from delta_sharing_spark.testing.server import ServerSettings, SharingServer
from unit.flight.calling import TOKEN, Caller


@dataclass(frozen=True, slots=True)
class Given:
    """What a way gave: Spark's names of the types, None where it shows none; and rows, as texts."""

    types: list[list[str]] | None
    rows: list[str]


class Places:
    """Where the stored tables are served: by a server with either engine, and by a gateway for each access mode.

    Attributes:
        directory: For files that a way writes.
        spark: Starts the session at its first call.
    """

    def __init__(self, directory: Path, stack: ExitStack, spark: Callable[[], Any]) -> None:
        self.directory, self.spark = directory, spark
        self._reading: tuple[Load, pa.Table] | None = None
        self.clients = {}
        for engine in ("protocol", "reference"):
            server = stack.enter_context(SharingServer(settings=ServerSettings(engine=engine)))
            for number, path in enumerate(tables().values()):
                server.add_table(f"stored.tables.t{number}", path, access_modes=("url", "dir"))
            self.clients[engine] = SharingClient(server.profile(), retryTimeout="1s")
            if engine == "protocol":
                self.profile = server.write_profile(directory / "stored.share")
        self.gateways, self.callers = {}, {}
        for mode in ("url", "dir"):
            behind = SharingClient(self.profile, accessMode=mode, retryTimeout="1s")
            gateway = stack.enter_context(FlightGateway(behind, GatewaySettings(tokens=(TOKEN,))))
            self.gateways[mode] = SharingClient.over(gateway.uri, TOKEN, retryTimeout="1s")
            self.callers[mode] = Caller(stack.enter_context(flight.connect(gateway.uri)), TOKEN)

    def scan(self, load: Load, client: SharingClient | None = None, **options: str) -> Scan:
        table = (client or self.clients["protocol"]).table(load.shared_as)
        options = {**load.options, **options}
        if load.feed is None:
            return table.scan(version=load.version, **options)  # type: ignore[arg-type]
        # A feed's own columns come where Delta has them.
        answer = load.answer().types or []
        return table.changes(*load.feed, columns=[name for name, _ in answer], **options)  # type: ignore[arg-type]

    def reading(self, load: Load) -> pa.Table:
        """The rows of a load, read once for the ways that follow each other."""
        if self._reading is None or self._reading[0] is not load:
            self._reading = load, self.scan(load, accessMode="dir").to_arrow()
        return self._reading[1]


def by_client(places: Places, load: Load, engine: str = "protocol", **options: str) -> Given:
    scan = places.scan(load, places.clients[engine], **options)
    return Given(types_of(scan), row_texts(scan.to_arrow()))


def by_gateway(places: Places, load: Load) -> Given:
    scan = places.scan(load, places.gateways[mode_of(load)])
    return Given(types_of(scan), row_texts(scan.to_arrow()))


def by_flight_client(places: Places, load: Load) -> Given:
    """A Flight client that knows nothing of this package, and therefore tells the zone of partition values without one."""
    command: dict[str, Any] = {"table": load.shared_as, "options": {"timeZone": "UTC", **load.options}}
    if load.feed is not None:
        command["columns"] = [name for name, _ in load.answer().types or []]
        command["changes"] = dict(zip(("startingVersion", "endingVersion"), load.feed, strict=True))
    elif load.version is not None:
        command["version"] = load.version
    caller = places.callers[mode_of(load)]
    return Given(None, row_texts(caller.rows(caller.info(json.dumps(command)))))


def by_lane(places: Places, load: Load) -> Given:
    """Spark's own reader; the files that it reads are the lane's."""
    scan = places.scan(load, accessMode=mode_of(load))
    spark = places.spark()
    frame = native_frame(spark, scan.opened(), reach_of(spark), scan.table.client.scans.append)
    shown = frame.inputFiles()
    assert all(path.startswith("webhdfs://") for path in shown)
    assert (len(shown) == 0) == (scan.plan().report.files == 0), "small files are shown as one"
    assert as_nullable(json.loads(frame.schema.json())) == as_nullable(spark_schema_json(scan.schema))
    if load.is_last:
        assert frame.count() == scan.count()
    return of_frame(frame, scan)


def by_python_source(places: Places, load: Load) -> Given:
    scan = places.scan(load, accessMode=mode_of(load))
    return of_frame(scan.to_spark(places.spark(), engine="python"), scan)


def by_gateway_in_spark(places: Places, load: Load) -> Given:
    scan = places.scan(load, places.gateways[mode_of(load)])
    return of_frame(scan.to_spark(places.spark()), scan)


def by_pandas(places: Places, load: Load) -> Given:
    frame = Reading(places.reading(load)).to_pandas(dtype_backend="pyarrow")
    return same_values(pa.Table.from_pandas(frame, preserve_index=False), places, load)


def by_polars(places: Places, load: Load) -> Given:
    scan = places.scan(load, accessMode=mode_of(load))
    read, lazy = scan.to_polars(), scan.lazy().collect()
    assert read.schema == lazy.schema == pl.DataFrame(scan.arrow_schema().empty_table()).schema
    same_values(lazy.to_arrow(), places, load)
    return same_values(read.to_arrow(), places, load)


def by_duckdb(places: Places, load: Load) -> Given:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return same_values(Reading(places.reading(load)).to_duckdb(connection, "stored").to_arrow_table(), places, load)


def by_command_line(places: Places, load: Load) -> Given:
    """A download as Parquet."""
    out = places.directory / "download.parquet"
    options = {**load.options, "accessMode": mode_of(load), "retryTimeout": "1s"}
    if load.version is not None:
        options["versionAsOf"] = str(load.version)
    if load.feed is not None:
        first, last = map(str, load.feed)
        options |= {"readChangeFeed": "true", "startingVersion": first, "endingVersion": last}
    arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    errors = io.StringIO()
    with redirect_stderr(errors):
        code = command_line(["download", f"{places.profile}#{load.shared_as}", "-O", str(out), "--force", *arguments])
    if code:
        raise RuntimeError(errors.getvalue())
    rows = pq.read_table(out)
    return Given(None, row_texts(rows.select([name for name, _ in load.answer().types or []]) if load.feed else rows))


def types_of(scan: Scan) -> list[list[str]]:
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(spark_schema_json(scan.schema))
    return [[column.name, column.dataType.simpleString()] for column in schema.fields]


def of_frame(frame: Any, scan: Scan) -> Given:
    types = [[column.name, column.dataType.simpleString()] for column in frame.schema.fields]
    # Spark's toArrow refuses a variant or a place that is NULL.
    if any(name in str(types) for name in ("variant", "geometry", "geography")):
        columns = scan.arrow_schema()
        rows = pa.Table.from_pylist([_plain(row) for row in frame.collect()], schema=columns)
    else:
        rows = frame.toArrow()
    return Given(types, row_texts(rows))


def _plain(value: Any) -> Any:
    """A value of Spark's as Arrow takes it."""
    from pyspark.sql import Row
    from pyspark.sql.types import VariantVal

    if isinstance(value, VariantVal):
        return {"value": value.value, "metadata": value.metadata}
    if hasattr(value, "getBytes"):  # a place, which Spark before 4.1 has no class for
        return bytes(value.getBytes())
    if isinstance(value, Row):
        return {name: _plain(inner) for name, inner in value.asDict().items()}
    if isinstance(value, dict):
        return [(_plain(key), _plain(inner)) for key, inner in value.items()]
    return [_plain(item) for item in value] if isinstance(value, list) else value


def same_values(other: pa.Table, places: Places, load: Load) -> Given:
    """The rows of the reading where those of another library have its values; else those of the library."""
    reading = places.reading(load)
    values = [sorted(repr(_value(list(row.items()))) for row in rows.to_pylist()) for rows in (reading, other)]
    assert values[0] == values[1]
    return Given(None, row_texts(reading))


def _value(value: Any) -> Any:
    """A value without what libraries spell otherwise: a map's entries are key and value, zones are UTC."""
    if isinstance(value, tuple):
        return _value({"key": value[0], "value": value[1]})
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, dict):
        return {name: _value(item) for name, item in value.items()}
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(timezone.utc).isoformat()
    return value


def mode_of(load: Load) -> str:
    """The access mode behind ways that are tried in one alone: what they do does not hang on it."""
    return ("url", "dir")[(load.number + (load.version or 0)) % 2]


def unpadded(load: Load, rows: list[str]) -> list[str]:
    column = PADDED.get(load.table)
    return (
        rows if column is None else sorted(re.sub(rf"\b{column}='([^']*?) *'", rf"{column}='\1'", row) for row in rows)
    )


def as_nullable(tree: Any) -> Any:
    """A schema without its NOT NULLs: Parquet files read by Spark are always nullable."""
    if isinstance(tree, dict):
        nullable = ("nullable", "containsNull", "valueContainsNull")
        return {name: True if name in nullable else as_nullable(value) for name, value in tree.items()}
    return [as_nullable(item) for item in tree] if isinstance(tree, list) else tree


class Reading(RowSource):
    """Rows that were read already."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def arrow_schema(self) -> pa.Schema:
        return self.rows.schema

    def to_record_batch_reader(self, workers: int | None = None) -> pa.RecordBatchReader:
        return self.rows.to_reader()

    def _sized_batches(self) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None], int | None]:
        return self.rows.schema, (batch for batch in self.rows.to_batches()), self.rows.num_rows

    def _table_name(self) -> TableName:
        return TableName("stored", "tables", "reading")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to a table.

    Attributes:
        read: Reads a load.
        takes: Which loads it is asked for.
        is_spark: Whether it needs a session.
        names_errors: Whether its errors say their class.
        refuses: Tables that it cannot read, with words of its error.
    """

    read: Callable[[Places, Load], Given]
    takes: Callable[[Load], bool] = lambda load: True
    is_spark: bool = False
    names_errors: bool = True
    refuses: dict[str, str] | None = None


def last_ones(load: Load) -> bool:
    """What hangs on a table's types is asked once for each schema."""
    return load.is_last


def newest_ones(load: Load) -> bool:
    """What the Python source makes of rows hangs on their types, all of which the newest versions have; each costs a second."""
    return load.is_newest


def of_format_parquet(load: Load) -> bool:
    return not load.has_reader_features


def of_the_reference(load: Load) -> bool:
    """It lists no feed of a table with reader features: tests/unit/testing/test_reference_engine.py."""
    return load.feed is None or not load.has_reader_features


WAYS: dict[str, Way] = {
    "dir": Way(partial(by_client, accessMode="dir")),
    "dir, small splits": Way(partial(by_client, accessMode="dir", maxSplitBytes="1k"), last_ones),
    "pandas": Way(by_pandas, last_ones),
    "Polars": Way(by_polars, last_ones),
    "DuckDB": Way(by_duckdb, last_ones),
    "url, delta": Way(partial(by_client, accessMode="url", responseFormat="delta")),
    "url, parquet": Way(partial(by_client, accessMode="url", responseFormat="parquet"), of_format_parquet),
    "url, reference server": Way(partial(by_client, engine="reference", accessMode="url"), of_the_reference),
    "Flight": Way(by_gateway, last_ones),
    "plain Flight client": Way(by_flight_client, last_ones, names_errors=False),
    "command line": Way(by_command_line, last_ones, names_errors=False),
    "lane": Way(by_lane, last_ones, is_spark=True, refuses={"void_column": "a nested void"}),
    "Python source": Way(by_python_source, newest_ones, is_spark=True),
    "Flight by Spark": Way(by_gateway_in_spark, newest_ones, is_spark=True),
}


@contextmanager
def places(directory: Path, spark: Callable[[], Any]) -> Iterator[Places]:
    with ExitStack() as stack:
        yield Places(directory, stack, spark)
