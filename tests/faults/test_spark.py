"""Through Spark: a DataFrame that outlives its URLs and credentials, faults under tasks, and where secrets might show."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder
from support import HANGS, PRELOADED_WORKERS
from support.buckets import BucketServer

pytestmark = pytest.mark.spark

_QUICK = {"retryTimeout": "3s"}


@pytest.fixture
def address(server: SharingServer, tmp_path: Path) -> str:
    return f"{server.write_profile(tmp_path / 'c.share')}#s.d.t"


def answers(frame: Any) -> list[Any]:
    return [tuple(row) for row in frame.select("id", "text").orderBy("id").collect()]


def noting_workers(directory: str) -> type:
    """A source ``notingWorkers`` whose tasks leave their process's id in a directory. Workers get the class by value."""
    from delta_sharing_spark.spark.batch import DeltaSharingReader
    from delta_sharing_spark.spark.datasource import DeltaSharingDataSource

    class Reader(DeltaSharingReader):
        def read(self, partition: Any) -> Any:
            open(f"{directory}/{os.getpid()}", "w").close()
            return super().read(partition)

    class Source(DeltaSharingDataSource):
        @classmethod
        def name(cls) -> str:
            return "notingWorkers"

        def reader(self, schema: Any) -> Any:
            made = super().reader(schema)
            made.__class__ = Reader
            return made

    return Source


@pytest.mark.parametrize("how", ["refused", "late"])
@pytest.mark.parametrize("mode", ["url", "dir"])
def test_a_dataframe_outlives_its_urls_and_credentials(
    spark: Any,
    server: BucketServer,
    address: str,
    mode: str,
    how: str,
    note: Callable[[str], None],
    expected: Any,
    tmp_path: Path,
) -> None:
    """Used again when all that its plan holds has ended: each worker process asks once at most, whatever its tasks."""
    workers = tmp_path / "workers"
    workers.mkdir()
    spark.dataSource.register(noting_workers(str(workers)))
    reader = spark.read.format("notingWorkers").option("maxSplitBytes", "80k")
    table = address if mode == "url" else address.replace("#s.d.t", "#s.d.dir")
    frame = reader.option("storageEndpoint", server.storage_endpoint).load(table)
    wanted = [tuple(row.values()) for row in expected.to_pylist()]
    if how == "late":
        server.settings.url_ttl = server.settings.credential_ttl = 3.0
    assert answers(frame) == wanted
    if how == "late":
        time.sleep(3.1)
        server.settings.url_ttl = server.settings.credential_ttl = 3600.0
    kind = "query" if mode == "url" else "credentials"
    for _ in range(2 if how == "refused" else 1):
        if how == "refused":
            server.expire_urls()
            server.expire_credentials()
        server.reset_metrics()
        for worker in workers.iterdir():
            worker.unlink()
        assert answers(frame) == wanted
        processes = len(list(workers.iterdir()))
        note(
            f"a DataFrame kept while everything expires ({mode}, {how}): same rows, {processes} worker processes, "
            f"{server.count(kind)} renewal requests of {server.bytes_sent(kind)} bytes"
        )
        assert 1 <= server.count(kind) <= processes, "a worker process asked more than once"
        if how == "late":
            assert all(request.status < 400 for request in server.requests), "nothing was used until it was refused"


def test_faults_under_tasks(spark: Any, server: SharingServer, address: str, expected: Any) -> None:
    frame = spark.read.format("deltaSharing").option("maxSplitBytes", "200k").load(address)
    wanted = [tuple(row.values()) for row in expected.to_pylist()]
    server.faults.add("data", times=4, reset=True, truncate=500)
    server.faults.add("data", skip=3, times=2, status=503, retry_after="0")
    server.faults.add("data", skip=9, call=server.expire_urls)
    assert answers(frame) == wanted
    server.faults.clear()
    server.faults.add("data", times=None, corrupt=700)
    with pytest.raises(Exception, match=r"CorruptFileError.*damaged"):
        answers(frame)


@pytest.mark.parametrize("history", [True, False])
def test_commit_between_plan_and_renewal(spark: Any, server: SharingServer, tmp_path: Path, history: bool) -> None:
    """A server that ignores what version a refresh token is of: the plan's rows, or the error of a changed table."""
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    table = DeltaTableBuilder(tmp_path / "t", schema, (), {"delta.enableDeletionVectors": "true"})
    table.append([{"id": i, "text": f"t{i}"} for i in range(40)], files=4)
    server.settings.engine = "reference"
    server.add_table("s.d.changing", table.path)
    address = f"{server.write_profile(tmp_path / 'c.share')}#s.d.changing"
    frame = spark.read.format("deltaSharing").options(**_QUICK).load(address)
    wanted = answers(frame)
    table.optimize()
    server.add_table("s.d.changing", table.path, history=history)
    server.expire_urls()
    if history:
        assert answers(frame) == wanted
    else:
        with pytest.raises(Exception, match="load it again"):
            answers(frame)


