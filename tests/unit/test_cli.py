"""The command line against the embedded server: what it prints, what it writes, how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from delta_sharing_spark.cli import main as cli_main
from delta_sharing_spark.cli.main import DONE, main
from delta_sharing_spark.frames.export import whole_file
from delta_sharing_spark.testing.sample import write_sample
from delta_sharing_spark.testing.server import SharingServer
from delta_sharing_spark.testing.tables.builder import DeltaTableBuilder
from support import HANGS

TABLES = {"stations", "trips", "customers", "bicycles", "types"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharingServer]:
    with SharingServer() as running:
        for table in write_sample(tmp_path_factory.mktemp("sample"), trips=1000):
            running.add_table(str(table), table.path, comment=table.comment)
            running.add_table(f"dotted.share.city.{table.name}", table.path)
        yield running


@pytest.fixture(scope="module")
def profile(server: SharingServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    return server.write_profile(tmp_path_factory.mktemp("a profile dir é") / "p#1.share")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("#", {"demo", "dotted.share"}),
        ("#demo", {"city"}),
        ("#dotted.share", {"city"}),
        ("#DOTTED.share.city", TABLES),
        ("#demo.city", TABLES),
    ],
)
def test_ls(run: Run, profile: str, path: str, names: set[str]) -> None:
    code, out, _ = run("ls", profile + path, "--json")
    assert code == 0
    assert {item["name"] for item in json.loads(out)} == names
    code, out, _ = run("ls", profile + path)
    assert code == 0
    assert names <= set(out.split())


def test_ls_takes_odd_names_in_backquotes(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = next(t for t in write_sample(tmp_path / "sample", trips=10) if t.name == "trips")
    share, schema, name = "`a/b.share`", "`s.1`", "`t#1`"
    with SharingServer() as server:
        server.add_table(f"{share}.{schema}.{name}", table.path)
        profile = server.write_profile(tmp_path / "p.share")
        monkeypatch.setenv("DELTA_SHARING_PROFILE", profile)
        places = {share: "s.1", f"{share}.{schema}": "t#1", f"{share}.{schema}.{name}": "trip"}
        listed = {
            before + place: run("ls", before + place, "--json") for place in places for before in ("", f"{profile}#")
        }
        assert {place: told[::2] for place, told in listed.items()} == dict.fromkeys(listed, (0, ""))
        first = {place: json.loads(out)[0]["name"] for place, (_, out, _) in listed.items()}
        assert first == {place: places[place.removeprefix(f"{profile}#")] for place in listed}
        assert [run("count", f"{before}{share}.{schema}.{name}")[0] for before in ("", f"{profile}#")] == [0, 0]


def test_ls_takes_profile_and_name_as_two_words(run: Run, profile: str) -> None:
    assert run("ls", profile, "demo.city") == run("ls", f"{profile}#demo.city")
    assert run("ls", profile, "demo.city.bicycles")[0] == 0


def test_ls_takes_the_profile_from_the_environment(run: Run, profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTA_SHARING_PROFILE", profile)
    assert "dotted.share" in run("ls")[1]
    assert run("count", "demo.city.trips")[:2] == (0, "1000\n")
    assert run("ls", "demo")[1].split()[2:] == ["city"]
    assert set(run("ls", "dotted.share.city")[1].split()) >= TABLES
    assert run("ls", "demo.city.bicycles")[1].splitlines()[2].split() == ["bicycle", "long", "NOT", "NULL"]
    assert run("ls", "dotted.share.city.bicycles")[1] == run("ls", "demo.city.bicycles")[1]
    code, _, err = run("ls", "demo.ctiy")
    assert (code, "did you mean 'city'?" in err) == (1, True)


def test_every_command_takes_the_options_of_an_identity(
    run: Run, server: SharingServer, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile holds no token; options are the client's, in whatever case."""
    told = json.loads(Path(profile).read_text("utf-8"))
    (tmp_path / "token").write_text(told.pop("bearerToken"))
    (tmp_path / "bare.share").write_text(json.dumps(told))
    monkeypatch.chdir(tmp_path)
    identity = "-o", "BearerTokenFile=token", "-o", f"identityEndpoint={server.endpoint}", "-o", "Limit=3"
    commands = ("ls", "schema", "head", "count", "download")
    ended = {command: run(command, *identity, "bare.share#demo.city.stations")[::2] for command in commands}
    assert ended == dict.fromkeys(commands, (0, ""))
    assert pq.read_table("stations.parquet").num_rows == 3


