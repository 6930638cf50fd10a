"""Write tests/README.md: every table the tests read, the features it carries, and the test modules that use it.

Run: ``python tests/catalogue.py``. The features of stored tables are read from their logs, those of built tables from the
code that builds them. The golden tables lie beside the checkout; without them their section stays as it is.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
README = TESTS / "README.md"
DATA = TESTS / "data" / "delta_spark"
GOLDEN = TESTS.parents[1] / "shared" / "golden"
#: What a builder's source says, and the feature that it stands for.
BUILT_FEATURES = {
    "enableDeletionVectors|deletion_vectors=True": "deletion vectors",
    "columnMapping|legacy_mapping|MAPPING": "column mapping",
    "enableChangeDataFeed|CDF|FEED": "change feed",
    r"enableTypeWidening|\.widen\(": "type widening",
    "enableInCommitTimestamps": "in-commit timestamps",
    r"\.checkpoint\(": "checkpoint",
    r"\.compact_log\(": "log compaction",
    r"\.expire_log\(": "expired log",
    r"partition_by|, \[\"": "partitions",
    r"\.(update|delete)\(": "updates and deletes",
    r"\.optimize\(": "OPTIMIZE",
    r"\.(add|rename|drop)_column\(": "schema changes",
    "variant": "variant",
    "features=": "features by name",
}
HEAD = """# The tests

<!-- Written by tests/catalogue.py; edit that. -->

| directory | what it tests |
|---|---|
| `unit/` | one package each, by its name, with real parts over loopback; no Spark |
| `spark/` | the Spark data source, streams and `client.sql`; over Connect (`--spark-mode=connect`) run those marked `connect` |
| `conformance/` | whole tables against what Delta Lake, delta-rs and the Rust kernel say of them |
| `faults/` | the matrix of what storage, server and network do wrong, by access mode and moment |
| `emulators/` | directory access on emulators of S3, Azure and GCS (`nox -s emulators`) |
| `peers/`, `reference_client/` | this client beside the reference server and the reference Python client (nox sessions of their own) |
| `iceberg/` | tables of other Iceberg writers: pyiceberg's in Nessie's catalog, drawn ones of Spark's runtime (`nox -s iceberg`) |
| `fuzz/` | damaged answers, logs, files, profiles and options (`nox -s fuzz`) |
| `support/` | what several suites share |

## Where a new test belongs

- What can be shown without Spark is shown in `unit/<package>/`: Spark costs a second where Python costs a hundredth.
- What a server, a storage or a network does wrong is a row of a matrix in `faults/`, for every access mode at once.
- Rows of a kind of table: a table in `data/delta_spark` (written by Delta), which `conformance/test_every_table.py` then reads by every
  way, and no other suite needs to. A new way to a table is a line of `WAYS` in `conformance/ways.py`.
- Two modules go through all tables beside that matrix. `unit/deltalog/test_log_golden.py` asks which files a log leaves, with which
  values and statistics. `conformance/test_zones_of_processes.py` asks what a process knows of its time zone, by `TZ` and session.
- What a user of Spark sees is in `spark/`. It runs on a classic session. It is marked `connect` where the session's side differs over
  Connect: what the client does, how an error is shown, who knows a setting; `connect_only` where it is nothing on a classic one.
- Suites are packages, and a helper is imported by its whole name: `from unit.access.loopback import ...`. Two modules may share a name.
- A test waits by the clock that is handed in (`NetworkSettings(sleep=, clock=)`), or until something has happened; never for a time.
  A limit of such a wait is `support.HANGS`: it guards against hanging alone. `nox -s busy` finds what depends on pace.
- Inputs are parameters of a test, never a loop within it; what one expensive act gives is compared as one collection, and refusals
  are tried to the last one by `support.refusals.not_refused`.
- Hypothesis draws examples of many choices by `support/drawing.py`, each whole; a session of a test's own takes
  `support.INTERPRETED` and `PRELOADED_WORKERS`, unless its own start is what is tested.