#: Reads the tables that are whole in one query, the others in one each, and those of streams as such; then keeps what the UI
#: shows and what lies in temporary directories. Each load costs Python workers that import all, so that they are few.
_JOB = """
    import functools, json, os, shutil, sys, urllib.request
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    mode, work, loads = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    builder = SparkSession.builder
    builder = builder.remote("local[2]") if mode == "connect" else builder.master("local[2]")
    spark = (
        builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", "file://" + work)
        .config("spark.eventLog.compress", "false").config("spark.ui.port", "0").config("spark.log.level", "INFO")
        .config("spark.ui.enabled", "true").config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.codegen.wholeStage", "false").config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.local.dir", work + "/local").config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-Djava.io.tmpdir=" + work)
        .getOrCreate()
    )
    def tell(name, count):
        try:
            print("ROWS", name, count())
        except Exception as error:
            print("FAILED", name, type(error).__name__, str(error), repr(error))
    def frame(reader, address, options):
        return reader.format("deltaSharing").options(**options).load(address)
    def stream(name, address, options):
        rows = name.replace("-", "_")
        writer = frame(spark.readStream, address, options).writeStream.format("memory").queryName(rows)
        query = writer.option("checkpointLocation", work + "/checkpoint-" + name).trigger(availableNow=True).start()
        query.awaitTermination()
        return spark.table(rows).count()
    whole = [frame(spark.read, address, options) for how, _, address, options in loads if how == "whole"]
    together = functools.reduce(lambda one, other: one.unionAll(other), whole)
    together.explain(True)
    tell("together", together.count)
    print(repr(together))
    for how, name, address, options in loads:
        if how == "stream":
            tell(name, lambda: stream(name, address, options))
        elif how == "fails":
            tell(name, lambda: frame(spark.read, address, options).count())
    ui = SparkContext._active_spark_context.uiWebUrl  # of the Connect server's too, which this process has started
    def page(path):
        with urllib.request.urlopen(f"{ui}/{path}") as answer:
            return answer.read().decode()
    (application,) = json.loads(page("api/v1/applications"))
    pages = ["jobs/", "stages/", "environment/", "executors/", "SQL/", "metrics/json/"]
    pages += [f"SQL/execution/?id={number}" for number in range(3)]
    pages += [f"api/v1/applications/{application['id']}/{what}" for what in ("sql?details=true", "stages?details=true")]
    with open(work + "/ui.txt", "w") as out:
        for path in pages:
            print(path, page(path), file=out)
    shutil.copytree(work + "/local", work + "/seen", ignore_dangling_symlinks=True)
    spark.stop()
"""


