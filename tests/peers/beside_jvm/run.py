"""``nox -s beside-jvm``: the same jobs by the JVM connector and by this one, of which only the session's jar differs.

Compares rows, or that both fail. Ends with an error where they differ and no reason is known. ``--write`` puts the table into
``docs/jvm-connector.md``. The JVM connector is found by JVM_PEER (``../shared/peers/jvm/build.sh`` builds it).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from jobs import Job, jobs, tables  # noqa: E402

from delta_sharing_spark.testing.server import SharingServer  # noqa: E402
from delta_sharing_spark.testing.tables import DeltaTableBuilder  # noqa: E402

PAGE = HERE.parents[2] / "docs" / "jvm-connector.md"
BEGIN, END = "<!-- beside-jvm: written by nox -s beside-jvm -- --write -->", "<!-- beside-jvm ends -->"


class Connector:
    """A process that runs jobs by one of the connectors."""

    def __init__(self, jars: str) -> None:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "TZ": "UTC",
        }
        environment.pop("SPARK_HOME", None)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), jars], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment, cwd=tempfile.mkdtemp(),
        )  # fmt: skip
        self._answer()

    def run(self, job: Job, path: str, checkpoint: str = "") -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": {**asdict(job), "checkpoint": checkpoint}, "path": path}) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.startswith(("{", "ready")):
                return line
        raise RuntimeError("a worker ended; run tests/peers/beside_jvm/worker.py by hand to see why")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def verdict(there: dict[str, Any], here: dict[str, Any]) -> str:
    """How two answers compare."""
    if "error" in there and "error" in here:
        return "both fail"
    if "error" in here:
        return "only there"
    if "error" in there:
        return "only here"
    return "same" if there["rows"] == here["rows"] else "other rows"


def carried_over(job: Job, table: DeltaTableBuilder, path: str, first: Connector, then: Connector) -> str:
    """How a stream that one connector begins and the other continues compares with each row once, or is refused with a version."""
    checkpoint = tempfile.mkdtemp()
    streamed = replace(job, kind="stream", then="SELECT id FROM t")
    one = first.run(streamed, path, checkpoint)
    table.append([{"id": 100 + i} for i in range(5)])
    two = then.run(replace(streamed, stop_after=0), path, checkpoint)
    print(f"       begun: {one}\n       continued: {two}")
    if "error" in two:
        # What was read is known, and where to go on from.
        return "both fail" if re.search(r"startingVersion=?\d?", two["error"]) else "other rows"
    wanted = sorted([f"({i},)" for i in range(60)] + [f"({100 + i},)" for i in range(5)])
    return "same" if sorted(one["rows"] + two["rows"]) == wanted else "other rows"


def main() -> int:
    """Run the jobs; returns 1 where one differs without a reason."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="put the table into docs/jvm-connector.md")
    parser.add_argument("--only", nargs="*", default=[""], help="jobs whose subject holds one of these texts")
    arguments = parser.parse_args()
    peer = os.environ.get("JVM_PEER", "")
    if not Path(peer, "jars").is_dir():
        print("set JVM_PEER to what ../shared/peers/jvm/build.sh has built")
        return 1
    root = Path(tempfile.mkdtemp())
    asked = [job for job in jobs() if any(text in job.about for text in arguments.only)]
    results: dict[str, list[tuple[Job, str]]] = defaultdict(list)
    bad = 0
    with SharingServer() as server:
        for name, table in tables(root).items():
            server.add_table(f"peer.d.{name}", table.path)
        profile = server.write_profile(root / "config.share")
        jvm, ours = Connector(f"{peer}/jars"), Connector("")
        for job in asked:
            path = f"{profile}#peer.d.{job.table}"
            if job.kind in ("continue", "again"):
                table = tables(Path(tempfile.mkdtemp(dir=root)))["appended"]
                name = f"moving_{sum(map(len, results.values()))}"
                server.add_table(f"peer.d.{name}", table.path)
                path = f"{profile}#peer.d.{name}"
            if job.kind == "continue":
                pair = (jvm, ours) if job.table == "there" else (ours, jvm)
                found = carried_over(job, table, path, *pair)
                there = here = {"error": "", "rows": []}
            else:
                if job.kind == "again":
                    first = [connector.run(replace(job, kind="batch"), path) for connector in (jvm, ours)]
                    table.append([{"id": 100}])
                    print(f"       before: {first}")
                there, here = jvm.run(job, path), ours.run(job, path)
                found = verdict(there, here)
            unexplained = found in ("other rows", "only there") and not job.differs
            bad += unexplained
            results[job.about].append((job, found))
            print(
                f"{'!!' if unexplained else '  '} {found:10} {job.about}: {job.table} {job.options} {job.settings} {job.then}"
            )
            if found in ("other rows", "only there", "only here"):
                for side, answer in (("there", there), ("here", here)):
                    print(f"       {side}: {answer.get('error') or (len(answer['rows']), answer['rows'][:2])}")
            elif found == "both fail":
                print(f"       there: {there['error'][-200:]}\n       here:  {here['error'][-200:]}")
        jvm.close()
        ours.close()
    text = table_of(results)
    print(text)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return int(bad > 0)


def table_of(results: dict[str, list[tuple[Job, str]]]) -> str:
    """The table of the documentation."""
    kinds = ("same", "both fail", "only here", "only there", "other rows")
    lines = [f"| Jobs | {' | '.join(kinds)} | Where they differ |", "|---" * (len(kinds) + 2) + "|"]
    for about, found in results.items():
        counts = [str(sum(verdict == kind for _, verdict in found) or "") for kind in kinds]
        reasons = sorted({job.differs for job, verdict in found if job.differs and verdict in kinds[2:]})
        lines.append(f"| {about} | {' | '.join(counts)} | {'; '.join(reasons)} |")
    total = [str(sum(verdict == kind for each in results.values() for _, verdict in each)) for kind in kinds]
    return "\n".join([*lines, f"| all | {' | '.join(total)} | |"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
