"""Holds storage tokens (issued for a location, kept, renewed), and opens the files of splits with them.

The model of a token is Hadoop's S3A delegation token; ``docs/credentials-inside.md`` compares the two. A token says what kind it
is, where it holds, until when, and where it came from. It travels with the work. Unlike Hadoop's it can be renewed, by asking
the sharing server again.
"""

from __future__ import annotations

import logging
import time
import uuid as uuids
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from delta_sharing_spark.errors import CredentialError, DeltaSharingError, FileGoneError
from delta_sharing_spark.network.http import MAX_RENEWALS, SETTLING, NetworkSettings
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.renewable import Renewable, Term, due_before
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileTask
from delta_sharing_spark.schema.instants import show_seconds
from delta_sharing_spark.storage.answers import action_of, is_sure, reason_of
from delta_sharing_spark.storage.clouds.contract import NO_SECRET, Secret
from delta_sharing_spark.storage.clouds.registry import check, cloud_of, kinds_on_wire, parse_location
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.objects import Storage, object_reader
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.storage.ranges import ByteSource, Part

if TYPE_CHECKING:
    from delta_sharing_spark.sharing.address import TableName
    from delta_sharing_spark.sharing.profile import Profile
    from delta_sharing_spark.sharing.wire_records import TemporaryCredentials

_log = logging.getLogger(__name__)

#: A token is renewed this many seconds before it expires, or when a tenth of its life is left if that is less.
_MARGIN_SECONDS = 300.0
_MARGIN_SHARE = 0.1
#: Seconds that a credential is taken to hold where the server does not tell, against the protocol, or tells a time that is over.
UNTOLD_SECONDS = 900.0
#: A credential that is refused at this age, in seconds, may not be known everywhere yet.
_YOUNG = 10.0
#: Tokens kept per process.
_CACHE_SIZE = 256
_storages: ProcessCache[tuple[str, StorageSettings], Storage] = ProcessCache(64)
_OR_VACUUMED = (
    "; a credential that may not list is refused likewise what does not exist: if the table was rewritten and vacuumed "
    "since it was loaded, reload it"
)
_OUT_OF_SCOPE = "the scope of the credential leaves it out: ask the provider for a credential that may read all objects"
_NOT_CARRIED = (
    "carryProfile=false keeps executors from asking for another; load the table again, or leave carryProfile at true"
)


