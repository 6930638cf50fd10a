"""Defines the error tree, what the text of errors may show, and which frames they leave public functions with.

Every error crosses process borders (executor to driver), so all of them pickle: a message, and details as plain attributes.
A message carries no secret; it is one line, whose end says what to do next.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from delta_sharing_spark._version import install_line
from delta_sharing_spark.redaction import redact


class DeltaSharingError(Exception):
    """The root of every error this package raises on purpose.

    Args:
        message: What failed, on which table or file, why, and what to do next. It is made fit to be shown here
            (``displayable``), so that no error can carry a secret or a control character whoever built its text.
        **details: Plain values kept as attributes (``status``, ``file``, ``column``...).
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(displayable(" ".join(message.split("\n"))))
        self.__dict__.update(details)

    def name_table(self, table: str) -> None:
        """Add a table to the message of an error that does not name it: a storage knows only the file."""
        message = str(self)
        if table in message:
            return
        file = f"file {getattr(self, 'file', None)}:"
        named = f"{file[:-1]} of {table}:{message[len(file) :]}" if message.startswith(file) else f"{table}: {message}"
        self.args = (named,)


class ConfigError(DeltaSharingError):
    """What the user wrote is wrong; nothing was sent."""


class OptionError(ConfigError):
    """An unknown option, or a value that an option cannot take."""


class AddressError(ConfigError):
    """An address that is not ``<profile>#<share>.<schema>.<table>``."""


class ProfileError(ConfigError):
    """A profile that is missing, unreadable, malformed or too new."""


class PredicateError(ConfigError):
    """A ``where`` that is outside the language that is evaluated exactly."""


class CommandError(ConfigError):
    """A Flight descriptor, criteria or action that names nothing the gateway has.
    Attribute: ``unimplemented``, where the gateway has nothing of its kind: an action, a write, Flight SQL."""

    unimplemented: bool = False


class ServerError(DeltaSharingError):
    """The sharing server answered, and the answer is an error.

    Attributes:
        status, error_code: The HTTP status and the error code of the answer.
        server_message: The server's own words, redacted.
    """

    status: int | None = None
    error_code: str | None = None
    server_message: str | None = None


class UnauthenticatedError(ServerError):
    """401: the token is wrong or has expired."""


class ForbiddenError(ServerError):
    """403: the token is valid and may not do this."""


class NotFoundError(ServerError):
    """404: no such share, schema, table or endpoint. Attribute: ``is_unlisted``, where the server's lists have no such name."""

    is_unlisted: bool = False


class RequestRefusedError(ServerError):
    """A 4xx that repeating will not change."""


class UnavailableError(ServerError):
    """429 or 5xx that outlasted the retries. Attribute: ``permanent``, where the server failed in the same words each time."""

    permanent: bool = False


class ResponseError(ServerError):
    """An answer that breaks the protocol: malformed, truncated, inconsistent between pages."""


class NetworkError(DeltaSharingError):
    """No answer: unreachable, reset, timed out, a TLS failure, or a storage that stays overloaded.
    Attribute: ``busy``, where the storage answered, again and again, that it is not ready."""

    busy: bool = False


class TableError(DeltaSharingError):
    """The table, as shared, is not one that can be read right."""


class UnsupportedFeatureError(TableError):
    """A reader feature, a type or a provider that we do not read. Attribute: ``features``."""

    features: tuple[str, ...] = ()


class UnreadableColumnError(UnsupportedFeatureError):
    """A column of a type that we do not read; others can be read. Attributes: ``column``, ``kind``, ``readable``."""

    column: str | None = None
    kind: str | None = None
    readable: tuple[str, ...] = ()


class SchemaError(TableError):
    """An unknown column, or a type that does not fit where it stands."""


class ConversionError(TableError):
    """A value that Python or the wanted library cannot hold: text that is no UTF-8, a far date. Attribute: ``column``."""

    column: str | None = None


class LogError(TableError):
    """A Delta log with a hole, a corrupt or missing part.

    Attributes:
        file: The file of the log, where one is the cause.
        has_no_log: Whether there is none of it.
        in_checkpoint: Whether a checkpoint is the cause, without which the version can perhaps be replayed.
    """

    file: str | None = None
    has_no_log: bool = False
    in_checkpoint: bool = False


class VersionError(TableError):
    """A version or timestamp that the table does not have, or does not share."""


class TableChangedError(TableError):
    """The table is not the one that was loaded: reload the DataFrame."""


class AccessModeError(DeltaSharingError):
    """The server and this client have no access mode in common."""


class CredentialError(DeltaSharingError):
    """A storage credential or an identity's token that is empty, ambiguous, of a wrong kind, late or refused."""


class FileError(DeltaSharingError):
    """One data file or deletion vector cannot be read. Attribute: ``file``."""

    file: str | None = None


class CorruptFileError(FileError):
    """The bytes are not what the plan, a checksum or the format says."""


class NullInRequiredError(FileError):
    """A NULL in a column that the table declares NOT NULL. Attribute: ``column``."""

    column: str | None = None


class FileGoneError(FileError):
    """The server or the storage no longer has a planned file: reload the DataFrame."""


class NoSuchFileError(FileError, FileNotFoundError):
    """A volume, a model's version or a skill has no such file or directory. Python's own error catches it too."""


class StreamError(DeltaSharingError):
    """An offset, a version or a schema change that a stream cannot go on from."""


class BrokenOffError(DeltaSharingError):
    """A read that was ended from elsewhere: another thread closed it, or its process is ending."""


