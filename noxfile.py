"""Everything there is to run, from an empty machine: ``pip install nox && nox -s demo``, ``nox -s tests``.

Needs Python 3.10 or newer and, for what runs Spark, Java 17 or newer: found by JAVA_HOME, on PATH and in the usual
places; on Debian as root a headless one is installed. ``nox -l`` lists the sessions; what they share is in ``.ci/``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).resolve().parent / ".ci"))

from environments import (
    EVERYTHING,
    HERE,
    PROJECT,
    UTF8,
    install,
    named_or,
    offer_pyenv,
    pytest,
    side_by_side,
    spark_environment,
)
from java import java_home

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_external_run = False

#: Spark's minor versions that the behaviour suite runs on, with what each needs held back. Pythons that they take:
#: 4.0 up to 3.13, 4.3 from 3.11.
SPARKS = {
    "4.0": ["pyspark[connect]~=4.0.0", "pandas<3"],
    "4.1": ["pyspark[connect]~=4.1.0", "pandas<3"],
    "4.2": ["pyspark[connect]~=4.2.0"],
    "4.3": ["pyspark[connect]~=4.3.0"],
}
#: PySpark before 4.2 leaves sockets to the garbage collector.
LENIENT = ["-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
#: What a caller's type checker must see of the installed package: its ``py.typed``, and types that are not Any.
TYPED_CONSUMER = """from typing_extensions import assert_type
from delta_sharing_spark import Scan, SharedTable, SharingClient

