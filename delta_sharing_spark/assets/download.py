"""Downloads files of a place to disk, side by side and in pieces; what has arrived survives the process.

Nothing is written outside the directory that was named.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from delta_sharing_spark.display import counting
from delta_sharing_spark.errors import AddressError, ConfigError, CorruptFileError, FileError
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.network.parallel_calls import DaemonPool
from delta_sharing_spark.scan.fetching import CallsInOrder
from delta_sharing_spark.storage.locations import StoredObject
from delta_sharing_spark.storage.own_files import (
    HAS_DIRECTORIES,
    followed,
    hidden_name,
    is_of_user,
    open_directory,
    open_own,
    publish,
    remove,
)
from delta_sharing_spark.storage.place import Place
from delta_sharing_spark.storage.range_reader import FileVersion
from delta_sharing_spark.storage.ranges import Range, cut

#: Bytes of a piece, which is held in memory while it arrives.
PIECE = 8 << 20
#: Seconds between two notes of which pieces have arrived, each after they are on the disk.
_NOTED_EVERY = 2.0
#: Requests under way at once.
AT_ONCE = 8
#: Seconds that requests which were broken off have to end.
_PATIENCE = 30.0


class ArrivingFile:
    """One file on its way to ``target``; until it is whole it lies beside it, under a hidden name.

    Safe to call from several threads.

    Args:
        root: The directory of the download.
        name: Where it goes below that; whatever is there is replaced at the end.

    Attributes:
        pieces: Its bytes, in ranges; one empty range where it has none.
    """

    def __init__(self, place: Place, file: StoredObject, root: Root, name: str) -> None:
        self.file, self.target = file, root.path / name
        self._root, self._directory_name = root, name.rpartition("/")[0]
        self.pieces = cut(Range(0, file.size), PIECE) or [Range(0, 0)]
        #: The file that arrives, and what tells which pieces have: under fresh names where others' files have theirs.
        self._part, self._journal = (self.target.with_name(hidden) for hidden in _hidden_names(self.target.name))
        self._place = place
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._journal_descriptor: int | None = None
        #: The directory's, as long as those of the files.
        self._at: int | None = None
        self._version: FileVersion = place.version(file)
        self._done: set[int] = set()
        self._unnoted: list[int] = []
        self._noted = time.monotonic()
        self._has_changed = False

    def fetch(self, number: int, canceller: Canceller) -> int:
        """Let a piece arrive, unless it is there from an earlier download; returns its bytes.

        Raises:
            FileError: The disk is full, or the file cannot be written.
            DeltaSharingError: As ``Place.read``.
        """
        piece = self.pieces[number]
        with self._lock, self._errors_of_files():
            if self._descriptor is None:
                self._begin()
            if number in self._done:
                return piece.length
        try:
            data = self._place.read(self.file.name, self._version, piece.start, piece.length, canceller)
        except CorruptFileError:
            self._has_changed = True
            raise
        with self._lock, self._errors_of_files():
            assert self._descriptor is not None
            os.lseek(self._descriptor, piece.start, os.SEEK_SET)
            while data:
                data = data[os.write(self._descriptor, data) :]
            self._done.add(number)
            self._unnoted.append(number)
            if len(self._done) == len(self.pieces):
                self._finish()
            elif time.monotonic() - self._noted > _NOTED_EVERY:
                self._note()
        return piece.length

    def suspend(self) -> None:
        """Leave a file that is not whole: what has arrived of a large one is kept."""
        with self._lock, suppress(OSError):
            if self._descriptor is None:
                self._close()
                return
            can_resume = (self._part.name, self._journal.name) == _hidden_names(self.target.name)
            try:
                if len(self.pieces) > 1 and not self._has_changed and can_resume:
                    self._note()
                else:  # what has arrived is of another version than what follows, or stands under a fresh name
                    self._forget_journal()
                    remove(self._part, self._at)
            finally:
                self._close()

    def _begin(self) -> None:
        self._at = self._root.open(self._directory_name)
        self._descriptor, self._part = open_own(self._part, self._at)
        if len(self.pieces) > 1:
            self._journal_descriptor, self._journal = open_own(self._journal, self._at)
        is_begun = os.fstat(self._descriptor).st_size == self.file.size
        self._done, etag = self._arrived_before() if is_begun else (set(), None)
        if not self._done and self._journal_descriptor is not None:
            os.ftruncate(self._journal_descriptor, 0)
        self._version = self._place.version(self.file, etag)
        # A file that is not synchronised must not have its length before its bytes: a power cut would leave zeros.
        os.ftruncate(self._descriptor, self.file.size if len(self.pieces) > 1 else 0)

    def _arrived_before(self) -> tuple[set[int], str | None]:
        """The pieces that an earlier download of the same file has noted, and the file's ETag then."""
        if self._journal_descriptor is None:
            return set(), None
        try:
            with open(self._journal_descriptor, "rb", closefd=False) as journal:
                data = journal.read()
            end = data.rindex(b"\n")
            head, *lines = data[:end].decode().split("\n")
            state = json.loads(head)
            if state["of"] == self._identity and isinstance(state["etag"], str):
                # A number that was cut off may be another one, by itself or with what is noted next.
                os.ftruncate(self._journal_descriptor, end + 1)
                return {int(line) for line in lines if line.isdecimal()} & set(range(len(self.pieces))), state["etag"]
        except (OSError, ValueError, KeyError, TypeError):
            pass  # no journal, or none that tells for certain: it begins anew
        return set(), None

    @property
    def _identity(self) -> list[object]:
        return [str(self._place.root), self.file.name, self.file.size, self.file.modified_ms, PIECE]

    def _note(self) -> None:
        assert self._descriptor is not None
        if self._version.etag is None or self._journal_descriptor is None:
            return  # nothing would tell that the file is the same at the next download
        os.fsync(self._descriptor)
        lines = [str(number) for number in self._unnoted]
        if not os.fstat(self._journal_descriptor).st_size:
            lines = [json.dumps({"of": self._identity, "etag": self._version.etag}), *map(str, sorted(self._done))]
        with open(self._journal_descriptor, "a", encoding="utf-8", closefd=False) as journal:
            journal.writelines(f"{line}\n" for line in lines)
        self._unnoted, self._noted = [], time.monotonic()

    def _finish(self) -> None:
        assert self._descriptor is not None
        if len(self.pieces) > 1:
            os.fsync(self._descriptor)
        os.utime(
            self._descriptor if os.utime in os.supports_fd else self._part, ns=(self.file.modified_ms * 1_000_000,) * 2
        )
        self._forget_journal()
        whole, self._descriptor = self._descriptor, None
        try:
            publish(whole, self._part, self.target, at=self._at)
        finally:
            self._close()

    def _forget_journal(self) -> None:
        if self._journal_descriptor is not None:
            os.ftruncate(self._journal_descriptor, 0)
            os.close(self._journal_descriptor)
            self._journal_descriptor = None
            remove(self._journal, self._at)

    def _close(self) -> None:
        for descriptor in (self._descriptor, self._journal_descriptor, self._at):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._journal_descriptor = self._at = None

    @contextmanager
    def _errors_of_files(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FileError(
                    f"{self.target}: the disk is full; make room for {self.file.size:,} bytes and download again, which goes on "
                    f"from what has arrived",
                    file=self.file.name,
                ) from None
            raise FileError(
                f"{self.target} cannot be written: {error.strerror}; download to another directory", file=self.file.name
            ) from None


def _hidden_names(name: str) -> tuple[str, str]:
    """The names of a file that arrives and of its journal."""
    return hidden_name(name, "arriving"), hidden_name(name, "arriving-journal")


class Root:
    """The directory of a download, which may be anywhere; below it no link is followed.

    Where the system can, what is below is opened from its descriptor: nobody puts a link in the place of a directory meanwhile.

    Raises:
        FileError: It cannot be made, or another user's link is in its place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if followed(path).is_symlink():
            raise FileError(f"{path} is another user's link, and is not written through; download to another directory")
        with self._errors_of_directories():
            path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY) if HAS_DIRECTORIES else None

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def open(self, name: str) -> int | None:
        """The descriptor of a directory below, which is made where it is missing; None where the system has none of directories.

        Raises:
            FileError: A link or a file is in its place, or it cannot be made.
        """
        with self._errors_of_directories():
            if self._descriptor is not None:
                return open_directory(self._descriptor, name)
            for end in [end for end, mark in enumerate(name) if mark == "/"] + [len(name)] * bool(name):
                target = self.path / name[:end]
                if target.is_symlink() or (target.exists() and not target.is_dir()):
                    raise NotADirectoryError(errno.ENOTDIR, "", name[:end])
                target.mkdir(exist_ok=True)
            return None

    def make(self, names: list[str]) -> None:
        """Make the directories of files; raises as ``open``, and where a directory is in the place of a file."""
        for directory in sorted({name.rpartition("/")[0] for name in names}):
            at = self.open(directory)
            if at is not None:
                os.close(at)
        for target in map(self.path.joinpath, names):
            if target.is_dir() and not target.is_symlink():
                raise FileError(
                    f"{target} is a directory where a file has to be; move it, or download to another directory"
                )

    @contextmanager
    def _errors_of_directories(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self.path / str(error.filename or "")
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and path != self.path:
                raise FileError(
                    f"{path} is a link or a file where a directory has to be, and is not written through; move it"
                ) from None
            raise FileError(f"{path} cannot be made: {error.strerror}; download to another directory") from None


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
    """Download a file, or a directory with all below it; arguments as for ``Asset.download``.

    Raises:
        NoSuchFileError: There is no such file or directory.
        ConfigError: Files are there that differ; nothing was written then.
        FileError: A name cannot stand on this disk, the disk is full, or a file changed meanwhile.
        DeltaSharingError: The files cannot be read.
    """
    entry = place.info(path)
    goal = Path(to)
    if entry.name.endswith("/"):
        above = place.checked(path)
        files = {file.name[len(above) :].lstrip("/"): file for file in place.entries(path, deep=True)}
        directory, result = goal, goal
    else:
        is_directory = goal.is_dir() or os.fspath(to).endswith(("/", os.sep))
        own = entry.name.rpartition("/")[2]
        directory, name = (goal, own) if is_directory else (goal.parent, goal.name)
        files, result = {name: entry}, directory / name
    for file in files.values():
        _check_name(place, file)
    _check_names(place, list(files))
    wanted = {name: file for name, file in files.items() if not _is_present(directory / name, file)}
    in_the_way = [name for name in wanted if os.path.lexists(directory / name)]
    if in_the_way and not replace:
        first = directory / in_the_way[0]
        is_theirs = not is_of_user(os.lstat(first))
        raise ConfigError(
            f"{first} {'belongs to another user' if is_theirs else 'exists and differs from what is shared'}"
            f"{f', and {len(in_the_way) - 1:,} others are in the way' if len(in_the_way) > 1 else ''}; download to another directory, or replace it"
        )
    total = sum(file.size for file in wanted.values())
    with Root(directory) as root:
        root.make(list(wanted))
        free = shutil.disk_usage(directory).free
        if total > free:
            raise FileError(
                f"{directory}: {total:,} bytes of {place.name} do not fit the disk, which has {free:,} free; make room"
            )
        with counting(place.name, "B", total, is_visible=progress) as count:
            _fetch([ArrivingFile(place, file, root, name) for name, file in wanted.items()], count)
    return Downloaded(str(result), len(files), sum(file.size for file in files.values()), len(files) - len(wanted))


def _fetch(arriving: list[ArrivingFile], count: Callable[[int], object] | None) -> None:
    canceller, threads = Canceller("the download"), DaemonPool(AT_ONCE)
    fetches = (partial(file.fetch, number, canceller) for file in arriving for number in range(len(file.pieces)))
    pieces = CallsInOrder(fetches, threads, lambda: 4 * AT_ONCE)
    try:
        with threads:
            for arrived in pieces:
                if count is not None:
                    count(arrived)
    except BaseException:
        canceller.break_off()
        pieces.close(_PATIENCE)
        for file in arriving:
            file.suspend()
        raise


def _is_present(target: Path, file: StoredObject) -> bool:
    """Whether a file of this size and time is there, as a download of this user's leaves it; a link is none."""
    try:
        stat = os.lstat(target)
    except OSError:
        return False
    is_file = os.path.isfile(target) and not os.path.islink(target)
    return (
        is_file
        and is_of_user(stat)
        and stat.st_size == file.size
        and stat.st_mtime_ns // 1_000_000_000 == file.modified_ms // 1000
    )


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
    return any(f"{directory}{slash}{name}" in hidden for name in _hidden_names(own))