#: Every Python process logs all there is; but for Py4J, which writes each call that the driver's program makes.
_TALKATIVE = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
logging.getLogger("py4j").setLevel(logging.INFO)
"""


@pytest.mark.parametrize("session", ["classic", "connect"])
def test_no_secret_shows(
    session: str,
    server: BucketServer,
    table: DeltaTableBuilder,
    expected: pa.Table,
    tmp_path: Path,
    note: Callable[[str], None],
) -> None:
    """Loads that succeed and that fail, in both modes and on three clouds, batches and streams, with every kind of credential:
    plans, UI, event log, logs, errors, files. The loads are shared out between the sessions.
    """
    identity = server.identity
    identity.client_id, identity.client_secret = "client-of-the-test", "secret-of-the-client-of-the-test"
    identity.username, identity.password = "user-of-the-test", "password-of-the-test"
    profile, oauth, basic = (
        server.write_profile(tmp_path / f"{kind}.share", kind)
        for kind in ("bearer_token", "oauth_client_credentials", "basic")
    )
    loads: list[tuple[str, str, str, dict[str, str]]] = []
    quick = _QUICK | {"storageEndpoint": server.storage_endpoint}
    for place, way in enumerate(("url", "s3", "gs", "abfss")):
        for state in ("whole", ("damaged", "refused")[(place + (session == "connect")) % 2]):
            copy = tmp_path / state
            if not copy.exists():
                shutil.copytree(table.path, copy)
            name = f"s.d.{way}-{state}"
            if way == "url":
                server.add_table(name, copy)
            else:
                server.add_bucket_table(name, copy, scheme=way)
            if state == "whole" and place % 2 != (session == "connect"):
                continue
            how, by = ("whole", (profile, oauth, basic, profile)[place]) if state == "whole" else ("fails", profile)
            carried = {"carryProfile": "token"} if by is oauth and session == "connect" else {}
            loads.append((how, f"{way}-{state}", f"{by}#{name}", quick | carried))
    server.faults.add("data", r"/damaged/.*parquet", times=None, corrupt=700)
    server.faults.add("data", r"/refused/.*parquet", times=None, status=403)
    if session == "connect":  # its event log shows options as they are given, which is what the warning says
        nothing = {"endpoint": server.endpoint, "bearerToken": "a-token-of-no-use"}
        loads.append(("fails", "inline", "s.d.nowhere", nothing))
        loads.append(("stream", "stream-basic", f"{basic}#s.d.s3-whole", quick))
        loads.append(("whole", "environment", "s.d.url-whole", quick))
    else:
        inline = {
            kind: {k: str(v) for k, v in server.profile(kind).items()} for kind in ("oauth_client_credentials", "basic")
        }
        loads += [
            ("whole", "inline", "s.d.url-whole", {"endpoint": server.endpoint, "bearerToken": server.token}),
            ("whole", "inline-basic", "s.d.gs-whole", quick | inline["basic"]),
            ("fails", "inline-oauth", "s.d.url-damaged", inline["oauth_client_credentials"]),
            ("stream", "stream-inline", "s.d.abfss-whole", quick | inline["basic"]),
            ("stream", "stream-by-oauth", f"{oauth}#s.d.url-whole", quick),
        ]
    work = tmp_path / "work"
    (work / "local").mkdir(parents=True)
    preloaded = (Path(PRELOADED_WORKERS) / "sitecustomize.py").read_text("utf-8")
    (work / "sitecustomize.py").write_text(_TALKATIVE + preloaded)
    (tmp_path / "job.py").write_text(textwrap.dedent(_JOB))
    environment = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(work)}
    if session == "connect":  # a port of its own: another Connect server may run beside it
        environment["SPARK_TESTING"] = "1"
        # Whoever runs a server gives it an identity, for loads that name none.
        (tmp_path / "token").write_text(server.token)
        environment["DELTA_SHARING_BEARER_TOKEN_FILE"] = str(tmp_path / "token")
        environment["DELTA_SHARING_IDENTITY_ENDPOINT"] = server.endpoint
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), session, str(work), json.dumps(loads)],
        capture_output=True,
        text=True,
        timeout=HANGS,
        cwd=tmp_path,
        env={**os.environ, **environment, "PYTHONPATH": str(work)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    whole = sum(how == "whole" for how, _, _, _ in loads)
    assert f"ROWS together {whole * expected.num_rows}" in done.stdout, done.stdout[-3000:]
    for how, name, _, _ in loads:
        if how != "whole":
            wanted = f"FAILED {name} " if how == "fails" else f"ROWS {name} {expected.num_rows}"
            assert wanted in done.stdout, done.stdout[-3000:]
    texts = {"output": done.stdout, "log": done.stderr}
    for path in work.rglob("*"):
        if path.is_file():
            texts[str(path.relative_to(work))] = path.read_bytes().decode("latin-1")
    assert "DEBUG:" in done.stderr, "workers log all there is"
    assert ("Spark Connect writes options into its event log in clear" in done.stderr) == (session == "connect")
    assert any("SparkListenerApplicationStart" in text for text in texts.values()), "there is an event log"
    header = base64.b64encode(f"{identity.username}:{identity.password}".encode()).decode()
    issued = [*server.issued, *identity.issued, identity.client_secret, identity.password, header]
    assert len(server.issued) > 12
    for secret in (server.token, "X-Amz-Signature=", *issued):
        shown = [name for name, text in texts.items() if secret in text]
        assert not shown, f"a secret shows: {secret}"
    note(
        f"secrets ({session}): {len(issued) + 2} sought after {len(loads)} loads, none in {len(texts)} texts "
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
    for piece in (source, reader, reader.read):
        assert server.token.encode() not in cloudpickle.dumps(piece)
    server.identity.client_id, server.identity.client_secret = "a-client", "secret-of-the-client"
    oauth = {name: str(value) for name, value in server.profile("oauth_client_credentials").items()}
    source = DeltaSharingDataSource({**oauth, "path": "s.d.t", "carryProfile": "token"})
    reader = source.reader(source.schema())
    for piece in (reader.partitions(), source, reader, reader.read):
        assert b"secret-of-the-client" not in cloudpickle.dumps(piece)
    streaming = DeltaSharingDataSource(options)
    streaming.schema()
    streaming.streamReader(schema)
    assert server.token.encode() not in cloudpickle.dumps(streaming)
