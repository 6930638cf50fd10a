"""Tables with timestamps in processes with and without ``TZ``, with and without a Spark session: plain Flight clients, pandas and the
command line have the rows of the zone that is known there, UTC where none is. Where no zone is known, nothing carries an empty one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TESTS = Path(__file__).parents[1]
ROOTS = (TESTS.parents[1] / "shared" / "golden", TESTS / "data" / "delta_spark")


def _may_hold_timestamps(log: Path) -> bool:
    """Where only a checkpoint has the schema, it may."""
    commits = "".join(commit.read_text("utf-8") for commit in log.glob("[0-9]*.json"))
    return r"\"timestamp" in commits or '"metaData"' not in commits


TABLES = [
    log.parent
    for root in ROOTS
    if root.is_dir()
    for log in sorted(root.rglob("_delta_log"))
    if _may_hold_timestamps(log)
]
SESSION = "America/New_York"


@pytest.mark.parametrize("variables", [{}, {"TZ": "Asia/Tokyo"}], ids=["nothing", "TZ"])
def test_timestamps_are_read_in_utc_where_no_session_is(variables: dict[str, str]) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "TZ"}
    child = subprocess.run(
        [sys.executable, __file__],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    _check(json.loads(child.stdout.splitlines()[-1]))


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="a process's zone cannot be set")
def test_timestamps_are_read_in_the_zone_of_the_session_whatever_the_process_has(spark: Any) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            spark.conf.set("spark.sql.session.timeZone", SESSION)
            _check(_compare(SESSION))
    finally:
        time.tzset()
        spark.conf.set("spark.sql.session.timeZone", before)


def _check(told: dict[str, Any]) -> None:
    assert told["differences"] == []
    assert told["tables"] == len(TABLES)
    assert told["read"] > len(TABLES) // 2


def _compare(zone: str | None) -> dict[str, Any]:
    """Reads all tables by all ways, and compares each with the rows in a zone that the load is told."""
    import pyarrow.flight as flight

    from delta_sharing_spark import SharingClient
    from delta_sharing_spark.cli.main import main
    from delta_sharing_spark.flight.gateway import FlightGateway
    from delta_sharing_spark.flight.settings import GatewaySettings
    from delta_sharing_spark.testing.server import SharingServer

    names = {f"sh.sc.t{number}": path for number, path in enumerate(TABLES)}
    differences, read = [], 0
    with SharingServer() as server, tempfile.TemporaryDirectory() as directory:
        for name, path in names.items():
            server.add_table(name, path, access_modes=("url", "dir"))
        client = SharingClient(server.profile(), accessMode="dir", retryTimeout="1s")
        profile = Path(directory, "profile.share")
        profile.write_text(json.dumps(server.profile()))
        settings = GatewaySettings(tokens=("token",))
        with FlightGateway(client, settings) as gateway, flight.connect(gateway.uri) as plain:
            calls = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer token")])

            def flown(name: str) -> Any:
                descriptor = flight.FlightDescriptor.for_command(json.dumps({"table": name}))
                info = plain.get_flight_info(descriptor, calls)
                parts = [plain.do_get(endpoint.ticket, calls).read_all() for endpoint in info.endpoints]
                return _rows(pa.concat_tables(parts) if parts else info.schema.empty_table())

            def downloaded(name: str) -> Any:
                file = Path(directory, f"{name}.parquet")
                if main(["download", f"{profile}#{name}", "--format", "parquet", "--output", str(file)]):
                    raise RuntimeError("the command line failed")
                return _rows(pq.read_table(file))

            known = zone or "UTC"
            for name, path in names.items():
                table = client.table(name)
                expected = _outcome(lambda table=table: _rows(table.scan(timeZone=known).to_arrow()))
                in_utc = _outcome(lambda table=table: _rows(table.scan(timeZone="UTC").to_arrow()))
                frames = [
                    _outcome(lambda t=table, how=how: str(t.scan(**how).to_pandas().to_dict("list")))
                    for how in ({"timeZone": known}, {})
                ]
                read += not isinstance(expected, str)
                ways: dict[str, tuple[Any, Any]] = {
                    "arrow": (_outcome(lambda table=table: _rows(table.scan().to_arrow())), expected),
                    "pandas": (frames[1], frames[0]),
                    "a plain Flight client": (_outcome(lambda name=name: flown(name)), in_utc),
                }
                if zone is None and not isinstance(expected, str):
                    ways["the command line"] = (_outcome(lambda name=name: downloaded(name)), expected)
                differences += [
                    f"{path}, {way}: {str(got)[:300]}" for way, (got, wanted) in ways.items() if got != wanted
                ]
    return {"tables": len(names), "read": read, "differences": differences}


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def _outcome(read: Callable[[], Any]) -> Any:
    """What is read; of a table that is refused only that it is, for Flight and the command line have errors of their own."""
    try:
        return read()
    except Exception as error:
        text = str(error)
        return f"zone: {text}" if "zone" in text.lower() else "refused"


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_compare(None)) + "\n")