- `nox -s tests` runs the suites all at once, be it on two cores, and tries nothing twice: a test that fails on a busy machine is wrong.
- [costs.md](costs.md) says what each part costs in processor seconds, and its dearest tests. `nox -s costs` writes it anew.
"""


def main() -> None:
    """Write the page."""
    README.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    golden = _golden_section() if GOLDEN.is_dir() else _section_of(README.read_text(encoding="utf-8"), "Golden tables")
    return "\n".join([HEAD, *_delta_spark_section(), "", *golden, "", *_builder_section()]).rstrip() + "\n"


def _delta_spark_section() -> list[str]:
    shown = dict(
        re.findall(r"^\| `(\w+)` \| ([^|]*) \|", (DATA / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    everywhere, named = _users("delta_spark", {path.name for path in DATA.iterdir() if path.is_dir()})
    lines = [
        "## `data/delta_spark`: written by Delta Lake on Spark",
        "",
        f"With the rows and types Delta read of every version (`data/write_with_delta.py`). Read as a whole by {everywhere}.",
        "",
        "| table | shows | protocol features | also named in |",
        "|---|---|---|---|",
    ]
    for table in sorted(path for path in DATA.iterdir() if path.is_dir()):
        (log,) = sorted(table.rglob("_delta_log"))[:1]
        lines.append(f"| `{table.name}` | {shown.get(table.name, '')} | {_features(log)} | {named[table.name]} |")
    return lines


def _golden_section() -> list[str]:
    logs = {str(log.parent.relative_to(GOLDEN)).removesuffix("/delta"): log for log in GOLDEN.rglob("_delta_log")}
    everywhere, named = _users("shared.{0,8}golden", {name.rpartition("/")[2] for name in logs})
    lines = [
        "## Golden tables",
        "",
        f"Of delta-kernel-rs, at `../shared/golden`; tests that read them are skipped where they are not. Read as a whole by "
        f"{everywhere}.",
        "",
        "| table | answer | protocol features | also named in |",
        "|---|---|---|---|",
    ]
    for name, log in sorted(logs.items()):
        answer = "rows" if (GOLDEN / name / "expected").is_dir() else ""
        lines.append(f"| `{name}` | {answer} | {_features(log)} | {named[name.rpartition('/')[2]]} |")
    return lines


def _builder_section() -> list[str]:
    lines = [
        "## Built tables",
        "",
        "Made by `delta_sharing_spark.testing.tables.DeltaTableBuilder`, which knows the rows a reader must see: the functions and",
        "fixtures that build one, and the features in their code.",
        "",
        "| module | built in | features |",
        "|---|---|---|",
    ]
    for module in _modules():
        text = module.read_text(encoding="utf-8")
        if "DeltaTableBuilder(" not in text or module == Path(__file__):
            continue
        functions, features = [], set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                source = ast.get_source_segment(text, node) or ""
                if "DeltaTableBuilder(" in source:
                    functions.append(node.name)
                    features |= {name for pattern, name in BUILT_FEATURES.items() if re.search(pattern, source)}
        built = ", ".join(f"`{name}`" for name in dict.fromkeys(functions)) or "the module"
        lines.append(f"| `{module.relative_to(TESTS)}` | {built} | {', '.join(sorted(features)) or 'plain rows'} |")
    return lines


def _users(of_all: str, names: set[str]) -> tuple[str, dict[str, str]]:
    """The modules that mention the directory of some tables, and for each table those that name it."""
    readers: list[str] = []
    named: dict[str, list[str]] = {name: [] for name in names}
    for module in _modules():
        text = module.read_text(encoding="utf-8")
        shown = f"`{module.relative_to(TESTS)}`"
        if module.name not in (Path(__file__).name, "write_with_delta.py") and re.search(of_all, text, re.DOTALL):
            readers.append(shown)
            for name in names:
                if re.search(rf"[\"'/]{re.escape(name)}[\"'/]", text):
                    named[name].append(shown)
    return ", ".join(readers), {name: ", ".join(modules) for name, modules in named.items()}


def _features(log: Path) -> str:
    """Features of the protocols in a log's commits and column mapping of its metadata, by the protocol's names."""
    features: set[str] = set()
    for action in _actions(log):
        protocol, metadata = action.get("protocol"), action.get("metaData")
        if isinstance(protocol, dict):
            features |= {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        if isinstance(metadata, dict):
            configuration = metadata.get("configuration") or {}
            if configuration.get("delta.columnMapping.mode", "none") != "none":
                features.add("columnMapping")
            if configuration.get("delta.enableChangeDataFeed") == "true":
                features.add("changeDataFeed")
            if metadata.get("partitionColumns"):
                features.add("partitions")
    if any(".checkpoint." in path.name for path in log.iterdir()):
        features.add("checkpoint")
    return ", ".join(sorted(features - {"appendOnly", "invariants"})) or "none"


def _actions(log: Path) -> Iterator[dict[str, object]]:
    for commit in sorted(log.glob("*.json")):
        for line in commit.read_text(encoding="utf-8").splitlines():
            if line.startswith(('{"protocol"', '{"metaData"')):
                yield json.loads(line)


def _section_of(text: str, title: str) -> list[str]:
    start = text.index(f"## {title}")
    end = text.find("\n## ", start)
    return text[start : end if end > 0 else None].rstrip().splitlines()


def _modules() -> list[Path]:
    return sorted(path for path in TESTS.rglob("*.py") if "delta_spark" not in path.parts[:-1])


if __name__ == "__main__":
    main()
