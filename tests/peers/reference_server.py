"""The reference sharing server, in Scala, with an S3 emulator behind it: both run as processes of this one.

``../shared/peers/refserver`` beside the checkout builds it (``build.sh``) and brings the emulator (``s3emu.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import requests

PEERS = Path(__file__).parents[2].parent / "shared" / "peers"
RECIPE = PEERS / "refserver"
BUCKET, TOKEN = "tables", "peers-t0ken-of-the-reference-server"
_JAVA = [
    "-Xmx1g",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "-Daws.accessKeyId=x",
    "-Daws.secretKey=x",
    "-Daws.region=us-east-1",
]


def find_or_build() -> Path:
    """The directory of the built server: REFSERVER_DIR, or built by the recipe from SHARING_MIRROR.

    Raises:
        LookupError: It is not built and cannot be; with a line to print.
    """
    if not (RECIPE / "build.sh").is_file():
        raise LookupError(f"skipped: no {RECIPE}, which builds the reference server and brings an S3 emulator")
    home = Path(os.environ.get("REFSERVER_DIR") or Path(tempfile.gettempdir()) / "refserver")
    # Compiled last of all: a build that was interrupted is begun anew.
    if (home / "classes" / "io" / "delta" / "sharing" / "server" / "DeltaSharingService.class").is_file():
        return home
    if "SHARING_MIRROR" not in os.environ:
        raise LookupError(
            f"skipped: no reference server in {home}; set REFSERVER_DIR to a built one, or SHARING_MIRROR to a bare git "
            f"directory of delta-io/delta-sharing to build it from"
        )
    subprocess.run([str(RECIPE / "build.sh")], env={**os.environ, "REFSERVER_DIR": str(home)}, check=True)
    return home


@dataclass
class Storage:
    """moto as S3, behind a front that keeps the expiry of presigned URLs."""

    port: int
    _client: Any = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def upload(self, name: str, path: Path, pause: float = 0) -> str:
        """Put a directory's files below ``name``, its log last and in order; the location for the server.

        Args:
            pause: Seconds between two commits.
        """
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.endswith(".crc"))
        for file in sorted(files, key=lambda p: "_delta_log" in p.parts):
            if file.parent.name == "_delta_log":
                time.sleep(pause)
            self.put(f"{name}/{file.relative_to(path).as_posix()}", file.read_bytes())
        return f"s3a://{BUCKET}/{name}"

    def put(self, key: str, data: bytes) -> None:
        self._s3().put_object(Bucket=BUCKET, Key=key, Body=data)

    def times(self, prefix: str) -> list[datetime]:
        """When the objects below a prefix were put, by their names."""
        objects = self._s3().list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        return [item["LastModified"] for item in sorted(objects, key=lambda item: str(item["Key"]))]

    def deny(self, times: int) -> None:
        """Refuse the next presigned requests as expired."""
        requests.post(f"{self.endpoint}/__deny", json={"n": times}, timeout=10).raise_for_status()

    def counts(self, *, reset: bool = False) -> dict[str, Any]:
        """What was asked of the storage since the last reset."""
        stats: dict[str, Any] = requests.get(f"{self.endpoint}/__stats{'?reset' if reset else ''}", timeout=10).json()
        return stats

    def _s3(self) -> Any:
        if self._client is None:
            import boto3

            self._client = boto3.client(
                "s3",
                endpoint_url=self.endpoint,
                region_name="us-east-1",
                aws_access_key_id="x",
                aws_secret_access_key="x",
            )
        return self._client


@contextmanager
def storage(front: int, back: int) -> Iterator[Storage]:
    """An S3 emulator with an empty bucket."""
    command = [sys.executable, str(RECIPE / "s3emu.py"), str(front), str(back)]
    with _process(command, f"http://127.0.0.1:{front}/__stats", None, {}):
        emulated = Storage(front)
        emulated._s3().create_bucket(Bucket=BUCKET)
        yield emulated


@dataclass(frozen=True)
class Server:
    """A running reference server."""

    port: int
    log: Path

    @property
    def profile(self) -> dict[str, Any]:
        endpoint = f"http://127.0.0.1:{self.port}/delta-sharing"
        return {"shareCredentialsVersion": 1, "endpoint": endpoint, "bearerToken": TOKEN}


@contextmanager
def server(
    home: Path, port: int, store: Storage, shares: Mapping[str, Sequence[tuple[str, str]]], **settings: Any
) -> Iterator[Server]:
    """A reference server of tables in ``store``.

    Args:
        shares: Tables as (name, location) by ``share.schema``; the schema is after the last dot.
        **settings: Over those of the server's configuration file.
    """
    with tempfile.TemporaryDirectory(prefix="refserver-conf-") as folder:
        conf = Path(folder)
        config = {
            "version": 1,
            "shares": [_share(name, tables) for name, tables in shares.items()],
            "authorization": {"bearerToken": TOKEN},
            "host": "127.0.0.1",
            "port": port,
            "endpoint": "/delta-sharing",
            "preSignedUrlTimeoutSeconds": 3600,
            "evaluatePredicateHints": True,
            "evaluateJsonPredicateHints": True,
            "evaluateJsonPredicateHintsV2": True,
            "requestTimeoutSeconds": 120,
            **settings,
        }
        (conf / "server.yaml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
        (conf / "core-site.xml").write_text(_core_site(store.endpoint), encoding="utf-8")
        path = os.pathsep.join(
            [str(conf), str(home / "classes"), *(home / "server.cp").read_text(encoding="utf-8").split()]
        )
        main = "io.delta.sharing.server.DeltaSharingService"
        command = ["java", *_JAVA, "-cp", path, main, "-c", str(conf / "server.yaml")]
        log, ready = conf / "server.log", f"http://127.0.0.1:{port}/delta-sharing/shares"
        with _process(command, ready, log, {"Authorization": f"Bearer {TOKEN}"}):
            yield Server(port, log)


def _share(name: str, tables: Sequence[tuple[str, str]]) -> dict[str, Any]:
    share, _, schema = name.rpartition(".")
    listed = [
        {"name": table, "location": location, "id": f"id-of-{name}-{table}", "historyShared": True}
        for table, location in tables
    ]
    return {"name": share, "schemas": [{"name": schema, "tables": listed}]}


def _core_site(endpoint: str) -> str:
    values = {
        "fs.s3a.endpoint": endpoint,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": "x",
        "fs.s3a.secret.key": "x",
        "fs.s3a.connection.ssl.enabled": "false",
    }
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items()
    )
    return f"<configuration>{properties}</configuration>"


@contextmanager
def _process(command: Sequence[str], ready: str, log: Path | None, headers: Mapping[str, str]) -> Iterator[None]:
    """The process of ``command`` once ``ready`` answers; ended by its own handle."""
    output = log.open("wb") if log is not None else subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                if requests.get(ready, headers=headers, timeout=5).ok:
                    break
            except requests.RequestException:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                told = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log is not None else ""
                raise RuntimeError(f"{command[0]} does not answer at {ready}: {told}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if log is not None:
            output.close()  # type: ignore[union-attr]
