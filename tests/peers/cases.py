"""The cases, by section."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from conformance.canonical import row_texts
from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.scan.parallel import read_splits
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.table import Scan, SharedTable
from peers.reference_server import Storage
from peers.report import ReferenceClient, Report, Rows, rows_of
from peers.sources import ODD_SHARE, ODD_TABLE, Own
from unit.streams.spark_loop import Checkpoint, Run


@dataclass(frozen=True)
class Peers:
    """Everything that runs.

    Attributes:
        client, short_lived: Ours, at the server, and at one whose URLs live four seconds and whose pages hold three files.
        profile: The server's, for the reference client; ``short_profile`` that of the other.
        oracle: Ours, at the embedded server in directory mode.
    """

    report: Report
    reference: ReferenceClient
    store: Storage
    paths: dict[str, Path]
    own: Own
    client: SharingClient
    short_lived: SharingClient
    oracle: SharingClient
    folder: Path
    profile: dict[str, Any]
    short_profile: dict[str, Any]

    def address(self, name: str, share: str = "peers.all") -> str:
        """The address of a table for the reference client."""
        path = self.folder / "reference.share"
        path.write_text(json.dumps(self.profile), encoding="utf-8")
        return f"{path}#{share}.{name}"

    def snapshot(self, name: str, **arguments: Any) -> Callable[[], object]:
        return lambda: self.reference.ask("snapshot", self.address(name), **arguments)

    def feed(self, name: str, **arguments: Any) -> Callable[[], object]:
        return lambda: self.reference.ask("changes", self.address(name), **arguments)

    def compared(
        self,
        name: str,
        scan: Callable[[SharingClient], Scan],
        theirs: Callable[[], object],
        case: str = "",
        refused: str | None = None,
    ) -> None:
        """One case: what a scan reads from the server must be what the oracle reads, row by row and type by type."""
        try:
            expected = scan(self.oracle).to_arrow()
        except DeltaSharingError:
            refused = ""
        if refused is not None:
            self.report.case(
                f"{name} {case}", lambda: arrow_rows(scan(self.client).to_arrow()), theirs, refused=refused
            )
            return

        def ours() -> object:
            result = scan(self.client).to_arrow()
            same = result.schema == expected.schema and row_texts(result) == row_texts(expected)
            return arrow_rows(result) if same else f"OTHER ROWS: {result.num_rows}, not {expected.num_rows}"

        self.report.case(f"{name} {case}", ours, theirs, expected=lambda result: isinstance(result, Rows))


def arrow_rows(table: pa.Table) -> Rows:
    try:
        return rows_of(table.to_pandas(timestamp_as_object=True))
    except (pa.ArrowException, ValueError, OverflowError):
        return Rows(table.num_rows, "")


def listings(peers: Peers) -> None:
    ask = peers.reference.ask
    profile = peers.address("x").rpartition("#")[0]
    count = len(peers.paths) + 2
    peers.report.case("all tables of all shares, one of them odd", lambda: len(peers.client.list_all_tables()),
                      lambda: ask("tables", profile), expected=count)  # fmt: skip
    first = next(iter(peers.paths))
    peers.report.case("a table of the odd share, quoted", lambda: peers.client.table(f"`{ODD_SHARE}`.s.{first}").version(),
                      lambda: ask("version", f"{profile}#{ODD_SHARE}.s.{first}"))  # fmt: skip
    odd = TableName(ODD_SHARE, "s", ODD_TABLE)
    peers.report.case("an odd table of it", lambda: peers.client.table(str(odd)).scan().to_arrow().num_rows,
                      lambda: ask("snapshot", f"{profile}#{ODD_SHARE}.s.{ODD_TABLE}"), expected=1000)  # fmt: skip
    wrong = SharingClient({**peers.profile, "bearerToken": "wrong"})
    peers.report.case("a token that is wrong", wrong.list_shares, refused="UnauthenticatedError")
    peers.report.case("a share that is not there", peers.client.table("nowhere.s.t").scan().to_arrow,
                      refused="NotFoundError")  # fmt: skip
    peers.report.case("a table that is nearly there", peers.client.table("peers.all.plian").scan().to_arrow,
                      refused="did you mean 'plain'")  # fmt: skip
    paged = peers.short_lived.table("peers.all.plain").scan(maxFilesPerRequest=1000)
    peers.report.case("pages of three files, whatever is asked for", lambda: paged.to_arrow().num_rows, expected=1000)


#: Tables that the reference server itself cannot describe, with words of the error.
UNREADABLE_THERE = dict.fromkeys(("spark_variant_plain", "spark_variant_shredded", "spark_void_column"), "answered 500")


def _snapshot(name: str, client: SharingClient) -> Scan:
    return client.table(f"peers.all.{name}").scan()


def tables(peers: Peers) -> None:
    for name in peers.paths:
        peers.compared(name, partial(_snapshot, name), peers.snapshot(name), refused=UNREADABLE_THERE.get(name))


def hints(peers: Peers) -> None:
    """How many of ten files a server lists, in each engine; rows are those of the oracle in any case."""
    ways: dict[str, dict[str, object]] = {
        "JSON hints": {},
        "JSON hints, pages": {"maxFilesPerRequest": 1000},
        "SQL hints": {"serverHints": "sql"},
        "both hints": {"serverHints": "both"},
    }
    # Delta Kernel lists all for an OR of partition and data columns, Delta Standalone for a DOUBLE.
    conditions = {
        "p = 'c'": (1, 1),
        "id >= 950": (1, 1),
        "p = 'c' AND id < 250": (1, 1),
        "p IN ('a', 'b') OR id = 777": (10, 3),
        "x <= 40": (1, 10),
    }
    for name in ("plain", "vectors"):
        for way, options in ways.items():
            for where, (kernel, standalone) in conditions.items():

                def scan(client: SharingClient, name: str = name, where: str = where, options: Any = options) -> Scan:
                    return client.table(f"peers.all.{name}").scan(where=where, **options)

                def ours(scan: Callable[[SharingClient], Scan] = scan) -> object:
                    if row_texts(scan(peers.client).to_arrow()) != row_texts(scan(peers.oracle).to_arrow()):
                        return "OTHER ROWS"
                    report = scan(peers.client).plan().report
                    return f"{report.listed} of 10 listed{', asked otherwise' if report.fallback else ''}"

                sql = "p = " in where and options.get("serverHints") in ("sql", "both")
                if "maxFilesPerRequest" not in options and not sql:  # nothing sends the query to the old engine
                    expected = f"{10 if options.get('serverHints') == 'sql' else kernel} of 10 listed"
                elif name == "vectors":
                    expected = "10 of 10 listed, asked otherwise"
                else:
                    expected = f"{standalone} of 10 listed"
                peers.report.case(f"{name}: {way}: {where}", ours, expected=expected)
    for name in ("plain", "vectors"):

        def limited(name: str = name) -> object:
            scan = peers.client.table(f"peers.all.{name}").scan(limit=7)
            return f"{scan.to_arrow().num_rows} rows of {scan.plan().report.listed} files"

        peers.report.case(f"{name}: limit 7", limited, peers.snapshot(name, limit=7), expected="7 rows of 1 files")


def travel(peers: Peers) -> None:
    """Versions and moments of the history table, whose commits the storage has stamped, and of Delta's own tables."""
    for version in range(5):
        peers.compared("history", lambda c, v=version: c.table("peers.all.history").scan(version=v),
                       peers.snapshot("history", version=version), f"version {version}")  # fmt: skip
    for name in ("spark_deletion_vectors", "spark_mapping_name", "spark_v2_checkpoint", "vectors"):
        peers.compared(name, lambda c, n=name: c.table(f"peers.all.{n}").scan(version=1),
                       peers.snapshot(name, version=1), "version 1")  # fmt: skip
    table = peers.client.table("peers.all.history")
    peers.report.case("version 99", lambda: table.scan(version=99).to_arrow().num_rows,
                      peers.snapshot("history", version=99), refused="VersionError")  # fmt: skip
    times = peers.store.times("history/_delta_log/")
    for offset, shift in (("exactly", 0), ("a millisecond before", -1), ("a millisecond after", 1)):
        for version, committed in enumerate(times):
            moment = committed + timedelta(milliseconds=shift)
            last = version if shift >= 0 else version - 1
            rows = partial(_rows_at, table, moment)
            name = f"timestamp {offset} commit {version}"
            if last < 0 or (shift > 0 and version == len(times) - 1):
                peers.report.case(
                    name, rows, peers.snapshot("history", timestamp=moment.isoformat()), refused="VersionError"
                )
            else:
                expected = peers.own.history.expected(last).num_rows
                peers.report.case(
                    name, rows, peers.snapshot("history", timestamp=moment.isoformat()), expected=expected
                )
            first = version if shift <= 0 else version + 1
            name = f"first version at or after {offset} commit {version}"
            call = partial(table.version, moment)
            theirs = partial(
                peers.reference.ask, "version", peers.address("history"), starting_timestamp=moment.isoformat()
            )
            if first >= len(times):
                peers.report.case(name, call, theirs, refused="")
            else:
                peers.report.case(name, call, theirs, expected=first)


