"""Writes the documentation page of the options from their declarations."""

from __future__ import annotations

from delta_sharing_spark.options.declared import IDENTITY, INLINE, OPTIONS

_PAGE_HEAD = """# Options

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

_NOTES = {
    INLINE: "Credentials instead of a profile; the path is then the bare `<share>.<schema>.<table>`.",
    IDENTITY: "See [Recipients without a secret](identities.md). Each of them may stand in the environment instead, "
    "`bearerTokenFile` as `DELTA_SHARING_BEARER_TOKEN_FILE`; options are taken whole, or else the environment.",
}


def options_page() -> str:
    """The documentation page of the options, as Markdown."""
    lines = [_PAGE_HEAD.rstrip()]
    group = ""
    for option in OPTIONS:
        if option.group != group:
            group = option.group
            note = [_NOTES[group], ""] if group in _NOTES else []
            lines += ["", f"## {group}", "", *note, "| Option | Type | Default | What it does |", "|---|---|---|---|"]
        names = f"`{option.name}`" + "".join(f", `{alias}`" for alias in option.aliases)
        where = {"both": "", "batch": " Batch only.", "stream": " Streams only."}[option.scope]
        secret = " Secret: see [Secrets](spark-connect.md#secrets-by-reference)." if option.sensitive else ""
        lines.append(f"| {names} | {option.type} | {option.shown} | {option.doc}{where}{secret} |")
    return "\n".join(lines) + "\n"
