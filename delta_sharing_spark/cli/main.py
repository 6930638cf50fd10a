"""Runs the command ``delta-sharing-spark``: looks at a share from a terminal, tries one out, completes words in a shell.

Exit codes: 0 done, 1 refused by the server or the table, 2 wrong usage (an option, an address, a profile), 3 network.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_sharing_spark._version import __version__, install_line
from delta_sharing_spark.cli.completion import SHELLS, completion_script
from delta_sharing_spark.cli.terminal import fit_json, print_json, raw_output, styled, write_table
from delta_sharing_spark.errors import (
    ConfigError,
    DeltaSharingError,
    NetworkError,
    NotFoundError,
    UnavailableError,
    printable,
)

if TYPE_CHECKING:
    from delta_sharing_spark.client import SharingClient
    from delta_sharing_spark.table import Scan

DONE, REFUSED, USAGE, NETWORK = 0, 1, 2, 3
#: How the system says that no more can be written: no room, a quota, a limit of file sizes, a device that fails.
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its result goes to standard output, errors as one line to standard error.

    Args:
        arguments: The arguments without the program's name; None means those of the process.

    Returns:
        The exit code.
    """
    if sys.stderr is None or sys.stdout is None:  # closed by whoever started the process
        sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process
        if sys.stdout is None:
            return _report(ConfigError("standard output is closed; send it to a file, or to /dev/null"))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    parsed = _parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
    except DeltaSharingError as error:  # before Python's own: a file that is not shared is one of both
        return _report(error)
    except OSError as error:
        is_gone = isinstance(error, BrokenPipeError)  # the reader has seen enough, as `head` does
        if not is_gone and error.errno not in _UNWRITTEN:
            raise
        # What is still buffered must not raise once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        unwritten = ConfigError(f"standard output cannot be written: {error.strerror}; send it elsewhere")
        return DONE if is_gone else _report(unwritten)
    except KeyboardInterrupt:
        return 130
    return code


def _report(error: DeltaSharingError) -> int:
    sys.stderr.write(f"{styled('delta-sharing-spark:', 'error', sys.stderr)} {error}\n")
    return exit_code(error)


