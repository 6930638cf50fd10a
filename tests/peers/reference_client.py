"""The reference Python client as a process: a request a line in JSON, an answer a line, in an environment of its own.

Run by that environment's Python; it imports nothing of this project. ``row_digest`` is used on both sides.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import warnings
from typing import Any


def row_digest(frame: Any) -> str:
    """One text for a pandas frame's rows that does not depend on how nulls, zones, numbers and containers are spelt."""
    columns = sorted(range(len(frame.columns)), key=lambda i: str(frame.columns[i]))
    cells = [[_text(value) for value in frame.iloc[:, i].tolist()] for i in columns]
    rows = sorted("|".join(row) for row in zip(*cells, strict=True))
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return str(sorted((k, _text(v)) for k, v in value.items()))
    if isinstance(value, (list, tuple)) or (hasattr(value, "tolist") and getattr(value, "ndim", 0)):
        pairs = len(value) > 0 and all(isinstance(v, tuple) for v in value)
        items = [str(tuple(_text(part) for part in v)) if pairs else _text(v) for v in value]
        return str(sorted(items) if pairs else items)
    if value is None or value != value:
        return "null"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return str(int(value))
    return str(value).removesuffix("+00:00").removesuffix(" 00:00:00")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    import delta_sharing

    call = {
        "snapshot": delta_sharing.load_as_pandas,
        "changes": delta_sharing.load_table_changes_as_pandas,
        "version": delta_sharing.get_table_version,
        "tables": lambda profile: len(delta_sharing.SharingClient(profile).list_all_tables()),
    }[request["call"]]
    try:
        result = call(request["address"], **request.get("arguments", {}))
    except Exception as error:  # the answer is the error, whatever it is
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    if isinstance(result, int):
        return {"value": result}
    result = result.drop(columns=["_commit_timestamp"], errors="ignore")
    return {"rows": len(result), "digest": row_digest(result)}


def main() -> None:
    """Answer until the input ends."""
    warnings.simplefilter("ignore")
    # It pauses for a hundred seconds over ten tries of a request that a server fails on for good.
    time.sleep = lambda seconds: None
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
