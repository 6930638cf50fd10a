"""Defines who reads: a server, the profile and the options of every load; Python's faces and Spark's side both know it."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.access.settings import transport_of
from delta_sharing_spark.errors import OptionError, ProfileError
from delta_sharing_spark.errors.tracebacks import short_tracebacks
from delta_sharing_spark.options import parse_options
from delta_sharing_spark.options.values import option_text
from delta_sharing_spark.sharing.address import TableName
from delta_sharing_spark.sharing.identity import Identity, identity_of
from delta_sharing_spark.sharing.profile import ENVIRONMENT, Profile, load_profile, profile_from_environment
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.storage.profile_files import only_spark_reads

if TYPE_CHECKING:
    from typing_extensions import Self

    from delta_sharing_spark.access.flight.connection import FlightCatalog

#: How Spark reads a table, see ``Scan.to_spark``.
ENGINES = ("auto", "native", "python")
#: Scans of Spark's that ``SharingClient.last_scans`` tells.
_SCANS_KEPT = 100


@dataclass(frozen=True, slots=True)
class ScanListing:
    """What one scan of a query was answered: which files Spark reads.

    Attributes:
        table, version, mode: The table, its version where the server tells, and the access mode.
        filters: Spark's filters, as it prints them.
        condition: What of them leaves files out; None where nothing does.
        rows: So many rows are enough (a LIMIT); None where all are needed.
        is_counted: Whether the statistics answer, with no request to the storage, for the scan reads no column.
        sent: Hints that the sharing server was sent, by their names in the protocol.
        listed: Files that the server or the log named.
        files, bytes: Files left to read, and their whole size.
        shown: So many files are they to Spark, which is shown small ones as one.
        total_files: Files of the table; None where neither the server nor a listing tells.
        seconds: What the answer took.
        is_repeated: Whether an earlier listing answered, with no request.
    """

    table: str
    version: int | None
    mode: str
    filters: tuple[str, ...]
    condition: str | None
    rows: int | None
    is_counted: bool
    sent: Mapping[str, str]
    listed: int
    files: int
    bytes: int
    shown: int
    total_files: int | None
    seconds: float
    is_repeated: bool

    def __str__(self) -> str:
        total = "" if self.total_files is None else f" of {self.total_files}"
        hints = ", ".join(f"{name}={text}" for name, text in self.sent.items()) or "no hints"
        together = "" if self.shown == self.files else f", shown as {self.shown}"
        if self.is_counted:
            together = ", whose rows the statistics count"
        enough = "" if self.rows is None else f", {self.rows} rows are enough"
        how = "from an earlier listing" if self.is_repeated else f"sent {hints}"
        return (
            f"{self.table} version {self.version} ({self.mode}): {self.files}{total} files, {self.bytes} bytes{together}, "
            f"for [{', '.join(self.filters)}]{enough}; {how}; {self.listed} files listed in {self.seconds:.3f} s"
        )


@short_tracebacks
class Recipient:
    """One recipient of one sharing server.

    Args:
        profile: A path (local or any fsspec URL), the profile's JSON, its fields, or a ``Profile``; None takes
            ``DELTA_SHARING_PROFILE``, or the endpoint of an identity.
        engine: How Spark reads: one of ``ENGINES``.
        **options: Options of every load, by their names.

    Raises:
        ProfileError: The profile is missing or malformed.
        OptionError: An unknown option.
    """

    def __init__(
        self, profile: str | Path | Mapping[str, Any] | Profile | None = None, engine: str = "auto", **options: Any
    ) -> None:
        self._source = profile
        self.engine = checked_engine(engine)
        self.options = {name: option_text(value) for name, value in options.items()}
        parsed = parse_options({"path": "a.b.c", **self.options})
        self.profile = _profile(profile, identity_of(parsed))
        self.rest: SharingRest | FlightCatalog
        if parsed.gateway is None:
            self.rest = SharingRest(self.profile, transport_of(parsed))
        else:
            from delta_sharing_spark.access.flight.connection import FlightCatalog, GatewayConnection, gateway_address

            self.rest = FlightCatalog(GatewayConnection(gateway_address(parsed)))
        #: What Spark's latest scans of the recipient's tables were answered, the newest last.
        self.scans: deque[ScanListing] = deque(maxlen=_SCANS_KEPT)
        #: Names of shares that the server has had, in lower case.
        self._shares: frozenset[str] = frozenset()

    def with_options(self, options: Mapping[str, str]) -> Self:
        """The same recipient, with the same record of scans, and other options of every load."""
        other = copy.copy(self)
        other.options = dict(options)
        return other

    def shares_among(self, names: Set[str]) -> Set[str]:
        """Those of some names, in lower case, that are shares of the server; it is not asked for those that it has had.

        Raises:
            DeltaSharingError: The server does not list its shares.
        """
        if not names <= self._shares:
            self._shares = frozenset(share.name.lower() for share in self.rest.list_shares())
        return names & self._shares

    def options_for(self, name: TableName) -> dict[str, str]:
        """The options of a Spark load of a table: its path, and the credentials unless the profile is a path."""
        source = self._path()
        if source and not source.startswith("{") and not (self._source is not None and only_spark_reads(source)):
            return {**self.options, "path": f"{source}#{name}"}
        inline = {} if "gateway" in self.options else _inline(self.profile)
        return {**self.options, **inline, "path": str(name)}

    def is_of(self, profile: str) -> bool:
        """Whether a path is that of the recipient's profile."""
        return self._path() == profile.strip()

    def _path(self) -> str:
        """The path, or the JSON, that the profile was given as; empty where it was given otherwise."""
        source = os.environ.get(ENVIRONMENT, "") if self._source is None else self._source
        return str(source).strip() if isinstance(source, (str, Path)) else ""

    def load_options(self, name: TableName, more: Mapping[str, str]) -> dict[str, str]:
        """The options of a load in this process."""
        given = {option.lower() for option in more}
        return {**{o: value for o, value in self.options.items() if o.lower() not in given}, **more, "path": str(name)}


