"""``nox -s peers``: this client against the reference sharing server, beside the reference Python client, a line a case.

Every golden table and every table of ``tests/data`` lies in an S3 emulator behind the server. What our client reads there
must be what it reads of the same table from the embedded server in directory mode, which the conformance suite compares
with Spark.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from delta_sharing_spark.client import SharingClient
from delta_sharing_spark.testing.server import SharingServer
from emulators.processes import free_port
from peers.cases import Peers, expiry, feeds, hints, listings, streams, tables, travel
from peers.conditions import conditions
from peers.reference_server import find_or_build, server, storage
from peers.report import Report, reference_client
from peers.sources import ODD_SHARE, ODD_TABLE, all_tables, own_tables
from peers.through_spark import through_spark

HERE = Path(__file__).parent
SECTIONS: dict[str, Callable[[Peers], None]] = {
    "listings": listings,
    "tables": tables,
    "hints": hints,
    "travel": travel,
    "feeds": feeds,
    "streams": streams,
    "expiry": expiry,
    "spark": through_spark,
    "conditions": conditions,
}


def main() -> int:
    """Run the sections that were asked for, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*SECTIONS, []], help="all by default")
    parser.add_argument("--reference-python", required=True, help="a Python that has delta-sharing installed")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with this process
    try:
        home = find_or_build()
    except LookupError as missing:
        print(missing)
        return 0
    report = Report()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="peers-")))
        store = stack.enter_context(storage(free_port(), free_port()))
        own = own_tables(folder)
        paths = {**all_tables(), **own.paths()}
        slow = {"history"}  # its commits are told apart by the storage's times
        located = [(name, store.upload(name, path, pause=1.5 if name in slow else 0)) for name, path in paths.items()]
        odd = (ODD_TABLE, dict(located)["plain"])
        shares = {"peers.all": located, f"{ODD_SHARE}.s": [located[0], odd]}
        running = stack.enter_context(server(home, free_port(), store, shares))
        hurried = {"preSignedUrlTimeoutSeconds": 4, "queryTablePageSizeLimit": 3}
        short = stack.enter_context(server(home, free_port(), store, shares, **hurried))
        embedded = stack.enter_context(SharingServer())
        for name, path in paths.items():
            embedded.add_table(f"peers.all.{name}", path, access_modes=("url", "dir"))
        peers = Peers(
            report=report,
            reference=stack.enter_context(reference_client(arguments.reference_python)),
            store=store,
            paths=paths,
            own=own,
            client=SharingClient(running.profile, retryTimeout="20s"),
            short_lived=SharingClient(short.profile, retryTimeout="20s"),
            oracle=SharingClient(embedded.profile(), accessMode="dir"),
            folder=folder,
            profile=running.profile,
            short_profile=short.profile,
        )
        for name, section in SECTIONS.items():
            if not arguments.sections or name in arguments.sections:
                report.heading(name)
                section(peers)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
