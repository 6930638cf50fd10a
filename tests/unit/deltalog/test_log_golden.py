"""Every golden table's log against an oracle that replays JSON and checkpoints row by row, and against deltalake."""

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.errors import LogError, UnsupportedFeatureError
from delta_sharing_spark.testing.server.table_logs import LocalLogStore
from unit.deltalog.logbuilder import load_snapshot

GOLDEN = (Path(__file__).parents[3] / "../shared/golden").resolve()
if not GOLDEN.is_dir():
    pytest.skip("the golden tables are not here", allow_module_level=True)

INVALID = {
    "deltalog-invalid-protocol-version": (UnsupportedFeatureError, "reader version 99"),
    "versions-not-contiguous": (LogError, "00000000000000000001.json"),
    "no-delta-log-folder": (LogError, "no Delta log"),
    "data-reader-absolute-paths-escaped-chars": (LogError, "no metaData"),
}
#: deltalake does not take ``/x`` and ``file:/x`` for one file, as Delta Lake does.
NOT_BY_DELTALAKE = {"canonicalized-paths-normal-a", "canonicalized-paths-special-a"}
TABLES = sorted(str(log.parent.relative_to(GOLDEN)) for log in GOLDEN.glob("**/_delta_log"))
VALID = [t for t in TABLES if t.split("/")[0] not in INVALID]


def rows(path):
    if path.suffix == ".json":
        return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return pq.read_table(path).to_pylist()


def oracle(table):
    """The live files as (path, vector id) to (size, partition values), by the protocol's words."""
    log = table / "_delta_log"
    commits = sorted(log.glob("[0-9]" * 20 + ".json"))
    checkpoints = sorted(log.glob("[0-9]*.checkpoint*"))
    base = int(checkpoints[-1].name[:20]) if checkpoints else -1
    actions = []
    for part in checkpoints:
        if int(part.name[:20]) == base:
            rows_read = rows(part)
            actions += rows_read
            for row in rows_read:
                if row.get("sidecar"):
                    actions += rows(log / "_sidecars" / row["sidecar"]["path"])
    actions = [a for a in actions if not a.get("remove")]
    for commit in commits:
        if int(commit.name[:20]) > base:
            actions += rows(commit)
    live = {}
    for action in actions:
        for kind in ("add", "remove"):
            tree = action.get(kind)
            if tree and tree.get("path"):
                vector = tree.get("deletionVector") or {}
                name = (vector.get("storageType") or "") + (vector.get("pathOrInlineDv") or "")
                if vector.get("offset") is not None:
                    name += f"@{vector['offset']}"
                path = unquote(tree["path"])
                path = "file://" + path if path.startswith("/") else path.replace("file:/", "file:///")
                if kind == "add":
                    live[path, name] = (tree["size"], dict(tree["partitionValues"]), tree.get("stats"))
                else:
                    live.pop((path, name), None)
    return live


@pytest.mark.parametrize("name", VALID)
def test_golden_log_replays_as_the_oracle_says(name):
    table = (GOLDEN / name).resolve()
    snapshot = load_snapshot(LocalLogStore(table))
    rows_read = {
        (t.id, t.deletion_vector.unique_id if t.deletion_vector else ""): (t.size, dict(t.partition_values), t.stats)
        for t in snapshot.tasks(keep_stats=True)
    }
    assert rows_read == oracle(table)
    assert snapshot.schema.fields is not None
    assert snapshot.timestamp_ms > 0


@pytest.mark.parametrize("name", [n for n in VALID if n.split("/")[0] not in NOT_BY_DELTALAKE])
def test_golden_log_replays_as_deltalake_does(name):
    deltalake = pytest.importorskip("deltalake")
    table = (GOLDEN / name).resolve()
    other = deltalake.DeltaTable(str(table))
    snapshot = load_snapshot(LocalLogStore(table))
    assert snapshot.version == other.version()
    tasks = list(snapshot.tasks())
    theirs = [unquote(uri).removeprefix("file://") for uri in other.file_uris()]
    assert len(tasks) == len(theirs)
    if "%" not in "".join(t.id for t in tasks):
        assert sorted(t.location.removeprefix("file://") for t in tasks) == sorted(theirs)


@pytest.mark.parametrize("name", sorted(INVALID))
def test_invalid_golden_tables_are_refused_with_the_reason(name):
    error, match = INVALID[name]
    with pytest.raises(error, match=match):
        load_snapshot(LocalLogStore((GOLDEN / name / "delta").resolve()), table="s.c.t")