@dataclass(frozen=True, slots=True, eq=False)
class StorageToken:
    """A credential for one location. Equal by ``uuid``; shown without its secret; picklable.

    Attributes:
        location: Where it holds: this location and what lies under it.
        secret: Never shown.
        issued: Seconds since the epoch, this machine's clock.
        expires: Seconds since the epoch, as the server announced it; it may end earlier.
        origin: The sharing server and table it came from, for diagnostics.
        uuid: Names this token in logs and errors.
        ended: When it had ended by the server's word, where that was before it came: the two clocks differ, and ``expires`` is
            a guess.
    """

    location: Location
    secret: Secret = field(repr=False)
    issued: float
    expires: float
    origin: str
    uuid: str = field(default_factory=lambda: str(uuids.uuid4()))
    ended: float | None = None

    def __post_init__(self) -> None:
        check(self.secret, self.location)

    @property
    def kind(self) -> str:
        """Its cloud's, by the registry, or ``local``."""
        return self.secret.kind

    @property
    def renew_at(self) -> float:
        """When to ask for another, in seconds since the epoch."""
        return due_before(self.expires, self.issued, _MARGIN_SECONDS, _MARGIN_SHARE)

    @property
    def validity(self) -> str:
        """How long it holds, for errors."""
        if self.ended is None:
            return f"valid until {show_seconds(self.expires)}"
        return (
            f"which had ended when it was issued: at {show_seconds(self.ended)}, and this machine's clock said "
            f"{show_seconds(self.issued)}: check the clock of this machine and the sharing server's"
        )

    def check_end(self) -> None:
        """Raises CredentialError if it had ended when it came."""
        if self.ended is not None:
            raise CredentialError(f"the credential for {self.location} is one {self.validity}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageToken) and other.uuid == self.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)

    def __str__(self) -> str:
        return f"{self.kind} token {self.uuid} for {self.location}, {self.validity}, from {self.origin}"


def issue(credentials: TemporaryCredentials, requested: Location, *, origin: str, now: float) -> StorageToken:
    """Make a token of the server's answer (protocol, "TemporaryCredentials").

    Args:
        credentials: The answer.
        requested: The location that was asked for; the granted one must cover it.
        origin: The sharing server and table.
        now: Seconds since the epoch.

    Raises:
        CredentialError: Not exactly one kind, a kind that does not fit the scheme, an empty field, a location that
            does not cover the one asked for.
    """
    secret = _only_secret(credentials, requested)
    # A missing location means the one asked for: answers for volumes, models and skills have none.
    if credentials.location is not None and not parse_location(credentials.location).covers(requested):
        raise CredentialError(
            f"the sharing server granted {credentials.location!r}, which does not cover {requested} that was asked for; "
            f"ask the provider to check the sharing server, or use accessMode=url if the server offers it"
        )
    stated_end = None if credentials.expiration_time is None else credentials.expiration_time / 1000
    # Of clocks that differ the storage's counts, as for URLs.
    ended = stated_end if stated_end is not None and stated_end <= now else None
    expires = now + UNTOLD_SECONDS if stated_end is None or ended is not None else stated_end
    # Held to what was asked for, even where the server grants more.
    return StorageToken(requested, secret, now, expires, origin, ended=ended)


def _only_secret(credentials: TemporaryCredentials, requested: Location) -> Secret:
    if requested.is_local and not credentials.secrets:
        return NO_SECRET
    if len(credentials.secrets) != 1:
        kinds = ", ".join(credentials.secrets) or "none"
        raise CredentialError(
            f"the sharing server must issue exactly one kind of credential for {requested}, but sent {kinds}; "
            f"ask the provider to check the sharing server, or use accessMode=url if the server offers it"
        )
    ((wire_field, parts),) = credentials.secrets.items()
    kind = kinds_on_wire()[wire_field]
    return Secret(kind, cloud_of(kind).parts_of(parts))


class Issuer(Protocol):
    """Issues tokens. Hashable and picklable: it is part of what executors are sent.

    Attributes:
        settings: How long it asks.
    """

    @property
    def settings(self) -> NetworkSettings: ...

    def issue_token(self, location: Location, seconds: float | None = None) -> StorageToken:
        """A new token for a location.

        Args:
            seconds: How long the last one still works, so that no outage is waited out; None where none works.

        Raises:
            CredentialError, ServerError, NetworkError
        """


@dataclass(frozen=True, slots=True)
class SharingIssuer:
    """Asks the sharing server for tokens (protocol, "Generate Temporary Table Credential").

    Attributes:
        root: The table's own location; it is asked for by leaving the request's ``location`` out.
    """

    profile: Profile = field(repr=False)
    settings: NetworkSettings = field(repr=False, compare=False)
    table: TableName
    root: Location

    def issue_token(self, location: Location, seconds: float | None = None) -> StorageToken:
        """See ``Issuer.issue_token``; one request."""
        from delta_sharing_spark.sharing.rest import SharingRest

        rest = SharingRest(self.profile, self.settings.early(seconds))
        answer = rest.credentials(self.table, None if location == self.root else str(location))
        return issue(answer, location, origin=f"{self.profile.endpoint} {self.table}", now=time.time())


class TokenCache:
    """Tokens of this process, by issuer and location; each is asked for once, however many tasks want it.

    Args:
        size: The maximum number of tokens; the longest unused go first.
        clock: The time in seconds since the epoch.
    """

    def __init__(self, *, size: int = _CACHE_SIZE, clock: Callable[[], float] = lambda: time.time()) -> None:
        self._clock = clock
        self._tokens: ProcessCache[tuple[Issuer, Location], Renewable[StorageToken]] = ProcessCache(size)

    def get(self, issuer: Issuer, location: Location, *, refused: StorageToken | None = None) -> StorageToken:
        """A token that should work now: the newest, or another one shortly before that one expires.

        Args:
            refused: A token that the storage refused; it is never returned again.

        Raises:
            CredentialError, ServerError, NetworkError: The issuer gives no token.
        """

        def ask(seconds: float | None) -> StorageToken:
            token = issuer.issue_token(location, seconds)
            if seconds is not None:
                token.check_end()  # the present one works for certain
            _log.info("obtained %s", token)
            return token

        def usable(token: StorageToken | None) -> Term[StorageToken] | None:
            return None if token is None or token == refused else _term(token)

        return self._renewable(issuer, location).get(usable, ask, _term, issuer.settings).value

    def put(self, issuer: Issuer, location: Location, token: StorageToken) -> None:
        """Keep a token that came from elsewhere (the driver), unless one is kept that need not be renewed yet."""
        renewable = self._renewable(issuer, location)
        last = renewable.value
        if last is None or (last.renew_at <= self._clock() and last.issued < token.issued):
            renewable.keep(token)

    def clear(self) -> None:
        """Forget all tokens, as another process would begin."""
        self._tokens.clear()

    def _renewable(self, issuer: Issuer, location: Location) -> Renewable[StorageToken]:
        name, table = f"the credential for {location}", issuer.settings.table
        return self._tokens.get_or_make(
            (issuer, location), lambda: Renewable(name, self._clock, kind="credential", table=table)
        )

    def __len__(self) -> int:
        return len(self._tokens)


def _term(token: StorageToken) -> Term[StorageToken]:
    return Term(token, token.renew_at, token.expires)


#: This process's tokens.
TOKENS = TokenCache()


def token_covering(tokens: Iterable[StorageToken], location: Location, *, table: str) -> StorageToken:
    """The token whose location covers ``location``, the longest prefix first; raises CredentialError where none does."""
    best: StorageToken | None = None
    for token in tokens:
        if token.location.covers(location) and (best is None or len(token.location.key) > len(best.location.key)):
            best = token
    if best is None:
        raise CredentialError(
            f"{location} of {table} lies outside the locations that credentials were issued for, so that none covers it; ask the "
            f"provider to share that location, or use accessMode=url if the server offers it"
        )
    return best


def storage_for(token: StorageToken, settings: StorageSettings) -> Storage:
    """This process's storage for a token; raises CredentialError where that does not fit its location."""
    storage = _storages.get_or_make(
        (token.uuid, replace(settings, retry_seconds=0.0)),
        lambda: Storage(token.location, token.secret, settings, credential=token.uuid),
    )
    return storage if storage.settings == settings else storage.with_settings(settings)


@dataclass(frozen=True, slots=True)
class DirectoryAccess(FileAccess):
    """The access of splits whose files are read from storage (``scan.plan.FileAccess``). Picklable; carried in splits.

    Attributes:
        table: How errors name the table.
        tokens: One for each location that the split's files lie in.
        issuer: How to ask for another; None where the sharing token stays on the driver (``carryProfile=false``).
        settings: Region, endpoint, time-outs.
        canary: A file that was there when the table was planned: if the storage refuses it too, the credential is refused.
        samples: A few data files of the plan: while one of them reads, another that is refused is gone.
    """

    table: str
    tokens: tuple[StorageToken, ...] = field(repr=False)
    issuer: Issuer | None = field(repr=False)
    settings: StorageSettings = field(repr=False)
    canary: Location | None = None
    samples: tuple[Location, ...] = ()

    def open(self, task: FileTask) -> ByteSource:
        location = parse_location(task.location)
        return object_reader(self.lease(location), location, name=task.id, size=task.size)

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        location = parse_location(vector.path)
        name = f"deletion vector {vector.unique_id} of {task.id}"
        return Part(object_reader(self.lease(location), location, name=name, size=None), vector.frame)

    def lease(self, location: Location) -> DirectoryLease:
        """The lease of the location that ``location`` lies in; raises CredentialError where it lies in none."""
        return DirectoryLease(self, token_covering(self.tokens, location, table=self.table), location)

    def ends(self, task: FileTask) -> float | None:
        """See ``FileAccess.ends``: with the first of the tokens."""
        return min((token.expires for token in self.tokens), default=None)

    def renewed(self) -> DirectoryAccess:
        """See ``FileAccess.renewed``; a request for each token."""
        issuer = self.issuer
        if issuer is None:
            return self
        return replace(self, tokens=tuple(TOKENS.get(issuer, t.location, refused=t) for t in self.tokens))

    def outlasts_planning(self, task: FileTask) -> bool:
        issuer = self.issuer
        # A carried token may have ended: storage's are then asked for with the driver's, in time.
        profile: Profile | None = getattr(issuer, "profile", None)
        is_renewed = issuer is not None and not (profile is not None and profile.carried)
        return is_renewed or all(time.time() < token.renew_at for token in self.tokens)

    def restricted_to(self, tasks: Sequence[FileTask]) -> DirectoryAccess:
        """See ``SplitAccess.restricted_to``: only the tokens that these files and their vectors need."""
        if len(self.tokens) == 1:
            return self
        needed: dict[StorageToken, None] = {}
        for task in tasks:
            for path in paths_of(task):
                needed[token_covering(self.tokens, parse_location(path), table=self.table)] = None
            if len(needed) == len(self.tokens):
                return self
        return replace(self, tokens=tuple(needed))


class DirectoryLease:
    """One location's storage, with a token that is renewed before it expires and once when it is refused."""

    def __init__(self, access: DirectoryAccess, token: StorageToken, location: Location) -> None:
        self._access, self._token, self._location = access, token, location
        #: Whether a new token that was refused has been tried again after a pause, which is no renewal.
        self._has_paused = False

    def current(self) -> Storage:
        """See ``Lease.current``; raises CredentialError where the token has expired and cannot be renewed."""
        token, issuer = self._token, self._access.issuer
        if issuer is not None:
            TOKENS.put(issuer, token.location, token)
            self._token = token = self._renewed(issuer, None, f"ends at {show_seconds(token.expires)}")
        elif time.time() >= token.expires:
            raise CredentialError(
                f"the storage credential for {token.location} of {self._access.table} expired at "
                f"{show_seconds(token.expires)}, and {_NOT_CARRIED}"
            )
        return storage_for(token, self._access.settings)

    def refused(self, storage: Storage, name: str, refusal: PermissionError, refusals: int) -> None:
        issuer = self._access.issuer
        if issuer is None or refusals > MAX_RENEWALS + self._has_paused:
            raise self._final(storage, name, refusal)
        token = self._token
        if token.uuid != storage.credential:
            return  # another thread has renewed it meanwhile
        if not self._has_paused and refusals == MAX_RENEWALS and time.time() < token.issued + _YOUNG:
            self._has_paused = True
            self._access.settings.sleep(SETTLING)
            return
        _log.info("the storage refused %s with the token %s (%s); renewing it", name, storage.credential, refusal)
        self._token = self._renewed(issuer, token, f"was refused ({reason_of(refusal)})")

    def _renewed(self, issuer: Issuer, refused: StorageToken | None, why: str) -> StorageToken:
        """Another token; a server that gives none is quoted together with why it was asked."""
        location = self._token.location
        try:
            return TOKENS.get(issuer, location, refused=refused)
        except DeltaSharingError as error:
            error.args = (
                f"the storage credential for {location} of {self._access.table} {why}, and the sharing server gave no "
                f"other: {error}",
            )
            raise

    def _final(self, storage: Storage, name: str, refusal: PermissionError) -> DeltaSharingError:
        """The error of a file that is refused also with a new credential: it is gone, or the credential is too narrow."""
        access, token, location = self._access, self._token, self._location
        if is_sure(refusal) and (action := action_of(refusal, "")):
            return CredentialError(
                f"the storage refuses {name} of {access.table} ({reason_of(refusal)}); {action}", file=name
            )
        others = [sample for sample in access.samples if sample != location and token.location.covers(sample)]
        is_about_scope = is_sure(refusal) or storage.tells_absence
        is_listed = None if is_about_scope else _is_listed(storage, location)
        if is_listed is False or (
            not is_about_scope and not is_listed and (storage.still_reads_data() or any(map(storage.reads, others)))
        ):
            doubt = "" if is_listed is False else f"; if it is refused again, {_OUT_OF_SCOPE} under {token.location}"
            return FileGoneError(
                f"file {name} of {access.table}: the storage refuses it while it lets other files of the table be read, "
                f"so it is no longer there (a credential that cannot list is refused what does not exist); "
                f"the table was probably rewritten or vacuumed: reload it{doubt}",
                file=name,
            )
        reads_log = access.canary is not None and token.location.covers(access.canary) and storage.reads(access.canary)
        if reads_log or is_listed:
            doubt = "" if is_about_scope or is_listed else _OR_VACUUMED
            allowed = "it be listed" if is_listed else "the table's log be read"
            return CredentialError(
                f"the storage refuses file {name} of {access.table} ({reason_of(refusal)}) though it lets "
                f"{allowed}: the scope of the credential (token "
                f"{token.uuid}) does not cover the file; ask the provider for a credential that may read all objects under "
                f"{token.location}, not its _delta_log alone{doubt}",
                file=name,
            )
        if access.issuer is None:
            return CredentialError(
                f"the storage refused {name} of {access.table} ({reason_of(refusal)}; token {token.uuid}, "
                f"{token.validity}), and {_NOT_CARRIED}",
                file=name,
            )
        action = action_of(
            refusal,
            f"reload the table, and ask the provider whether the credential covers {token.location} if it goes on",
        )
        return CredentialError(
            f"the storage refused {name} of {access.table}, also with a new credential ({reason_of(refusal)}; token "
            f"{token.uuid}, {token.validity}); {action}",
            file=name,
        )


def _is_listed(storage: Storage, location: Location) -> bool | None:
    """Whether an object is there; None where the credential may not list."""
    directory, _, name = location.key.rpartition("/")
    try:
        return any(listed.name == name for listed in storage.list_from(replace(location, key=directory), name))
    except (PermissionError, FileNotFoundError, DeltaSharingError):
        return None


def paths_of(task: FileTask) -> Iterator[str]:
    """The storage paths a task reads: its file's, its vectors' and its delete files'."""
    yield task.location
    for vector in (task.deletion_vector, task.excluded):
        if vector is not None and vector.storage != "i":
            yield vector.path
    for delete in task.deletes:
        yield delete.location
