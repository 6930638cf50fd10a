"""Run Arrow's Go and Java clients against a gateway over the sample share: ``nox -s flight-clients``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from delta_sharing_spark import SharingClient
from delta_sharing_spark.flight.gateway import FlightGateway
from delta_sharing_spark.flight.settings import GatewaySettings
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer

HERE = Path(__file__).resolve().parent
TOKEN = "token-of-this-run"
#: What each language needs to be built and run.
TOOLS = {"go": ("go",), "java": ("java", "javac", "mvn")}


def go(directory: Path) -> list[str]:
    """The command of the Go client."""
    subprocess.run(["go", "build", "-o", directory / "flight-go", "."], cwd=HERE / "flight-go", check=True)
    return [str(directory / "flight-go")]


def java(directory: Path) -> list[str]:
    """The command of the Java client, whose libraries Maven fetches."""
    jars, here = directory / "jars", HERE / "flight-java"
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    subprocess.run([*copy, "-f", here / "pom.xml"], check=True)
    opened = "--add-opens=java.base/java.nio=ALL-UNNAMED"  # Arrow's memory is addressed through it
    subprocess.run(["javac", "-d", directory, "-cp", f"{jars}/*", here / "SharedTable.java"], check=True)
    return ["java", opened, "-cp", os.pathsep.join((str(directory), f"{jars}/*")), "SharedTable"]


def runs(program: list[str]) -> Iterator[bool]:
    """Whether a client reads one sample table, planned at once and under polls, in each access mode, as we do; and cancels a plan."""
    with tempfile.TemporaryDirectory() as directory, SharingServer() as server:
        tables = share_sample(server, directory, trips=200_000)
        name, where = str(tables[1]), "fare > 20"

        def went(title: str, address: list[str], expected: list[str]) -> bool:
            """Whether the client succeeds and prints what is expected."""
            arguments = [*address, "-token", TOKEN, "-table", name, "-where", where]
            done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=120, check=False)
            print(f"--- {title}\n{done.stdout}{done.stderr}", end="")
            if done.returncode or not all(line in done.stdout for line in ("table: ", *expected)):
                print(f"the client failed, or did not print {expected}")
                return False
            return True

        for mode in ("url", "dir"):
            client = SharingClient(server.profile(), accessMode=mode, asyncQuery=True, maxSplitBytes="1m")
            rows = f"rows: {client.table(name).scan(where=where).count()}\n"
            with FlightGateway(client, GatewaySettings(tokens=(TOKEN,), poll_port=0)) as gateway:
                polls = ["-poll-gateway", str(gateway.poll_uri).partition("://")[2]]
                yield went(f"access mode {mode}", ["-gateway", f"127.0.0.1:{gateway.port}"], [rows, "cancelled"])
                yield went(f"polls, access mode {mode}", polls, [rows, "progress: 1.0"])
                if mode == "url":
                    server.settings.async_polls = 1  # the share's query is pending when it is asked again
                    yield went("polls of a slow plan", polls, [rows, "polls: 2"])
                    server.settings.async_polls = 1 << 60
                    yield went("a plan that is cancelled", [*polls, "-cancel-poll"], ["the plan was cancelled"])
                    server.settings.async_polls = None


def main(languages: list[str]) -> int:
    """Run the clients of these languages; those whose tools are missing are left out by name."""
    passed = failed = 0
    for language in languages or TOOLS:
        missing = [tool for tool in TOOLS[language] if shutil.which(tool) is None]
        if missing:
            print(f"the client in {language} was left out: there is no {' and no '.join(missing)} here")
            continue
        with tempfile.TemporaryDirectory() as directory:
            print(f"=== {language}")
            went = list(runs({"go": go, "java": java}[language](Path(directory))))
            passed, failed = passed + sum(went), failed + went.count(False)
    print(f"{passed} passed, {failed} failed")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
