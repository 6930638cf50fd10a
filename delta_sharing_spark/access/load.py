"""Represents who reads what: a recipient of a sharing server, and a load of a table, which is narrowed and opened once."""

from __future__ import annotations

import copy
import os
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.access.asking import iso, transport_of
from delta_sharing_spark.access.open import TableOpener, negotiated_table, resolve_opened, resolved_anew
from delta_sharing_spark.access.resolved_scan import ResolvedScan, has_limit, smaller_limit
from delta_sharing_spark.errors import OptionError, ProfileError, short_tracebacks
from delta_sharing_spark.options.declared import INLINE, OPTIONS, ReadOptions, overridden, parse_options
from delta_sharing_spark.options.values import count, option_text, quoted_column
from delta_sharing_spark.schema.markup import counted, seconds_text, size_text
from delta_sharing_spark.schema.types import Struct, backquoted, has_spatial
from delta_sharing_spark.sharing.address import TableName, unquoted
from delta_sharing_spark.sharing.profile import ENVIRONMENT, Profile, profile_by, profile_source
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.storage.user_files import only_spark_reads

if TYPE_CHECKING:
    from typing_extensions import Self

    from delta_sharing_spark.access.flight.connection import FlightCatalog
    from delta_sharing_spark.predicates.tree import Expression

#: How Spark reads a table, see ``Scan.to_spark``.
ENGINES = ("auto", "native", "python")
#: Scans of Spark's that ``SharingClient.last_scans`` tells.
_SCANS_KEPT = 100
#: Bytes of a split outside Spark: small enough to read one middling file on several cores.
_SPLIT_BYTES = "16m"
#: Splits under way at once outside Spark.
WORKERS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class ScanListing:
    """What one scan of a query was answered: which files Spark reads.

    Attributes:
        table, version, mode: The table, its version where the server tells, and the access mode.
        filters: Spark's filters, as SQL.
        condition: What of them leaves files out; None where nothing does.
        rows: So many rows are enough (a LIMIT); None where all are needed.
        is_counted: Whether the statistics answer, with no request to the storage, for the scan reads no column.
        sent: Hints that the sharing server was sent, by their names in the protocol; None where it takes none.
        listed: Files that the server or the log named.
        files, bytes: Files left to read, and their whole size.
        spark_files: So many files are they to Spark, for which small ones are one.
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
    sent: Mapping[str, str] | None
    listed: int
    files: int
    bytes: int
    spark_files: int
    total_files: int | None
    seconds: float
    is_repeated: bool

    def __str__(self) -> str:
        total = self.total_files
        files = counted(self.files, "file") if total is None else f"{self.files:,} of {counted(total, 'file')}"
        hints = ", ".join(f"{name}={text}" for name, text in (self.sent or {}).items()) or "no hints"
        together = "" if self.spark_files == self.files else f", shown as {self.spark_files}"
        if self.is_counted:
            together = ", whose rows the statistics count"
        enough = (
            "" if self.rows is None else f", {counted(self.rows, 'row')} {'is' if self.rows == 1 else 'are'} enough"
        )
        how = "from an earlier listing; " if self.is_repeated else "" if self.sent is None else f"sent {hints}; "
        return (
            f"{self.table} version {self.version} ({self.mode}): {files}, {size_text(self.bytes)}{together}, "
            f"for [{', '.join(self.filters)}]{enough}; {how}{counted(self.listed, 'file')} listed in {seconds_text(self.seconds)}"
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
        self.engine = checked_engine(engine)
        profile = profile_source(profile)
        self.options = {name: option_text(value) for name, value in options.items()}
        parsed = parse_options({"path": "a.b.c", **self.options}, is_in_spark=False)
        if profile is None and parsed.gateway is not None:
            profile = Profile(parsed.gateway)  # which holds the recipient's own
        #: What the profile was given as; the environment may name another one by the time that Spark is given it.
        self._source = os.environ.get(ENVIRONMENT) if profile is None else profile
        of_recipient = profile_by(parsed, profile)
        if of_recipient is None:
            raise ProfileError(
                f"no profile was given and {ENVIRONMENT} is not set; give its path or its JSON, in an address before the #, or set "
                f"{ENVIRONMENT}"
            )
        self.profile = of_recipient
        self.rest: SharingRest | FlightCatalog
        if parsed.gateway is None:
            self.rest = SharingRest(self.profile, transport_of(parsed))
        else:
            from delta_sharing_spark.access.flight.connection import FlightCatalog, GatewayConnection, gateway_address

            self.rest = FlightCatalog(GatewayConnection(gateway_address(parsed)))
        #: What Spark's latest scans of the recipient's tables were answered, the newest last.
        self.scans: deque[ScanListing] = deque(maxlen=_SCANS_KEPT)
        #: Names of shares that the server has had, in lower case; copies of the recipient know them too.
        self._shares: set[str] = set()

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
            self._shares.update(share.name.lower() for share in self.rest.list_shares())
        return names & self._shares

    def options_for(self, name: TableName) -> dict[str, str]:
        """The options of a Spark load of a table: its path, and the credentials unless the profile is a path."""
        source = self._path()
        if source and not source.startswith("{") and not only_spark_reads(source):
            return {**self.options, "path": f"{source}#{name}"}
        inline = _inline(self.profile) if isinstance(self.rest, SharingRest) else {}  # a gateway holds them
        return {**self.options, **inline, "path": str(name)}

    def is_of(self, profile: str) -> bool:
        """Whether a path is that of the recipient's profile."""
        return self._path() == profile.strip()

    def _path(self) -> str:
        """The path, or the JSON, that the profile was given as; empty where it was given otherwise."""
        return str(self._source).strip() if isinstance(self._source, (str, Path)) else ""

    def load_options(self, name: TableName, more: Mapping[str, str]) -> dict[str, str]:
        """The options of a load in this process, which narrow those of all loads (``narrowed``)."""
        return {**narrowed(self.options, more), "path": str(name)}


