"""Reads small text files of the user: tokens, keys, profiles. Only regular files of this machine, of bounded size, in any Unicode coding."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

from delta_sharing_spark.storage.own_files import is_of_user

#: Bytes of a file with a token or a key, and of one with the certificates of authorities.
LARGEST_SECRET, LARGEST_CERTIFICATES = 64 << 10, 4 << 20
#: A URL or another file system's path; one letter before a colon is a drive of Windows.
_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class UnfitFile(Exception):
    """A file is none that may be read, or cannot be. The message says why and quotes nothing of it: ``is not a regular file``."""


def read_text(path: str, limit: int = LARGEST_SECRET, *, decides: bool = False) -> str:
    """The text of a local regular file.

    Args:
        path: Of this machine; ``~`` is the user's home. No URL.
        limit: The most bytes that it may have.
        decides: Whether it says who may do something, so that other users of this machine may not write it.

    Raises:
        UnfitFile: It is none, is larger, cannot be read, or others may write what decides.
    """
    if _ELSEWHERE.match(path):
        raise UnfitFile("is not a path of this machine")
    try:
        # Opened without waiting: a named pipe may have nobody who writes.
        flag = getattr(os, "O_NONBLOCK", 0)
        with open(Path(path).expanduser(), "rb", opener=lambda name, flags: os.open(name, flags | flag)) as file:
            # Nothing else has an end that is sure to come.
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise UnfitFile("is not a regular file")
            if decides and not is_of_user(status):
                raise UnfitFile(
                    "belongs to another user of this machine, who could change it: copy it to a file of your own"
                )
            if decides and hasattr(os, "geteuid") and status.st_mode & 0o022:
                raise UnfitFile(
                    "can be changed by other users of this machine: take that right from them by chmod go-w"
                )
            data = file.read(limit + 1)
    except (OSError, ValueError, RuntimeError) as error:
        raise UnfitFile(f"cannot be read on this machine ({type(error).__name__})") from None
    if len(data) > limit:
        raise UnfitFile(f"has more than {limit >> 10} KiB")
    try:
        return decoded(data)
    except UnicodeDecodeError:
        raise UnfitFile("is not text in UTF-8 or UTF-16") from None


def decoded(data: bytes) -> str:
    """The text of bytes in UTF-8, or in UTF-16 as PowerShell's ``>`` writes it; raises UnicodeDecodeError for others."""
    return data.decode(json.detect_encoding(data))