def exit_code(error: DeltaSharingError) -> int:
    """The exit code for an error, by its kind; only failures with code 3 may go away by themselves."""
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
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.set_defaults(run=_help)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(run=run)
        return command

    profile = "a profile (DELTA_SHARING_PROFILE where it is left out)"

    from delta_sharing_spark.flight.command_line import add_arguments

    ls = add("ls", _ls, "list shares, schemas, tables, a table's columns, the files of volumes, models and skills")
    ls.add_argument(
        "where",
        nargs="?",
        default="",
        metavar="[PROFILE#][SHARE[.SCHEMA[.NAME[/PATH]]]]",
        help=f"what to look into, after {profile}; or a profile alone",
    )
    ls.add_argument("inside", nargs="?", metavar="", help=argparse.SUPPRESS)  # ls PROFILE SHARE, as people write it
    ls.add_argument("--long", "-l", action="store_true", help="all that the server tells: ids, locations, access modes")
    ls.add_argument("--limit", type=_positive, metavar="N", help="at most so many lines")
    ls.add_argument("--recursive", "-R", action="store_true", help="files of all directories below")

    cat = add("cat", _cat, "write a file of a volume, model or skill to standard output")
    cat.add_argument("address", metavar="[PROFILE#]SHARE.SCHEMA.NAME/PATH", help=f"a file, after {profile}")

    schema = add("schema", _schema, "show a table's columns")

    head = add("head", _head, "show a table's first rows")
    head.add_argument("-n", type=_positive, default=10, metavar="ROWS", help="how many (10)")

    changes = add("changes", _changes, "show the first rows of a table's change feed")
    for end in ("starting", "ending"):
        changes.add_argument(f"--{end}-version", metavar="VERSION", help=f"the {end.replace('ing', '')} of the feed")
        changes.add_argument(f"--{end}-timestamp", metavar="MOMENT", help="the same by a moment")
    changes.add_argument("-n", type=_positive, default=10, metavar="ROWS", help="how many (10)")

    versions = add("versions", _versions, "list a table's newest versions, with their times")
    versions.add_argument("address", metavar="[PROFILE#]SHARE.SCHEMA.TABLE", help=f"a table, after {profile}")
    versions.add_argument("-n", type=_positive, default=20, metavar="VERSIONS", help="how many (20)")

    explain = add("explain", _explain, "tell what a read would send, fetch and skip, and why")

    count = add("count", _count, "count a table's rows, from metadata where that is exact")

    download = add(
        "download",
        _download,
        "write a table's rows to a file; or files of a volume, model or skill, by SHARE.SCHEMA.NAME/[PATH]",
    )
    download.add_argument("--format", choices=("parquet", "csv", "json"), help="(by the suffix of FILE)")
    download.add_argument(
        "--output", "-O", metavar="FILE", help="(TABLE.parquet); - is standard output; of files their directory"
    )
    download.add_argument("--limit", type=_positive, metavar="ROWS", help="at most so many rows")
    download.add_argument("--force", action="store_true", help="replace the file if it exists")
    download.add_argument(
        "--formulas-as-text",
        action="store_true",
        help="in CSV, put ' before text that a spreadsheet would run as a formula (=, +, -, @); it is kept as shared otherwise",
    )

    for command in (schema, head, explain, count, download):
        command.add_argument("--version", metavar="VERSION", help="the table as of this version")
        command.add_argument(
            "--timestamp", metavar="MOMENT", help="the table as of this moment, such as 2026-02-15T12:00:00Z"
        )
    for command in (schema, head, changes, explain, count, download):
        command.add_argument("address", metavar="[PROFILE#]SHARE.SCHEMA.TABLE", help=f"a table, after {profile}")
        command.add_argument("--columns", help="only these: a,b")
        command.add_argument("--where", help="only rows that fulfil this SQL expression")
    for command in (ls, cat, download):
        command.add_argument("--kind", choices=("volume", "model", "skill"), help="which, where several have one name")
    flight = add("flight", _flight, "serve a share's tables over Arrow Flight until interrupted")
    add_arguments(flight)
    for command in (ls, cat, schema, head, changes, versions, explain, count, download, flight):
        command.add_argument(
            "-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="an option as Spark takes it"
        )
        if command not in (explain, flight):
            command.add_argument("--json", action="store_true", help="JSON, for scripts")

    demo = add("demo", _demo, "share sample tables on loopback and read them with Spark")
    demo.add_argument("--rows", type=_positive, help="rows of the large table (2,000,000)")

    serve = add("serve", _serve, "share tables on loopback until interrupted, to try things against")
    serve.add_argument(
        "tables", nargs="*", metavar="SHARE.SCHEMA.TABLE=DIRECTORY", help="Delta tables; samples if none is given"
    )
    serve.add_argument("--port", type=int, default=0, help="where to listen (a free port)")
    serve.add_argument("--profile", type=Path, help="where to write the profile (beside the samples)")
    serve.add_argument("--rows", type=_positive, help="rows of the large sample table (2,000,000)")

    completion = add("completion", _completion, "print a script that completes this command in a shell")
    completion.add_argument("shell", choices=SHELLS, help='such as: eval "$(delta-sharing-spark completion bash)"')
    return parser


