"""What several suites share: import it as ``support.…``; tests/ is on the path of every test."""

from pathlib import Path

#: A directory for the path of a session's JVM, where Python workers then start at once.
PRELOADED_WORKERS = str(Path(__file__).parent / "workers")
