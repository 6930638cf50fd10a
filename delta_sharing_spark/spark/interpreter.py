"""Which Python a local Spark session runs its workers with."""

from __future__ import annotations

import os
import shlex
import sys


def use_this_interpreter() -> None:
    """Let the workers of a local session that starts after this be of the interpreter that runs now.

    Spark looks for data sources by itself only where ``command -v $PYSPARK_PYTHON`` succeeds in a shell, unquoted. So an
    interpreter whose path holds a blank is named by its file name, and its directory comes first on ``PATH``.
    """
    python = sys.executable
    if shlex.quote(python) != python:
        folder, python = os.path.split(python)
        os.environ["PATH"] = os.pathsep.join((folder, os.environ.get("PATH", os.defpath)))
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python
