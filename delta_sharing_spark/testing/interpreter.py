"""A path to this interpreter that Spark takes for a command, whatever the name of its directory."""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import shutil
import stat
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from delta_sharing_spark.storage.own_files import written


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
    with suppress(FileExistsError):
        home.mkdir(mode=0o700)
    status = os.lstat(home)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        home = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=directory))  # another user has the name
        atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / name
    text = f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n'
    if not script.exists() or script.read_text() != text:
        with written(script, mode=0o700) as file:
            file.write(text.encode())
    return str(script)
