"""Holds what the package says of itself: its version, which the build reads here, the line that installs it, and where its pages are."""

__version__ = "0.1.0"

_SITE = "https://delta-sharing-spark.github.io/delta-sharing-spark"


def install_line(extra: str = "") -> str:
    """The line that installs this package, with what an extra of it needs.

    Until a release, the package's name on an index is anybody's: people install the source or the wheel that they have.
    """
    return f"pip install '.{f'[{extra}]' if extra else ''}' (in the directory of its source; or the path of your wheel in place of the point)"


def page_address(page: str) -> str:
    """The address of a page of the documentation, named as in ``docs/``."""
    return f"{_SITE}/{page}.html"
