"""DoGet of pyarrow's Flight server beside that of a gRPC server in Python, the only one that can carry ``PollFlightInfo``.

``python benchmarks/grpc_server.py`` (needs grpcio). Both send the same batch again and again, to pyarrow's client; they take turns.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

#: A message of 3.6 MB, and a stream of 230 MB.
ROWS, COLUMNS, MESSAGES = 65_000, 7, 64
TURNS = 8
FRAMES = [("grpc.http2.max_frame_size", 1 << 20)]
#: Tags of ``FlightData``: ``data_header`` is field 2, ``data_body`` field 1000.
HEADER_TAG, BODY_TAG = b"\x12", b"\xc2\x3e"


def batch() -> pa.RecordBatch:
    draw = np.random.default_rng(1)
    return pa.record_batch([pa.array(draw.random(ROWS)) for _ in range(COLUMNS)], [f"c{i}" for i in range(COLUMNS)])


def flight_data(message: pa.Buffer) -> bytes:
    """A ``FlightData`` of an encapsulated IPC message (Arrow Columnar Format, "Encapsulated message format")."""
    view = memoryview(message)
    size = int.from_bytes(view[4:8], "little")
    parts: list[bytes | memoryview] = [HEADER_TAG, varint(size), view[8 : 8 + size]]
    if body := view[8 + size :]:
        parts += [BODY_TAG, varint(len(body)), body]
    return b"".join(parts)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def listen_pyarrow() -> tuple[Any, int]:
    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
            one = batch()
            return flight.GeneratorStream(one.schema, iter([one] * MESSAGES))

    server = Server("grpc+tcp://127.0.0.1:0")
    return server, server.port


def listen_grpcio() -> tuple[Any, int]:
    import grpc

    def do_get(ticket: bytes, context: Any) -> Iterator[bytes]:
        one = batch()
        yield flight_data(one.schema.serialize())
        for _ in range(MESSAGES):
            yield flight_data(one.serialize())

    handlers = {"DoGet": grpc.unary_stream_rpc_method_handler(do_get)}
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", -1), *FRAMES])
    service = grpc.method_handlers_generic_handler("arrow.flight.protocol.FlightService", handlers)
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def serve(kind: str) -> None:
    """Serve until standard input ends; a line is answered by the seconds of processor time so far."""
    server, port = listen_pyarrow() if kind == "pyarrow" else listen_grpcio()
    print(port, flush=True)
    for _ in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, flush=True)
    del server
    os._exit(0)


class Server:
    def __init__(self, kind: str) -> None:
        command = [sys.executable, __file__, kind]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._ask, self._told = self._process.stdin, self._process.stdout
        self._uri = f"grpc+tcp://127.0.0.1:{int(self._told.readline())}"

    def processor_seconds(self) -> float:
        self._ask.write("\n")
        self._ask.flush()
        return float(self._told.readline())

    def read(self) -> int:
        with flight.connect(self._uri, generic_options=FRAMES) as connection:
            return sum(chunk.data.nbytes for chunk in connection.do_get(flight.Ticket(b"")))

    def close(self) -> None:
        self._ask.close()
        self._process.wait(10)


def main() -> None:
    servers = {kind: Server(kind) for kind in ("pyarrow", "grpcio")}
    for streams in (1, 4):
        rates: dict[str, list[float]] = {kind: [] for kind in servers}
        costs: dict[str, list[float]] = {kind: [] for kind in servers}
        for turn in range(TURNS + 1):
            for kind, server in sorted(servers.items(), reverse=bool(turn % 2)):
                before, began = server.processor_seconds(), time.perf_counter()
                with ThreadPoolExecutor(streams) as pool:
                    gigabytes = sum(pool.map(lambda one: one.read(), [server] * streams)) / 1e9
                if turn:  # the first one warms up
                    rates[kind].append(gigabytes / (time.perf_counter() - began))
                    costs[kind].append((server.processor_seconds() - before) / gigabytes)
        for kind in servers:
            rate, cost = statistics.median(rates[kind]), statistics.median(costs[kind])
            best = max(rates[kind])
            print(
                f"{streams} streams  {kind:<8}{rate:6.2f} GB/s, at best {best:.2f}; the server's processor {cost:5.2f} s/GB"
            )
    for server in servers.values():
        server.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
