"""Downloads files of a place to disk, side by side and in pieces; nothing is written outside the directory that was named."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from delta_sharing_spark.assets.arriving_file import ArrivingFile, hidden_name
from delta_sharing_spark.display import counting
from delta_sharing_spark.errors import AddressError, ConfigError, FileError
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.network.parallel_calls import CallingThreads
from delta_sharing_spark.storage.objects import StoredObject
from delta_sharing_spark.storage.place import Place

#: Requests under way at once.
AT_ONCE = 8
#: Seconds that requests which were broken off have to end.
_PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Downloaded:
    """What a download wrote.

    Attributes:
        to: The file, or the directory.
        files, bytes: How many, and how large they are together.
        present: How many of them were there already, of the same size and time.
    """

    to: str
    files: int
    bytes: int
    present: int = 0


def download(place: Place, path: str, to: str | os.PathLike[str], *, replace: bool, progress: bool) -> Downloaded:
    """Download a file, or a directory with all below it.

    Args:
        place, path: What.
        to: A directory for a directory's content; for a file also its new name, unless a directory is there or ``to`` ends in ``/``.
        replace: Whether files that are there and differ are replaced.
        progress: Whether a bar is shown where somebody watches.

    Raises:
        NoSuchFileError: There is no such file or directory.
        ConfigError: Files are there that differ; nothing was written then.
        FileError: A name cannot stand on this disk, the disk is full, or a file changed meanwhile.
        DeltaSharingError: The files cannot be read.
    """
    found = place.info(path)
    goal = Path(to)
    if found.name.endswith("/"):
        above = place.checked(path)
        files = {file.name[len(above) :].lstrip("/"): file for file in place.entries(path, deep=True)}
        directory, result = goal, goal
    else:
        is_directory = goal.is_dir() or os.fspath(to).endswith(("/", os.sep))
        own = found.name.rpartition("/")[2]
        directory, name = (goal, own) if is_directory else (goal.parent, goal.name)
        files, result = {name: found}, directory / name
    for file in files.values():
        _check_name(place, file)
    _check_names(place, list(files))
    wanted = {name: file for name, file in files.items() if not _is_present(directory / name, file)}
    in_the_way = [name for name in wanted if os.path.lexists(directory / name)]
    if in_the_way and not replace:
        raise ConfigError(
            f"{directory / in_the_way[0]} exists and differs from what is shared"
            f"{f', and {len(in_the_way) - 1:,} others do' if len(in_the_way) > 1 else ''}; download to another directory, or replace it"
        )
    total = sum(file.size for file in wanted.values())
    _make_directories(directory, list(wanted))
    free = shutil.disk_usage(directory).free
    if total > free:
        raise FileError(
            f"{directory}: {total:,} bytes of {place.name} do not fit the disk, which has {free:,} free; make room"
        )
    with counting(place.name, "B", total, shown=progress) as count:
        _fetch([ArrivingFile(place, file, directory / name) for name, file in wanted.items()], count)
    return Downloaded(str(result), len(files), sum(file.size for file in files.values()), len(files) - len(wanted))


def _fetch(arriving: list[ArrivingFile], count: Callable[[int], object] | None) -> None:
    canceller, lock = Canceller("the download"), threading.Lock()

    def fetch(file: ArrivingFile, number: int) -> None:
        arrived = file.fetch(number, canceller)
        if count is not None:
            with lock:
                count(arrived)

    results: list[Future[None]] = []
    try:
        with CallingThreads(AT_ONCE) as threads:
            for file in arriving:
                results += [threads.submit(partial(fetch, file, number)) for number in range(len(file.pieces))]
            for result in results:
                result.result()
    except BaseException:
        canceller.break_off()
        wait(results, _PATIENCE)
        for file in arriving:
            file.suspend()
        raise


def _is_present(target: Path, file: StoredObject) -> bool:
    """Whether a file of this size and time is there, as a download leaves it; a link is none."""
    try:
        stat = os.lstat(target)
    except OSError:
        return False
    is_file = os.path.isfile(target) and not os.path.islink(target)
    return is_file and stat.st_size == file.size and stat.st_mtime_ns // 1_000_000_000 == file.modified_ms // 1000


def _check_name(place: Place, file: StoredObject) -> None:
    try:
        is_plain = place.checked(file.name) == file.name
    except AddressError:
        is_plain = False
    if os.name == "nt" and not set('\\:*?"<>|').isdisjoint(file.name):
        is_plain = False
    if not is_plain:
        raise FileError(
            f"{place.name} has a file {file.name!r}, whose name would leave the directory or cannot stand on a disk: nothing was "
            f"written; download the others by their names, and ask the provider about it",
            file=file.name,
        )


def _check_names(place: Place, names: list[str]) -> None:
    """Refuse names that would be one on disk: a file and a directory, a file and another one on its way."""
    directories = {name[:end] for name in names for end, mark in enumerate(name) if mark == "/"}
    spelled = set(map(os.path.normcase, names))
    hidden = {name for name in names if name.endswith((".arriving", ".arriving-journal"))}
    clash = next((name for name in names if name in directories), None)
    if len(spelled) < len(names):
        clash = clash or "a name in two spellings"
    clash = clash or next((n for n in names if hidden and _beside(n, hidden)), None)
    if clash is not None:
        raise FileError(
            f"{place.name} has two files that would be one on this disk ({clash}): nothing was written; download them by their names"
        )


def _beside(name: str, hidden: set[str]) -> bool:
    directory, slash, own = name.rpartition("/")
    return not {f"{directory}{slash}{hidden_name(own)}", f"{directory}{slash}{hidden_name(own)}-journal"}.isdisjoint(
        hidden
    )


def _make_directories(root: Path, names: list[str]) -> None:
    """Make the directories of files below ``root``, which may be anywhere; below it no link is followed."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        made = {name[:end] for name in names for end, mark in enumerate(name) if mark == "/"}
        for directory in sorted(made, key=lambda path: path.count("/")):
            target = root / directory
            if target.is_symlink() or (target.exists() and not target.is_dir()):
                raise FileError(
                    f"{target} is a link or a file where a directory has to be, and is not written through; move it"
                )
            target.mkdir(exist_ok=True)
        blocked = next(
            (root / name for name in names if (root / name).is_dir() and not (root / name).is_symlink()), None
        )
    except OSError as error:
        raise FileError(
            f"{error.filename or root} cannot be made: {error.strerror}; download to another directory"
        ) from None
    if blocked is not None:
        raise FileError(f"{blocked} is a directory where a file has to be; move it, or download to another directory")
