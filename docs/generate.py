"""Write the pages, and the parts of pages, that are made from code: ``nox -s docs``."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from delta_sharing_spark import errors
from delta_sharing_spark.options import values
from delta_sharing_spark.options.declared import OPTIONS, Option
from delta_sharing_spark.schema.features import REFUSED, SUPPORTED
from delta_sharing_spark.spark.patches import PATCHES

HERE = Path(__file__).parent
_TEXTS = runpy.run_path(str(HERE / "option_texts.py"))["SECTIONS"]
#: A mark of the page of figures, and the block that follows it.
_FIGURES = re.compile(r"(?s)(<!-- figures: (\w+) -->\n)(?:```text\n.*?```\n)?")
#: A mark of the page of versions, and the table that follows it.
_PATCHES = re.compile(r"(<!-- patches -->\n\n)(?:\|.*\n)*")
_TREE = re.compile(r"(?s)(?<=```text\n).*?(?=```\n)")


def errors_page() -> str:
    """The page of errors as it stands, with the tree of their classes drawn anew."""
    drawn = "\n".join(_error_tree(errors.DeltaSharingError, "", ""))
    page = (HERE / "errors.md").read_text(encoding="utf-8")
    return _TREE.sub(lambda _: drawn + "\n", page, count=1)


def _error_tree(kind: type[Exception], mark: str, below: str) -> Iterator[str]:
    """A class of errors and the classes below it, each with the first sentence of its docstring."""
    sentence = re.split(r"\.(?:\s|$)", str(kind.__doc__), maxsplit=1)[0]
    yield f"{mark + kind.__name__:<34}{sentence.replace('``', '`')}"
    kinds = [
        inner for inner in kind.__subclasses__() if inner.__module__ == errors.__name__
    ]  # whatever else is imported
    for inner in kinds:
        is_last = inner is kinds[-1]
        yield from _error_tree(inner, f"{below}{'└' if is_last else '├'}── ", f"{below}{' ' if is_last else '│'}   ")


def benchmarks_page(name: str) -> str:
    """A page of figures as it stands, with what ``benchmarks/figures.py`` kept of each benchmark."""

    def kept(mark: re.Match[str]) -> str:
        file = HERE.parent / "benchmarks" / "figures" / f"{mark[2]}.txt"
        return mark[1] + (f"```text\n{file.read_text(encoding='utf-8')}```\n" if file.exists() else "")

    return _FIGURES.sub(kept, (HERE / name).read_text(encoding="utf-8"))


def stability_page() -> str:
    """The page of versions as it stands, with what is done to PySpark."""
    lines = ["| What | Without it | How it ends | PySpark |", "|---|---|---|---|"]
    for patch in PATCHES:
        lines.append(f"| `{patch.owner}`, `{patch.name}` | {patch.why} | {patch.end} | {patch.since} and later |")
    page = (HERE / "stability.md").read_text(encoding="utf-8")
    return _PATCHES.sub(lambda mark: mark[1] + "\n".join(lines) + "\n", page)


_OPTIONS = """# Options

<!-- Made from delta_sharing_spark/options/declared.py and docs/option_texts.py by `nox -s docs`; edit those. -->

Options of `spark.read.format("deltaSharing")` and `spark.readStream.format("deltaSharing")`. Names are case-insensitive
and are those of the JVM connector where it has the same option. An unknown option or value is an error that names the
nearest known one.

Options of a `SharingClient` hold for each of its loads. A load's own option (`scan(accessMode="dir")`) takes the place of the client's.
Two options only narrow it: of two `where` both hold, and of two `limit` the smaller counts, after both conditions.

- **size**: bytes as a number, or with a binary unit: `12k`, `128m`, `10g`.
- **duration**: `30s`, `500ms`, `5m`, `1h`; a bare number is seconds.
- **timestamp**: an ISO date or timestamp with or without a zone (`2026-01-31`, `2026-01-31 12:00:00`,
  `2026-01-31T12:00:00.5+02:00`), or an epoch number: 9 to 11 digits are seconds, 12 to 14 milliseconds.
- **names**: separated by commas; a name that holds a comma stands between backquotes.

## Time zones

A time that names no zone is read in the zone of the option `timeZone`. Without that option it is read in the session's zone
(`spark.sql.session.timeZone`), as far as that is known:

