"""What a server was asked and what it sent."""

from __future__ import annotations

import builtins
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Request:
    """One request as served; it is there before its answer's last byte is.

    Attributes:
        method, kind: Kinds are those that faults go by.
        bytes: Bytes of the answer's body that were sent.
        status: Of the answer.
        path: Without its query.
        headers: By lower-case name; the value of ``authorization`` is left out.
        body: What came with the request; empty for tokens.
        file: Local path of the file that a data URL names.
        connection: Number of the connection it came over.
    """

    method: str
    kind: str
    bytes: int
    status: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: builtins.bytes = field(default=b"", repr=False)
    file: str = ""
    connection: int = 0

    @property
    def range(self) -> str | None:
        """The header ``Range``."""
        return self.headers.get("range")

    @property
    def json(self) -> Any:
        """The body of a REST request."""
        return json.loads(self.body) if self.body.strip() else {}
