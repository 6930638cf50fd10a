"""Calls that should all be refused, tried to the last one."""

from __future__ import annotations

import re
from collections.abc import Callable


def not_refused(kind: type[BaseException], match: str, *calls: Callable[[], object]) -> list[str]:
    """What those of the calls do that raise no ``kind`` of error whose text ``match`` finds; one assert shows all."""

    def outcome(call: Callable[[], object]) -> str | None:
        try:
            return f"returned {call()!r}"
        except Exception as error:
            as_said = isinstance(error, kind) and re.search(match, str(error))
            return None if as_said else f"{type(error).__name__}: {error}"

    return [f"call {place}: {text}" for place, text in enumerate(map(outcome, calls)) if text is not None]