| Where | Moments (`timestampAsOf`, ...) and literals of `where` | Partition values |
|---|---|---|
| `to_spark`, `client.sql`, `client.query`, `client.register`, the native lane; loads after `delta_sharing_spark.register(spark)`, on Connect as well | the session's zone | the session's zone, as Delta on Spark has it |
| `spark.read.format("deltaSharing")` alone: Spark hands the data source no setting of the session | refused, with the ways to write it | the session's zone, which tasks are told; refused in `df.rdd`, `foreach` and `toJSON`, whose tasks are not |
| pandas, Arrow, Polars, in any thread, while the process has a Spark session | the session's zone | the session's zone |
| the same without a session | UTC; for moments the log says so once | UTC |
"""


#: What each reader feature that is supported asks of a reader, and how it shows to the user.
READER_FEATURES = {
    "columnMapping": (
        "Find columns, statistics and partition values by physical name or field id.",
        "Modes `name` and `id`, nested columns, renamed and dropped columns; reader version 2 as well.",
    ),
    "deletionVectors": ("Leave out the rows that a file's deletion vector marks.", "Every storage kind."),
    "timestampNtz": ("Read `timestamp_ntz` and never shift its zone.", "Spark's TIMESTAMP_NTZ."),
    "timestampWithoutTimezone": ("The former name of `timestampNtz`.", "Spark's TIMESTAMP_NTZ."),
    "typeWidening": (
        "Cast values of older files to the column's present type; fail on an unknown type change.",
        "Every change the protocol allows, nested ones too; integers to any decimal that holds their every value.",
    ),
    "typeWidening-preview": (
        "Cast values of older files to the column's present type; fail on an unknown type change.",
        "As `typeWidening`.",
    ),
    "v2Checkpoint": ("Read V2 checkpoints and their sidecars.", "JSON and Parquet."),
    "vacuumProtocolCheck": ("None: an acknowledgement.", "Nothing to do."),
    "variantType": ("Accept the type `variant`.", "Spark's VARIANT."),
    "variantType-preview": ("Accept the type `variant`.", "As `variantType`."),
    "variantShredding": ("Put shredded variant values together again.", "Spark's VARIANT."),
    "variantShredding-preview": ("Put shredded variant values together again.", "As `variantShredding`."),
    "geospatial": (
        "Read `geometry` and `geography`.",
        "Spark's GEOMETRY and GEOGRAPHY from 4.1 on, WKB as BINARY before; `geoarrow.wkb` in Arrow "
        "([more](#places-on-earth)).",
    ),
    "geospatial-dev": ("The preview of `geospatial`.", "As `geospatial`."),
    "materializedVoidType": (
        "Read `void` columns that stand in files, too.",
        "NULL in each row, with the lengths of arrays that files tell ([more](#void-columns)).",
    ),
    "timestampNanos": (
        "Read timestamps in nanoseconds.",
        "Columns of other types; a load that has such a column is refused ([more](#types-that-are-not-read)).",
    ),
    "intervalTypes": ("Read interval types.", "As `timestampNanos`."),
}
#: What is read of types that not all readers have.
TYPES = """\
## Types that are not read

A table is read for all its columns but those of a type that is not read: nanoseconds, intervals, and types that this version does
not know. A load that has such a column is refused with `UnreadableColumnError`, which names the column, its type, and the columns
that can be read; so is a condition on it. Name the others: `columns=["id", "name"]` or `.select("id", "name")` in Python,
`.option("columns", "id,name")` in Spark; of a struct, its fields (`s.a`). In SQL (`client.sql`, `client.query`, views of
`client.register`) a query that needs none of these columns runs as it is; one that does, `SELECT *` too, fails and names the column.
Nothing is left out, and nothing is NULL, that you did not leave out yourself.

A *feature* that is not known refuses the table, for it may change which files or rows count.

## Places on earth

`geometry` and `geography`, at any depth, are read in both access modes; files hold well-known binary (WKB).

| | `geometry(EPSG:3857)`, ... | `geography(OGC:CRS84, SPHERICAL)`, ... |
|---|---|---|
| Spark 4.2, 4.3 | GEOMETRY with its SRID | GEOGRAPHY with its SRID |
| Spark 4.2, 4.3, a system that Spark does not have (`EPSG:2154`), or edges other than spherical | BINARY: the WKB | BINARY: the WKB |
| Spark 4.0, 4.1 | BINARY: the WKB | BINARY: the WKB |
| Arrow, Polars | `geoarrow.wkb` with its system | `geoarrow.wkb` with its system and edges |
| DuckDB | GEOMETRY | BLOB: the WKB, as DuckDB has no other edges than straight ones |
| GeoPandas (`to_geopandas()`) | shapes with their system | shapes with their system |
| pandas | bytes | bytes |

Where Spark reads BINARY, the log names the column and its type at INFO. Spark 4.1 has the types, but its Parquet reader fails on them.
No data source of Python's can give Spark a place: the JVM refuses it, 4.3 included. With `engine="python"`, `to_spark`, SQL and views make
places of the WKB by `st_geomfromwkb` and `st_geogfromwkb`. A plain `spark.read.format("deltaSharing")` without the lane, and a stream, have
the WKB as BINARY.
`toArrow()` of Spark 4.2 and 4.3 fails where such a column, or a variant, is NULL: collect it otherwise, or read it without Spark.
`where` knows `IS NULL` and `IS NOT NULL` of such columns; their bounds in statistics skip no file.