def _help(_: argparse.Namespace) -> int:
    _parser().print_help()
    return DONE


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _ls(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.cli.assets import listed, parse_asset_address
    from delta_sharing_spark.display import Listing

    where = arguments.where if arguments.inside is None else f"{arguments.where}#{arguments.inside}"
    address = parse_asset_address(where)
    profile, path = _profile_and_path(where) if address is None else (address.profile, "")
    client = _client(arguments, profile)
    if address is not None:
        groups = {"": listed(client, address, arguments.kind, arguments.recursive)}
    else:
        groups = _inside(client, path)
    room = arguments.limit
    for kind, items in groups.items():
        groups[kind] = items[:room]
        room = None if room is None else max(0, room - len(items))
    if arguments.json:
        kinds = ((kind, item) for kind, items in groups.items() for item in items)
        print_json([{**({"kind": kind} if kind else {}), **_plain(item)} for kind, item in kinds])
        return DONE
    for kind, items in groups.items():
        if kind and items:
            sys.stdout.write(f"\n{kind}s\n")
        if items or not any(groups.values()):
            listing = Listing(items).verbose if arguments.long else Listing(items).brief
            write_table(listing.text(), sys.stdout)
    return DONE


def _cat(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.cli.assets import cat, needed_asset_address

    address = needed_asset_address(arguments.address)
    cat(_client(arguments, address.profile), address, arguments.kind)
    return DONE


def _profile_and_path(text: str) -> tuple[str, str]:
    """A profile and a path into its shares; text without ``#`` is a profile if it looks like one, else a path.

    What stands in backquotes is part of a name.
    """
    mark = next((i for i in reversed(range(len(text))) if text[i] == "#" and text.count("`", i) % 2 == 0), None)
    if mark is not None:
        return text[:mark], text[mark + 1 :]
    bare = re.sub("`[^`]*`", "", text)
    looks_like_a_profile = text.lstrip().startswith("{") or any(mark in bare for mark in ("/", "\\", ":"))
    if looks_like_a_profile or text.endswith((".share", ".json")) or os.path.isfile(text):
        return text, ""
    return "", text


def _inside(client: SharingClient, path: str) -> dict[str, list[Any]]:
    """The content of a share, a schema or a table, by kind, empty for what a kind needs no name; all shares for an empty path.

    A share's name may contain periods. A name that no table has may be that of a volume, a model or a skill.
    """
    if not path:
        return {"": list(client.list_shares())}
    from delta_sharing_spark.sharing.address import name_parts, unquoted

    *parts, _ = name_parts(path)
    name, above = unquoted(path), unquoted(".".join(parts))
    shares = {share.name.lower() for share in client.list_shares()} if parts else {name.lower()}
    if name.lower() in shares:
        return {"": list(client.list_schemas(name))}
    from delta_sharing_spark.cli.assets import assets_in, listed_instead

    if above.lower() in shares or len(parts) == 1:
        return {"": list(client.list_tables(path)), **assets_in(client, path)}
    try:
        return {"": list(client.table(path).columns)}
    except NotFoundError as missing:
        return {"": listed_instead(client, path, missing)}


def _schema(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.schema.markup import text_table
    from delta_sharing_spark.schema.types import spark_schema_json

    schema = _scan(arguments).schema
    table = text_table(["column", "type", "", "comment"], schema.rows())
    return _result(arguments, spark_schema_json(schema), table, is_table=True)


def _head(arguments: argparse.Namespace) -> int:
    return _show(_scan(arguments, limit=str(arguments.n)), arguments)


def _changes(arguments: argparse.Namespace) -> int:
    ends = {
        f"{end}{what.title()}": value
        for end in ("starting", "ending")
        for what in ("version", "timestamp")
        if (value := getattr(arguments, f"{end}_{what}")) is not None
    }
    if not {"startingVersion", "startingTimestamp"} & ends.keys():
        raise ConfigError("a change feed has a start; give --starting-version or --starting-timestamp")
    return _show(_scan(arguments, readChangeFeed="true", limit=str(arguments.n), **ends), arguments)


def _versions(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.sharing.address import parse_address

    address = parse_address(arguments.address)
    versions = _client(arguments, address.profile).table(str(address.table)).versions(arguments.n)
    return _result(arguments, [_plain(version) for version in versions], str(versions), is_table=True)


def _explain(arguments: argparse.Namespace) -> int:
    sys.stdout.write(f"{_scan(arguments).explain()}\n")
    return DONE


def _show(scan: Scan, arguments: argparse.Namespace) -> int:
    """Write the rows of a scan."""
    from delta_sharing_spark.frames.export import as_text, cells, json_lines
    from delta_sharing_spark.schema.markup import text_table

    with scan.to_record_batch_reader() as reader:
        rows = as_text(reader, str(scan.table))
        if arguments.json:
            for batch in rows:
                sys.stdout.writelines(f"{fit_json(line)}\n" for line in json_lines(batch))
        else:
            write_table(text_table(reader.schema.names, list(cells(rows))), sys.stdout)
    return DONE


def _count(arguments: argparse.Namespace) -> int:
    rows = _scan(arguments).count()
    return _result(arguments, {"count": rows}, str(rows))


def _download(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.cli.assets import download as download_files
    from delta_sharing_spark.cli.assets import parse_asset_address
    from delta_sharing_spark.frames.export import format_of, whole_file, write_batches
    from delta_sharing_spark.schema.markup import counted, size_text

    files = parse_asset_address(arguments.address)
    if files is not None:
        result = download_files(_client(arguments, files.profile), files, arguments)
        text = f"{printable(result['to'])}: {counted(result['files'], 'file')}, {size_text(result['bytes'])}"
        return _result(arguments, result, text)
    to_standard_output = arguments.output == "-"
    format = arguments.format or "parquet" if to_standard_output else format_of(arguments.output, arguments.format)
    scan = _scan(arguments, **({} if arguments.limit is None else {"limit": str(arguments.limit)}))
    formulas = {"formulas_as_text": arguments.formulas_as_text}
    if to_standard_output:
        with raw_output() as out:
            write_batches(scan.to_record_batch_reader(), out, format, str(scan.table), **formulas)
        return DONE
    target = Path(arguments.output or f"{scan.table.name.table}.{format}")
    with _handled(_leave, *_endings()), whole_file(target, replace=arguments.force) as out:
        rows = write_batches(scan.to_record_batch_reader(), out, format, str(scan.table), **formulas)
    size = target.stat().st_size
    text = f"{printable(str(target))}: {counted(rows, 'row')}, {size_text(size)}"
    return _result(arguments, {"file": str(target), "rows": rows, "bytes": size}, text)


def _result(arguments: argparse.Namespace, value: Any, text: str, *, is_table: bool = False) -> int:
    """Write a result: the value as JSON if that was asked for, else the text."""
    if arguments.json:
        print_json(value)
    elif is_table:
        write_table(text, sys.stdout)
    else:
        sys.stdout.write(f"{text}\n")
    return DONE


def _client(arguments: argparse.Namespace, profile: str | None) -> SharingClient:
    """The client of a profile, else of the environment's, with the options of a command; what it warns of is told in a line each."""
    from delta_sharing_spark.client import SharingClient

    with warnings.catch_warnings(record=True) as noted:
        client = SharingClient(profile or None, **_options(arguments))
    for warning in noted:
        sys.stderr.write(f"delta-sharing-spark: {warning.message}\n")
    return client


def _scan(arguments: argparse.Namespace, **more: str) -> Scan:
    """The scan that a command's address and options describe."""
    from delta_sharing_spark.options.declared import ARGUMENTS, naming
    from delta_sharing_spark.sharing.address import parse_address
    from delta_sharing_spark.table import Scan

    address = parse_address(arguments.address)
    options = {"columns": "columns", "where": "where", "version": "versionAsOf", "timestamp": "timestampAsOf"}
    for name, option in options.items():
        if getattr(arguments, name, None) is not None:
            more[option] = getattr(arguments, name)
    spelled = {option: "--" + name.replace("_", "-") for option, name in ARGUMENTS.items() if hasattr(arguments, name)}
    with naming(spelled):
        return Scan(_client(arguments, address.profile).table(str(address.table)), more)


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return dict(_named_value(text) for text in arguments.option)


def _named_value(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not mark or not name:
        raise ConfigError(f"{text!r} is not NAME=VALUE; write it like -o versionAsOf=3")
    return name, value


def _plain(item: Any) -> dict[str, Any]:
    """A listing's item as a dict without its empty fields."""
    from dataclasses import asdict

    fields = {name: value for name, value in asdict(item).items() if value not in (None, (), {})}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in fields.items()}


def _completion(arguments: argparse.Namespace) -> int:
    sys.stdout.write(completion_script(_parser(), arguments.shell))
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.testing.sample import TRIPS

    try:
        from delta_sharing_spark.cli import demo
    except ImportError as missing:
        raise ConfigError(
            f"the demonstration runs Spark, and {missing.name} is not installed: {install_line('spark')}"
        ) from None
    demo.run(sys.stdout, trips=arguments.rows or TRIPS)
    return DONE


def _serve(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.testing.sample import TRIPS, share_sample
    from delta_sharing_spark.testing.server import SharingServer

    tables = dict(_named_directory(text) for text in arguments.tables)
    names = list(tables)
    try:
        server = SharingServer(port=arguments.port)
    except (OSError, OverflowError) as refused:
        raise ConfigError(
            f"no server can listen at port {arguments.port} ({refused}); name another one with --port, or leave it out"
        ) from None
    out = sys.stdout
    with tempfile.TemporaryDirectory(prefix="delta-sharing-") as directory, closing(server):
        try:
            profile = server.write_profile(arguments.profile or Path(directory) / "demo.share")
        except OSError as refused:
            raise ConfigError(
                f"the profile {arguments.profile} cannot be written: {refused.strerror}; name another file with --profile"
            ) from None
        if not tables:
            trips = arguments.rows or TRIPS
            out.write(f"Writing a sample share ({trips:,} trips) ...\n")
            out.flush()
            names = [str(sample) for sample in share_sample(server, directory, trips=trips)]
        for name, path in tables.items():
            server.add_table(name, path, access_modes=("url", "dir"))
        server.start()  # who asked before waits until now, and is not told that there are no tables
        out.write(f"A sharing server runs at {server.endpoint}.\n{_lines_that_read(profile, names)}")
        out.write(f"\nLook into it: delta-sharing-spark ls {profile}\nEnd it with Ctrl-C.\n")
        out.flush()
        _until_ended(server.reset_metrics)  # what was asked is kept for tests, without end
    return DONE


def _lines_that_read(profile: str, names: Sequence[str]) -> str:
    """What reads tables of a profile, to be pasted: by pandas as well where Spark is not installed."""
    ways = [("Spark, after delta_sharing_spark.register(spark),", 'spark.read.format("deltaSharing").load')]
    if find_spec("pyspark") is None:
        ways.insert(0, ("pandas", "delta_sharing_spark.load_as_pandas"))
    lines = []
    for way, call in ways:
        lines += [f"Read its tables by {way} with", "", *(f'  {call}("{profile}#{name}")' for name in names), ""]
    return "\n".join(lines)


def _flight(arguments: argparse.Namespace) -> int:
    from delta_sharing_spark.flight.command_line import run

    run(arguments, _options(arguments), sys.stdout, _until_ended)
    return DONE


def _named_directory(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name.count(".") < 2 or not all(name.split(".")) or not path:
        raise ConfigError(f"{text!r} is not SHARE.SCHEMA.TABLE=DIRECTORY; write it like demo.default.trips=/data/trips")
    if not os.path.isdir(os.path.join(path, "_delta_log")):
        raise ConfigError(f"{path} holds no Delta table (no directory _delta_log); name the table's directory")
    return name, path


def _until_ended(meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait for SIGINT or SIGTERM, and do something each half second."""
    ended = threading.Event()

    def end(*_: Any) -> None:
        ended.set()

    with _handled(end, signal.SIGINT, signal.SIGTERM):
        while not ended.wait(0.5):  # in steps: on Windows a wait without end takes no signal
            meanwhile()


@contextmanager
def _handled(handler: Callable[..., object], *numbers: int) -> Iterator[None]:
    """Handle signals; in another thread than the main one, which takes none, nothing changes."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers} if is_main else {}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _endings() -> list[int]:
    """The signals that end the process; one comes when its terminal is closed, which ``nohup`` has it ignore."""
    closed = getattr(signal, "SIGHUP", None)
    return (
        [signal.SIGTERM] if closed is None or signal.getsignal(closed) == signal.SIG_IGN else [signal.SIGTERM, closed]
    )


def _leave(number: int, _: object) -> None:
    """End the process as a signal would, but for what it has begun to write, which is removed."""
    raise SystemExit(128 + number)
