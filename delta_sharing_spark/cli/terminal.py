"""Formats what the command line writes to a terminal: colours where they are wanted, lines that fit its width."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

_STYLES = {"error": "\x1b[1;31m", "bold": "\x1b[1m", "dim": "\x1b[2m"}
_PLAIN = "\x1b[0m"


def is_coloured(stream: TextIO) -> bool:
    """Whether to colour: a terminal that can, and neither ``NO_COLOR`` (no-color.org) nor a dumb terminal."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def styled(text: str, style: str, stream: TextIO) -> str:
    """``text`` for ``stream``: as an ``error``, ``bold`` or ``dim``, or as it stands where there is no colour."""
    return f"{_STYLES[style]}{text}{_PLAIN}" if text and is_coloured(stream) else text


def write_table(text: str, stream: TextIO) -> None:
    """Write an aligned table: on a terminal its header is bold, its rule dim, and lines end at the edge."""
    lines = text.split("\n")
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        lines = [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
    if len(lines) > 2:
        lines[0], lines[1] = styled(lines[0], "bold", stream), styled(lines[1], "dim", stream)
    stream.write("\n".join(lines) + "\n")