| Written by Delta 4.4 on Spark 4.2 | Spark 4.0, 4.1: lane, Python source | Spark 4.2, 4.3: lane, Python source | Arrow |
|---|---|---|---|
| `geometry(4326)`, `geometry(3857)`, `geometry(0)` | WKB, WKB | GEOMETRY, GEOMETRY | right |
| `geography(4326)` | WKB, WKB | GEOGRAPHY, GEOGRAPHY | right |
| the same in structs, arrays and maps | WKB, WKB | right, right | right |

## Void columns

A column of type `void` stands in no file and is NULL. Under Delta's coming `materializedVoidType` (an RFC still) files may hold such
columns, as Parquet's UNKNOWN. They then tell which structs are NULL, and how many elements an array of voids has. Both forms are read;
the native lane leaves tables with nested voids to the Python source. A map whose keys are void is [not read](#types-that-are-not-read).

Timestamps of 96 bits (INT96) have bounds in a new order in coming files (parquet-format 584). Bounds of INT96 skip nothing here, and
are never shown to Spark, whichever order a file names.
""".strip().splitlines()
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


#: How the page calls the values that a parser takes.
_TYPES = {
    values.text: "text",
    values.expression: "text",
    values.boolean: "`true`, `false`",
    values.carried: "`true`, `false`, `token`",
    values.starting_version: "version or `latest`",
    values.count: "number",
    values.positive: "number > 0",
    values.size: "size",
    values.duration: "duration",
    values.names: "names",
    values.web_address: "URL",
    values.time_zone: "time zone",
    values.timestamp: "timestamp",
    values.first_moment: "timestamp",
}


def options_page() -> str:
    """The page of the options: what their values look like, and a table for each section of ``option_texts.py``."""
    lines = [_OPTIONS]
    documented = []
    options = {option.name: option for option in OPTIONS}
    for section, (note, texts) in _TEXTS.items():
        lines += [
            f"## {section}",
            "",
            *([note, ""] if note else []),
            "| Option | Type | Default | What it does |",
            "|---|---|---|---|",
        ]
        lines += [_row(options[name], text) for name, text in texts.items()]
        lines.append("")
        documented += list(texts)
    assert documented == list(options), "option_texts.py documents the options that are declared, in their order"
    return "\n".join(lines)


def _type_of(parse: values.Parser) -> str:
    return ", ".join(f"`{word}`" for word in parse.words) if isinstance(parse, values.Choice) else _TYPES[parse]


def _row(option: Option, text: Any) -> str:
    default = text.default
    if not default and option.default is not None:
        default = f"`{str(option.default).lower() if isinstance(option.default, bool) else option.default}`"
    names = f"`{option.name}`" + "".join(f", `{alias}`" for alias in option.aliases)
    where = {"both": "", "batch": " Batch only.", "stream": " Streams only."}[option.scope]
    own = " Not through a Flight gateway." if option.behind_gateway and not option.group else ""
    secret = " Secret: see [Secrets](spark-connect.md#secrets-by-reference)." if option.sensitive else ""
    return f"| {names} | {text.type or _type_of(option.parse)} | {default} | {text.doc}{where}{own}{secret} |"


def features_page() -> str:
    """The documentation page of table features, as Markdown."""
    lines = [
        "# Delta table features",
        "",
        "<!-- Made from delta_sharing_spark/schema/features.py and docs/generate.py; edit those. -->",
        "",
        "A table says in its protocol what a reader must understand. Reader versions 1 and 2 (column mapping) are read;",
        "version 3 lists features by name. A feature that is listed and not supported, or not known, is refused by its",
        "name before any row is read, in both access modes. An Iceberg table has format versions in place of features:",
        "[what is read of it](opensharing.md#an-iceberg-table).",
        "",
        "| Reader feature | What a reader must do | State | How |",
        "|---|---|---|---|",
    ]
    assert READER_FEATURES.keys() == SUPPORTED
    for name, (duty, how) in sorted(READER_FEATURES.items(), key=lambda feature: feature[0].lower()):
        lines.append(f"| `{name}` | {duty} | read | {how} |")
    for name, duty in sorted(REFUSED.items(), key=lambda feature: feature[0].lower()):
        lines.append(
            f"| `{name}` | {duty} | refused | Ask the provider to share a copy without the feature, or a materialized view. |"
        )
    lines += [
        "",
        *TYPES,
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
    "stability.md": stability_page,
    **{name: partial(benchmarks_page, name) for name in ("benchmarks.md", "benchmarks-in-full.md")},
}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
    runpy.run_path(str(HERE.parent / "benchmarks" / "draw.py"), run_name="__main__")


if __name__ == "__main__":
    main()
