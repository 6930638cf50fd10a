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
    """Read one sample table with Go in each access mode and compare the number of rows with our own."""
    with tempfile.TemporaryDirectory() as directory, SharingServer() as server:
        tables = share_sample(server, directory, trips=200_000)
        program = Path(directory) / "flight-go"
        subprocess.run(["go", "build", "-o", program, "."], cwd=HERE, check=True)
        name, where = str(tables[1]), "fare > 20"
        for mode in ("url", "dir"):
            client = SharingClient(server.profile(), accessMode=mode, maxSplitBytes="1m")
            expected = client.table(name).scan(where=where).count()
            with FlightGateway(client, GatewaySettings(tokens=(TOKEN,))) as gateway:
                arguments = ["-gateway", f"127.0.0.1:{gateway.port}", "-token", TOKEN, "-table", name, "-where", where]
                told = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
            print(f"--- access mode {mode}\n{told.stdout}{told.stderr}", end="")
            if told.returncode or f"rows: {expected}\n" not in told.stdout or "cancelled" not in told.stdout:
                print(f"the Go client failed, or counted other rows than {expected}")
                return 1
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
