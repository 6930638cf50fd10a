"""What people wait for is said after ten seconds and each minute after, to those who wait, and in no Spark task."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from delta_sharing_spark.errors import UnavailableError
from delta_sharing_spark.network import connections
from delta_sharing_spark.network.connections import Deadline, extend_deadline, say_waiting
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.network.retry import RetryableError, retry
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.response import await_query

REFUSED = "s.example refused the connection: nothing listens on port 443"


@pytest.fixture(autouse=True)
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    connections._latest.clear()
    with caplog.at_level(logging.WARNING, "delta_sharing_spark"):
        yield lambda: [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


class Patient:
    """A clock that sleeping alone moves on, and a call that fails until then."""

    def __init__(self, seconds: float, *, is_first_contact: bool = False) -> None:
        self.time, self.end, self.is_first = 50.0, 50.0 + seconds, is_first_contact
        self.settings = NetworkSettings(sleep=self.sleep, clock=lambda: self.time)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def call(self) -> float:
        if self.time < self.end:
            raise RetryableError(REFUSED, is_first_contact=self.is_first)
        return self.time


def test_a_server_that_is_gone_is_told_before_ten_seconds_are_over_and_each_minute(
    warnings: Callable[[], list[str]],
) -> None:
    patient = Patient(1e9)
    with pytest.raises(RetryableError):
        retry(patient.call, patient.settings, what="the sharing server")
    assert patient.time > 500
    assert 7 <= len(warnings()) <= 10
    first = warnings()[0]
    assert first.startswith("the sharing server: no answer for ")
    assert int(first.split(" for ")[1].split(" s ")[0]) <= 10
    assert first.endswith(f" s ({REFUSED}); it is waited for up to 600 s, which the option retryTimeout changes")


@pytest.mark.parametrize("patient", [Patient(4), Patient(1e9, is_first_contact=True)], ids=["soon back", "never there"])
def test_what_ends_soon_is_not_told(patient: Patient, warnings: Callable[[], list[str]]) -> None:
    try:
        retry(patient.call, patient.settings)
    except RetryableError:
        assert patient.is_first
    assert warnings() == []


def test_parallel_reads_wait_for_one_thing(warnings: Callable[[], list[str]]) -> None:
    for number in range(8):
        say_waiting(f"file {number}", REFUSED, 100.0 + number, 10.0, 600.0, "retryTimeout")
    say_waiting("file 9", "another.example is silent", 103.0, 10.0, 320.0, "readTimeout")
    say_waiting("file 1", REFUSED, 161.0, 70.0, 600.0, "retryTimeout")
    assert [text.partition(":")[0] for text in warnings()] == ["file 0", "file 9", "file 1"]


def test_a_query_that_the_server_works_on_is_told(warnings: Callable[[], list[str]]) -> None:
    patient = Patient(0)
    status = {"queryId": "q", "queryStatus": "RUNNING"}
    pending: Any = SimpleNamespace(query_status=status)
    with pytest.raises(UnavailableError, match="still pending"):
        await_query(patient.settings, TableName("s", "d", "t"), status, lambda _: pending)
    assert warnings()[0].startswith("the query of s.d.t: no answer for ")
    assert 8 <= len(warnings()) <= 11


def test_nobody_waits_in_a_spark_task(warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    context: Any = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: object()))
    monkeypatch.setitem(sys.modules, "pyspark.taskcontext", context)
    patient = Patient(300)
    retry(patient.call, patient.settings)
    assert warnings() == []


def test_silence_is_told_once_until_something_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_watch", lambda deadline: None)
    now = [1000.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    told: list[tuple[str, float]] = []
    connection: Any = SimpleNamespace(host="s.example", _tunnel_host=None)
    monkeypatch.setattr(connections, "say_waiting", lambda what, why, at, waited, *_: told.append((why, waited)))
    with Deadline(600, "the storage", 320, AssertionError) as deadline:
        deadline.use(connection)
        for seconds in (5, 4, 2, 3, 30, 40):  # 9 of them pass before something comes
            now[0] += seconds
            deadline.check(now[0])
        assert told == [("s.example is silent", 11.0), ("s.example is silent", 84.0)]
        extend_deadline(0)
        deadline.check(now[0] + 9)
        assert len(told) == 2
        deadline.check(now[0] + 11)
        assert told[2:] == [("s.example is silent", 11.0)]