client = SharingClient("config.share")
assert_type(client.table("share.schema.table"), SharedTable)
assert_type(client.table("share.schema.table").scan(where="id > 5"), Scan)
"""
#: Tests that the lowest versions cannot pass, though what they read is right or refused.
NOT_ON_THE_LOWEST = [
    # pyarrow 19 writes no such columns, and refuses files with a variant that says so.
    "scan/test_types.py::test_decimals_in_every_physical_encoding",
    "scan/test_types.py::test_physical_encodings",
    "scan/test_types.py::test_lists_of_every_kind",
    "scan/test_variant.py::test_groups_annotated_as_variant",
    "native/test_native_files.py::test_a_chunk_of_the_usual_form_is_cut_as_any_other",
    *(
        f"native/test_native_files.py::test_files_that_spark_would_read_otherwise_are_rewritten[{way}-variant_shredded]"
        for way in ("alone", "joined", "joined, fetched in parts")
    ),
    # Days beyond Python's are an OverflowError of pandas; sizes of files in a notebook's output differ by bytes.
    "client/test_unfit_values.py::test_what_holds_far_days",
    "client/test_examples.py",
    # The stand-in for Google does not know the names that Polars before 2 asks for.
    "access/test_engines.py::test_polars_takes_a_gcs_token_by_the_way_that_its_refusal_names",
]
#: Tests that run in another process than the rest of tests/spark, which ended last: two start Java anew, one asks long queries.
_ASIDE = [f"tests/spark/test_{name}.py" for name in ("native_cluster", "register", "tpch")]
#: Of the tests without Spark those that wait most, by folder: about half of their time.
_WAITING = [f"tests/unit/{name}" for name in ("client", "flight", "native", "sharing")]
#: The commands of ``nox -s lint``, and the parts that together are all tests, each a run of pytest: the ``_LONG`` longest first.
LINT = [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["lint-imports"]]
_PYTEST = ["python", "-m", "pytest", "-p", "no:cacheprovider"]
PARTS = {
    "spark": ["tests/spark", *(f"--ignore={path}" for path in _ASIDE)],
    "unit": ["tests/unit", *(f"--ignore={path}" for path in _WAITING)],
    "unit-waiting": _WAITING,
    "conformance": ["tests/conformance", "tests/faults", "-m", "not spark"],
    "conformance-spark": ["tests/conformance", "tests/faults", *_ASIDE, "-m", "spark"],
    "connect": ["tests/spark", "--spark-mode=connect"],
    "emulators": ["tests/emulators"],
}
TESTS = [[*_PYTEST, *part] for part in PARTS.values()]
_LONG = 3
#: The Pythons that `unit` is run on in CI.
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


# --- sessions ---------------------------------------------------------------------------------------------------------


@nox.session
def tests(session: nox.Session) -> None:
    """All tests on the newest Spark, and over Connect what differs there; or what is named.

    ``-- --checks`` lints and checks types as well, side by side with all tests, in the same environment.
    """
    env = spark_environment(session)
    if session.posargs == ["--checks"]:
        install(session, "-e", EVERYTHING, groups=["test", "lint", "types"])
        side_by_side(session, [*TESTS[:_LONG], ["mypy"], *LINT, *TESTS[_LONG:]], env, _LONG)
        return
    install(session, "-e", EVERYTHING, groups=["test"])
    if session.posargs:
        pytest(session, *session.posargs, env=env)
    else:
        side_by_side(session, TESTS, env, _LONG)


@nox.session
def busy(session: nox.Session) -> None:
    """The tests beside four busy loops, one part after the other, and tests/unit on half a core; or what is named; Linux."""
    env = spark_environment(session)
    install(session, "-e", EVERYTHING, groups=["test"])
    for part in [session.posargs] if session.posargs else PARTS.values():
        session.run("python", "tests/busy.py", "loops", *part, env=env)
    session.run("python", "tests/busy.py", "half", *(session.posargs or ["tests/unit"]), env=env)


@nox.session
def costs(session: nox.Session) -> None:
    """What the tests cost in processor seconds, into tests/costs.md, one part after the other; ``-- unit emulators`` for parts; Linux."""
    env = spark_environment(session)
    install(session, "-e", EVERYTHING, groups=["test"])
    for part in session.posargs or PARTS:
        session.run("python", "tests/costs.py", part, *PARTS[part], env=env)


@nox.session(reuse_venv=True)
def demo(session: nox.Session) -> None:
    """A sample share on loopback, read by Spark as a user would; the second run reuses the first one's environment."""
    env = spark_environment(session)
    stamp = Path(session.virtualenv.location) / "installed"
    wanted = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        install(session, "-e", ".[spark,server]")
        stamp.write_text(wanted, encoding="utf-8")
    session.run("delta-sharing-spark", "demo", *session.posargs, env=env)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, format, and the layers that may not blur."""
    install(session, "-e", ".", groups=["lint"])
    for command in LINT:
        session.run(*command, env=UTF8)


@nox.session
def workflows(session: nox.Session) -> None:
    """The workflows of .github: zizmor for what is unsafe, actionlint (with Go) for what is wrong."""
    install(session, groups=["workflows"])
    session.run("zizmor", "--offline", "--persona=pedantic", ".github")
    if shutil.which("go") is None:
        session.warn("actionlint was left out: it needs Go")
        return
    folder = Path(session.create_tmp()).resolve()
    actionlint = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
    session.run("go", "install", actionlint, env={"GOBIN": str(folder)}, external=True)
    session.run(str(folder / "actionlint"), external=True)


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict."""
    install(session, "-e", EVERYTHING, groups=["types"])
    session.run("mypy", *session.posargs)


@nox.session
def emulators(session: nox.Session) -> None:
    """Directory access against S3, Azure and GCS emulators, which the tests start."""
    env = spark_environment(session)
    install(session, "-e", EVERYTHING, groups=["test"])
    pytest(session, "tests", "-m", "emulators", *session.posargs, env=env)


@nox.session
def unit(session: nox.Session) -> None:
    """The tests that start no Spark and need no Java; ``-P 3.13`` on another Python; PySpark's types are oracles of some."""
    install(session, "-e", ".[spark,all,server]", groups=["test"])
    session.install("--upgrade", "pandas")  # newer than Spark's extra takes
    pytest(session, *named_or(session, "tests/unit"), env=UTF8)


