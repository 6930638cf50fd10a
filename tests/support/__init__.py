"""What several suites share: import it as ``support.…``; tests/ is on the path of every test."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

#: Seconds after which a test says that something hangs. No wait that will end takes so long, on however busy a machine.
HANGS = 600.0
#: What Spark says of a stream whose Python worker took more than ten seconds to start, as on a busy machine: it is begun anew.
SLOW_START = "Python worker failed to connect back"
#: A directory for the path of a session's JVM, where Python workers then start at once.
PRELOADED_WORKERS = str(Path(__file__).parent / "workers")
#: Settings of sessions whose queries are each another one, over few rows: to compile their code costs more than to interpret
#: their plans. Of Spark before 4.3, nobody has seen that it interprets all that is asked here; 4.3 does not list a
#: catalogue so (``spark.catalog.listTables`` fails with EXPRESSION_DECODING_FAILED). Each sort, hash and join begins with a
#: page, else of up to 64 MB: Java would clear and collect them.
INTERPRETED = {"spark.buffer.pageSize": "1m"} | (
    {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    if any(found.version >= "4.3" for found in distributions(name="pyspark"))
    else {}
)


@contextmanager
def killed_after(process: subprocess.Popen[Any], seconds: float) -> Iterator[None]:
    """Within it a process that still runs after some seconds is killed."""
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    try:
        yield
    finally:
        killer.cancel()
