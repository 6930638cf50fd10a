"""What several suites share: import it as ``support.…``; tests/ is on the path of every test."""