@nox.session(python="3.10", venv_backend="uv")
def lowest(session: nox.Session) -> None:
    """The tests without Spark on the lowest versions of what the package names, on the oldest Python."""
    wanted = Path(session.create_tmp()).resolve() / "lowest.txt"
    session.install("uv")
    command = ["uv", "pip", "compile", "--quiet", "--resolution=lowest-direct", "--python-version=3.10", "--no-header"]
    session.run(*command, "--extra=all", "--output-file", str(wanted), "pyproject.toml", silent=True)
    # PySpark is no part of it: it has sessions of its own, and its newest types are oracles here.
    session.install("-e", ".[all]", "pyspark", "-c", str(wanted), *nox.project.dependency_groups(PROJECT, "test"))
    left_out = [f"--deselect=tests/unit/{test}" for test in NOT_ON_THE_LOWEST]
    pytest(session, *named_or(session, "tests/unit"), *left_out, env=UTF8)


@nox.session
def newest(session: nox.Session) -> None:
    """The tests without Spark on the newest of everything, releases that are still tried out among them."""
    session.install("--pre", "-e", EVERYTHING, *nox.project.dependency_groups(PROJECT, "test"))
    session.install("--pre", "--upgrade", "pandas", "pyarrow")
    pytest(session, *named_or(session, "tests/unit"), env=UTF8)


@nox.session(name="fuzz-sql")
def fuzz_sql(session: nox.Session) -> None:
    """Queries drawn anew, by client.sql on both lanes against whole tables: 1,000 classic, 200 over Connect; nightly."""
    env = spark_environment(session)
    install(session, "-e", EVERYTHING, groups=["test"])
    seed = int.from_bytes(os.urandom(4), "big")
    for mode, count in (("classic", 1000), ("connect", 200)):
        drawn = [f"--spark-mode={mode}", f"--drawn-queries={count}", f"--drawn-seed={seed}"]
        pytest(session, "tests/spark/test_sql_drawn.py", *drawn, *session.posargs, env=env)


def _behaviour(version: str) -> Callable[[nox.Session], None]:
    def session_of_one_version(session: nox.Session) -> None:
        env = spark_environment(session)
        install(session, "-e", ".[all,server]", *SPARKS[version], groups=["test"])
        lenient = LENIENT if version < "4.2" else []
        for mode in ("classic", "connect"):
            pytest(session, *named_or(session, "tests/spark"), f"--spark-mode={mode}", *lenient, env=env)

    session_of_one_version.__doc__ = f"The Spark suite on Spark {version}, classic and Connect."
    return session_of_one_version


