"""Run the notebooks beside this file and keep their outputs: ``nox -s notebooks``.

Cells tagged ``spark`` need Java; ``--without-spark`` leaves them and their outputs as they are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

#: Where the example's server and files were, which differs from run to run.
_PLACES = ((re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8080"), (re.compile(r"/tmp/tmp\w+"), "/tmp/share"))


class WithoutSpark(NotebookClient):
    """Runs all cells but those tagged ``spark``."""

    async def async_execute_cell(self, cell: Any, *arguments: Any, **options: Any) -> Any:
        if "spark" in cell.metadata.get("tags", ()):
            return cell
        return await super().async_execute_cell(cell, *arguments, **options)


def run(path: Path, client: type[NotebookClient]) -> None:
    notebook = nbformat.read(path, as_version=4)
    client(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.metadata.pop("execution", None)
        cell.execution_count = number
        # Spark and Java write their greetings to stderr.
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number
    notebook.metadata.language_info = {"name": "python"}
    text = nbformat.writes(notebook)
    for pattern, place in _PLACES:
        text = pattern.sub(place, text)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for found in sorted(Path(__file__).parent.glob("*.ipynb")):
        run(found, WithoutSpark if "--without-spark" in sys.argv else NotebookClient)
