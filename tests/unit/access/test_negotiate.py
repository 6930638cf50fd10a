"""The matrix of access modes (protocol, "Access Modes", "Compatibility")."""

from __future__ import annotations

import itertools
import logging

import pytest

from delta_sharing_spark.access.negotiate import negotiate, with_fallback
from delta_sharing_spark.errors import (
    AccessModeError,
    CredentialError,
    DeltaSharingError,
    LogError,
    NetworkError,
    RequestRefusedError,
)

LOCATION = "s3://bucket/table"
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


@pytest.mark.parametrize(("wanted", "offer"), list(itertools.product(MATRIX, OFFERS)))
def test_the_matrix(wanted: str, offer: str) -> None:
    expected = MATRIX[wanted][offer]
    if expected is None:
        with pytest.raises(AccessModeError) as caught:
            negotiate(OFFERS[offer], wanted, table="s.d.t", location=LOCATION)
        message = str(caught.value)
        assert "s.d.t" in message
        assert f"accessMode={wanted}" in message
        assert "set accessMode" in message
        return
    decision = negotiate(OFFERS[offer], wanted, table="s.d.t", location=LOCATION)
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


@pytest.mark.parametrize("wanted", ["auto", "url", "dir"])
def test_only_unknown_modes_are_named(wanted: str) -> None:
    with pytest.raises(AccessModeError, match="'flight'"):
        negotiate(["flight"], wanted, table="t", location=LOCATION)


def test_an_unknown_mode_beside_a_known_one_is_passed_over() -> None:
    assert negotiate(["flight", "url"], table="t").mode == "url"


def test_dir_without_a_location() -> None:
    with pytest.raises(AccessModeError, match="no location"):
        negotiate(["dir"], table="t", location=None)
    with pytest.raises(AccessModeError, match=r"no location.*set accessMode to auto or url"):
        negotiate(["url", "dir"], "dir", table="t", location="")
    assert negotiate(["url", "dir"], table="t", location=None, num_files=10**6).mode == "url"


def test_a_location_this_client_cannot_read() -> None:
    decision = negotiate(["url", "dir"], table="t", location="oss://b/t", num_files=2000, dir_refusal="scheme oss")
    assert decision.mode == "url"
    assert "scheme oss" in decision.reason
    with pytest.raises(AccessModeError, match="scheme oss"):
        negotiate(["dir"], table="t", location="oss://b/t", dir_refusal="scheme oss")


def test_url_refused_and_no_dir_to_go_to() -> None:
    with pytest.raises(AccessModeError, match=r"deletionVectors.*offer dir"):
        negotiate(["url"], table="t", url_refusal="deletionVectors is not in readerfeatures")


def _fails(error: DeltaSharingError):
    def run() -> str:
        raise error

    return run


@pytest.mark.parametrize(
    "error",
    [
        AccessModeError("no extra"),
        CredentialError("refused"),
        NetworkError("unreachable"),
        RequestRefusedError("no credentials for this table"),
    ],
)
def test_falling_back_is_logged_with_its_reason(error: DeltaSharingError, caplog: pytest.LogCaptureFixture) -> None:
    decision = negotiate(["url", "dir"], table="s.d.t", num_files=5000, location=LOCATION)
    with caplog.at_level(logging.INFO):
        assert with_fallback(decision, _fails(error), lambda: "by url", table="s.d.t") == "by url"
    warning = next(record for record in caplog.records if record.levelno == logging.WARNING)
    assert "s.d.t" in warning.getMessage()
    assert str(error) in warning.getMessage()


def test_a_broken_table_is_not_fallen_back_from() -> None:
    decision = negotiate(["url", "dir"], table="t", num_files=5000, location=LOCATION)
    with pytest.raises(LogError):
        with_fallback(decision, _fails(LogError("a hole")), lambda: "by url", table="t")


def test_a_forced_mode_is_not_fallen_back_from() -> None:
    decision = negotiate(["url", "dir"], "dir", table="t", location=LOCATION)
    with pytest.raises(NetworkError):
        with_fallback(decision, _fails(NetworkError("unreachable")), lambda: "by url", table="t")
