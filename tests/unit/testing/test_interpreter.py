"""Spark takes no interpreter whose path has a blank for a command: the demonstration and the tests must run all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from delta_sharing_spark.testing.interpreter import worker_python


def test_a_path_with_blanks_is_wrapped_and_starts_the_same_interpreter(tmp_path: Path) -> None:
    odd = tmp_path / "a 'frésh' clone" / "python"
    odd.parent.mkdir()
    odd.symlink_to(sys.executable)
    command = worker_python(str(odd))
    assert " " not in command
    completed = subprocess.run(
        ["sh", "-c", f"command -v {command} && {command} -c 'print(40 + 2)'"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout.split() == [command, "42"]
    assert worker_python(str(odd)) == command


def test_a_plain_path_is_left_as_it_is(tmp_path: Path) -> None:
    assert worker_python("/usr/bin/python3") == "/usr/bin/python3"
    assert worker_python("/opt/ünï/python3") == "/opt/ünï/python3"
