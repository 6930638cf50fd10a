"""A Flight gateway beside ``to_arrow()`` on the same table, and under many clients; ``python benchmarks/flight.py``.

The sharing server, the gateway and this client are a process each. One and eight streams are pyarrow's own, each over a
connection of its own. Ways take turns, so that whatever else the machine does meets them alike; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
from served import Served

from delta_sharing_spark import SharingClient
from delta_sharing_spark.testing.tables import DeltaTableBuilder, FileStyle

TABLE = "bench.file.t"
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("name", pa.string()), ("n", pa.int32())])
STREAMS = 8


def write_table(path: Path, rows: int) -> None:
    """Eight files of four columns."""
    draw = np.random.default_rng(1)
    made = DeltaTableBuilder(path, SCHEMA, style=FileStyle(row_group_size=250_000, keep_rows=False))
    each = rows // 8
    for number in range(8):
        columns = [
            np.arange(each) + number * each,
            draw.random(each),
            pa.array([f"name {i % 1000}" for i in range(each)]),
            draw.integers(0, 100, each).astype("int32"),
        ]
        made.append(pa.table(columns, schema=SCHEMA))


class Gateway:
    """``delta-sharing-spark flight`` in a process of its own."""

    def __init__(self, profile: Path) -> None:
        command = [sys.executable, "-m", "delta_sharing_spark.cli", "flight", str(profile)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.uri = self.process.stdout.readline().split()[-1]
        self.token = self.process.stdout.readline().split()[-1]
        self.options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {self.token}".encode())])

    def tickets(self, connection: flight.FlightClient, split_bytes: int = 1 << 30) -> list[flight.Ticket]:
        """The endpoints of the table, of at most about so many bytes each."""
        command = {"table": TABLE, "options": {"maxSplitBytes": f"{split_bytes}b"}}
        info = connection.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command)), self.options)
        return [endpoint.ticket for endpoint in info.endpoints]

    def memory(self) -> tuple[float, float]:
        """Its resident memory now and at its peak, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        memory = dict(line.split(":", 1) for line in status.splitlines() if line.startswith(("VmRSS", "VmHWM")))
        return int(memory["VmRSS"].split()[0]) / 1024, int(memory["VmHWM"].split()[0]) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def throughput(table: Path, profile: Path, gateway: Gateway, rounds: int, rows: int) -> None:
    """Medians of ``to_arrow()``, of one stream and of eight, and of this package's own client."""
    client, over = SharingClient(str(profile)), SharingClient.over(gateway.uri, gateway.token)
    frames = [("grpc.http2.max_frame_size", 1 << 20)]  # as this package's client has it
    connections = [flight.connect(gateway.uri, generic_options=frames) for _ in range(STREAMS)]
    largest = max(file.stat().st_size for file in table.glob("*.parquet")) + (1 << 20)  # an endpoint for each file

    def one() -> int:
        tickets = gateway.tickets(connections[0])
        return sum(connections[0].do_get(ticket, gateway.options).read_all().num_rows for ticket in tickets)

    def eight() -> int:
        tickets = gateway.tickets(connections[0], largest)
        with ThreadPoolExecutor(STREAMS) as pool:
            parts = [
                pool.submit(lambda n, t: connections[n % STREAMS].do_get(t, gateway.options).read_all(), n, ticket)
                for n, ticket in enumerate(tickets)
            ]
            return sum(part.result().num_rows for part in parts)

    ways: dict[str, Callable[[], int]] = {
        "to_arrow()": lambda: client.table(TABLE).scan().to_arrow().num_rows,
        "one stream": one,
        "eight streams": eight,
        "over().to_arrow()": lambda: over.table(TABLE).scan().to_arrow().num_rows,
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, read in ways.items():
            began = time.perf_counter()
            assert read() == rows
            if turn:  # the first one imports, connects and fills caches
                seconds[way].append(time.perf_counter() - began)
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    for way, median in medians.items():
        share = medians["to_arrow()"] / median
        print(f"{way:<20}{median:8.3f} s{rows / median / 1e6:8.1f} M rows/s{share:8.2f} of to_arrow()")


def load(gateway: Gateway, clients: int, rows: int) -> None:
    """So many clients at once, one of which takes a batch a second."""
    before, _ = gateway.memory()
    counted: list[int] = []
    done = threading.Event()

    def slow() -> None:
        with flight.connect(gateway.uri) as connection:
            (ticket, *_) = gateway.tickets(connection)
            reader = connection.do_get(ticket, gateway.options)
            while not done.wait(1.0):
                try:
                    reader.read_chunk()
                except StopIteration:
                    return
            reader.cancel()

    def whole() -> None:
        with flight.connect(gateway.uri) as connection:
            tickets = gateway.tickets(connection)
            counted.append(
                sum(chunk.data.num_rows for ticket in tickets for chunk in connection.do_get(ticket, gateway.options))
            )

    dawdler = threading.Thread(target=slow)
    dawdler.start()
    began = time.perf_counter()
    threads = [threading.Thread(target=whole) for _ in range(clients - 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    done.set()
    dawdler.join()
    assert counted == [rows] * (clients - 1)
    after, peak = gateway.memory()
    print(
        f"{clients} clients, a slow one among them: {took:.1f} s, {rows * (clients - 1) / took / 1e6:.1f} M rows/s; "
        f"the gateway's memory {before:.0f} MiB before, {peak:.0f} at its peak, {after:.0f} after"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=64)
    arguments = parser.parse_args()
    rows = arguments.rows // 8 * 8
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        write_table(directory / "t", rows)
        served = Served({"t": directory / "t"})
        profile = directory / "c.share"
        profile.write_text(served.profile)
        gateway = Gateway(profile)
        try:
            throughput(directory / "t", profile, gateway, arguments.rounds, rows)
            load(gateway, arguments.clients, rows)
        finally:
            gateway.close()
            served.close()


if __name__ == "__main__":
    main()
