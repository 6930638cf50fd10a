"""The documentation's pages, and their blocks: each page's run in order, as they stand, beside the sample share.

Beside ``profile.share`` nothing is there before a page begins: it is what ``delta-sharing-spark serve --profile profile.share``
writes. Run as a program, this module runs the pages that it is told on standard input, all in one Spark session.
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shlex
import sys
import traceback
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?ms)^(<!-- not executed: [^\n]+ -->\n)?```(python|sql|bash)\n(.*?)^```$")
#: Commands of a terminal that read; the others install, serve or pack.
_READING = {"ls", "cat", "schema", "head", "count", "download"}


@dataclass(frozen=True)
class Block:
    """One block of a page, which a reader would paste: its language, its text, and where it begins."""

    language: str
    text: str
    line: int

    @property
    def uses_spark(self) -> bool:
        """Whether it needs a Spark session: SQL, and Python that names one."""
        if self.language != "python":
            return self.language == "sql"
        return any(
            isinstance(n, ast.Name) and n.id in ("spark", "SparkSession") for n in ast.walk(ast.parse(self.text))
        )


def blocks(page: Path) -> list[Block]:
    """The blocks of a page but those that are marked ``<!-- not executed: why -->``."""
    text = page.read_text(encoding="utf-8")
    return [Block(m[2], m[3], text[: m.start(3)].count("\n")) for m in _BLOCK.finditer(text) if m[1] is None]


def run(page: Path) -> None:
    """Run the blocks of a page one after the other in the working directory."""
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.text, str(page), "exec"), namespace)
        elif block.language == "sql":
            for statement in filter(str.strip, block.text.split(";\n")):
                namespace["spark"].sql(statement)
        else:
            for command in block.text.replace("\\\n", " ").splitlines():
                _run_command(command)


def _run_command(line: str) -> None:
    from delta_sharing_spark.cli.main import main

    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""  # else `profile#share` ends at its "#"
    words = list(itertools.takewhile(lambda word: not word.startswith("#"), lexer))
    if words[:1] == ["export"]:
        name, _, value = words[1].partition("=")
        os.environ[name] = value
    elif words[:1] == ["delta-sharing-spark"] and words[1] in _READING:
        assert main(words[1:]) == 0, line


def serve(asked: TextIOWrapper, answers: TextIOWrapper) -> None:
    """Run each page that a line names; answer with a line of JSON, the traceback or nothing."""
    from pyspark.sql import SparkSession

    import delta_sharing_spark
    from delta_sharing_spark.spark import format_loads

    for name in asked:
        failure = None
        try:
            with redirect_stdout(TextIOWrapper(BytesIO(), "utf-8")):
                run(Path(name.rstrip("\n")))
        except BaseException:
            failure = traceback.format_exc()
        spark = SparkSession.getActiveSession()
        if spark is not None:
            for query in spark.streams.active:
                query.stop()
            for view in spark.catalog.listTables():
                spark.sql(f"DROP {'VIEW' if view.isTemporary else 'TABLE'} `{view.name}`")
            delta_sharing_spark.register(spark, engine="python")
            format_loads._formats.clear()  # each page begins with a session that is not registered, as its reader does
        answers.write(json.dumps(failure) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin, sys.stdout)
