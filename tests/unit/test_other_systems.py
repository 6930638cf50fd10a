"""What Linux has and Windows or macOS has not: imitated, by taking it away."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from delta_sharing_spark.deltalog import paths
from delta_sharing_spark.sharing import profile
from delta_sharing_spark.storage import locations
from delta_sharing_spark.storage.clouds.registry import parse_location
from delta_sharing_spark.testing.server import sharing_server

#: Ours, after what Windows' ``os``, ``socket`` and ``signal`` lack is gone; the standard library has taken what it uses.
PROGRAM = """
import concurrent.futures, http.server, logging, multiprocessing, os, pathlib, random, shutil, signal, socket
import subprocess, sys, tempfile, threading, uuid
import fsspec, numpy, pyarrow, pyarrow.dataset, pyarrow.parquet, requests

for module, names in (
    (os, "fork forkpty register_at_fork getuid geteuid getgid getegid killpg getpgid setsid sendfile pread preadv posix_fadvise "
         "sched_getaffinity mkfifo O_NOFOLLOW O_CLOEXEC O_NONBLOCK statvfs"),
    (socket, "AF_NETLINK AF_UNIX SO_PEERCRED MSG_DONTWAIT SO_REUSEPORT"),
    (signal, "SIGKILL SIGHUP pthread_sigmask"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
def without_sendfile(*_):  # as socket defines it where there is none
    raise socket._GiveupOnSendfile()
socket.socket._sendfile_use_sendfile = without_sendfile
sys.modules["fcntl"] = sys.modules["resource"] = sys.modules["pwd"] = None

from delta_sharing_spark import SharingClient
from delta_sharing_spark.native import peers
from delta_sharing_spark.sharing.identity import run_command
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables import DeltaTableBuilder

peers._TABLES = ()
folder = pathlib.Path(sys.argv[1])
table = DeltaTableBuilder(folder / "t", pyarrow.schema([("id", pyarrow.int64())]))
for first in (0, 200_000):
    table.append(pyarrow.table({"id": numpy.random.default_rng(first).integers(0, 1 << 60, 200_000)}))
expected = sum(table.expected()["id"].to_pylist())
with SharingServer() as server:
    server.add_table("sh.sc.t", folder / "t", access_modes=("url", "dir"))
    for mode in ("url", "dir"):
        for _ in range(2):
            client = SharingClient(server.profile(), accessMode=mode, cacheDir=str(folder / "cache"))
            assert sum(client.table("sh.sc.t").scan().to_arrow()["id"].to_pylist()) == expected
listening = socket.create_server(("127.0.0.1", 0))
caller = socket.create_connection(listening.getsockname())
accepted, _ = listening.accept()
assert run_command((sys.executable, "-c", "print(1)")).strip() == "1"
assert peers.is_own_process(accepted) and peers.unread_by_peer(accepted) is None
print("read")
"""


def test_a_system_without_what_only_posix_has(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "read", done.stderr


def test_paths_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "_IS_WINDOWS", True)
    assert parse_location("file:///C:/shared/t").path == "C:/shared/t"
    assert str(parse_location("file:///C:/shared/t")) == "file:///C:/shared/t"
    assert paths.local_path(paths.join("file:///C:/shared/t", "a/b.parquet")) == "C:/shared/t/a/b.parquet"
    assert paths.qualify("file:///C:/t", "file:/D:/x/./y") == "file:///D:/x/y"
    assert paths.local_path("file:///share/t") == "/share/t"
    assert profile._local("file:///C:/My%20files/p.share") == Path("C:/My files/p.share")
    assert profile._local(r"C:\Users\me\p.share") == Path(r"C:\Users\me\p.share")
    monkeypatch.setattr(sharing_server.os.path, "splitdrive", lambda text: (text[:2], text[2:]))
    assert sharing_server._location("C:/shared/t").startswith("file:///")


WITHOUT_SPARK = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import delta_sharing_spark

profile = delta_sharing_spark.Profile("https://127.0.0.1:1/", bearer_token="t")
client, spark = delta_sharing_spark.SharingClient(profile), type("Session", (), {"conf": {"spark.sql.session.timeZone": "UTC"}, "createDataFrame": 0})
table = client.table("a.b.c")
for call in (
    lambda: delta_sharing_spark.register,
    lambda: delta_sharing_spark.load_as_spark("a.b.c", delta_sharing_profile=profile),
    lambda: delta_sharing_spark.load_table_changes_as_spark("a.b.c", 0, delta_sharing_profile=profile),
    lambda: table.to_spark(spark), lambda: table.scan().to_spark(spark), lambda: client.sql(spark, "SELECT 1"),
    lambda: client.query(spark, lambda t: t("a.b.c")), lambda: client.explain_sql("SELECT 1"),
    lambda: client.register(spark), lambda: client.refresh(spark),
):
    try:
        call()
    except delta_sharing_spark.DeltaSharingError as error:
        print(error)
"""


def test_what_needs_spark_says_so_where_there_is_none() -> None:
    ended = subprocess.run([sys.executable, "-c", WITHOUT_SPARK], capture_output=True, text=True, check=False)
    lines = ended.stdout.splitlines()
    functions = ("register", "load_as_spark", "load_table_changes_as_spark")
    methods = ("to_spark", "to_spark", "sql", "query", "explain_sql", "register", "refresh")
    told = [re.sub(r"pip install '.*\[spark\]'.*", "pip install", line) for line in lines]
    expected = [f"{name}() needs pyspark, which is not installed: pip install" for name in functions + methods]
    assert told == expected, ended.stderr