class TicketError(DeltaSharingError):
    """A Flight ticket that the gateway refuses. Attribute: ``reason``: ``"forged"``, ``"identity"``, ``"cancelled"`` or
    ``"expired"``; only an expired ticket can be renewed."""

    reason: str = ""


class CancelledError(DeltaSharingError):
    """The flight was cancelled, by this client or another one of the same caller."""


def out_of_memory(what: str, error: MemoryError | RuntimeError, file: str | None = None) -> FileError:
    """The error of a process whose memory does not suffice.

    Args:
        what: What was read, as errors name it.
        error: Arrow's, NumPy's or Python's own, which also tells of a thread that cannot be started.
        file: Which file that was of, if it is known.
    """
    return FileError(
        f"{what}: the memory of this process does not suffice ({redact(str(error)) or 'MemoryError'}); give it more (in Spark "
        f"by spark.executor.pyspark.memory where that is set), lower the option memoryBudget, or read fewer columns; if it "
        f"asks for more than the file could hold, the file is damaged",
        file=file,
    )


# Text that may be shown: without secrets, without control characters, and of a length that can be read. All of it takes time
# in proportion to the text, whatever a server puts into it.

#: A run without white space is cut to this many characters, a whole message to so many.
LONGEST_WORD, LONGEST_MESSAGE = 600, 20_000
_TAIL, _NOTE = 2_000, 60

#: Control characters but tab and line feed, halves of characters, marks that turn or hide text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)
_LINE_BREAKS = re.compile(r"[\t\n]")
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def printable(text: str, *, one_line: bool = False) -> str:
    r"""Return ``text`` with control characters, marks that turn the direction of text and half characters escaped.

    Args:
        text: Whatever a server, a log or a file says.
        one_line: Whether tabs and line feeds are escaped as well.

    >>> printable("a\x1b[2Jb\u202ec")
    'a\\x1b[2Jb\\u202ec'
    """
    text = _CONTROL.sub(_escaped, text)
    return _LINE_BREAKS.sub(_escaped, text) if one_line else text


def printable_json(value: object) -> str:
    """A value as indented JSON, readable but for what ``printable`` escapes."""
    return escaped_json(json.dumps(value, ensure_ascii=False, indent=2))


def escaped_json(text: str, encoding: str = "utf-8") -> str:
    """JSON without what ``printable`` escapes, by JSON's own escapes, and with those characters alone that an encoding has."""
    text = _CONTROL.sub(_json_escape, text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return re.sub(r"[^\x00-\x7f]", _json_escape, text)
    return text


def _json_escape(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1] if match[0] != "\x7f" else "\\u007f"


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def displayable(text: str) -> str:
    """Return ``text`` as an error shows it: redacted, printable, and cut where it is too long to be read."""
    text = _LONG_WORD.sub(_cut_word, printable(redact(text)))
    if len(text) <= LONGEST_MESSAGE:
        return text
    omitted = len(text) - LONGEST_MESSAGE + _NOTE
    return f"{text[: LONGEST_MESSAGE - _TAIL - _NOTE]} [{omitted} characters left out] {text[-_TAIL:]}"


def _cut_word(match: re.Match[str]) -> str:
    word = match[0]
    part = LONGEST_WORD // 3
    return f"{word[:part]}[{len(word) - 2 * part} characters left out]{word[-part:]}"


# Our errors leave a public function without the frames of this package, which bury the line that says what to do.

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

#: Set to anything in the environment, it keeps the frames.
TRACEBACK = "DELTA_SHARING_TRACEBACK"
#: Methods with underscores that users call, by ``pa.table(scan)`` and the like.
_MARKED = frozenset({"__init__", "__arrow_c_schema__", "__arrow_c_stream__"})
#: PySpark, and what it brings and is imported before it.
_OF_SPARK = ("pyspark", "py4j")


def keeps_frames() -> bool:
    """Whether DEBUG logging of this package, or ``TRACEBACK``, asks for the frames."""
    import logging

    return logging.getLogger(__name__).isEnabledFor(logging.DEBUG) or bool(os.environ.get(TRACEBACK))


def short_traceback(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a public function: an error of ours or of PySpark's leaves it without the frames below, and without causes.

    Where PySpark is missing, it raises a ``ConfigError``, which says how to install it.
    """

    @functools.wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        __tracebackhide__ = True  # pytest leaves this frame out
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as missing:
            if (missing.name or "").partition(".")[0] not in _OF_SPARK:
                raise
            line = install_line("spark")
            raise ConfigError(f"{function.__name__}() needs pyspark, which is not installed: {line}") from None
        except Exception as error:  # all are raised on, those of others as they are
            if keeps_frames() or not isinstance(error, (DeltaSharingError, *_pyspark_errors())):
                raise
            raise error.with_traceback(None) from None

    return called


def short_tracebacks(kind: type[_T]) -> type[_T]:
    """Mark all public methods and properties that a class defines, its constructor and Arrow's interface."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name not in _MARKED:
            continue
        if isinstance(member, types.FunctionType):
            setattr(kind, name, short_traceback(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(kind, name, member.getter(short_traceback(member.fget)))
        elif isinstance(member, classmethod):
            setattr(kind, name, classmethod(short_traceback(member.__func__)))
    return kind


def _pyspark_errors() -> tuple[type[Exception], ...]:
    """PySpark's root of errors, where it is loaded: a query's mistakes pass through this package."""
    errors: Any = sys.modules.get("pyspark.errors")
    return () if errors is None else (errors.PySparkException,)
