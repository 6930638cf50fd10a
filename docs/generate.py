"""Write the pages, and the parts of pages, that are made from code: ``nox -s docs``."""

from __future__ import annotations

import re
import runpy
import textwrap
from pathlib import Path

from delta_sharing_spark import errors
from delta_sharing_spark.options import options_page as options_tables
from delta_sharing_spark.schema.features import FEATURES

HERE = Path(__file__).parent
#: A mark of the page of figures, and the block that follows it.
_FIGURES = re.compile(r"(?s)(<!-- figures: (\w+) -->\n)(?:```text\n.*?```\n)?")
_TREE = re.compile(r"(?s)(?<=```text\n).*?(?=```\n)")


def errors_page() -> str:
    """The page of errors as it stands, with the tree of ``errors.py`` drawn anew."""
    drawn = str(errors.__doc__).split("::\n\n", 1)[1].split("\n\n", 1)[0]
    page = (HERE / "errors.md").read_text(encoding="utf-8")
    return _TREE.sub(lambda _: textwrap.dedent(drawn).strip("\n") + "\n", page, count=1)


def benchmarks_page() -> str:
    """The page of figures as it stands, with what ``benchmarks/figures.py`` kept of each benchmark."""

    def kept(mark: re.Match[str]) -> str:
        file = HERE.parent / "benchmarks" / "figures" / f"{mark[2]}.txt"
        return mark[1] + (f"```text\n{file.read_text(encoding='utf-8')}```\n" if file.exists() else "")

    return _FIGURES.sub(kept, (HERE / "benchmarks.md").read_text(encoding="utf-8"))


_OPTIONS = """# Options

<!-- Made from delta_sharing_spark/options/declared.py by `nox -s docs`; edit that. -->

Options of `spark.read.format("deltaSharing")` and `spark.readStream.format("deltaSharing")`. Names are case-insensitive
and are those of the JVM connector where it has the same option. An unknown option or value is an error that names the
nearest known one.

- **size**: bytes as a number, or with a binary unit: `12k`, `128m`, `10g`.
- **duration**: `30s`, `500ms`, `5m`, `1h`; a bare number is seconds.
- **timestamp**: an ISO date or timestamp with or without a zone (`2026-01-31`, `2026-01-31 12:00:00`,
  `2026-01-31T12:00:00.5+02:00`), or an epoch number: 9 to 11 digits are seconds, 12 to 14 milliseconds.
- **names**: separated by commas; a name that holds a comma stands between backquotes.

## Time zones

What names no zone is read in `timeZone`, else in the session's zone (`spark.sql.session.timeZone`):

| Where | Moments (`timestampAsOf`, ...) and literals of `where` | Partition values |
|---|---|---|
| `to_spark`, `client.sql`, `client.query`, `client.register`, the native lane; loads after `delta_sharing_spark.register(spark)`, on Connect as well | the session's zone | the session's zone, as Delta on Spark has it |
| `spark.read.format("deltaSharing")` alone: Spark hands the data source no setting of the session | refused, with the ways to write it | the session's zone, which the tasks are told |
| pandas, Arrow, Polars, the command line, while a Spark session is active | the session's zone | the session's zone |
| the same without a session | moments are refused; literals are in UTC | UTC |
"""


#: Features that bind writers only. They stand in ``writerFeatures``; a reader ignores them.
WRITER_FEATURES = (
    "allowColumnDefaults",
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "checkpointProtection",
    "clustering",
    "collations",
    "collations-preview",
    "coordinatedCommits-preview",
    "domainMetadata",
    "generatedColumns",
    "icebergCompatV1",
    "icebergCompatV2",
    "icebergCompatV3",
    "icebergWriterCompatV1",
    "icebergWriterCompatV3",
    "identityColumns",
    "inCommitTimestamp",
    "invariants",
    "materializePartitionColumns",
    "redirectWriterOnly-preview",
    "rowTracking",
)


def options_page() -> str:
    """The page of the options: what their values look like, and the tables of their declarations."""
    return _OPTIONS + "\n" + options_tables()


def features_page() -> str:
    """The documentation page of table features, as Markdown."""
    lines = [
        "# Delta table features",
        "",
        "<!-- Made from delta_sharing_spark/schema/features.py; edit that. -->",
        "",
        "A table says in its protocol what a reader must understand. Reader versions 1 and 2 (column mapping) are read;",
        "version 3 lists features by name. A feature that is listed and not supported, or not known, is refused by its",
        "name before any row is read, in both access modes.",
        "",
        "| Reader feature | What a reader must do | State | How |",
        "|---|---|---|---|",
    ]
    for feature in sorted(FEATURES.values(), key=lambda f: (not f.is_supported, f.name.lower())):
        state = "read" if feature.is_supported else "refused"
        lines.append(f"| `{feature.name}` | {feature.duty} | {state} | {feature.how} |")
    lines += [
        "",
        "## Writer features",
        "",
        "These bind writers only, and never stop a read: " + ", ".join(f"`{name}`" for name in WRITER_FEATURES) + ".",
        "",
    ]
    return "\n".join(lines)


PAGES = {
    "options.md": options_page,
    "features.md": features_page,
    "errors.md": errors_page,
    "benchmarks.md": benchmarks_page,
}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    runpy.run_path(str(HERE.parent / "benchmarks" / "draw.py"), run_name="__main__")


if __name__ == "__main__":
    main()
