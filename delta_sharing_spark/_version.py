"""Holds what the package says of itself: its version, which the build reads here, the line that installs it, and where its pages are."""

__version__ = "0.1.0"

#: Until a release, the package's name on an index is anybody's: people install the wheel that they have, by this path.
WHEEL = f"./delta_sharing_spark-{__version__}-py3-none-any.whl"
_SITE = "https://delta-sharing-spark.github.io/delta-sharing-spark"


def install_line(extra: str = "") -> str:
    """The line that installs this package, with what an extra of it needs."""
    return f"pip install '{WHEEL}{f'[{extra}]' if extra else ''}' (the same wheel, where you keep it)"


def page_address(page: str) -> str:
    """The address of a page of the documentation, named as in ``docs/``."""
    return f"{_SITE}/{page}.html"
