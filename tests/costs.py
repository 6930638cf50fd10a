"""Write what a part of the tests costs into tests/costs.md: ``nox -s costs``, or ``python tests/costs.py unit tests/unit``; Linux.

The first argument names the part, the others are those of pytest. Rows of other parts stay as they are. A processor second is
the same work on a busy machine as on a quiet one, within a tenth or so.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

PAGE = Path(__file__).parent / "costs.md"
#: How many of a part's tests are named, and the least that one must cost.
_NAMED, _LEAST = 15, 2.0
HEAD = """# What the tests cost

<!-- Written by tests/costs.py. -->

Processor seconds, of Java and all other processes too, each test with the fixtures that it is the first to use. `nox -s costs`
writes the page anew, `nox -s costs -- unit` one part of it.
"""


def sections() -> dict[str, str]:
    """Each part's text, by its name."""
    page = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {text.partition("\n")[0]: text.partition("\n")[2].strip() for text in page.split("\n## ")[1:]}


def table_of(output: str) -> str:
    """What pytest printed of the costs of a part, as a table. Ends the program where it printed none."""
    whole = re.search(r"^ *([\d.]+) in all", output, re.MULTILINE)
    counted = re.search(r"(\d+) passed.* in ([\d.]+)s", output)
    if whole is None or counted is None:
        sys.exit(output)
    dearest = re.findall(r"^ *([\d.]+) tests/(\S+)(?: \((\d+) cases\))?$", output, re.MULTILINE)[:_NAMED]
    first = f"{float(whole[1]):.0f} processor seconds, {float(counted[2]):.0f} of the clock, {counted[1]} tests; {date.today()}."
    rows = [f"| {cost} | `{test}` | {cases or 1} |" for cost, test, cases in dearest if float(cost) >= _LEAST]
    return "\n".join([first, "", "| seconds | test | cases |", "|---|---|---|", *rows])


def main(part: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--processor-seconds={_NAMED}"]
    ran = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    parts = sections() | {part: table_of(ran.stdout)}
    PAGE.write_text("\n".join([HEAD, *(f"## {name}\n\n{text}\n" for name, text in parts.items())]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
