"""The command ``delta-sharing-spark``: look at a share from a terminal, or try one out.

Exit codes: 0 done, 1 refused by the server or the table, 2 wrong usage (an option, an address, a profile), 3 network.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from delta_sharing_spark.errors import ConfigError, DeltaSharingError, NetworkError, UnavailableError

DONE, REFUSED, USAGE, NETWORK = 0, 1, 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its result goes to standard output, errors as one line to standard error.

    Args:
        arguments: Without the program's name; those of the process by default.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    given = _parser().parse_args(arguments)
    try:
        code: int = given.run(given)
    except BrokenPipeError:
        # The reader has seen enough, as `head` does. What is still buffered must not raise once more at exit.
        sys.stdout = None  # type: ignore[assignment]
        return DONE
    except KeyboardInterrupt:
        return 130
    except DeltaSharingError as error:
        sys.stderr.write(f"delta-sharing-spark: {error}\n")
        return exit_code(error)
    return code


def exit_code(error: DeltaSharingError) -> int:
    """The exit code that tells scripts what kind of failure it was; only 3 may go away by itself."""
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, NetworkError | UnavailableError):
        return NETWORK
    return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="delta-sharing-spark",
        description="Look at Delta Sharing tables, or try them out.",
        epilog="A profile is a path or URL, or the JSON itself. Exit codes: 0 done, 1 refused by the server or table, "
        "2 wrong usage, 3 network.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="share sample tables on loopback and read them with Spark")
    demo.add_argument("--rows", type=_positive, help="rows of the large table (2,000,000)")
    demo.set_defaults(run=_demo)

    serve = commands.add_parser("serve", help="share tables on loopback until interrupted, to try things against")
    serve.add_argument(
        "tables", nargs="*", metavar="SHARE.SCHEMA.TABLE=DIRECTORY", help="Delta tables; samples if none is given"
    )
    serve.add_argument("--port", type=int, default=0, help="where to listen (a free port)")
    serve.add_argument("--profile", type=Path, help="where to write the profile (beside the samples)")
    serve.add_argument("--rows", type=_positive, help="rows of the large sample table (2,000,000)")
    serve.set_defaults(run=_serve)
    return parser


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("delta-sharing-spark")
    except PackageNotFoundError:
        return "(not installed)"


def _positive(text: str) -> int:
    number = int(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be a positive number")
    return number


def _demo(given: argparse.Namespace) -> int:
    from delta_sharing_spark.testing.sample import TRIPS

    try:
        from delta_sharing_spark.spark import demo
    except ImportError as missing:
        raise ConfigError(
            f'the demonstration runs Spark, and {missing.name} is not installed: pip install "delta-sharing-spark[spark]"'
        ) from None
    demo.run(sys.stdout, trips=given.rows or TRIPS)
    return DONE


def _serve(given: argparse.Namespace) -> int:
    from delta_sharing_spark.testing.sample import TRIPS, write_sample
    from delta_sharing_spark.testing.server import SharingServer

    tables = dict(_named_directory(text) for text in given.tables)
    with tempfile.TemporaryDirectory(prefix="delta-sharing-") as directory, SharingServer(port=given.port) as server:
        if not tables:
            samples = write_sample(Path(directory), trips=given.rows or TRIPS)
            tables = {str(sample): sample.path for sample in samples}
        for name, path in tables.items():
            server.add_table(name, path, access_modes=("url", "dir"))
        profile = server.write_profile(given.profile or Path(directory) / "demo.share")
        out = sys.stdout
        out.write(f"A sharing server runs at {server.endpoint}. Read its tables with\n\n")
        for name in tables:
            out.write(f'  spark.read.format("deltaSharing").load("{profile}#{name}")\n')
        out.write("\nEnd it with Ctrl-C.\n")
        out.flush()
        _until_ended()
    return DONE


def _named_directory(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name.count(".") < 2 or not all(name.split(".")) or not path:
        raise ConfigError(f"{text!r} is not SHARE.SCHEMA.TABLE=DIRECTORY; write it like demo.default.trips=/data/trips")
    if not (Path(path) / "_delta_log").is_dir():
        raise ConfigError(f"{path} holds no Delta table (no directory _delta_log); name the table's directory")
    return name, path


def _until_ended() -> None:
    """Wait for SIGINT or SIGTERM."""
    ended = threading.Event()

    def end(*_: Any) -> None:
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while not ended.wait(0.5):  # in steps: on Windows a wait without end takes no signal
            pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
