"""``python -m fuzz [--seconds 300] [--seed 1] [--surface answers]... [--case answers:17]``: counts by surface."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor

from fuzz.harness import Counts, run
from fuzz.surfaces import SURFACES


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=240.0, help="of all surfaces together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--surface", action="append", choices=sorted(SURFACES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--case", help="one case once more: surface:number")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    arguments = parser.parse_args()
    if arguments.case:
        surface, _, number = arguments.case.partition(":")
        counts = run(surface, arguments.seed, time.monotonic() + 600, first=int(number), most=1)
        print(counts)  # noqa: T201
        return bool(counts.findings)
    names = arguments.surface or sorted(SURFACES)
    each = arguments.seconds * arguments.workers / len(names)

    def one(name: str) -> Counts:
        return run(name, arguments.seed, time.monotonic() + each, first=arguments.first)

    with ThreadPoolExecutor(arguments.workers) as pool:
        results = dict(zip(names, pool.map(one, names), strict=True))
    print(f"{'surface':<14}{'cases':>8}{'same':>8}{'refused':>9}{'other':>8}{'slowest':>9}{'found':>7}")  # noqa: T201
    for name, counts in results.items():
        row = f"{counts.cases:>8}{counts.same:>8}{counts.refused:>9}{counts.other:>8}{counts.slowest:>8.1f}s"
        print(f"{name:<14}{row}{len(counts.findings):>7}")  # noqa: T201
    findings = [text for counts in results.values() for text in counts.findings]
    for text in findings:
        print(text)  # noqa: T201
    return bool(findings)


raise SystemExit(main())
