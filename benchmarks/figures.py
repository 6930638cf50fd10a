"""Run a benchmark and keep what it prints, with the conditions, for the page of figures.

    python benchmarks/figures.py jvm --rows 12000000       writes benchmarks/figures/jvm.txt
    nox -s docs                                            puts it into docs/benchmarks.md

Whatever follows the benchmark's name is passed on to it. A benchmark that fails, or that prints nothing, leaves what was
kept before as it is.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).parent
KEPT = HERE / "figures"


def conditions() -> str:
    """The day, the machine and the versions, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    told = [datetime.now(timezone.utc).date().isoformat(), f"{os.cpu_count()} cores ({model})"]
    told.append(f"load before {os.getloadavg()[0]:.1f}")
    told.append(f"Python {platform.python_version()}")
    for package in ("pyspark", "pyarrow", "pandas"):
        try:
            told.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(told)


def main(name: str, *arguments: str) -> int:
    """Run ``benchmarks/<name>.py``; its exit status."""
    shown = " ".join(Path(argument).name if os.sep in argument else argument for argument in arguments)
    head = [f"$ python benchmarks/{name}.py {shown}".rstrip(), conditions()]
    done = subprocess.run([sys.executable, str(HERE / f"{name}.py"), *arguments], stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    if done.returncode == 0 and done.stdout.strip() and not done.stdout.startswith("skipped"):
        lines = [line.rstrip() for line in done.stdout.strip("\n").splitlines()]
        KEPT.mkdir(exist_ok=True)
        (KEPT / f"{name}.txt").write_text("\n".join([*head, "", *lines, ""]), encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    if len(sys.argv) < 2 or not (HERE / f"{sys.argv[1]}.py").is_file():
        sys.exit(f"{__doc__}\nThere are: {', '.join(sorted(path.stem for path in HERE.glob('*.py')))}")
    sys.exit(main(*sys.argv[1:]))
