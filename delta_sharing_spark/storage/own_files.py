"""Makes files that stay this user's own in directories that others may write in, and takes nothing there for its own that is not."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: Links are not followed, and a pipe is not waited for: its kind is looked at once it is open.
_FLAGS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)
#: Whether the system opens, makes, renames and removes files by their directory's descriptor.
_CALLS = {os.open, os.mkdir, os.rename, os.unlink, os.stat}
HAS_DIRECTORIES = os.supports_dir_fd >= _CALLS and os.scandir in os.supports_fd
#: As many links as Linux follows.
_MOST_LINKS = 40
#: How often a file is made anew that another process removed before it was locked.
_TRIES = 10


def hidden_name(name: str, suffix: str) -> str:
    """Under which name a file lies beside its place until it is whole; not longer than any other."""
    return f".{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}.{suffix}"


def is_own(status: os.stat_result) -> bool:
    """Whether a file is regular, has one link, and nobody but this user (as far as the system has users) can write it."""
    is_single = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    return is_single and (not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o022))


def is_of_user(status: os.stat_result) -> bool:
    """Whether this user or the system's own made a file; others may change theirs after it was looked at."""
    return not hasattr(os, "geteuid") or status.st_uid in (os.geteuid(), 0)


def read_own(path: Path) -> bytes | None:
    """The bytes of a file of this user's own; None of anything else there.

    Raises:
        OSError: There is nothing, or it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | _FLAGS)
    with open(descriptor, "rb", buffering=0) as file:
        return file.readall() if is_own(os.fstat(descriptor)) else None


def open_directory(root: int, name: str) -> int:
    """Open a directory below another one, and make it and what is above it where it is missing. No link is followed.

    Args:
        root: The other's descriptor.
        name: The path from there, with ``/``.

    Raises:
        OSError: It cannot be made, or (ELOOP, ENOTDIR; ``filename`` is the path so far) a link or a file is in its place.
    """
    directory, path = os.dup(root), ""
    for part in filter(None, name.split("/")):
        path = f"{path}/{part}" if path else part
        try:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=directory)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=directory)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(directory)
        directory = below
    return directory


def open_own(path: Path, at: int | None = None) -> tuple[int, Path]:
    """Open a file to go on with, or make it: regular, of one link, this user's, for nobody else to read, locked.

    What is there and is not so is replaced. Where others' files cannot be replaced the file has a fresh name beside it.

    Args:
        at: The descriptor of its directory, for which ``path`` is not followed; None follows it.

    Returns:
        The descriptor, for reading and writing, and the path.

    Raises:
        OSError: The directory cannot be written, or (EBUSY) another process has the file.
    """
    for _ in range(_TRIES):
        try:
            descriptor = os.open(_in(at, path), os.O_RDWR | _FLAGS, dir_fd=at)
        except FileNotFoundError:
            try:
                descriptor = os.open(_in(at, path), os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=at)
            except FileExistsError:
                continue
        except OSError:
            return _in_place_of(path, at)
        else:
            if not is_own(os.fstat(descriptor)) and not _is_without_owners(path, at, descriptor):
                os.close(descriptor)
                return _in_place_of(path, at)
        try:
            if _lock(descriptor) is False:
                raise OSError(errno.EBUSY, "another process is writing it")
            if _is_still(path, at, descriptor):  # else it took its name meanwhile
                _set_mode(descriptor, 0o600)
                return descriptor, path
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise OSError(errno.EBUSY, "other processes are writing it")


def make_beside(path: Path, at: int | None = None) -> tuple[int, Path]:
    """Make a file under a fresh name beside ``path``, for nobody else to read, locked; what others of its kind left is removed.

    Args:
        at: As for ``open_own``.

    Returns:
        The descriptor, for reading and writing, and the path.

    Raises:
        OSError: The directory cannot be written.
    """
    _remove_abandoned(path, at)
    for _ in range(_TRIES):
        fresh = _fresh(path)
        descriptor = os.open(_in(at, fresh), os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600, dir_fd=at)
        if _lock(descriptor) is not False and _is_still(fresh, at, descriptor):
            return descriptor, fresh
        os.close(descriptor)
    raise OSError(errno.EBUSY, "other processes remove its files")


def publish(descriptor: int, path: Path, target: Path, *, mode: int | None = None, at: int | None = None) -> None:
    """Close a file that is whole and give it its name in one step, and the mode of a new file if none is given.

    Args:
        at: As for ``open_own``; of both names.

    Raises:
        OSError: It cannot have that name; it is closed.
    """
    try:
        _set_mode(descriptor, _mode_of_new_files(path, at) if mode is None else mode)
        if os.name != "nt":  # the lock lasts until the file has its name
            os.replace(_in(at, path), _in(at, target), src_dir_fd=at, dst_dir_fd=at)
    finally:
        os.close(descriptor)
    if os.name == "nt":
        os.replace(path, target)


@contextmanager
def written(target: Path, *, mode: int | None = None) -> Iterator[BinaryIO]:
    """Open a file for writing that takes its name when it is whole; what is there under the name is replaced.

    Args:
        target: Its path; a link there is replaced as well.
        mode: Its permissions; those of a new file by default.

    Raises:
        OSError: It cannot be written.
    """
    descriptor, part = make_beside(target.with_name(hidden_name(target.name, "part")))
    is_open = True
    try:
        with open(descriptor, "wb", closefd=False) as out:
            yield out
        is_open = False
        publish(descriptor, part, target, mode=mode)
    finally:
        if is_open:
            os.close(descriptor)
        with suppress(OSError):
            part.unlink()


def followed(path: Path) -> Path:
    """The file that a path's links lead to, as far as this user or the system's own made them: another user's is replaced itself."""
    for _ in range(_MOST_LINKS):
        try:
            if not path.is_symlink() or not is_of_user(os.lstat(path)):
                break
            path = path.parent / os.readlink(path)
        except OSError:
            break
    return path


