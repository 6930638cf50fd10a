"""Writes to standard output and to terminals: colours, tables, JSON, and raw bytes that move no cursor."""

from __future__ import annotations

import codecs
import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO, cast

from delta_sharing_spark.errors import escaped_json, printable, printable_json

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


def print_json(value: Any) -> None:
    """Write a value as indented JSON."""
    sys.stdout.write(fit_json(printable_json(value)) + "\n")


def fit_json(text: str) -> str:
    """JSON as standard output can hold it, and as moves no cursor of a terminal."""
    return escaped_json(text, sys.stdout.encoding or "utf-8")


@contextmanager
def raw_output() -> Iterator[BinaryIO]:
    """Standard output for bytes: files and pipes get them as they are, a terminal sees control characters escaped."""
    sys.stdout.flush()
    if not sys.stdout.isatty():
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _Terminal() as out:
        yield cast(BinaryIO, out)
    sys.stdout.flush()


class _Terminal(io.RawIOBase):
    """Bytes on their way to a terminal, as text without control characters."""

    def __init__(self) -> None:
        super().__init__()
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        sys.stdout.write(printable(self._decoder.decode(bytes(view))))
        return view.nbytes

    def close(self) -> None:
        if not self.closed:
            sys.stdout.write(printable(self._decoder.decode(b"", final=True)))
        super().close()