def narrowed(options: Mapping[str, str], by: Mapping[str, str]) -> dict[str, str]:
    """Options with those of ``by`` in the place of theirs; of two conditions both hold, and of two limits the smaller.

    Raises:
        OptionError: There are two limits, and one of them is no number.
        PredicateError: There are two conditions, and one of them is none by itself.
    """
    before = {name.lower(): value for name, value in options.items()}
    joined = overridden(options, by)
    for name, value in by.items():
        earlier = before.get(name.lower())
        if earlier is None:
            continue
        if name.lower() == "where":
            from delta_sharing_spark.predicates.lexer import both_conditions

            joined[name] = both_conditions(earlier, value)
        elif name.lower() == "limit":
            rows = smaller_limit(*(count(name, text, timezone.utc) for text in (earlier, value)))
            joined[name] = option_text(rows)
    return joined


@short_tracebacks
@dataclass(frozen=True)
class RecipientTable:
    """One shared table, as one recipient reads it."""

    client: Recipient = field(repr=False)
    name: TableName

    def __str__(self) -> str:
        return str(self.name)


def checked_engine(engine: str) -> str:
    """``engine``, if there is such a one; raises OptionError where there is none."""
    if engine not in ENGINES:
        raise OptionError(f"engine={engine!r} is not known; use one of {', '.join(ENGINES)}")
    return engine


def _inline(profile: Profile) -> dict[str, str]:
    """A profile as options of a Spark load; those of an identity are the client's own."""
    if profile.identity is not None:
        catalog = profile.iceberg_endpoint
        return {"endpoint": profile.endpoint, **({} if catalog is None else {"icebergEndpoint": catalog})}
    if profile.private_key is not None:
        raise ProfileError(
            "a profile with a private key cannot be given to Spark as options; give the client the path of its profile file"
        )
    fields = {option.name: getattr(profile, option.attribute, None) for option in OPTIONS if option.group == INLINE}
    fields["shareCredentialsVersion"] = str(profile.version)
    if profile.version == 1:
        del fields["type"]
    return {name: value for name, value in fields.items() if value is not None}


