"""Defines the error tree; its messages carry no secret.

Every error crosses process borders (executor to driver), so all of them pickle: a message, and
details as plain attributes. A message is one line, whose end says what to do next.
"""

from __future__ import annotations

from typing import Any

from delta_sharing_spark.errors.redaction import shown


class DeltaSharingError(Exception):
    """The root of every error this package raises on purpose.

    Args:
        message: What failed, on which table or file, why, and what to do next. It is made fit to be shown here
            (``redaction.shown``), so that no error can carry a secret or a control character whoever built its text.
        **details: Plain values kept as attributes (``status``, ``file``, ``column``...).
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(shown(" ".join(message.split("\n"))))
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


class SchemaError(TableError):
    """An unknown column, or a type that does not fit where it stands."""


class ConversionError(TableError):
    """A value that Python or the wanted library cannot hold: text that is no UTF-8, a far date. Attribute: ``column``."""

    column: str | None = None


class LogError(TableError):
    """A Delta log with a hole, a corrupt or missing part. Attribute: ``has_no_log``, where there is none of it."""

    has_no_log: bool = False


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


class TicketError(DeltaSharingError):
    """A Flight ticket that the gateway refuses. Attribute: ``reason``: ``"forged"``, ``"identity"``, ``"cancelled"`` or
    ``"expired"``; only an expired ticket can be renewed."""

    reason: str = ""


class CancelledError(DeltaSharingError):
    """The flight was cancelled, by this client or another one of the same caller."""
