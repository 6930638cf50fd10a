"""Every golden table through the server: with Spark exactly its own answer, and without one the same rows in both access modes.

The tables lie in ``../shared/golden`` beside the checkout and are not copied here; without them this suite is skipped.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.dataset import dataset

from delta_sharing_spark import SharingClient
from delta_sharing_spark.errors import DeltaSharingError
from delta_sharing_spark.testing.server import SharingServer

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden"
pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason=f"no golden tables at {GOLDEN}")

MODES = ("url", "dir")

#: Answers that were not written in UTC, with the reason (README of the golden tables): compared but for these columns.
QUIRKS = {"data-reader-partition-values": ("as_timestamp",)}

#: Tables without rows to read: the error, and words of its message, by name; where dir mode says otherwise, by (name, mode).
BROKEN = {
    "checkpoint": ("CorruptFileError", "has only 1 bytes"),
    "data-reader-absolute-paths-escaped-chars": ("UnavailableError", "has no metaData action up to version 1"),
    "delete-re-add-same-file-different-transactions": ("CorruptFileError", "has only 1 bytes"),
    "deltalog-invalid-protocol-version": ("UnsupportedFeatureError", "asks for Delta reader version 99"),
    "no-delta-log-folder": ("NotFoundError", "has no Delta log"),
    "versions-not-contiguous": ("UnavailableError", "00000000000000000001.json is missing before version 2"),
}

#: Tables whose rows nobody wrote down: how many there are, counted by deltalake.
COUNTED = {
    "canonicalized-paths-normal-a": 0,
    "canonicalized-paths-special-a": 0,
    "cdf/cdf-table-partitioned": 2,
    "cdf/cdf-table-simple": 0,
    "cdf/cdf-table-with-dv": 10,
    "hive/delta/deltatbl-column-names-case-insensitive": 10,
    "hive/delta/deltatbl-deleted-path": 10,
    "hive/delta/deltatbl-incorrect-format-config": 10,
    "hive/delta/deltatbl-map-types-correctly": 1,
    "hive/delta/deltatbl-non-partitioned": 10,
    "hive/delta/deltatbl-not-allow-write": 10,
    "hive/delta/deltatbl-partition-prune": 5,
    "hive/delta/deltatbl-partitioned": 10,
    "hive/delta/deltatbl-schema-match": 10,
    "hive/delta/deltatbl-special-chars-in-partition-column": 10,
    "hive/delta/deltatbl-touch-files-needed-for-partitioned": 10,
}


def golden_tables() -> dict[str, Path]:
    """Every directory with a Delta log or one called ``delta``, by its name below the golden directory."""
    if not GOLDEN.is_dir():
        return {}
    tables = {str(log.parent.relative_to(GOLDEN)): log.parent for log in GOLDEN.rglob("_delta_log")}
    tables |= {
        str(path.relative_to(GOLDEN)): path for path in GOLDEN.glob("*/delta") if not any(path.rglob("_delta_log"))
    }
    return {name.removesuffix("/delta"): path for name, path in sorted(tables.items())}


TABLES = golden_tables()
ANSWERED = [name for name in TABLES if (GOLDEN / name / "expected").is_dir()]
#: Of the tables whose answers have columns of the same types, the last: what Spark makes of the Python source's rows hangs on
#: their types. ``unit/scan/test_golden_rows.py`` has the rows of all, and ``test_every_table_natively.py`` what Spark makes of them.
OF_EACH_TYPE = {
    frozenset(map(str, dataset(GOLDEN / name / "expected").schema.types)): name for name in ANSWERED
}.values()


@pytest.fixture(scope="module")
def server() -> Iterator[SharingServer]:
    with SharingServer() as running:
        for name, path in TABLES.items():
            running.add_table(f"golden.tables.{shared_name(name)}", path, access_modes=MODES)
        yield running
        assert not [failure for failure in running.failures if "metaData" not in failure and "hole" not in failure]


@pytest.fixture(scope="module")
def profile(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.write_profile(tmp_path_factory.mktemp("golden") / "golden.share")


def shared_name(name: str) -> str:
    return name.replace("/", "-")


def load(spark: Any, profile: str, name: str, mode: str, **options: str) -> Any:
    reader = spark.read.format("deltaSharing").option("accessMode", mode).option("retryTimeout", "1s")
    return reader.options(**options).load(f"{profile}#golden.tables.{shared_name(name)}")


def rows(frame: Any) -> list[str]:
    """The rows as sorted texts: equal texts are equal values of equal types, NaN and nesting included."""
    return sorted(repr(row) for row in frame.toArrow().to_pylist())


def types(frame: Any) -> list[tuple[str, str]]:
    """Names and types; nullability is not compared, for Parquet files read by Spark are always nullable."""
    return [(field.name, field.dataType.simpleString()) for field in frame.schema.fields]


def test_every_golden_table_is_accounted_for() -> None:
    assert TABLES.keys() == {*ANSWERED, *BROKEN, *COUNTED}


@pytest.mark.parametrize(("name", "mode"), list(zip(OF_EACH_TYPE, itertools.cycle(reversed(MODES)), strict=False)))
def test_rows_and_types_are_those_of_spark(spark: Any, profile: str, name: str, mode: str) -> None:
    ours, answer = load(spark, profile, name, mode), spark.read.parquet(str(GOLDEN / name / "expected"))
    assert types(ours) == types(answer)
    quirks = QUIRKS.get(name, ())
    assert rows(ours.drop(*quirks)) == rows(answer.drop(*quirks))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_table_is_refused_with_its_cause(server: SharingServer, name: str, mode: str) -> None:
    error, words = BROKEN[name]
    with pytest.raises(DeltaSharingError, match=re.escape(words)) as refused:
        scanned(server, name, mode)
    assert type(refused.value).__name__ == error


@pytest.mark.parametrize("name", COUNTED)
def test_both_modes_read_the_same_rows(server: SharingServer, name: str) -> None:
    by_url, by_directory = (sorted(map(repr, scanned(server, name, mode).to_pylist())) for mode in MODES)
    assert by_url == by_directory
    assert len(by_url) == COUNTED[name]


def scanned(server: SharingServer, name: str, mode: str) -> pa.Table:
    """The rows without Spark, which reads these tables in ``test_every_table_natively.py``."""
    client = SharingClient(server.profile(), accessMode=mode, retryTimeout="1s")
    return client.table(f"golden.tables.{shared_name(name)}").scan().to_arrow()


@pytest.mark.parametrize("mode", MODES)
def test_zone_less_partition_timestamps_are_read_in_the_zone_given(spark: Any, profile: str, mode: str) -> None:
    """The answer's session was seven hours behind UTC; told so, the rows are its rows."""
    name = "data-reader-partition-values"
    ours = load(spark, profile, name, mode, timeZone="Etc/GMT+7")
    assert rows(ours) == rows(spark.read.parquet(str(GOLDEN / name / "expected")))
