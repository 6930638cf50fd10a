"""Files of Maven Central, fetched once a machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support import HANGS

_KEPT = Path.home() / ".cache" / "delta-sharing-spark" / "maven"


def fetched(artifact: str) -> Path:
    """The file of an artifact, ``group:name:version[:type[:classifier]]``; skips with the reason where Maven cannot fetch it."""
    _, name, version, *kind = artifact.split(":")
    file = _KEPT / f"{'-'.join([name, version, *kind[1:]])}.jar"
    if not file.exists():
        maven = shutil.which("mvn")
        if maven is None:
            pytest.skip(f"{file.name} is fetched by Maven (mvn), which is not here")
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={_KEPT}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)
        if not file.exists():
            pytest.skip(f"Maven could not fetch {artifact}: {done.stdout.strip()[:300]}")
    return file