for _version in SPARKS:
    nox.session(_behaviour(_version), name=f"spark-{_version}")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel into dist/, and try each in a bare environment; ``-- --tag v0.2.0`` asks for that version.

    The wheel holds both packages and nothing else, its command works, and a type checker sees its types.
    """
    out = HERE / "dist"
    shutil.rmtree(out, ignore_errors=True)
    install(session, "build", "twine", groups=["types"])
    session.run("python", "-m", "build", "--outdir", str(out), str(HERE), silent=True)
    (built,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    session.run("twine", "check", "--strict", str(built), str(source))
    names = zipfile.ZipFile(built).namelist()
    strangers = [
        n for n in names if not re.match(r"(delta_sharing_spark|pyspark_delta_sharing|[\w.-]+\.dist-info)/", n)
    ]
    if strangers:
        session.error(f"the wheel holds more than the two packages: {strangers}")
    version = built.name.split("-")[1]
    tag = session.posargs[session.posargs.index("--tag") + 1] if "--tag" in session.posargs else f"v{version}"
    if tag != f"v{version}":
        session.error(f"the tag is {tag}, and the package says {version}: set delta_sharing_spark.__version__ first")
    if "--tag" in session.posargs and f"## [{version}] - " not in (HERE / "CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"CHANGELOG.md has no heading '## [{version}] - <date>'")
    for package in (built, source):
        bare = Path(session.create_tmp()).resolve() / "bare"
        shutil.rmtree(bare, ignore_errors=True)
        session.run("python", "-m", "venv", str(bare))
        programs = bare / ("Scripts" if os.name == "nt" else "bin")
        python = str(programs / "python")
        session.run(python, "-m", "pip", "install", "--quiet", str(package), external=True)
        session.run(python, "-m", "pip", "check", external=True)
        told = session.run(str(programs / "delta-sharing-spark"), "--version", silent=True, external=True, env=UTF8)
        if version not in str(told):
            session.error(f"{package.name} says that it is {told}")
        consumer = bare / "consumer.py"
        consumer.write_text(TYPED_CONSUMER, encoding="utf-8")
        with session.chdir(bare):
            session.run("mypy", "--strict", "--config-file=", "--python-executable", python, str(consumer))


@nox.session(name="reference-client")
def reference_client(session: nox.Session) -> None:
    """The reference Python client reads the embedded server; apart, for its pins hold others back."""
    install(session, "-e", ".[server]", "delta-sharing>=1.4", groups=["test-base"])
    pytest(session, "tests/reference_client", *session.posargs, env=UTF8)


@nox.session(name="flight-alone")
def flight_alone(session: nox.Session) -> None:
    """A Spark job in a network namespace, where it reaches a Flight gateway and nothing else; Linux, as root."""
    env = spark_environment(session)
    install(session, "-e", ".[spark,server,flight]", groups=["test-base"])
    session.run("python", "tests/flight_alone.py", env=env)


@nox.session
def cluster(session: nox.Session) -> None:
    """The native lane on a cluster of two machines, each a network namespace, under kills; ``-- --rounds 5``; Linux, as root.

    Then on a cluster of this machine the whole table of what could show a secret: each kind of credential, way and failure.
    """
    env = spark_environment(session)
    install(session, "-e", EVERYTHING, groups=["test"])
    session.run("python", "tests/cluster.py", *session.posargs, env=env)
    pytest(session, "tests/faults/test_secrets_in_spark.py", "-k", "cluster", env=env | {"ALL_SECRETS": "1"})


@nox.session
def yarn(session: nox.Session) -> None:
    """The native lane on Hadoop's MiniYARNCluster, which Maven fetches; ``-- --parts client --rounds 5``; Linux, as root."""
    env = spark_environment(session)
    install(session, ".[spark,server]", "venv-pack", groups=["test-base"])  # an editable one cannot be packed
    session.run("python", "tests/yarn.py", *session.posargs, env=env)


@nox.session
def iceberg(session: nox.Session) -> None:
    """Iceberg tables that pyiceberg writes by Nessie's catalog, and drawn ones by Spark's Iceberg runtime, beside their own answers.

    Needs Maven, and a Java of 21 or newer for Nessie beside Spark's; ``-- tests/iceberg/test_nessie.py`` for a part,
    ``-- --drawn-seed=7 --drawn-histories=1`` for one history.
    """
    env = spark_environment(session) | {"NESSIE_JAVA_HOME": str(java_home(session, 21))}
    install(session, "-e", ".[all,server]", *SPARKS["4.1"], groups=["test"])
    drawn = [] if session.posargs else [f"--drawn-seed={int.from_bytes(os.urandom(4), 'big')}"]
    pytest(session, *named_or(session, "tests/iceberg"), *drawn, *LENIENT, env=env)


@nox.session(name="flight-clients")
def flight_clients(session: nox.Session) -> None:
    """Arrow's Go and Java clients list, poll, read, renew and cancel at our Flight gateway; needs Go, or a JDK and Maven; ``-- java``."""
    env = spark_environment(session)
    install(session, "-e", ".[server,flight-poll]")
    session.run("python", "examples/flight_clients.py", *session.posargs, env=env)


