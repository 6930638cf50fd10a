"""Where Spark might show a secret: plans, UI, event log, checkpoints, local files, logs, command lines and errors, in two sessions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from faults import job_of_secrets
from support import HANGS, PRELOADED_WORKERS
from support.buckets import BucketServer
from support.recipients import RECIPIENTS, Recipients

pytestmark = pytest.mark.spark

#: By what storage knows who asks: presigned URLs, session keys, a token, a SAS.
PLACES = ("url", "s3", "gs", "abfss")
WAYS = ("source", "stream", "lane")
#: Every Python process logs all there is, unless it is to be quiet; but for Py4J, which writes each call that the driver's
#: program makes.
_TALKATIVE = """
import logging, os, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
logging.getLogger("py4j").setLevel(logging.INFO)
def _set_level():
    is_quiet = os.path.exists(os.path.join(os.path.dirname(__file__), "quiet"))
    logging.getLogger("delta_sharing_spark").setLevel(logging.INFO if is_quiet else logging.DEBUG)
os.register_at_fork(after_in_child=_set_level)
"""


@dataclass(frozen=True, slots=True)
class Load:
    """A table that the job reads; ``quiet`` is without DEBUG."""

    way: str
    recipient: str
    place: str
    fails: bool = False
    quiet: bool = False
    options: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = (self.way, self.recipient, self.place, "quiet" if self.quiet else "loud")
        return "_".join(parts).replace("-", "_")


def of_a_cluster() -> list[Load]:
    """Each recipient by each way, and failing in one of them; with ALL_SECRETS in each, with and without DEBUG. The places go round."""
    loads = []
    for one, recipient in enumerate(RECIPIENTS):
        ways = [way for way in WAYS if (way, recipient) != ("lane", "flight")]
        fails = [(ways[one % len(ways)], one % 2 == 0)]
        if "ALL_SECRETS" in os.environ:
            fails = [(way, quiet) for way in ways for quiet in (False, True)]
        loads += [Load(way, recipient, PLACES[(one + WAYS.index(way)) % 4]) for way in ways]
        loads += [
            Load(way, recipient, PLACES[(one + number) % 4], True, quiet) for number, (way, quiet) in enumerate(fails)
        ]
    return loads


#: By session what is read. What is the same in each is read in one of them: a cluster's session is a classic one too, and that of
#: Connect, whose server this process starts, has the lane of one machine.
LOADS = {
    "connect": [
        Load("source", "oauth", "s3", options={"carryProfile": "token"}),
        Load("source", "bearer", "abfss"),
        Load("source", "environment", "url"),
        Load("lane", "bearer", "s3"),
        Load("stream", "basic", "s3"),
        *(Load("source", "bearer", place, fails=True) for place in PLACES),
        # Its event log shows options as they are given, which is what the warning says.
        Load("source", "inline-of-no-use", "url", fails=True),
    ],
    "cluster": [
        Load("source", "inline", "url"),
        Load("source", "inline-basic", "gs"),
        Load("stream", "inline-basic", "abfss"),
        *(Load("source", "bearer", place, fails=True) for place in PLACES[:2]),
        Load("source", "inline-oauth", "url", fails=True, quiet=True),
        *of_a_cluster(),
    ],
}


def written_as_options(recipient: str, server: SharingServer) -> dict[str, str] | None:
    """A recipient whose secrets are options, or who is the process's own; None of the others."""
    kinds = {"inline": "bearer_token", "inline-basic": "basic", "inline-oauth": "oauth_client_credentials"}
    if recipient in kinds:
        return {name: str(value) for name, value in server.profile(kinds[recipient]).items()}
    of_no_use = {"endpoint": server.endpoint, "bearerToken": "a-token-of-no-use"}
    return {"inline-of-no-use": of_no_use, "environment": {}}.get(recipient)


@pytest.fixture
def tables(server: BucketServer, table: DeltaTableBuilder, tmp_path: Path) -> BucketServer:
    """The table in each place: whole, damaged, and refused by the storage."""
    for state in ("whole", "damaged", "refused"):
        copy = tmp_path / state
        shutil.copytree(table.path, copy)
        server.add_table(f"s.d.url-{state}", copy)
        for scheme in PLACES[1:]:
            server.add_bucket_table(f"s.d.{scheme}-{state}", copy, scheme=scheme)
    server.faults.add("data", r"/damaged/.*parquet", times=None, corrupt=700)
    server.faults.add("data", r"/refused/.*parquet", times=None, status=403)
    return server


