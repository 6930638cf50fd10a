"""Holds storage tokens: what the sharing server issues for a location, how long it is kept, how it is asked for again.

The model is Hadoop's S3A delegation token (``docs/credentials.md`` compares them point by point): a token says what
kind it is, where it holds, until when and where it came from, and travels with the work. Unlike there it can be
renewed: by asking the sharing server again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid as uuids
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.schema.instants import due_before, show_seconds
from delta_sharing_spark.storage.locations import Kind, Location, parse_location
from delta_sharing_spark.storage.secrets import AwsSession, AzureSas, GcpBearer, NoSecret, R2Session, Secret, fits

if TYPE_CHECKING:
    from delta_sharing_spark.network.settings import NetworkSettings
    from delta_sharing_spark.sharing.address import TableName
    from delta_sharing_spark.sharing.profile import Profile
    from delta_sharing_spark.sharing.wire_records import TemporaryCredentials

_log = logging.getLogger(__name__)

#: A token is renewed this many seconds before it expires, or when a tenth of its life is left if that is less.
_MARGIN_SECONDS = 300.0
_MARGIN_SHARE = 0.1
#: Seconds that a credential is taken to hold where the server does not tell, against the protocol.
_UNTOLD_SECONDS = 900.0
#: Tokens kept per process.
_CACHE_SIZE = 256


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
    """

    location: Location
    secret: Secret = field(repr=False)
    issued: float
    expires: float
    origin: str
    uuid: str = field(default_factory=lambda: str(uuids.uuid4()))

    def __post_init__(self) -> None:
        if not fits(self.secret, self.location):
            raise CredentialError(
                f"the credential for {self.location} is of kind {self.secret.kind}, but its scheme "
                f"{self.location.scheme!r} takes {self.location.kind}; ask the provider to check the sharing server"
            )
        self.secret.check()

    @property
    def kind(self) -> Kind:
        """``aws``, ``r2``, ``azure``, ``gcp`` or ``local``."""
        return self.secret.kind

    @property
    def renew_at(self) -> float:
        """When to ask for another, in seconds since the epoch."""
        return due_before(self.expires, self.issued, _MARGIN_SECONDS, _MARGIN_SHARE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageToken) and other.uuid == self.uuid

    def __hash__(self) -> int:
        return hash(self.uuid)

    def __str__(self) -> str:
        return (
            f"{self.kind} token {self.uuid} for {self.location}, until {show_seconds(self.expires)}, from {self.origin}"
        )


def issue(credentials: TemporaryCredentials, requested: Location, *, origin: str, now: float) -> StorageToken:
    """Make a token of the server's answer (protocol, "TemporaryCredentials").

    Args:
        credentials: The answer.
        requested: The location that was asked for; the granted one must cover it.
        origin: The sharing server and table.
        now: Seconds since the epoch.

    Raises:
        CredentialError: Not exactly one kind, a kind that does not fit the scheme, an empty field, a location that
            does not cover the one asked for, or an expiry in the past.
    """
    secret = _only_secret(credentials, requested)
    # A missing location means the one asked for: answers for volumes, models and skills have none.
    if credentials.location is not None and not parse_location(credentials.location).covers(requested):
        raise CredentialError(
            f"the sharing server granted {credentials.location!r}, which does not cover {requested} that was asked for; "
            f"ask the provider to check the sharing server, or use accessMode=url"
        )
    told = credentials.expiration_time
    expires = now + _UNTOLD_SECONDS if told is None else told / 1000
    if expires <= now:
        raise CredentialError(
            f"the credential for {requested} had expired when it was issued: at {show_seconds(expires)}, and this "
            f"machine's clock says {show_seconds(now)}; check the clock of this machine and the sharing server's"
        )
    # Held to what was asked for, even where the server grants more.
    return StorageToken(requested, secret, now, expires, origin)


