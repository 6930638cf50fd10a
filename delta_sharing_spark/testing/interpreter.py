"""A path to this interpreter that Spark takes for a command, whatever the name of its directory."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path


def worker_python(executable: str | None = None) -> str:
    """What to set PYSPARK_PYTHON to.

    Spark asks a shell whether the command exists without quoting it, and where the path has a blank it then looks for
    no data sources at all. A small script without one in its path starts the same interpreter.

    Args:
        executable: An interpreter; PYSPARK_PYTHON, or the running one, by default.
    """
    python = executable or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if not any(c.isspace() or c in "'\"$`\\&;|<>()*?[]#~" for c in python):
        return python
    name = f"delta-sharing-spark-python-{hashlib.sha256(python.encode()).hexdigest()[:16]}"
    directory = next((d for d in (tempfile.gettempdir(), "/tmp", "/var/tmp") if shlex.quote(d) == d), None)  # noqa: S108
    if os.name == "nt" or directory is None:
        return python
    # One directory a user, that no one else may write to: the script decides what Spark's workers run.
    home = Path(directory) / f"delta-sharing-spark-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    if home.stat().st_uid != os.getuid() or home.stat().st_mode & 0o077:
        return python
    script = home / name
    text = f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n'
    if not script.exists() or script.read_text() != text:
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o700)
        fresh.replace(script)
    return str(script)