@short_tracebacks
@dataclass
class Load:
    """A selection of a table's columns and rows.

    Attributes:
        table: The table.
        options: The load's options, as Spark would be given them; they narrow those of all of its recipient's loads.
        hints: ``jsonPredicateHints``, by which files and row groups are skipped and no row is filtered; outside Spark only.

    Raises:
        OptionError: An unknown option or value, or two that contradict each other.
    """

    table: RecipientTable
    options: Mapping[str, str]
    hints: str | None = None
    _resolved: tuple[TableOpener, ResolvedScan] | None = field(default=None, repr=False)
    _read_options: ReadOptions | None = field(default=None, repr=False)
    _inside: Self | None = field(default=None, repr=False)
    #: What this load, those that it narrows and those that narrow it were last opened as.
    _opened: list[tuple[TableOpener, ResolvedScan]] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._parsed()

    def resolved(self) -> ResolvedScan:
        """The resolved scan: one metadata request, the first time."""
        return self.opened()[1]

    def opened(self) -> tuple[TableOpener, ResolvedScan]:
        """The table, opened once for this load, and the resolved scan of it."""
        if self._resolved is None:
            negotiated = negotiated_table(self._parse(active_zone()), self.table.client.profile)
            if self._opened and self._opened[0][0].answers(negotiated):
                opener, resolved = self._opened[0][0], resolved_anew(self._opened[0][1], negotiated.options)
            else:
                opener = TableOpener(negotiated)
                resolved = resolve_opened(opener)
                self._opened[:] = [(opener, resolved)]
            if self.hints is not None:
                from delta_sharing_spark.predicates.hints import condition_of_hints

                resolved = replace(resolved, pushed=condition_of_hints(self.hints, resolved.columns))
            self._resolved = opener, resolved
        return self._resolved

    def narrows(self, earlier: Self, condition: Expression | None = None, first_rows: int | None = None) -> Self:
        """A copy of this load, over the table as an earlier one resolved it.

        It is of the version that the earlier one is of, and is refused where that one is because the table has changed. Its zone
        is that of the earlier one, whatever thread asks and whatever the session's is by now.

        Args:
            condition: What its rows fulfil besides ``where``, of the table's columns.
            first_rows: So many of its first rows are enough; None for all.
        """
        opener, scan = earlier.opened()
        anew = resolved_anew(scan, self._parse(scan.options.time_zone), condition)
        return replace(self, _resolved=(opener, replace(anew, first_rows=first_rows)))

    @property
    def schema(self) -> Struct:
        """The columns of the result."""
        return self.resolved().output

    def as_read_by(self, client: Recipient) -> Self:
        """The same load with another recipient's options; it is the same object for the same ones."""
        if client.options == self.table.client.options:
            return self
        if self._inside is None or self._inside.table.client.options != client.options:
            self._inside = type(self)(replace(self.table, client=client), self.options, self.hints)
        return self._inside

    def _parsed(self) -> ReadOptions:
        """The options, whose moments need no zone yet: ``to_spark`` will know the session's."""
        if self._read_options is None:
            self._read_options = self._parse("UTC")
        return self._read_options

    def _parse(self, zone: str | None) -> ReadOptions:
        from delta_sharing_spark.scan.parallel import default_budget

        ours = {"maxSplitBytes": _SPLIT_BYTES, "memoryBudget": str(default_budget() // WORKERS)}
        if zone is not None:
            ours["timeZone"] = zone
        written = overridden(ours, self.table.client.load_options(self.table.name, self.options))
        return parse_options(written, is_in_spark=False)

    def select(self, *columns: str | Sequence[str]) -> Self:
        """The same scan with these columns only, in this order: names, or one list of names.

        Raises:
            OptionError: No list of names, or a column that an earlier ``select`` or ``columns`` left out.
        """
        names = column_names(columns[0] if len(columns) == 1 and not isinstance(columns[0], str) else columns)
        before = self._parsed().columns
        if before is not None:
            names_before = {name.lower() for name in before}
            for column in map(unquoted, names):
                if not {column.lower(), column.lower().partition(".")[0]} & names_before:
                    raise OptionError(
                        f"this scan has no column {column!r}, it was left out before: {', '.join(before)}"
                    )
        return self._with("columns", ",".join(quoted_column(name) for name in names))

    def narrowed_to(self, names: Sequence[str]) -> Self:
        """The same scan with those of its columns that have these names; of a struct the fields stay that it was narrowed to."""
        before = self._parsed().columns
        if before is None:
            return self.select([backquoted(name) for name in names])
        own = sorted(self.schema.names, key=len, reverse=True)
        of = {c: next(name for name in own if f"{c}.".lower().startswith(f"{name}.".lower())) for c in before}
        return self.select([column for name in names for column in before if of[column] == name])

    def filter(self, condition: str) -> Self:
        """The same scan with only the rows that also fulfil a SQL condition.

        Raises:
            OptionError: The condition is no text, or the scan has a limit of its own, which would then count filtered rows.
        """
        if not isinstance(condition, str):
            raise OptionError(f'a condition is a text of SQL, not {str(condition)[:100]}; write filter("a > 1")')
        if has_limit(self.options):
            raise OptionError("filter() after limit() would change which rows are counted; call filter() first")
        return self._with("where", condition)

    def where(self, condition: str) -> Self:
        """As ``filter``."""
        return self.filter(condition)

    def limit(self, rows: int) -> Self:
        """The same scan with at most so many rows.

        Raises:
            OptionError: ``rows`` is not a number of rows.
        """
        return self._with("limit", option_text(rows))

    def described(self) -> str:
        """The table, and as of when it is read if its options say that."""
        return str(self.table) + "".join(f", {name} {value}" for name, value in self.options.items())

    @property
    def has_columns(self) -> bool:
        """Whether the load names its columns, by itself or for all of its recipient's loads."""
        return self._parsed().columns is not None

    @property
    def has_places(self) -> bool:
        """Whether the load was resolved, and has geometries or geographies."""
        return self._resolved is not None and has_spatial(self._resolved[1].output)

    @property
    def limited(self) -> bool:
        """Whether the scan has a limit, its own or that of all of its recipient's loads."""
        return self._parsed().limit is not None

    def _with(self, name: str, value: str) -> Self:
        narrower = type(self)(self.table, narrowed(self.options, {name: value}), self.hints)
        narrower._opened = self._opened
        return narrower


def cheapest_column(schema: Struct, partition_columns: Sequence[str] = ()) -> str | None:
    """The column that is cheapest to count rows by: a partition column, else a narrow one; None if there is none."""
    if partition_columns:
        return partition_columns[0]
    widths = {"boolean": 0, "byte": 1, "short": 2, "integer": 3, "date": 3, "float": 4, "long": 5, "double": 5}
    cheapest = min(schema.fields, key=lambda f: widths.get(str(f.type), 9), default=None)
    return cheapest.name if cheapest else None


def first_version_from(
    client: Recipient, table: TableName, moment: str, options: Mapping[str, str], *, is_in_spark: bool = False
) -> int:
    """The first version at or after a moment, which is rounded up as the start of a feed is.

    Args:
        options: Those of a load, beside the client's; ``timeZone`` among them.
        is_in_spark: As ``parse_options`` has it.
    """
    asked = {**options, "readChangeFeed": "true", "startingTimestamp": moment}
    parsed = parse_options(client.load_options(table, asked), is_in_spark=is_in_spark)
    return client.rest.table_version(table, iso(parsed.starting_timestamp))


def active_zone() -> str | None:
    """The zone of the Spark session that is active in this thread, else of the process's default one; None where there is none."""
    pyspark: Any = sys.modules.get("pyspark.sql")
    if pyspark is None:
        return None
    try:
        session = pyspark.SparkSession.active()
    except RuntimeError as missing:  # PySpark's own is one
        if "NO_ACTIVE_OR_DEFAULT_SESSION" not in str(missing):
            raise
        return None
    return str(session.conf.get("spark.sql.session.timeZone"))


def column_names(columns: object) -> list[str]:
    """A list of the column names that a user gave.

    Raises:
        OptionError: ``columns`` is no list of names.
    """
    if isinstance(columns, str):
        raise OptionError(f"columns is a list of names, not a text; write columns=[{columns!r}]")
    names: list[object] = list(columns) if isinstance(columns, Iterable) else [columns]
    texts = [name for name in names if isinstance(name, str)]
    if not isinstance(columns, Iterable) or len(texts) < len(names):
        raise OptionError(f"columns={str(columns)[:100]} is not a list of names; write columns=['a', 'b']")
    return texts
