"""The golden tables through the server: every file it names is there, of that size, with as many live rows as known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests

from delta_sharing_spark.schema.features import reader_features_header
from delta_sharing_spark.testing.server import SharingServer

GOLDEN = Path(__file__).parents[3] / ".." / "shared" / "golden"
TABLES = sorted(p.name for p in GOLDEN.iterdir() if (p / "delta" / "_delta_log").is_dir()) if GOLDEN.is_dir() else []
#: Tables that cannot be read, and what the server says of them.
INVALID = {"data-reader-absolute-paths-escaped-chars": "no metaData", "versions-not-contiguous": "not contiguous"}

pytestmark = pytest.mark.skipif(not TABLES, reason="the golden tables are not here")


def asked(server: SharingServer, capabilities: str) -> requests.Response:
    headers = {"Authorization": f"Bearer {server.token}", "delta-sharing-capabilities": capabilities}
    return requests.post(f"{server.endpoint}/shares/s/schemas/d/tables/t/query", json={}, headers=headers, timeout=20)


@pytest.mark.parametrize("name", TABLES)
def test_golden_table(name: str) -> None:
    expected = sorted((GOLDEN / name / "expected").rglob("*.parquet"))
    with SharingServer({"s.d.t": GOLDEN / name / "delta"}) as server, requests.Session() as session:
        answer = asked(server, f"responseformat=delta;readerfeatures={reader_features_header()}")
        if name in INVALID:
            assert (answer.status_code, INVALID[name] in answer.json()["message"]) == (500, True)
            return
        assert answer.status_code == 200, answer.text
        adds: list[dict[str, Any]] = []
        for line in answer.content.splitlines()[2:]:
            adds.append(json.loads(line)["file"]["deltaSingleAction"]["add"])
        live = 0
        for add in adds:
            body = session.get(add["path"], timeout=20)
            if body.status_code == 404 and not expected:
                continue  # given for its log alone
            assert (body.status_code, len(body.content)) == (200, add["size"])
            deleted = add.get("deletionVector", {"cardinality": 0})["cardinality"]
            live += pq.ParquetFile(pa.BufferReader(body.content)).metadata.num_rows - deleted
        if expected:
            assert live == sum(pq.ParquetFile(p).metadata.num_rows for p in expected)
        assert list(server.failures) == []


@pytest.mark.parametrize(("formats", "status"), [("delta", 200), ("delta,parquet", 200), ("parquet", 400)])
def test_newer_reader_version(formats: str, status: int) -> None:
    with SharingServer({"s.d.t": GOLDEN / "deltalog-invalid-protocol-version" / "delta"}) as server:
        answer = asked(server, f"responseformat={formats}")
        assert answer.status_code == status
        assert status == 400 or '"minReaderVersion":99' in answer.text