def _rows_at(table: SharedTable, moment: datetime) -> int:
    return table.scan(timestamp=moment).to_arrow().num_rows


def _first_version(table: SharedTable, moment: datetime) -> int:
    return min(table.changes(starting_timestamp=moment).to_arrow()["_commit_version"].to_pylist())


def feeds(peers: Peers) -> None:
    """Change feeds by versions and moments; commit times are the storage's, so they are not compared."""
    refused = "too new for this version of Delta Standalone"
    for name, start in (("history", 0), ("history", 3), *((n, 0) for n in peers.paths if n.startswith("spark_cdf"))):

        def scan(client: SharingClient, name: str = name, start: int = start) -> Scan:
            table = client.table(f"peers.all.{name}")
            columns = [field.name for field in table.schema.fields] + ["_change_type", "_commit_version"]
            return table.changes(start, columns=columns)

        if peers.client.table(f"peers.all.{name}").snapshot_head().protocol.min_reader_version > 1:
            peers.report.case(f"{name} feed from {start}", lambda s=scan: arrow_rows(s(peers.client).to_arrow()),
                              peers.feed(name, starting_version=start), refused=refused)  # fmt: skip
        else:
            peers.compared(name, scan, peers.feed(name, starting_version=start), f"feed from {start}")
    times = peers.store.times("history/_delta_log/")
    table = peers.client.table("peers.all.history")
    for name, moment, first in (
        ("a day before the first commit", times[0] - timedelta(days=1), 1),
        ("exactly commit 3", times[3], 3),
        ("exactly the newest commit", times[4], 4),
    ):
        versions = partial(_first_version, table, moment)
        peers.report.case(f"feed from {name}: first version", versions,
                          peers.feed("history", starting_timestamp=moment.isoformat()), expected=first)  # fmt: skip


