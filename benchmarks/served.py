"""Tables served by a process of its own: by data URLs, and from a stand-in for S3 whose buckets are local directories.

Both go through the same code, files by the kernel, so that clients can be compared.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pruning import answered

from delta_sharing_spark.testing.server import ServerSettings
from support.buckets import BucketServer

#: Of a network that is simulated: seconds before an answer, bytes a second and connection.
LATENCY, BANDWIDTH = 0.04, 30e6


class Served:
    """The server's process, with tables ``bench.file.<name>`` and, at ``s3://``, ``bench.s3.<name>``.

    Args:
        tables: Their directories, by name; ``bench.iceberg.<name>`` are those whose path is an Iceberg metadata document.
        seen_at: The address in data URLs; the server is at loopback for who asks it for tables.
    """

    def __init__(self, tables: dict[str, Path], seen_at: str = "127.0.0.1") -> None:
        named = [f"{name}={path}" for name, path in tables.items()]
        self._process = subprocess.Popen(
            [sys.executable, __file__, seen_at, *named], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.profile = self._answer()
        self.pid = self._process.pid

    def served(self) -> dict[str, list[int]]:
        """Requests and bytes by kind since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return dict(json.loads(self._answer()))

    def under_way(self) -> list[float]:
        """Data requests under way at once since the last counts: the most, and the mean from the first to the last."""
        assert self._process.stdin is not None
        self._process.stdin.write("under way\n")
        self._process.stdin.flush()
        return list(json.loads(self._answer()))

    def shape(self, latency: float, bandwidth: float) -> None:
        """Answer data requests after ``latency`` seconds, at ``bandwidth`` bytes a second and connection."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"shape {latency} {bandwidth}\n")
        self._process.stdin.flush()
        self._answer()

    def answer_seconds(self) -> float:
        """Seconds of the answer to the last query since the last counts, asked once more and parsed by nobody."""
        assert self._process.stdin is not None
        self._process.stdin.write("answer\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def main(seen_at: str, *tables: str) -> None:
    """Tell on standard output where tables are served, and, for each line read, what was since the last."""
    host = "127.0.0.1" if seen_at == "127.0.0.1" else "0.0.0.0"
    settings = ServerSettings()
    with BucketServer(host=host, settings=settings) as server:
        if host != seen_at:
            ours = re.compile(rf"(0\.0\.0\.0|127\.0\.0\.1):{server.port}/")
            settings.rewrite = lambda line: (
                json.loads(ours.sub(f"{seen_at}:{server.port}/", json.dumps(line))) if "file" in line else line
            )
        for text in tables:
            name, _, path = text.partition("=")
            if path.endswith(".metadata.json"):
                server.bucket("lake", Path(path).parents[3])
                server.share_iceberg(f"bench.iceberg.{name}", Path(path), "lake")
                continue
            server.add_table(f"bench.file.{name}", path, access_modes=("url", "dir"))
            server.add_bucket_table(f"bench.s3.{name}", path, ("url", "dir"))
        print(json.dumps(server.profile()).replace("0.0.0.0", "127.0.0.1"), flush=True)
        for line in sys.stdin:
            if line.startswith("answer"):
                print(answered(server), flush=True)
                continue
            if line.startswith("under way"):
                print(json.dumps(server.under_way()), flush=True)
                continue
            if line.startswith("shape"):
                server.faults.shape(*map(float, line.split()[1:]))
            kinds = {request.kind for request in list(server.requests)}
            counts = {kind: [server.count(kind), server.bytes_sent(kind)] for kind in kinds}
            server.reset_metrics()
            print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