def test_a_commands_own_condition_and_limit_narrow_those_of_its_options(run: Run, profile: str) -> None:
    options = "-o", "Where=city = 'Lisbon'", "-o", "LIMIT=2", f"{profile}#demo.city.trips"
    assert run("count", "--where", "city = 'Berlin'", *options)[1] == "0\n"
    assert run("count", "--where", "city <> 'Berlin'", *options)[1] == "2\n"
    assert len(run("head", "-n", "9", "--json", *options)[1].splitlines()) == 2


def test_ls_is_narrow_unless_it_is_asked_for_more(run: Run, profile: str) -> None:
    brief = run("ls", f"{profile}#demo.city")[1]
    assert brief.splitlines()[0].split() == ["name", "comment"]
    assert {"id", "share"} <= set(run("ls", "--long", f"{profile}#demo.city")[1].splitlines()[0].split())
    assert len(run("ls", "--limit", "2", f"{profile}#demo.city")[1].splitlines()) == 4
    assert len(json.loads(run("ls", "--limit", "2", "--json", f"{profile}#demo.city")[1])) == 2


@pytest.mark.parametrize("no_colour", [False, True])
def test_colour_on_terminals_only(
    run: Run, profile: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_colour: bool
) -> None:
    monkeypatch.setattr(
        "delta_sharing_spark.cli.terminal.os.environ", {"NO_COLOR": "1"} if no_colour else {"TERM": "xterm"}
    )
    assert "\x1b" not in run("ls", f"{profile}#demo.city")[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("delta_sharing_spark.cli.terminal.shutil.get_terminal_size", lambda: os.terminal_size((30, 20)))
    out = run("ls", f"{profile}#demo.city")[1]
    assert ("\x1b" in out) == (not no_colour)
    assert any(line.endswith("…") for line in out.splitlines())
    assert ("\x1b[1;31m" in run("ls", f"{profile}#nix")[2]) == (not no_colour)


@pytest.mark.parametrize(
    ("arguments", "format"),
    [
        (["-O", "o.csv"], "csv"),
        (["-O", "o.JSONL"], "json"),
        (["-O", "o.pq", "--limit", "3"], "parquet"),
        (["-O", "o.txt", "--format", "csv"], "csv"),
        (["-O", "o.csv", "--format", "parquet"], None),
        (["-O", "o.parquet", "--format", "csv"], None),
        (["-O", "o.xls"], None),
        (["-O", "o"], None),
    ],
)
def test_the_format_follows_the_suffix(
    run: Run, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], format: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run("download", f"{profile}#demo.city.bicycles", *arguments)
    if format is None:
        assert (code, os.listdir()) == (2, [])
        assert "format" in err
        return
    assert code == 0
    content = Path(arguments[1]).read_bytes()
    assert {"parquet": b"PAR1", "csv": b'"bic', "json": b'{"bi'}[format] == content[:4]
    if format == "parquet":
        assert pq.read_table(arguments[1]).num_rows == 3


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str, tmp_path: Path) -> None:
    code, script, _ = run("completion", shell)
    assert code == 0
    words = [
        word.removeprefix("--" if shell == "fish" else "") for word in ("download", "--format", "--where", "serve")
    ]
    assert [word for word in (*words, "parquet csv json") if word not in script] == []
    if shell == "bash" and shutil.which("bash"):
        asked = 'COMP_WORDS=(delta-sharing-spark download --format ""); COMP_CWORD=3; _delta_sharing_spark; echo ${COMPREPLY[@]}'
        done = subprocess.run(["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["parquet", "csv", "json"]


def test_schema(run: Run, profile: str) -> None:
    code, out, _ = run("schema", f"{profile}#demo.city.stations")
    assert code == 0
    assert out.splitlines()[2].split(None, 4) == ["station", "string", "NOT", "NULL", "Name of the station"]
    fields = json.loads(run("schema", f"{profile}#demo.city.stations", "--json")[1])["fields"]
    assert [f["name"] for f in fields] == ["station", "city", "latitude", "longitude", "docks", "opened"]


def test_head(run: Run, profile: str) -> None:
    code, out, _ = run("head", "-n", "2", f"{profile}#demo.city.stations", "--where", "docks IS NULL OR docks > 60")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["Isartor", "Ginza"]
    assert "NULL" in out
    lines = run("head", "-n", "3", f"{profile}#demo.city.customers", "--json")[1].splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[1]["rides"] == [{"trip": 1, "fare": "0.37"}]
    assert rows[1]["preferences"] == {"language": "pt", "bicycle": None}
    assert rows[0]["phones"] is None
    assert rows[1]["joined"] == "2024-01-01T07:00:00Z"


def test_changes_versions_and_explain(run: Run, profile: str) -> None:
    bicycles = f"{profile}#demo.city.bicycles"
    code, out, _ = run("changes", bicycles, "--starting-version", "2", "-n", "3")
    assert (code, len(out.splitlines())) == (0, 5)
    assert "_change_type" in out.splitlines()[0]
    lines = run("changes", bicycles, "--starting-version", "2", "--ending-version", "2", "-n", "999", "--json")[1]
    assert {json.loads(line)["_commit_version"] for line in lines.splitlines()} == {2}
    code, out, err = run("changes", bicycles)
    assert (code, out, "give --starting-version or --starting-timestamp" in err) == (2, "", True)
    versions = json.loads(run("versions", bicycles, "--json")[1])
    assert [version["version"] for version in versions] == [0, 1, 2, 3]
    assert run("versions", bicycles, "-n", "1")[1].splitlines()[2].split()[0] == "3"
    code, out, _ = run("explain", f"{profile}#demo.city.trips", "--where", "city = 'Lisbon'")
    assert (code, "demo.city.trips" in out) == (0, True)
    assert "city" in out


def test_a_table_as_of_a_version_or_a_moment(run: Run, profile: str) -> None:
    bicycles = f"{profile}#demo.city.bicycles"
    counts = [run("count", bicycles, "--version", str(version))[1] for version in range(4)]
    assert len(set(counts)) > 1
    assert run("count", bicycles)[1] == counts[-1]
    moment = json.loads(run("versions", bicycles, "--json")[1])[1]["committed"]
    assert run("count", bicycles, "--timestamp", moment)[1] == counts[1]
    assert run("head", bicycles, "--version", "99")[0] == 1


def test_no_arguments_give_the_help(run: Run) -> None:
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out.startswith("usage: delta-sharing-spark")
    assert "versions" in out


@pytest.mark.parametrize(
    ("where", "rows"), [(None, 1000), ("trip < 10", 10), ("city IS NULL", 0)], ids=["all", "some", "none"]
)
def test_count(run: Run, profile: str, where: str | None, rows: int) -> None:
    narrowed = ["--where", where] if where else []
    assert run("count", f"{profile}#demo.city.trips", *narrowed)[:2] == (0, f"{rows}\n")
    assert json.loads(run("count", f"{profile}#demo.city.trips", *narrowed, "--json")[1]) == {"count": rows}


def test_download(run: Run, profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("download", f"{profile}#demo.city.customers", "--json")
    assert code == 0
    assert json.loads(out)["rows"] == 1000
    customers = pq.read_table("customers.parquet").to_pylist()
    assert run("download", f"{profile}#demo.city.customers", "--format", "json")[0] == 0
    lines = [json.loads(line) for line in Path("customers.json").read_text("utf-8").splitlines()]
    assert [row["customer"] for row in lines] == [row["customer"] for row in customers]
    assert [row["address"] for row in lines] == [row["address"] for row in customers]
    assert run("download", f"{profile}#demo.city.customers", "--format", "csv", "-O", "all of them.csv")[0] == 0
    flat = pc.read_csv("all of them.csv").to_pylist()
    assert [json.loads(row["rides"] or "null") for row in flat] == [row["rides"] for row in lines]
    assert not list(tmp_path.glob("*.part"))


def test_download_to_standard_output(profile: str) -> None:
    command = [sys.executable, "-m", "delta_sharing_spark.cli", "download", "-O", "-", "--format", "csv"]
    done = subprocess.run([*command, f"{profile}#demo.city.stations"], capture_output=True, check=True)
    assert done.stdout.decode().count("\n") == 9


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_json_is_json_whatever_standard_output_can_hold(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"naïve ☃": "żółw 🐢\n", "n": 1}
    table = DeltaTableBuilder(tmp_path / "t", pa.schema([("naïve ☃", pa.string()), ("n", pa.int64())])).append([row])
    with SharingServer() as server:
        server.add_table("s.d.t", table.path)
        address = f"{server.write_profile(tmp_path / 'p.share')}#s.d.t"

        def told(command: str) -> Any:
            out = io.BytesIO()
            monkeypatch.setattr("sys.stdout", io.TextIOWrapper(out, encoding, write_through=True))
            assert main([command, address, "--json"]) == DONE
            return json.loads(out.getvalue().decode(encoding))

        assert told("head") == row
        assert told("schema")["fields"][0]["name"] == "naïve ☃"


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


HOSTILE = "a\x9b2Jb\x7fc\u202ed\x1b[2Je\u2066f\x00g"


@pytest.mark.parametrize("is_terminal", [True, False])
@pytest.mark.parametrize(
    "command",
    [
        ["head"],
        ["head", "--json"],
        ["schema"],
        ["schema", "--json"],
        ["ls"],
        ["ls", "--long"],
        ["ls", "--json"],
        ["download", "-O", "-", "--format", "json"],
        ["download", "-O", "-", "--format", "csv"],
        ["download", "-O", "-", "--format", "parquet"],
    ],
    ids=" ".join,
)
def test_no_output_moves_a_cursor(
    command: list[str], is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([(HOSTILE, pa.string()), ("nested", pa.struct([(HOSTILE, pa.string())]))])
    row = {HOSTILE: HOSTILE, "nested": {HOSTILE: HOSTILE}}
    table = DeltaTableBuilder(tmp_path / "t", schema, (), {"delta.columnMapping.mode": "name"}).append([row])
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("delta_sharing_spark.cli.terminal.shutil.get_terminal_size", lambda: os.terminal_size((999, 9)))
    with SharingServer() as server:
        server.add_table("s.d.t", table.path, comment=HOSTILE)
        address = f"{server.write_profile(tmp_path / 'p.share')}#s.d.t"
        kind = _Terminal if is_terminal else io.TextIOWrapper
        out = io.BytesIO()
        monkeypatch.setattr("sys.stdout", kind(out, "utf-8", write_through=True))
        assert main([*command, address]) == DONE
    raw = out.getvalue()
    if not is_terminal and {"csv", "parquet"} & set(command):
        assert HOSTILE.encode() in raw, "a file is what is shared"
        return
    text = raw.decode()
    assert "2J" in text
    assert not [c for c in text if not c.isprintable() and c not in "\n\t"]
    if "json" in command:
        assert json.loads(text) == row


FORMULAS = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\uff1d1"]


@pytest.mark.parametrize("as_text", [True, False])
def test_formulas_are_text_in_csv_where_that_is_asked_for(
    run: Run, as_text: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"=x": text, "n": -1} for text in [*FORMULAS, "a=1", "", None]]
    table = DeltaTableBuilder(
        tmp_path / "t", pa.schema([("=x", pa.string()), ("n", pa.int64())]), (), {"delta.columnMapping.mode": "name"}
    )
    table.append(rows)
    target = tmp_path / "t.csv"
    with SharingServer() as server:
        server.add_table("s.d.t", table.path)
        address = f"{server.write_profile(tmp_path / 'p.share')}#s.d.t"
        assert run("download", address, "-O", str(target), *(["--formulas-as-text"] if as_text else []))[0] == 0
    mark = "'" if as_text else ""
    with target.open(encoding="utf-8", newline="") as file:
        header, *cells = csv.reader(file)
    assert header == [f"{mark}=x", "n"]
    assert [cell for cell, _ in cells] == [*(mark + text for text in FORMULAS), "a=1", "", ""]
    assert {number for _, number in cells} == {"-1"}


def test_a_closed_pipe_is_no_error(profile: str) -> None:
    command = [sys.executable, "-m", "delta_sharing_spark.cli", "download", "-O", "-", "--format", "json"]
    reading = subprocess.Popen(
        [*command, f"{profile}#demo.city.customers"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.close()
    assert reading.stderr.read() == b""
    reading.stderr.close()
    assert reading.wait() == 0


CLI = "import sys; from delta_sharing_spark.cli.main import main; sys.exit(main())"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("command", [["head"], ["ls", "--json"], ["download", "-O", "-"]])
def test_a_full_disk_is_told_in_a_line(profile: str, command: list[str]) -> None:
    address = f"{profile}#demo.city.stations"
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "delta_sharing_spark.cli", *command, address],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    told = "standard output cannot be written: No space left on device; send it elsewhere"
    assert ended.stderr == f"delta-sharing-spark: {told}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes")
@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
@pytest.mark.parametrize("output", ["file", "-"])
def test_a_file_that_may_grow_no_more_is_told_in_a_line(profile: str, tmp_path: Path, format: str, output: str) -> None:
    """It was a traceback of forty lines, in another's words for a disk of 4 GiB files or a device that fails."""
    target = tmp_path / f"t.{format}"
    code = f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (5000, 5000)); {CLI}"
    asked = [
        "download",
        f"{profile}#demo.city.trips",
        "--format",
        format,
        "-O",
        str(target if output == "file" else "-"),
    ]
    with open(tmp_path / "out", "wb") as out:
        command = [sys.executable, "-B", "-c", code, *asked]  # Python would leave its compiled modules cut off
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    where = f"{target} cannot be written: File too large; name another file with --output"
    told = where if output == "file" else "standard output cannot be written: File too large; send it elsewhere"
    assert (ended.returncode, ended.stderr) == (2, f"delta-sharing-spark: {told}\n")
    assert not [*tmp_path.glob("t.*")]


def test_a_file_is_not_replaced_unasked_and_a_failure_leaves_none(run: Run, profile: str, tmp_path: Path) -> None:
    target = tmp_path / "t.parquet"
    target.write_bytes(b"mine")
    code, _, err = run("download", f"{profile}#demo.city.trips", "-O", str(target))
    assert (code, target.read_bytes()) == (2, b"mine")
    assert "--force" in err
    assert run("download", f"{profile}#demo.city.trips", "-O", str(target), "--force")[0] == 0
    assert run("download", f"{profile}#demo.city.nope", "-O", str(tmp_path / "u.parquet"))[0] == 1
    (tmp_path / "d.csv").mkdir()
    download = ("download", f"{profile}#demo.city.trips", "-O", str(tmp_path / "d.csv"))
    told = [run(*download), run(*download, "--force")]
    assert [(code, "d.csv is a directory" in err) for code, _, err in told] == [(2, True)] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.csv", "t.parquet"]


@pytest.mark.skipif(os.name == "nt", reason="pipes and links")
def test_a_pipe_is_not_replaced_and_of_a_link_its_file_is(run: Run, profile: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "file.csv")
    for _ in range(2):
        assert run("download", f"{profile}#demo.city.stations", "-O", str(tmp_path / "link.csv"), "--force")[0] == 0
    assert (tmp_path / "link.csv").is_symlink()
    assert pc.read_csv(tmp_path / "file.csv").num_rows
    code, _, err = run("download", f"{profile}#demo.city.stations", "-O", str(tmp_path / "pipe.csv"), "--force")
    assert (code, (tmp_path / "pipe.csv").is_fifo()) == (2, True)
    assert "--output -" in err


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(("ends", "ignored"), [("SIGTERM", False), ("SIGHUP", False), ("SIGHUP", True)])
def test_a_terminated_download_leaves_no_file(profile: str, tmp_path: Path, ends: str, ignored: bool) -> None:
    target = tmp_path / "t.csv"
    number = int(signal.Signals[ends])
    ends_itself_in_the_middle = f"""
import os, signal, sys
from delta_sharing_spark.cli.main import main
from delta_sharing_spark.frames import export

real = export.as_text
signal.signal({number}, signal.SIG_IGN if {ignored} else signal.SIG_DFL)
export.as_text = lambda *given: [real(*given), os.kill(os.getpid(), {number})][0]
sys.exit(main(["download", sys.argv[1], "-O", sys.argv[2]]))
"""
    command = [sys.executable, "-c", ends_itself_in_the_middle, f"{profile}#demo.city.trips", str(target)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    left = (0, "", [target]) if ignored else (128 + number, "", [])
    assert (ended.returncode, ended.stderr, list(tmp_path.iterdir())) == left


@pytest.mark.parametrize("name", ["t.csv", "t" * 251 + ".csv"])
def test_two_that_write_one_file_leave_the_whole_of_one(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    with whole_file(target, replace=True) as first, whole_file(target, replace=True) as second:
        first.write(b"1" * 10)
        first.flush()
        second.write(b"2" * 4)
    assert target.read_bytes() == b"1" * 10


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell")
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_output_is_told_in_a_line(profile: str, closed: str) -> None:
    command = [sys.executable, "-m", "delta_sharing_spark.cli", "ls", profile]
    ended = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    told = "delta-sharing-spark: standard output is closed; send it to a file, or to /dev/null\n"
    assert ended.stderr == ("" if "2>" in closed else told)


def test_what_a_client_warns_of_is_a_line(profile: str, tmp_path: Path) -> None:
    late = {**json.loads(Path(profile).read_text()), "expirationTime": "2020-01-01T00:00:00Z"}
    (tmp_path / "late.share").write_text(json.dumps(late))
    command = [sys.executable, "-m", "delta_sharing_spark.cli", "ls", str(tmp_path / "late.share")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "demo" in ended.stdout.split()
    assert ended.stderr.startswith("delta-sharing-spark: the profile's bearer token ended at 2020-01-01 00:00 UTC")
    assert ended.stderr.count("\n") == 1


UNREACHABLE = '{{"shareCredentialsVersion": 1, "endpoint": "http://127.0.0.1:1/x", "bearerToken": "t"}}'


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["count", "{profile}#demo.city.nope"], 1, "does not exist"),
        (["ls", "{profile}#nope"], 1, "nope"),
        (["ls", "n" * 300], 2, "no profile was given"),
        (["count", "{profile}#demo.city.trips", "-o", "versionAsOf=77"], 1, "version"),
        (["count", "{profile}#demo.city.trips", "--columns", "cty"], 1, "'city'"),
        (["count", "{profile}#demo.city.trips", "-o", "verson=7"], 2, "unknown option 'verson'"),
        (["count", "{profile}#demo.city.trips", "-o", "seven"], 2, "NAME=VALUE"),
        (["count", "{profile}#demo.trips"], 2, "demo.trips"),
        (["count", "{profile}#demo.city.trips", "--where", "upper(city) = 'X'"], 2, "upper"),
        (["ls", "/no/such/profile.share"], 2, "/no/such/profile.share"),
        (
            ["ls", "-o", "retryTimeout=1ms", UNREACHABLE],
            3,
            "127.0.0.1",
        ),
        (["serve", "a.b=/tmp"], 2, "SHARE.SCHEMA.TABLE=DIRECTORY"),
        (["serve", "a.b.c=/no/such"], 2, "_delta_log"),
        (["serve", "--port", "70000"], 2, "no server can listen at port 70000"),
        (["serve", "--port", "{port}"], 2, "name another one with --port"),
        (["serve", "--profile", "/no/such/p.share"], 2, "the profile /no/such/p.share cannot be written"),
    ],
)
def test_exit_codes(
    run: Run, server: SharingServer, profile: str, arguments: list[str], code: int, message: str
) -> None:
    got, out, err = run(*(argument.format(profile=profile, port=server.port) for argument in arguments))
    assert (got, out) == (code, "")
    assert message in err
    assert err.startswith("delta-sharing-spark: ")
    assert err.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="a shell script")
@pytest.mark.parametrize("version", [None, "1.8.0_401", "11.0.2"])
def test_the_demonstration_says_which_java_it_needs(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None
) -> None:
    pytest.importorskip("pyspark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    if version is not None:
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, out, err = run("demo")
    assert (code, out) == (2, "")
    reason = {None: "none was found", "1.8.0_401": f"{java} is Java 8", "11.0.2": f"{java} is Java 11"}[version]
    assert f"Spark needs Java 17 or newer and {reason}. Run: " in err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["lst"], "invalid choice: 'lst'"),
        (["head", "-n", "0", "p#a.b.c"], "argument -n: '0' is not a positive number"),
        (["head", "-n", "few", "p#a.b.c"], "argument -n: 'few' is not a positive number"),
    ],
)
def test_wrong_usage(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert "usage: delta-sharing-spark" in told
    assert why in told


@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize("is_installed", [True, False])
def test_serve_prints_lines_for_pandas_where_spark_is_missing(
    is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_main, "find_spec", lambda name: object() if is_installed else None)
    text = cli_main._lines_that_read("p.share", ["a.b.c", "a.b.d"])
    assert text.count('  spark.read.format("deltaSharing").load("p.share#a.b.') == 2
    assert text.count('  delta_sharing_spark.load_as_pandas("p.share#a.b.') == (0 if is_installed else 2)


def test_serve_until_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "delta_sharing_spark.cli", "serve", "--rows", "100"]
    serving = subprocess.Popen(
        [*command, "--profile", str(tmp_path / "p.share")], stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    try:
        assert serving.stdout is not None
        assert next(iter(serving.stdout)).startswith("Writing a sample share")
        # Asked while the tables are being written, the server answers when they are there.
        assert main(["count", f"{tmp_path / 'p.share'}#demo.city.trips"]) == 0
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(HANGS) == 0
    finally:
        serving.kill()
        serving.wait()
        if serving.stdout is not None:
            serving.stdout.close()