def _only_secret(credentials: TemporaryCredentials, requested: Location) -> Secret:
    kinds: dict[str, Secret] = {}
    for session, keys in ((AwsSession, credentials.aws), (R2Session, credentials.r2)):
        if keys is not None:
            kinds[session.named] = session(
                keys.get("accessKeyId", ""), keys.get("secretAccessKey", ""), keys.get("sessionToken")
            )
    if (azure := credentials.azure) is not None:
        kinds["azureUserDelegationSas"] = AzureSas((azure.get("sasToken") or "").removeprefix("?"))
    if (gcp := credentials.gcp) is not None:
        kinds["gcpOauthToken"] = GcpBearer(gcp.get("oauthToken", ""))
    if requested.kind == "local" and not kinds:
        return NoSecret()
    if len(kinds) != 1:
        sent = ", ".join(kinds) or "none"
        raise CredentialError(
            f"the sharing server must issue exactly one kind of credential for {requested}, but sent {sent}; "
            f"ask the provider to check the sharing server, or use accessMode=url"
        )
    return next(iter(kinds.values()))


class Issuer(Protocol):
    """Issues tokens. Hashable and picklable: it is part of what executors are sent."""

    def issue_token(self, location: Location) -> StorageToken:
        """A new token for a location.

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

    def issue_token(self, location: Location) -> StorageToken:
        """See ``Issuer.issue_token``; one request."""
        from delta_sharing_spark.sharing.rest import SharingRest

        rest = SharingRest(self.profile, self.settings)
        answer = rest.credentials(self.table, None if location == self.root else str(location))
        return issue(answer, location, origin=f"{self.profile.endpoint} {self.table}", now=time.time())


class _CacheEntry:
    """The token of one issuer and location; the lock lets one thread at a time ask for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.token: StorageToken | None = None


class TokenCache:
    """Tokens of this process, by issuer and location; each is asked for once, however many tasks want it.

    Args:
        size: The maximum number of tokens; the longest unused go first.
        clock: The time in seconds since the epoch.
    """

    def __init__(self, *, size: int = _CACHE_SIZE, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._kept: ProcessCache[tuple[Issuer, Location], _CacheEntry] = ProcessCache(size)

    def get(self, issuer: Issuer, location: Location, *, refused: StorageToken | None = None) -> StorageToken:
        """A token that should work now: the one kept, or a new one shortly before that one expires.

        Args:
            issuer: Issues the token.
            location: Where the token must hold.
            refused: A token that the storage refused; it is never returned again.

        Raises:
            CredentialError, ServerError, NetworkError: The issuer gives no token.
        """
        kept = self._kept.get_or_make((issuer, location), _CacheEntry)
        with kept.lock:
            if kept.token is not None and kept.token != refused and self._clock() < kept.token.renew_at:
                return kept.token
            try:
                kept.token = issuer.issue_token(location)
            except BaseException:
                if kept.token is None:
                    self._kept.forget((issuer, location))
                raise
            _log.info("obtained %s", kept.token)
            return kept.token

    def put(self, issuer: Issuer, location: Location, token: StorageToken) -> None:
        """Keep a token that came from elsewhere (the driver), unless one is kept that need not be renewed yet."""
        kept = self._kept.get_or_make((issuer, location), _CacheEntry)
        if kept.lock.acquire(blocking=False):  # else a newer one is being asked for
            try:
                last = kept.token
                if last is None or (last.renew_at <= self._clock() and last.issued < token.issued):
                    kept.token = token
            finally:
                kept.lock.release()

    def __len__(self) -> int:
        return len(self._kept)


#: This process's tokens.
TOKENS = TokenCache()


def token_covering(tokens: Iterable[StorageToken], location: Location, *, table: str) -> StorageToken:
    """The token whose location covers ``location``, the longest prefix first.

    Raises:
        CredentialError: None covers it.
    """
    best: StorageToken | None = None
    for token in tokens:
        if token.location.covers(location) and (best is None or len(token.location.key) > len(best.location.key)):
            best = token
    if best is None:
        raise CredentialError(
            f"{location} of {table} lies outside the table's location and its auxiliary locations, so that no credential "
            f"covers it; ask the provider to share that location, or use accessMode=url"
        )
    return best