@pytest.mark.parametrize("session", LOADS)
def test_no_secret_shows(
    session: str, tables: BucketServer, expected: pa.Table, tmp_path: Path, note: Callable[[str], None]
) -> None:
    """Loads that succeed and that fail, with every kind of credential, batches and streams, by the Python source and by the lane."""
    if session == "cluster" and not Path("/proc").exists():
        pytest.skip("the lane of a cluster is Linux's")
    server, recipients = tables, Recipients(tables, tmp_path)
    quick = {"retryTimeout": "3s", "storageEndpoint": server.storage_endpoint}
    work, own = tmp_path / "work", tmp_path / "own.json"
    (work / "local").mkdir(parents=True)
    preloaded = (Path(PRELOADED_WORKERS) / "sitecustomize.py").read_text("utf-8")
    (work / "sitecustomize.py").write_text(_TALKATIVE + preloaded)
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(work)}
    if session == "connect":  # a port of its own: another Connect server may run beside it
        environment["SPARK_TESTING"] = "1"
        # Whoever runs a server gives it an identity, for loads that name none.
        environment["DELTA_SHARING_BEARER_TOKEN_FILE"] = str(tmp_path / "token")
        environment["DELTA_SHARING_IDENTITY_ENDPOINT"] = server.endpoint
    loads: list[dict[str, object]] = []
    how_it_fails = cycle(("damaged", "refused"))
    with recipients.gateway(quick) as gateway:
        for load in LOADS[session]:
            inline = written_as_options(load.recipient, server)
            profile, options = (None, inline) if inline is not None else recipients.asks(load.recipient, gateway)
            state = next(how_it_fails) if load.fails else "whole"
            address = f"{profile}#" * (profile is not None) + f"s.d.{load.place}-{state}"
            given = options if load.recipient == "flight" else quick | load.options | options
            loads.append(asdict(load) | {"name": load.name, "address": address, "options": given})
        # Options that are secrets stand on no command line.
        (tmp_path / "loads.json").write_text(json.dumps(loads))
        done = subprocess.run(
            [sys.executable, job_of_secrets.__file__, session, str(work), str(tmp_path / "loads.json"), str(own)],
            capture_output=True,
            text=True,
            timeout=HANGS * (3 if "ALL_SECRETS" in os.environ else 1),
            cwd=tmp_path,
            env={**os.environ, **environment, "PYTHONPATH": str(work)},
            check=False,
        )
    (tmp_path / "output").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]
    whole = Counter(load.way for load in LOADS[session] if not load.fails)
    lines = [f"ROWS {way} {loaded * expected.num_rows}\n" for way, loaded in whole.items()]
    lines += [f"FAILED {load.name} " for load in LOADS[session] if load.fails]
    assert [line for line in lines if line not in done.stdout] == [], done.stdout[-3000:]
    texts = {"output": done.stdout, "log": done.stderr}
    for path in work.rglob("*"):
        if path.is_file():
            texts[str(path.relative_to(work))] = path.read_bytes().decode("latin-1")
    assert "DEBUG:" in done.stderr, "workers log all there is"
    assert ("Spark Connect writes options into its event log in clear" in done.stderr) == (session == "connect")
    assert any("SparkListenerApplicationStart" in text for text in texts.values()), "there is an event log"
    sought = recipients.secrets
    assert len(server.issued) > 6
    if session == "cluster":
        logs = [text for name, text in texts.items() if name.startswith("executors/") and name.endswith("/stderr")]
        assert ["DEBUG:" in text for text in logs] == [True], "the executor logs all there is"
        assert any(re.fullmatch(r"seen/[0-9]+-shuffle.*data", name) for name in texts), "there are files of shuffles"
        sought += json.loads(own.read_text("utf-8"))
    assert [(name, secret) for secret in sought for name, text in texts.items() if secret in text] == []
    note(
        f"secrets ({session}): {len(sought)} sought after {len(loads)} loads, none in {len(texts)} texts "
        f"of {sum(map(len, texts.values()))} characters"
    )


def test_what_is_pickled_into_tasks_holds_no_option(server: SharingServer) -> None:
    from pyspark import cloudpickle

    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

    options = {"endpoint": server.endpoint, "bearerToken": server.token, "path": "s.d.t"}
    source = DeltaSharingDataSource(options)
    schema = source.schema()
    reader = source.reader(schema)
    reader.partitions()
    pickled = b"".join(cloudpickle.dumps(piece) for piece in (source, reader, reader.read))
    assert server.token.encode() not in pickled
    server.identity.client_id, server.identity.client_secret = "a-client", "secret-of-the-client"
    oauth = {name: str(value) for name, value in server.profile("oauth_client_credentials").items()}
    source = DeltaSharingDataSource({**oauth, "path": "s.d.t", "carryProfile": "token"})
    reader = source.reader(source.schema())
    pickled = b"".join(cloudpickle.dumps(piece) for piece in (reader.partitions(), source, reader, reader.read))
    assert b"secret-of-the-client" not in pickled
    streaming = DeltaSharingDataSource(options)
    streaming.schema()
    streaming.streamReader(schema)
    assert server.token.encode() not in cloudpickle.dumps(streaming)