def streams(peers: Peers) -> None:
    """A stream's micro-batches without Spark (``tests/unit/streams/spark_loop.py``)."""
    times = peers.store.times("history/_delta_log/")

    def ids(name: str, **options: str) -> Callable[[], object]:
        options_of_table = {
            **peers.client.options_for(peers.client.table(f"peers.all.{name}").name),
            "maxFilesPerTrigger": "2",
            **options,
        }
        return lambda: len(Run(Checkpoint(), options_of_table).drain().checkpoint.ids)

    report = peers.report
    expected = peers.own.history.expected()
    report.case("stream of a snapshot", ids("history"), expected=expected.num_rows)
    report.case(
        "stream from version 0 that meets a delete", ids("history", startingVersion="0"), refused="skipChangeCommits"
    )
    report.case(
        "stream from version 0, skipChangeCommits",
        ids("history", startingVersion="0", skipChangeCommits="true"),
        expected=60,
    )
    early = (times[0] - timedelta(days=1)).isoformat()
    report.case("stream from a day before the first commit",
                ids("history", startingTimestamp=early, skipChangeCommits="true"), expected=60)  # fmt: skip
    report.case("stream from exactly commit 4", ids("history", startingTimestamp=times[4].isoformat()), expected=10)
    report.case("stream of changes", ids("history", startingVersion="0", readChangeFeed="true"), expected=63)
    report.case("stream of a snapshot with deletion vectors", ids("vectors"), expected=999)
    report.case(
        "stream from version 0 with deletion vectors", ids("vectors", startingVersion="0"), refused="accessMode=dir"
    )
    report.case("stream of changes with deletion vectors", ids("feed_vectors", startingVersion="0", readChangeFeed="true"),
                refused="accessMode=dir")  # fmt: skip


def expiry(peers: Peers) -> None:
    """URLs that have ended, that the storage refuses, and tables that change before they are renewed."""

    def late(name: str, change: Callable[[], object] = lambda: None) -> object:
        planned = peers.short_lived.table(f"peers.all.{name}").scan().plan()
        change()
        time.sleep(5)
        return sum(batch.num_rows for batch in read_splits(planned.splits, 2))

    def denied() -> object:
        peers.store.deny(3)
        return peers.client.table("peers.all.vectors").scan().to_arrow().num_rows

    def rewritten() -> None:
        own = peers.own.changing
        own.append([{"id": 99, "p": "a", "x": 1.0}]).delete(pc.field("id") < 5, deletion_vectors=True).optimize()
        peers.store.upload("changing", own.path)

    report = peers.report
    report.case("URLs that ended before they were read", lambda: late("vectors"), expected=999)
    report.case("URLs that the storage refuses", denied, expected=999)
    report.case("table rewritten between plan and renewal", lambda: late("changing", rewritten), expected=40)
    report.case("the same table read now", lambda: peers.client.table("peers.all.changing").scan().to_arrow().num_rows,
                peers.snapshot("changing"), expected=36)  # fmt: skip
    report.case("storage was sent the sharing token", lambda: peers.store.counts()["bearerLeaks"], expected=0)
