"""A cloud package that is older than this project works with is named, with the line that mends it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from delta_sharing_spark.errors import AccessModeError
from delta_sharing_spark.storage import filesystems
from delta_sharing_spark.storage.library_errors import StorageSettings
from delta_sharing_spark.storage.locations import OLDEST, parse_location
from delta_sharing_spark.storage.secrets import AwsSession

ROOT = Path(__file__).parents[3]


def test_the_oldest_releases_are_those_of_the_extras() -> None:
    extras = re.findall(r'"(s3fs|adlfs|gcsfs)>=([0-9.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert dict(extras) == OLDEST
    assert len(set(extras)) == 3


@pytest.mark.parametrize(
    ("installed", "old"),
    [
        ("2023.1.0", True),
        ("2024.12", True),
        ("2025.2", False),
        ("2025.2.0", False),
        ("2025.2.0rc1", False),
        ("2026.1", False),
    ],
)
def test_an_old_release_is_named(installed: str, old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda package: installed)
    filesystems._too_old.cache_clear()
    try:
        secret = AwsSession("id", "key", "token")
        location = parse_location("s3://bucket/table")
        if old:
            with pytest.raises(
                AccessModeError,
                match=rf"needs s3fs 2025\.2 or newer, and {re.escape(installed)} is installed; "
                r"run pip install -U 'delta-sharing-spark\[s3\]'",
            ):
                filesystems.Storage(location, secret, StorageSettings())
        else:
            filesystems.Storage(location, secret, StorageSettings())
    finally:
        filesystems._too_old.cache_clear()
