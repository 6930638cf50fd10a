"""The matrix of access modes (protocol, "Access Modes", "Compatibility")."""

from __future__ import annotations

import itertools
import logging
import pickle
from dataclasses import replace
from typing import Any, cast

import pytest

from delta_sharing_spark.access import open as opening
from delta_sharing_spark.access.open import TableOpener
from delta_sharing_spark.access.resolved_scan import Decision
from delta_sharing_spark.errors import (
    AccessModeError,
    CredentialError,
    DeltaSharingError,
    LogError,
    NetworkError,
    RequestRefusedError,
)
from delta_sharing_spark.schema.table_records import Metadata
from unit.access.shared_tables import falling_back

LOCATION = "s3://bucket/table"


def negotiate(
    offered: list[str] | None,
    requested: str = "auto",
    *,
    table: str,
    num_files: int | None = None,
    location: str | None = None,
    url_refusal: str | None = None,
) -> Decision:
    modes = None if offered is None else tuple(offered)
    metadata = Metadata("", "", (), location=location, access_modes=modes, num_files=num_files)
    return opening.negotiate(metadata, requested, table, url_refusal)


OFFERS = {
    "omitted": None,
    "empty": [],
    "url": ["url"],
    "dir": ["dir"],
    "both": ["url", "dir"],
    "upper": ["URL", "Dir "],
}
# The specification's table, row by row: client (its accessMode) -> server -> what happens.
MATRIX = {
    "url": {"omitted": "url", "empty": "url", "url": "url", "dir": None, "both": "url", "upper": "url"},
    "dir": {"omitted": None, "empty": None, "url": None, "dir": "dir", "both": "dir", "upper": "dir"},
    "auto": {"omitted": "url", "empty": "url", "url": "url", "dir": "dir", "both": "url", "upper": "url"},
}


@pytest.mark.parametrize(("requested", "offer"), list(itertools.product(MATRIX, OFFERS)))
def test_the_matrix(requested: str, offer: str) -> None:
    expected = MATRIX[requested][offer]
    if expected is None:
        with pytest.raises(AccessModeError) as caught:
            negotiate(OFFERS[offer], requested, table="s.d.t", location=LOCATION)
        message = str(caught.value)
        assert "s.d.t" in message
        assert f"accessMode={requested}" in message
        assert "set accessMode" in message
        return
    decision = negotiate(OFFERS[offer], requested, table="s.d.t", location=LOCATION)
    assert decision.mode == expected
    assert decision.reason
    assert decision.fallback is None


@pytest.mark.parametrize(
    ("num_files", "refusal", "expected", "fallback"),
    [
        (1000, None, "url", None),
        (1001, None, "dir", "url"),
        (None, None, "url", None),
        (10, "features", "dir", None),
        (5000, "features", "dir", None),
    ],
)
def test_a_free_choice(num_files: int | None, refusal: str | None, expected: str, fallback: str | None) -> None:
    decision = negotiate(["url", "dir"], table="t", num_files=num_files, location=LOCATION, url_refusal=refusal)
    assert (decision.mode, decision.fallback) == (expected, fallback)


@pytest.mark.parametrize("requested", ["auto", "url", "dir"])
def test_only_unknown_modes_are_named(requested: str) -> None:
    with pytest.raises(AccessModeError, match="'flight'"):
        negotiate(["flight"], requested, table="t", location=LOCATION)


def test_an_unknown_mode_beside_a_known_one_is_passed_over() -> None:
    assert negotiate(["flight", "url"], table="t").mode == "url"


def test_dir_without_a_location() -> None:
    with pytest.raises(AccessModeError, match="no location"):
        negotiate(["dir"], table="t", location=None)
    with pytest.raises(AccessModeError, match=r"no location.*set accessMode to auto or url"):
        negotiate(["url", "dir"], "dir", table="t", location="")
    assert negotiate(["url", "dir"], table="t", location=None, num_files=10**6).mode == "url"


@pytest.mark.parametrize(
    ("offered", "requested", "location", "url_refusal", "advice"),
    [
        (["url", "dir"], "url", LOCATION, "no", "set accessMode to auto or dir, which read it if this client knows its features"),
        (["url", "dir"], "url", None, "no", "ask the provider to name its location"),
        (["url", "dir"], "auto", None, "no", "ask the provider to name its location"),
        (["url", "dir"], "dir", None, None, "set accessMode to auto or url, or ask the provider to name its location"),
        (["url"], "dir", None, None, "set accessMode to auto or url, or ask the provider to offer dir as well"),
        (["url"], "dir", None, "no", "ask the provider to offer dir as well"),
        (["url"], "url", None, "no", "ask the provider to offer dir as well"),
        (["dir"], "url", LOCATION, None, "set accessMode to auto or dir, or ask the provider to offer url as well"),
        (["dir"], "url", None, None, "ask the provider to offer url as well, or ask the provider to name its location"),
        (["dir"], "auto", None, None, "ask the provider to offer url as well, or ask the provider to name its location"),
    ],
)  # fmt: skip
def test_each_way_on_can_work_for_the_table(
    offered: list[str], requested: str, location: str | None, url_refusal: str | None, advice: str
) -> None:
    with pytest.raises(AccessModeError) as caught:
        negotiate(offered, requested, table="t", location=location, url_refusal=url_refusal)
    assert str(caught.value).rpartition("; ")[2] == advice


def test_url_refused_and_no_dir_to_go_to() -> None:
    with pytest.raises(AccessModeError, match=r"deletionVectors.*offer dir"):
        negotiate(["url"], table="t", url_refusal="deletionVectors is not in readerfeatures")


def _opener(error: DeltaSharingError, requested: str = "auto") -> TableOpener:
    """An opener whose directory fails, of a table that is offered by both modes."""

    def fail(_: object) -> Any:
        raise error

    decision = negotiate(["url", "dir"], requested, table="s.d.t", num_files=5000, location=LOCATION)
    negotiated: Any = replace(falling_back(lambda: None).negotiated, decision=decision)
    modes: Any = {"dir": fail, "url": lambda _: "by url"}
    return TableOpener(negotiated, lambda chosen: modes[chosen.decision.mode](chosen))


@pytest.mark.parametrize(
    "error",
    [
        AccessModeError("no extra"),
        CredentialError("refused"),
        NetworkError("unreachable"),
        RequestRefusedError("no credentials for this table"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["opening", "planning"])
def test_falling_back_is_logged_with_its_reason(
    error: DeltaSharingError, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    opener = _opener(error)
    if late:
        opener._opened = cast("Any", "by directory")

    def read(table: Any) -> Any:
        if table == "by directory":
            raise error
        return table

    with caplog.at_level(logging.INFO):
        assert opener.run(read) == "by url"
    warning = next(record for record in caplog.records if record.levelno == logging.WARNING)
    assert "share.schema.table" in warning.getMessage()
    assert str(error) in warning.getMessage()
    assert str(error) in opener.negotiated.decision.reason
    assert pickle.loads(pickle.dumps(opener)).negotiated.decision.mode == "url"


def test_a_broken_table_is_not_fallen_back_from() -> None:
    with pytest.raises(LogError):
        _opener(LogError("a hole")).run(lambda table: table)


def test_a_forced_mode_is_not_fallen_back_from() -> None:
    with pytest.raises(NetworkError):
        _opener(NetworkError("unreachable"), "dir").run(lambda table: table)
