"""What an Iceberg catalog or a table's files say decides nothing about the reader: places, hosts, keys and classes that are not theirs."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.access.directory.access import TOKENS
from delta_sharing_spark.errors import CredentialError, DeltaSharingError, NotFoundError, UnsupportedFeatureError
from delta_sharing_spark.scan.split_reader import read_split
from support.drawn_iceberg import IcebergWriter
from support.recipients import Recipients
from support.shared_iceberg import SharedIceberg


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SharedIceberg]:
    """A table with a position delete, an equality delete and, in the other file, a vector."""
    with SharedIceberg(tmp_path, version=3) as server:
        writer = server.writer
        first, second = (writer.insert([{1: n + k, 2: "a"} for n in range(4)]) for k in (0, 10))
        writer.commit()
        writer.delete_positions([(first, 1)])
        writer.delete_vector(second, [0])
        writer.delete_equal([(writer.columns[0],)], [{1: 3}])
        writer.commit()
        yield server
        assert not server.failures


def ids(lake: SharedIceberg) -> list[int]:
    return sorted(lake.client().table("s.db.t").to_arrow()["id"].to_pylist())


def test_the_table_is_read(lake: SharedIceberg) -> None:
    assert ids(lake) == [0, 2, 11, 12, 13] == sorted(row["id"] for row in lake.writer.rows())


def moved(text: str, place: str) -> str:
    return f"{place}/{text.rpartition('/')[2]}"


def of_metadata(key: str) -> Callable[[IcebergWriter, str], None]:
    def edit(writer: IcebergWriter, place: str) -> None:
        tree = json.loads(writer.metadata_path.read_text())
        tree["snapshots"][-1][key] = moved(tree["snapshots"][-1][key], place)
        writer.metadata_path.write_text(json.dumps(tree))

    return edit


def of_avro(name: str, change: Callable[[dict[str, Any], str], Any]) -> Callable[[IcebergWriter, str], None]:
    """Change the records of manifest lists (``snap-*``), or of manifests."""

    def edit(writer: IcebergWriter, place: str) -> None:
        for file in (writer.directory / "metadata").glob("*.avro"):
            if file.name.startswith("snap-") == (name == "list"):
                reader = fastavro.reader(io.BytesIO(file.read_bytes()))
                records: list[Any] = list(reader)
                for record in records:
                    change(record, place)
                out = io.BytesIO()
                fastavro.writer(out, reader.writer_schema, records, codec="deflate")
                file.write_bytes(out.getvalue().ljust(file.stat().st_size, b"\0"))
                lengths[file.name] = len(out.getvalue())
        if name != "list":
            of_avro(
                "list",
                lambda record, _: record.update(manifest_length=lengths[record["manifest_path"].rpartition("/")[2]]),
            )(writer, place)

    lengths: dict[str, int] = {}
    return edit


def of_files(content: int, is_vector: bool = False) -> Callable[[IcebergWriter, str], None]:
    def change(record: dict[str, Any], place: str) -> None:
        file = record["data_file"]
        if file["content"] == content and (file["file_format"] == "PUFFIN") == is_vector:
            file["file_path"] = moved(file["file_path"], place)

    return of_avro("manifest", change)


#: Each path that a table's files name, and how it is made to lie elsewhere.
PATHS = {
    "manifest list": of_metadata("manifest-list"),
    "manifest": of_avro("list", lambda record, place: record.update(manifest_path=moved(record["manifest_path"], place))),
    "data file": of_files(0),
    "position delete": of_files(1),
    "vector": of_files(1, is_vector=True),
    "equality delete": of_files(2),
}  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        "file:///etc",
        "s3://elsewhere/t/data",
        "s3://lake/t2",
        "s3://lake/t/../u",
        "/etc",
        "http://127.0.0.1/t",
        "gs://lake/t",
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_a_path_outside_of_what_is_vended_is_refused_before_anything_is_opened(
    lake: SharedIceberg, path: str, place: str
) -> None:
    lake.shared.storage_credentials = [{"prefix": "s3://lake/t", "config": lake.vended}]
    PATHS[path](lake.writer, place)
    lake.reset_metrics()
    with pytest.raises(DeltaSharingError) as raised:
        ids(lake)
    assert not isinstance(raised.value, NotFoundError)
    assert "\n" not in str(raised.value)
    opened = [request.path for request in lake.requests if request.kind in ("data", "log")]
    assert not [one for one in opened if one.endswith((".parquet", ".puffin"))]
    assert all("/lake/t/metadata/" in one for one in opened)


def test_what_the_catalog_says_of_hosts_tokens_and_classes_is_not_obeyed(lake: SharedIceberg) -> None:
    orders = {
        "token": "stolen", "credential": "stolen", "io-impl": "os.system", "py-io-impl": "os.system", "rest.sigv4-enabled": "true",
        "s3.signer.uri": "http://127.0.0.1:1", "s3.signer": "x", "s3.proxy-uri": "http://127.0.0.1:1", "client.factory": "os.system",
        "header.Authorization": "Bearer stolen", "scan-planning-mode": "server", "rest-metrics-reporting-enabled": "true",
        "oauth2-server-uri": "http://127.0.0.1:1", "auth.runtime.mode": "x", "credentials-provider": "x",
        "client.refresh-credentials-endpoint": "http://127.0.0.1:1/x", "namespace-separator": "/",
    }  # fmt: skip
    lake.iceberg.overrides = orders
    lake.shared.config = lambda: {**orders, **lake.vended()}
    assert ids(lake) == [0, 2, 11, 12, 13]
    # The server takes its own token alone.
    assert [request.method for request in lake.requests if request.kind == "iceberg"] == ["GET", "GET"]


def test_defaults_give_way_to_overrides(lake: SharedIceberg) -> None:
    lake.iceberg.prefix_in = "defaults"
    lake.iceberg.overrides = {"prefix": "shares/s"}
    assert ids(lake) == [0, 2, 11, 12, 13]
    lake.iceberg.overrides = {"prefix": "shares/none"}
    with pytest.raises(NotFoundError):
        ids(lake)


@pytest.mark.parametrize("recipient", ["bearer", "oauth", "basic", "key", "identity"])
def test_each_recipient_reads(lake: SharedIceberg, tmp_path: Path, recipient: str) -> None:
    from delta_sharing_spark import SharingClient

    recipients = Recipients(lake, tmp_path)
    profile, options = recipients.asks(recipient)
    if profile is None:
        fields = {"endpoint": lake.endpoint, "icebergEndpoint": lake.profile()["icebergEndpoint"]}
        (tmp_path / "identity.share").write_text(json.dumps({"shareCredentialsVersion": 1, **fields}))
        profile = str(tmp_path / "identity.share")
    if recipient == "key":
        tree = json.loads(Path(profile).read_text()) | {"icebergEndpoint": lake.profile()["icebergEndpoint"]}
        Path(profile).write_text(json.dumps(tree))
    scan = SharingClient(profile, **options).table("s.db.t").scan()
    planned = scan.plan()
    text = repr(planned) + str(scan.explain())
    assert not [one for one in recipients.secrets if one in text]
    assert sorted(scan.to_arrow()["id"].to_pylist()) == [0, 2, 11, 12, 13]


@pytest.mark.parametrize("carries", [True, False])
def test_credentials_that_end_after_planning(lake: SharedIceberg, carries: bool) -> None:
    """Who may ask for others does, and reads the snapshot that was planned; who may not says so."""
    planned = lake.client().table("s.db.t").scan(carryProfile=carries).plan()
    splits = pickle.loads(pickle.dumps(list(planned.splits)))
    lake.writer.insert([{1: 99, 2: "later"}])
    lake.writer.commit()
    lake.expire_credentials()
    TOKENS.clear()  # as another process
    if carries:
        rows = [row["id"] for split in splits for batch in read_split(split) for row in batch.to_pylist()]
        assert sorted(rows) == [0, 2, 11, 12, 13]
        return
    with pytest.raises(CredentialError, match="carryProfile=false keeps executors from asking for another") as raised:
        [batch for split in splits for batch in read_split(split)]
    assert "\n" not in str(raised.value)


def test_views_are_refused_by_name(lake: SharedIceberg) -> None:
    lake.iceberg.views.add(("s", "db", "v"))
    with pytest.raises(
        UnsupportedFeatureError, match=r"s\.db\.v is a view of the Iceberg catalog, and this reader reads tables"
    ):
        lake.client(accessMode="iceberg").table("s.db.v").to_arrow()


@pytest.mark.parametrize("page_size", [None, 1, 2])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("s.db.orderz", r"s\.db has no table 'orderz'; did you mean 'orders'\?"),
        ("s.dbs.orders", r"s has no schema 'dbs'; did you mean 'db'\?"),
        ("s.db.something", r"s\.db has no table 'something'; it has 'cities', 'orders', 't'"),
        ("x.db.orders", "there is no such table"),
    ],
)
def test_names_that_the_catalog_lacks_are_told_the_nearest(
    lake: SharedIceberg, name: str, words: str, page_size: int | None
) -> None:
    """Pages come one after the other, and some are empty."""
    for table in ("orders", "cities"):
        lake.iceberg.add(f"s.db.{table}", lake.writer.metadata_path)
    lake.iceberg.page_size = page_size
    with pytest.raises(NotFoundError, match=words) as raised:
        lake.client(accessMode="iceberg").table(name).to_arrow()
    assert "\n" not in str(raised.value)


def test_a_listing_without_end_explains_nothing(lake: SharedIceberg) -> None:
    lake.iceberg.page_size = 0
    with pytest.raises(NotFoundError, match="there is no such table"):
        lake.client(accessMode="iceberg").table("s.db.none").to_arrow()


def test_a_delete_file_of_another_recipient_is_another_file(lake: SharedIceberg, tmp_path: Path) -> None:
    """Two servers may state the same names and locations: what is kept of one table's deletes is not the other's."""
    (tmp_path / "other").mkdir()
    shutil.copytree(tmp_path / "t", tmp_path / "other" / "t")
    with SharedIceberg(tmp_path / "second") as other:
        other.bucket("lake", tmp_path / "other")
        other.shared.metadata_path = str(tmp_path / "other" / "t" / "metadata" / "v.metadata.json")
        for file in (tmp_path / "other" / "t" / "data").glob("deletes-*"):
            rows = pq.read_table(file)
            if "pos" in rows.column_names:
                changed = rows.set_column(1, rows.schema.field("pos"), pa.array([2], pa.int64()))
                pq.write_table(changed, file, row_group_size=4)
        assert ids(lake) == [0, 2, 11, 12, 13]
        assert ids(other) == [0, 1, 11, 12, 13]
        assert ids(lake) == [0, 2, 11, 12, 13]
