"""Run the Go client against a gateway over the sample share: ``nox -s flight-go``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer

HERE = Path(__file__).resolve().parent
TOKEN = "token-of-this-run"


def main() -> int:
    """Read one sample table with Go in each access mode, planned at once and under polls; compare the number of rows with our own."""
    with tempfile.TemporaryDirectory() as directory, SharingServer() as server:
        tables = share_sample(server, directory, trips=200_000)
        program = Path(directory) / "flight-go"
        subprocess.run(["go", "build", "-o", program, "."], cwd=HERE, check=True)
        name, where = str(tables[1]), "fare > 20"

        def went(title: str, address: list[str], expected: list[str]) -> bool:
            """Whether the Go client succeeds and prints what is expected."""
            arguments = [*address, "-token", TOKEN, "-table", name, "-where", where]
            told = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
            print(f"--- {title}\n{told.stdout}{told.stderr}", end="")
            if told.returncode or not all(line in told.stdout for line in expected):
                print(f"the Go client failed, or did not print {expected}")
                return False
            return True

        for mode in ("url", "dir"):
            client = SharingClient(server.profile(), accessMode=mode, asyncQuery=True, maxSplitBytes="1m")
            rows = f"rows: {client.table(name).scan(where=where).count()}\n"
            with FlightGateway(client, GatewaySettings(tokens=(TOKEN,), poll_port=0)) as gateway:
                polls = ["-poll-gateway", str(gateway.poll_uri).partition("://")[2]]
                if not went(f"access mode {mode}", ["-gateway", f"127.0.0.1:{gateway.port}"], [rows, "cancelled"]):
                    return 1
                if not went(f"polls, access mode {mode}", polls, [rows, "progress: 1.0"]):
                    return 1
                if mode == "url":
                    server.settings.async_polls = 1  # the share's query is pending when it is asked again
                    if not went("polls of a slow plan", polls, [rows, "polls: 2"]):
                        return 1
                    server.settings.async_polls = 1 << 60
                    if not went("a plan that is cancelled", [*polls, "-cancel-poll"], ["the plan was cancelled"]):
                        return 1
                    server.settings.async_polls = None
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