@nox.session
def peers(session: nox.Session) -> None:
    """This client against the reference sharing server, beside the reference Python client, one line a case; by hand.

    The server is found by REFSERVER_DIR, or built by ../shared/peers/refserver/build.sh from SHARING_MIRROR. Sections of
    the cases may be named: ``nox -s peers -- tables hints``.
    """
    env = spark_environment(session)
    install(session, "-e", ".[spark,server]", groups=["test"])
    folder = Path(session.create_tmp()).resolve() / "reference-client"
    if not folder.is_dir():
        session.run("python", "-m", "venv", str(folder))
        session.run(str(folder / "bin" / "pip"), "install", "-q", "delta-sharing>=1.4", external=True)
    python = str(folder / "bin" / "python")
    with session.chdir("tests"):
        session.run("python", "-m", "peers.run", "--reference-python", python, *session.posargs, env=env)


@nox.session(name="beside-jvm")
def beside_jvm(session: nox.Session) -> None:
    """The same 156 jobs by the JVM connector and by this one, rows or errors compared; by hand, with JVM_PEER built.

    ``../shared/peers/jvm/build.sh`` builds it, for Spark 4.2; ``-- --write`` puts the table into docs/jvm-connector.md.
    """
    env = spark_environment(session)
    install(session, "-e", ".[server]", "pyspark[sql]==4.2.0")
    session.run("python", "tests/peers/beside_jvm/run.py", *session.posargs, env=env)


@nox.session
def bench(session: nox.Session) -> None:
    """The scan benchmark's table; ``nox -s bench -- --rows 1000000`` for a smaller one.

    Then the JVM connector beside ours, where it has been built (JVM_PEER).
    """
    env = spark_environment(session)
    install(session, ".[spark,s3,server]")
    session.run("python", "benchmarks/scan.py", *session.posargs, env=env)
    session.run("python", "benchmarks/jvm.py", *session.posargs, env=env)


@nox.session
def gate(session: nox.Session) -> None:
    """Is reading as fast as it was, with as few requests and bytes? Ten minutes; ``-- rows planning`` for parts; Linux."""
    env = spark_environment(session)
    install(session, "-e", EVERYTHING, groups=["test"])
    session.run("python", "benchmarks/gate.py", *session.posargs, env=env)


@nox.session
def drawn(session: nox.Session) -> None:
    """The drawn tests without Spark, drawn anew, and 25 times as many examples as by day; ``-- tests/unit/scan`` for a part."""
    install(session, "-e", EVERYTHING, groups=["test"])
    parts = session.posargs or ["tests/unit", "tests/conformance"]
    pytest(session, *parts, "-m", "hypothesis and not spark", "--hypothesis-profile=search", env=UTF8)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Damaged answers, logs, files, profiles, options and offsets for four minutes; ``-- --seconds 3600 --seed 2``."""
    env = spark_environment(session)
    install(session, "-e", EVERYTHING, groups=["test"])
    with session.chdir("tests"):
        session.run("python", "-m", "fuzz", *session.posargs, env=env)


@nox.session
def soak(session: nox.Session) -> None:
    """Streams, reads, the native lane and a gateway for two hours, under faults; ``-- --minutes 60``; Linux, by hand."""
    env = spark_environment(session)
    install(session, "-e", EVERYTHING)
    session.run("python", "benchmarks/soak.py", *session.posargs, env=env)


@nox.session
def docs(session: nox.Session) -> None:
    """Write the pages that are made from code, then the site with its API reference into build/site; no warnings."""
    install(session, "-e", ".", groups=["docs"])
    session.run("python", "docs/generate.py", env=UTF8)
    session.run("mkdocs", "build", "--strict", env={**UTF8, "NO_MKDOCS_2_WARNING": "1"})


@nox.session
def notebooks(session: nox.Session) -> None:
    """Run examples/*.ipynb and keep their outputs; ``-- --without-spark`` where there is no Java."""
    env = UTF8 if "--without-spark" in session.posargs else spark_environment(session)
    install(session, "-e", ".[spark,server]", groups=["notebooks"])
    session.run("python", "examples/run_notebooks.py", *session.posargs, env=env)


if any(name in argument for argument in sys.argv for name in ("unit", "lowest")):
    offer_pyenv(PYTHONS)
