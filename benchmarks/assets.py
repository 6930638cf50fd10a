"""A volume beside boto3 and s3fs: listing and downloading 10,000 files and one large one; ``spark.read.json`` beside ``file:``.

    python benchmarks/assets.py [--files 10000] [--gigabytes 5] [--small 1000] [--no-spark]

All read the same stand-in for S3 in a process of its own, which checks no signatures; the large file is sparse.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from delta_sharing_spark import SharingClient

MIB = 1 << 20


def serve(root: str) -> None:
    """Serve ``root`` as the volume ``bench.d.v`` until standard input ends; a line of input expires all credentials."""
    from support.buckets import BucketServer

    with BucketServer() as server:
        server.add_volume("bench.d.v", server.bucket("bucket", root))
        profile = server.write_profile(Path(root).parent / "profile.share")
        print(profile, server.storage_endpoint, flush=True)
        for _ in sys.stdin:
            server.expire_credentials()


def timed(what: str, amount: float, unit: str, work: Callable[[], Any]) -> None:
    """Run ``work`` and print its wall and processor time, and its rate."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{what:44} {wall:8.2f} s  {cpu:8.2f} s CPU  {amount / wall:10,.0f} {unit}/s", flush=True)


def fresh(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    return directory


def clients(volume: Any, endpoint: str) -> tuple[Any, Any]:
    """boto3 and s3fs with the volume's own credentials."""
    import boto3
    import s3fs
    from botocore.config import Config

    options = volume.storage_options()
    keys = {
        "aws_access_key_id": options["key"],
        "aws_secret_access_key": options["secret"],
        "aws_session_token": options["token"],
    }
    config = Config(max_pool_connections=16)
    boto = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config, **keys)
    return boto, s3fs.S3FileSystem(**{**options, "endpoint_url": endpoint}, skip_instance_cache=True)


def boto_keys(boto: Any, prefix: str) -> list[str]:
    pages = boto.get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix=prefix)
    return [one["Key"] for page in pages for one in page.get("Contents", ())]


def downloads(volume: Any, boto: Any, s3: Any, to: Path, files: int, size: int, expire: Callable[[], None]) -> None:
    def by_boto() -> None:
        with ThreadPoolExecutor(8) as threads:
            for key in boto_keys(boto, "many/"):
                threads.submit(boto.download_file, "bucket", key, str(to / Path(key).name))

    timed(f"list {files:,} files: volume", files, "files", lambda: volume.files("many"))
    timed("      boto3", files, "files", lambda: boto_keys(boto, "many/"))
    timed("      s3fs", files, "files", lambda: s3.find("bucket/many"))
    timed(f"download {files:,} files: volume", files, "files", lambda: volume.download("many", fresh(to)))
    assert len(os.listdir(to)) == files
    timed("      once more, all present", files, "files", lambda: volume.download("many", to))
    fresh(to)
    timed("      boto3, 8 threads", files, "files", by_boto)
    assert len(os.listdir(to)) == files
    timed("      s3fs", files, "files", lambda: s3.get("bucket/many/", str(fresh(to)) + "/", recursive=True))
    megabytes = size / MIB
    timed(f"download {size:,} bytes: volume", megabytes, "MiB", lambda: volume.download("large", fresh(to)))
    timed("      boto3", megabytes, "MiB", lambda: boto.download_file("bucket", "large", str(fresh(to) / "large")))
    timed("      s3fs", megabytes, "MiB", lambda: s3.get_file("bucket/large", str(fresh(to) / "large")))

    def renewed() -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(lambda: (time.sleep(1), expire()))
            volume.download("large", fresh(to))

    timed("      volume, credentials end after 1 s", megabytes, "MiB", renewed)
    assert os.stat(to / "large").st_size == size
    fresh(to)


def in_spark(volume: Any, root: Path, small: int) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ways = {"file:": f"file://{root}/json", "volume": volume.spark_path("json", spark)}
    ways |= {
        "file:, by a pattern": f"file://{root}/json/*.json",
        "volume, by a pattern": volume.spark_path("json/*.json", spark),
    }
    for turn in ("cold", "warm", "warm"):
        for name, path in ways.items():

            def work(path: str = path) -> None:
                assert spark.read.schema("id long, text string").json(path).count() == small * 10

            timed(f"spark.read.json of {small:,} files, {turn}: {name}", small, "files", work)
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--small", type=int, default=1000)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.serve)
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="assets-") as scratch:
        root = Path(scratch) / "shared"
        for name in ("many", "json"):
            (root / name).mkdir(parents=True)
        for number in range(asked.files):
            (root / "many" / f"{number:06}.bin").write_bytes(os.urandom(1000))
        for number in range(asked.small):
            lines = (f'{{"id": {number * 10 + line}, "text": "line {line} of {number}"}}\n' for line in range(10))
            (root / "json" / f"{number:05}.json").write_text("".join(lines))
        size = int(asked.gigabytes * (1 << 30))
        with (root / "large").open("wb") as large:
            large.truncate(size)
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert server.stdin is not None
        assert server.stdout is not None
        to_server = server.stdin
        try:
            profile, endpoint = server.stdout.readline().split()
            volume = SharingClient(profile, storageEndpoint=endpoint).volume("bench.d.v")
            boto, s3 = clients(volume, endpoint)

            def expire() -> None:
                to_server.write("\n")
                to_server.flush()

            downloads(volume, boto, s3, Path(scratch) / "to", asked.files, size, expire)
            if not asked.no_spark:
                in_spark(volume, root, asked.small)
        finally:
            to_server.close()
            server.wait(20)


if __name__ == "__main__":
    main()
