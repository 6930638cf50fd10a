"""When URLs end by their own word, and when they are renewed."""

from __future__ import annotations

import pytest

from delta_sharing_spark.access.url.access import UrlAccess
from delta_sharing_spark.access.url.signed_urls import url_end, url_term
from delta_sharing_spark.network.renewable import Term
from delta_sharing_spark.scan.plan import FileTask
from delta_sharing_spark.storage.range_reader import StorageSettings

NINE = 1_795_251_600.0  # 2026-11-21T09:00:00Z


@pytest.mark.parametrize(
    ("query", "end"),
    [
        ("X-Amz-Algorithm=A&X-Amz-Date=20261121T080000Z&X-Amz-Expires=3600&X-Amz-Signature=f", NINE),
        ("x-goog-expires=60&x-goog-date=20261121T085900Z", NINE),
        ("sv=2020&se=2026-11-21T09%3A00%3A00Z&sig=x", NINE),
        ("se=2026-11-21T09:00:00Z&X-Amz-Expires=7", NINE),
        ("sp=r&se=2026-11-21", NINE - 9 * 3600),
        ("AWSAccessKeyId=x&Expires=1795251600&Signature=y", NINE),
        ("GoogleAccessId=x&Expires=1795251600", NINE),
        ("X-Amz-Expires=3600", None),
        ("X-Amz-Date=yesterday&X-Amz-Expires=3600", None),
        ("X-Amz-Date=20261121T080000Z&X-Amz-Expires=long", None),
        ("se=soon", None),
        ("base=1&used=2", None),
        ("Expires=1", None),
        ("Expires=99999999", None),
        ("Expires=100000000000", None),
        ("", None),
    ],
)
def test_what_a_url_says(query: str, end: float | None) -> None:
    assert url_end(f"https://host/path/se=2020/f.parquet?{query}") == end


@pytest.mark.parametrize("life", [0.5, 20.0, 60.0, 900.0, 3600.0, 86400.0])
def test_margin_adapts_to_the_life(life: float) -> None:
    due = url_term("u", 1000 + life, 1000).renew_at
    left = 1000 + life - due
    assert 0 < left <= min(90.0, life * 0.4)
    assert left >= min(60.0, life * 0.25)


def test_clocks_that_differ_leave_it_to_the_storage() -> None:
    assert url_term("u", 1000, 1000) == url_term("u", 900, 1000) == url_term("u", None, 1000) == Term("u")


@pytest.mark.parametrize(("told", "ends"), [(900.0, None), (1000.0, None), (1500.0, 1500.0), (None, None)])
def test_what_had_ended_when_it_came_does_not_end_what_stands_on_it(told: float | None, ends: float | None) -> None:
    """Tickets of a gateway whose clock is ahead by an hour would have ended when they were given out."""
    access = UrlAccess(StorageSettings(), planned_at=1000.0, expires_at=told)
    assert access.ends(FileTask("f", "https://host/f", 1)) == ends
