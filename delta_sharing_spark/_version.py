"""Holds the package's version: the one place of it, which the build, ``--version`` and the User-Agent read."""

__version__ = "0.1.0"