@short_tracebacks
@dataclass(frozen=True)
class RecipientTable:
    """One shared table, as one recipient reads it."""

    client: Recipient = field(repr=False)
    name: TableName

    def __str__(self) -> str:
        return str(self.name)


def checked_engine(engine: str) -> str:
    """``engine``, if there is such a one.

    Raises:
        OptionError: There is no such engine.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine={engine!r} is not known; use one of {', '.join(ENGINES)}")
    return engine


def _profile(source: str | Path | Mapping[str, Any] | Profile | None, identity: Identity | None) -> Profile:
    if isinstance(source, Profile) and identity is not None:
        source = {"shareCredentialsVersion": source.version, "endpoint": source.endpoint}
    if isinstance(source, Profile):
        return source
    if source is not None:
        return load_profile(source, identity)
    profile = profile_from_environment(identity)
    if profile is None:
        raise ProfileError(
            f"no profile was given and {ENVIRONMENT} is not set; give a path, the JSON, or set {ENVIRONMENT}"
        )
    return profile


def _inline(profile: Profile) -> dict[str, str]:
    """A profile as options of a Spark load; those of an identity are the client's own."""
    if profile.identity is not None:
        return {"endpoint": profile.endpoint}
    if profile.private_key is not None:
        raise ProfileError(
            "a profile with a private key cannot be given to Spark as options; give the client the path of its profile file"
        )
    fields = {
        "shareCredentialsVersion": str(profile.version),
        "type": profile.type if profile.version > 1 else None,
        "endpoint": profile.endpoint,
        "bearerToken": profile.bearer_token,
        "expirationTime": profile.expiration_time,
        "tokenEndpoint": profile.token_endpoint,
        "clientId": profile.client_id,
        "clientSecret": profile.client_secret,
        "scope": profile.scope,
        "username": profile.username,
        "password": profile.password,
    }
    return {name: value for name, value in fields.items() if value is not None}
