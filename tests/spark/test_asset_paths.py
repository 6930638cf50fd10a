"""Files of a volume in Spark's own readers, by paths without a credential."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, QueryExecutionException

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import AddressError, ConfigError
from delta_sharing_spark.spark.session_settings import is_connect
from support.buckets import BucketServer

pytestmark = pytest.mark.spark


@pytest.mark.connect
def test_sparks_own_readers_open_the_files(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "v"
    (root / "raw").mkdir(parents=True)
    for number in range(40):
        (root / "raw" / f"a {number}%2F.json").write_text(f'{{"id": {number}}}\n')
    (root / "t.csv").write_text("id,city\n1,Bern\n2,Thun\n")
    (root / "large.txt").write_text("".join(f"line {number}\n" for number in range(200_000)))
    pq.write_table(pa.table({"id": range(1000)}), root / "t.parquet")
    with BucketServer() as server:
        server.add_volume("s.d.v", server.bucket("bucket", root))
        client = SharingClient(server.profile(), storageEndpoint=server.storage_endpoint, retryTimeout="1")
        volume = client.volume("s.d.v")
        if is_connect(spark):
            with pytest.raises(ConfigError, match="needs a classic session: over Spark Connect"):
                volume.spark_path(spark=spark)
            return
        read = spark.read
        frames = [read.json(volume.spark_path(path)) for path in ("raw", "raw/a*.json")]
        assert [sorted(row.id for row in frame.collect()) for frame in frames] == [[*range(40)]] * 2
        server.expire_credentials()
        assert read.csv(volume.spark_path("t.csv"), header=True).collect()[1].city == "Thun"
        assert read.parquet(volume.spark_path("t.parquet")).where("id > 990").count() == 9
        lines = read.text(volume.spark_path("large.txt"))
        assert lines.count() == 200_000
        assert lines.where("value = 'line 199999'").count() == 1
        binary = read.format("binaryFile").load(volume.spark_path("t.csv", spark)).collect()
        assert bytes(binary[0].content) == (root / "t.csv").read_bytes()
        assert not any(secret in volume.spark_path("raw") for secret in server.issued)
        with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
            read.json(volume.spark_path("none"))
        with pytest.raises(AddressError):
            volume.spark_path("../x")
        frame = read.text(volume.spark_path("t.csv"))
        server.out_of_scope = "t.csv"
        with pytest.raises(
            QueryExecutionException, match=r"CredentialError: the storage refuses .*t.csv of volume s.d.v"
        ):
            frame.collect()
        assert not server.failures
