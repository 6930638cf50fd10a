"""What a mistake prints: the caller's frames and our message, not the frames of this package."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import delta_sharing_spark
from delta_sharing_spark import SharingClient, load_as_pandas
from delta_sharing_spark.errors import TRACEBACK, DeltaSharingError
from delta_sharing_spark.table import Scan, SharedTable
from delta_sharing_spark.testing.sample import share_sample
from delta_sharing_spark.testing.server import SharingServer

_PACKAGE = str(Path(delta_sharing_spark.__file__).parent)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    with SharingServer() as running:
        share_sample(running, tmp_path_factory.mktemp("sample"), trips=1000)
        yield running


def _frames_of_ours(mistake: Callable[[], object]) -> int:
    with pytest.raises(DeltaSharingError) as raised:
        mistake()
    return sum(frame.filename.startswith(_PACKAGE) for frame in traceback.extract_tb(raised.value.__traceback__))


def test_a_mistake_shows_one_frame_of_this_package(
    server: SharingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    profile = server.write_profile(f"{tmp_path}/p.share")
    client = SharingClient(profile)
    trips = client.table("demo.city.trips")
    mistakes: dict[str, Callable[[], object]] = {
        "a constructor": lambda: SharingClient("/nowhere/at.all"),
        "a function of the package": lambda: load_as_pandas(f"{profile}#demo.city.tripz"),
        "a method that another class has": lambda: client.table("demo.city.tripz").to_pandas(),
        "a property": lambda: client.table("demo.city.tripz").metadata,
        "an option": lambda: trips.scan(nonsense=1),
        "a condition": lambda: trips.scan(where="fare >").to_arrow(),
        "Arrow's interface": lambda: pa.table(trips.scan(where="fare >")),
        "a class method": lambda: SharingClient.over("x", engine="nonsense"),
        "a listing": lambda: client.list_tables("demo.nothing"),
    }
    assert {name: _frames_of_ours(mistake) for name, mistake in mistakes.items()} == dict.fromkeys(mistakes, 1)

    monkeypatch.setenv(TRACEBACK, "1")
    assert _frames_of_ours(mistakes["a condition"]) > 5, "the frames are there for who asks"
    monkeypatch.delenv(TRACEBACK)
    with caplog.at_level(logging.DEBUG, "delta_sharing_spark"):
        assert _frames_of_ours(mistakes["a condition"]) > 5, "and for DEBUG logging"


def test_every_public_function_is_marked() -> None:
    functions = [
        value for name in delta_sharing_spark.__all__ if inspect.isfunction(value := getattr(delta_sharing_spark, name))
    ]
    methods = [
        member.fget if isinstance(member, property) else member
        for kind in (SharingClient, SharedTable, Scan)
        for name, member in inspect.getmembers(kind, lambda m: inspect.isfunction(m) or isinstance(m, property))
        if not name.startswith("_") or name == "__init__"
    ]
    assert len(functions) > 8
    assert len(methods) > 40
    unmarked = [f.__qualname__ for f in [*functions, *methods] if f is None or not hasattr(f, "__wrapped__")]
    assert unmarked == []
