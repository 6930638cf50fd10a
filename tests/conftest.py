"""Options of the whole suite, and an environment without the machine's proxies and cloud identities."""

from __future__ import annotations

import os

import pytest

_SCRUBBED = ("AWS_", "AZURE_", "GOOGLE_", "GCLOUD_", "DELTA_SHARING_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spark-mode", choices=("classic", "connect"), default="classic", help="the session of tests/spark")


def pytest_configure() -> None:
    for name in list(os.environ):
        if name.upper().startswith(_SCRUBBED):
            del os.environ[name]
