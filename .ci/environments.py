"""What the sessions of noxfile.py share: installing, an environment for Spark, programs that run side by side."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox
from java import java_home

HERE = Path(__file__).resolve().parents[1]
PROJECT = nox.project.load_toml("pyproject.toml")
EVERYTHING = ".[spark,connect,all,server]"

#: Text is UTF-8 whatever the machine says: file names, the JVM's arguments, the output.
UTF8: dict[str, str | None] = {
    "PYTHONUTF8": "1",
    "LC_ALL": "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8",
    # Images of containers set it; each of the hundreds of processes would compile all that it imports.
    "PYTHONDONTWRITEBYTECODE": None,
}


def install(session: nox.Session, *packages: str, groups: Iterable[str] = ()) -> None:
    """Install packages and groups of ``[dependency-groups]``: read here, so that any pip will do."""
    # uv would take a wheel of an earlier state of this directory from its cache. pip would compile all modules that there
    # are, one after the other, where Python compiles those that it imports.
    own = ["--reinstall-package", "delta-sharing-spark"] if session.venv_backend == "uv" else ["--no-compile"]
    session.install(*own, *packages, *nox.project.dependency_groups(PROJECT, *groups))


def named_or(session: nox.Session, folder: str) -> list[str]:
    """What a session gives pytest: its arguments, with ``folder`` where they name no file or folder."""
    is_named = any((HERE / argument.partition("::")[0]).exists() for argument in session.posargs)
    return [*([] if is_named else [folder]), *session.posargs]


def pytest(session: nox.Session, *args: str, env: dict[str, str | None]) -> None:
    session.run("python", "-m", "pytest", *args, env=env)


def side_by_side(session: nox.Session, commands: list[list[str]], env: dict[str, str | None], long: int) -> None:
    """Run programs of the session's environment all at once, for each waits at times; each output is printed whole.

    The ``long`` longest come first, and the others take what processor time those leave: else those would end alone.
    """
    whole = {name: value for name, value in {**os.environ, **session.env, **env}.items() if value is not None}
    printing = threading.Lock()

    def run(command: list[str]) -> bool:
        began = time.monotonic()
        nice = ["nice", "-n", "5"] if command in commands[long:] and shutil.which("nice") else []
        own = [*nice, str(Path(session.bin) / command[0]), *command[1:]]
        done = subprocess.run(own, env=whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        with printing:
            sys.stdout.buffer.write(done.stdout)
            sys.stdout.flush()
            session.log(f"{shlex.join(command)}: exit code {done.returncode} after {time.monotonic() - began:.0f} s")
        return done.returncode == 0

    session.log(f"{len(commands)} commands, all at once; each prints when it has ended")
    with ThreadPoolExecutor(len(commands)) as threads:
        passed = list(threads.map(run, commands))
    if not all(passed):
        session.error("something failed; see above")


def spark_environment(session: nox.Session) -> dict[str, str | None]:
    """What Spark needs: a Java, this session's Python for its workers, UTF-8, loopback."""
    python = str(Path(session.bin) / "python")
    if shlex.quote(python) != python:
        # Spark asks a shell for it, unquoted; the session's directory is first on PATH.
        python = "python"
    return {
        **UTF8,
        "JAVA_HOME": str(java_home(session)),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": None,
    }


def offer_pyenv(versions: Iterable[str]) -> None:
    """Put interpreters that pyenv has but does not serve on PATH, after everything that is there already works."""
    for version in versions:
        found = shutil.which(f"python{version}")
        runs = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
        if not runs:
            for folder in sorted(Path.home().glob(f".pyenv/versions/{version}*/bin"), reverse=True):
                os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
                break
