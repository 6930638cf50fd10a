"""The lease of a file's URL that is never renewed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OneUrl:
    url: str

    def current(self) -> str:
        return self.url

    def refused(self, source: str, name: str, refusal: PermissionError, refusals: int) -> None:
        raise AssertionError(str(refusal))