def _in(at: int | None, path: Path) -> str | Path:
    """What names a file for the calls that take its directory's descriptor, or None."""
    return path if at is None else path.name


def _fresh(path: Path) -> Path:
    return path.with_name(f"{path.stem}.{uuid.uuid4().hex[:8]}{path.suffix}")


def _in_place_of(path: Path, at: int | None) -> tuple[int, Path]:
    descriptor, fresh = make_beside(path, at)
    try:
        os.replace(_in(at, fresh), _in(at, path), src_dir_fd=at, dst_dir_fd=at)
    except OSError:  # a directory, another user's file in a directory like /tmp, or a system that moves no open file
        return descriptor, fresh
    return descriptor, path


def _is_without_owners(path: Path, at: int | None, descriptor: int) -> bool:
    """Whether the file system tells no owners and modes, so that a file made now looks like another's too."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        return False
    trial, fresh = make_beside(path, at)
    try:
        return not is_own(os.fstat(trial))
    finally:
        os.close(trial)
        remove(fresh, at)


def remove(path: Path, at: int | None = None) -> None:
    """Remove a file if it is there; ``at`` as for ``open_own``. Raises OSError where it cannot be removed."""
    with suppress(FileNotFoundError):
        os.unlink(_in(at, path), dir_fd=at)


def _is_still(path: Path, at: int | None, descriptor: int) -> bool:
    """Whether a path is that of an open file."""
    try:
        return os.path.samestat(os.stat(_in(at, path), dir_fd=at, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _lock(descriptor: int) -> bool | None:
    """Lock a file as long as it is open; False where another process has it, None where the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as refusal:
        if refusal.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        return None
    return True


def _remove_abandoned(path: Path, at: int | None) -> None:
    """Remove fresh files beside ``path`` that nobody has open: their processes were killed."""
    form = re.compile(rf"{re.escape(path.stem)}(\.[0-9a-f]{{8}})+{re.escape(path.suffix)}")
    with suppress(OSError), os.scandir(path.parent if at is None else at) as entries:
        for name in [entry.name for entry in entries if form.fullmatch(entry.name)]:
            stale = path.with_name(name)
            with suppress(OSError):
                if os.name == "nt":  # it removes no file that is open
                    stale.unlink()
                    continue
                descriptor = os.open(_in(at, stale), os.O_RDWR | _FLAGS, dir_fd=at)
                try:
                    if is_own(os.fstat(descriptor)) and _lock(descriptor):
                        remove(stale, at)
                finally:
                    os.close(descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    if hasattr(os, "fchmod"):
        with suppress(PermissionError, NotImplementedError):  # a file system without modes
            os.fchmod(descriptor, mode)


def _mode_of_new_files(path: Path, at: int | None) -> int:
    """The permissions of a file that is made beside ``path``: the system tells its mask only to those that change it."""
    probe = _fresh(path)
    descriptor = os.open(_in(at, probe), os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666, dir_fd=at)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        remove(probe, at)
