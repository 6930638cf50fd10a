"""What users of Python and of the command line are told of an Iceberg table beside its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delta_sharing_spark import functions
from delta_sharing_spark.cli.main import main
from delta_sharing_spark.errors import UnsupportedFeatureError
from delta_sharing_spark.table import SharedTable
from support.refusals import not_refused
from support.shared_iceberg import SharedIceberg


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SharedIceberg]:
    with SharedIceberg(tmp_path) as server:
        for number in (1, 2):
            server.writer.insert([{1: number, 2: "a"}])
            server.writer.commit()
        yield server


@pytest.fixture
def table(lake: SharedIceberg) -> SharedTable:
    return lake.client().table("s.db.t")


def test_columns_and_a_notebooks_cell(table: SharedTable) -> None:
    assert list(table.schema.names) == ["id", "kind"]
    assert [column.name for column in table.columns] == ["id", "kind"]
    assert "s.db.t, an Iceberg table" in table._repr_html_()
    assert "kind" in table._repr_html_()


def test_versions_are_snapshots_by_their_time(lake: SharedIceberg, table: SharedTable) -> None:
    listed = table.versions()
    assert [one.version for one in listed] == [1, 2]
    assert [one.version for one in table.versions(most=1)] == [2]
    assert [table.scan(versionAsOf=one.version).count() for one in listed] == [1, 2]
    assert [table.scan(timestampAsOf=one.committed).count() for one in listed] == [1, 2]


@pytest.mark.parametrize(
    "ask",
    [
        lambda table: table.version(), lambda table: table.metadata, lambda table: table.protocol, lambda table: table.snapshot_head(),
        lambda table: table.storage_options(), lambda table: table.hadoop_conf(),
    ],
)  # fmt: skip
def test_what_the_sharing_server_does_not_tell(table: SharedTable, ask: Callable[[SharedTable], Any]) -> None:
    with pytest.raises(
        UnsupportedFeatureError, match=r"s\.db\.t is an Iceberg table, .* its catalog tells schema"
    ) as raised:
        ask(table)
    assert "\n" not in str(raised.value)


def test_feeds_are_refused_by_name_by_every_call(lake: SharedIceberg, tmp_path: Path, table: SharedTable) -> None:
    url = f"{lake.write_profile(tmp_path / 'p.share')}#s.db.t"
    calls = (
        lambda: table.changes(0).to_arrow(),
        lambda: table.changes(starting_timestamp="2024-01-01T00:00:00Z").to_arrow(),
        lambda: table.changes(0).explain(),
        lambda: table.scan(readChangeFeed=True, startingVersion=0).plan(),
        lambda: functions.load_table_changes_as_pandas(url, starting_version=0),
    )
    assert not_refused(UnsupportedFeatureError, "readChangeFeed of an Iceberg table is not read", *calls) == []


def test_the_command_line(lake: SharedIceberg, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"{lake.write_profile(tmp_path / 'p.share')}#s.db.t"
    assert main(["changes", url, "--starting-version", "0"]) == 1
    assert "readChangeFeed of an Iceberg table is not read" in capsys.readouterr().err
    words = {"versions": "2023-11-14", "count": "2", "schema": "kind", "explain": "iceberg", "head": "kind"}
    shown = {command: (main([command, url]), capsys.readouterr().out) for command in words}
    assert {command: (code, words[command] in out) for command, (code, out) in shown.items()} == dict.fromkeys(
        words, (0, True)
    )
