"""Runs the command that prints a recipient's token: without a shell, for a limited time, with a bounded output that is shown nowhere."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress

from delta_sharing_spark.errors import CredentialError, OptionError

#: Seconds that the command may take, and bytes that it may print.
TIME_LIMIT = 30.0
LARGEST_OUTPUT = 64 << 10
#: Variables that the command is not handed: secrets of Spark's own connections, profiles and tokens of this package.
_WITHHELD = (
    "DELTA_SHARING_",
    "PYTHON_WORKER_FACTORY_",
    "PYSPARK_GATEWAY_",
    "SPARK_CONNECT_AUTHENTICATE_",
    "_SPARK_",
    "SPARK_AUTH",
)


def parse_command(text: str) -> tuple[str, ...]:
    """A program and its arguments, from a line as a shell would split it or a JSON list of texts.

    Raises:
        OptionError: The text is neither. It is not quoted: an argument may be a secret.
    """
    try:
        words = json.loads(text) if text.lstrip().startswith("[") else shlex.split(text)
    except (ValueError, RecursionError):
        words = None
    if not isinstance(words, list) or not words or not words[0] or not all(isinstance(word, str) for word in words):
        raise OptionError(
            "option 'bearerTokenCommand' must be a program and its arguments, with every quote closed, or a JSON list of them",
            option="bearerTokenCommand",
        )
    return tuple(words)


def run_command(command: tuple[str, ...], seconds: float = TIME_LIMIT) -> str:
    """What the command prints. It inherits no input, and its error output is dropped.

    Args:
        command: The program, found by ``PATH`` where it names no directory, and its arguments.
        seconds: How long it may run; then it is ended, with whatever it started.

    Raises:
        CredentialError: It cannot be started, fails, takes too long, or prints too much. The message names the program
            and quotes neither its arguments nor its output.
    """
    program = command[0]
    advice = "run it by hand to see what it says"
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith(_WITHHELD)}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise CredentialError(
            f"the command of bearerTokenCommand, {program}, cannot be started ({type(error).__name__}); check its path"
        ) from None
    until = time.monotonic() + seconds
    late = CredentialError(f"the command of bearerTokenCommand, {program}, took more than {seconds:g} s; {advice}")
    stdout = process.stdout
    assert stdout is not None
    printed: list[bytes] = []
    # A thread, because a pipe cannot be waited for on every system, and a child of the command may hold it open.
    reading = threading.Thread(target=lambda: printed.append(stdout.read(LARGEST_OUTPUT + 1)), daemon=True)
    reading.start()
    try:
        reading.join(max(0.0, until - time.monotonic()))
        if reading.is_alive():
            raise late
        if len(printed[0]) > LARGEST_OUTPUT:
            raise CredentialError(
                f"the command of bearerTokenCommand, {program}, printed more than {LARGEST_OUTPUT >> 10} KiB; {advice}"
            )
        with stdout:
            status = process.wait(max(0.0, until - time.monotonic()))
    except BaseException as error:
        _end(process)
        reading.join(1.0)
        if not reading.is_alive():
            stdout.close()
        if isinstance(error, subprocess.TimeoutExpired):
            raise late from None
        raise
    if status != 0:
        raise CredentialError(f"the command of bearerTokenCommand, {program}, ended with status {status}; {advice}")
    return printed[0].decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command that runs, or was not waited for yet, and what it started: all of its process group."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
