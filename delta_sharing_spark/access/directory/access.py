"""Opens a split's files in storage with the tokens it carries, and asks for others."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from delta_sharing_spark.access.directory.tokens import TOKENS, Issuer, SharingIssuer, StorageToken, token_covering
from delta_sharing_spark.errors import CredentialError, DeltaSharingError, FileGoneError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.settings import MAX_RENEWALS
from delta_sharing_spark.scan.plan import DeletionVector, FileAccess, FileTask
from delta_sharing_spark.schema.instants import show_seconds
from delta_sharing_spark.storage.answers import is_sure, reason_of
from delta_sharing_spark.storage.locations import Location, parse_location
from delta_sharing_spark.storage.object_source import ObjectSource
from delta_sharing_spark.storage.objects import Storage
from delta_sharing_spark.storage.ranges import ByteSource, Part
from delta_sharing_spark.storage.settings import StorageSettings

_log = logging.getLogger(__name__)

_storages: ProcessCache[tuple[str, StorageSettings], Storage] = ProcessCache(64)


def storage_for(token: StorageToken, settings: StorageSettings) -> Storage:
    """This process's storage for a token.

    Raises:
        CredentialError: The token does not fit its location.
    """
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
        """See ``FileAccess.open``."""
        location = parse_location(task.location)
        return ObjectSource(self.lease(location), location, name=task.id, size=task.size)

    def open_vector(self, task: FileTask, vector: DeletionVector) -> ByteSource:
        """See ``FileAccess.open_vector``."""
        location = parse_location(vector.path)
        name = f"deletion vector {vector.unique_id} of {task.id}"
        return Part(ObjectSource(self.lease(location), location, name=name, size=None), vector.frame)

    def lease(self, location: Location) -> DirectoryLease:
        """The lease of the location that ``location`` lies in.

        Raises:
            CredentialError: It lies in none.
        """
        return DirectoryLease(self, token_covering(self.tokens, location, table=self.table))

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
        """See ``SplitAccess.outlasts_planning``."""
        issuer = self.issuer
        # A carried token may have ended: storage's are then asked for with the driver's, in time.
        is_renewed = issuer is not None and not (isinstance(issuer, SharingIssuer) and issuer.profile.carried)
        return is_renewed or all(time.time() < token.renew_at for token in self.tokens)

    def restricted_to(self, tasks: Iterable[FileTask]) -> DirectoryAccess:
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

    def __init__(self, access: DirectoryAccess, token: StorageToken) -> None:
        self._access = access
        self._token = token

    def storage(self) -> Storage:
        """See ``StorageLease.storage``.

        Raises:
            CredentialError: The token has expired and cannot be renewed.
        """
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

    def refused(self, storage: Storage, location: Location, name: str, refusal: PermissionError, refusals: int) -> None:
        """See ``StorageLease.refused``."""
        issuer = self._access.issuer
        if issuer is None or refusals > MAX_RENEWALS:
            raise self._final(storage, location, name, refusal)
        _log.info("the storage refused %s with the token %s (%s); renewing it", name, storage.credential, refusal)
        if self._token.uuid == storage.credential:
            self._token = self._renewed(issuer, self._token, f"was refused ({reason_of(refusal)})")

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

    def _final(self, storage: Storage, location: Location, name: str, refusal: PermissionError) -> DeltaSharingError:
        """The error of a file that is refused also with a new credential: it is gone, or the credential is too narrow."""
        access, token = self._access, self._token
        others = [sample for sample in access.samples if sample != location and token.location.covers(sample)]
        # Azure answers 404 for what does not exist, whatever a credential may do.
        is_about_scope = is_sure(refusal) or location.kind == "azure"
        is_listed = None if is_about_scope else _is_listed(storage, location)
        if is_listed is False or (
            not is_about_scope and not is_listed and (storage.still_reads_data() or any(map(storage.reads, others)))
        ):
            doubt = "" if is_listed is False else f"; if it is refused again, {_LEFT_OUT} under {token.location}"
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
                f"the storage refused {name} of {access.table} ({reason_of(refusal)}; token {token.uuid}, announced as valid "
                f"until {show_seconds(token.expires)}), and {_NOT_CARRIED}",
                file=name,
            )
        return CredentialError(
            f"the storage refused {name} of {access.table}, also with a new credential ({reason_of(refusal)}; token "
            f"{token.uuid}, valid until {show_seconds(token.expires)}); reload the table, and ask the provider whether the "
            f"credential covers {token.location} if it goes on",
            file=name,
        )


_OR_VACUUMED = (
    "; a credential that may not list is refused likewise what does not exist: if the table was rewritten and vacuumed "
    "since it was loaded, reload it"
)
_LEFT_OUT = "the scope of the credential leaves it out: ask the provider for a credential that may read all objects"
_NOT_CARRIED = (
    "carryProfile=false keeps executors from asking for another; load the table again, or leave carryProfile at true"
)


def _is_listed(storage: Storage, location: Location) -> bool | None:
    """Whether an object is there; None where the credential may not list."""
    directory, _, name = location.key.rpartition("/")
    try:
        return any(listed.name == name for listed in storage.list_from(replace(location, key=directory), name))
    except (PermissionError, FileNotFoundError, DeltaSharingError):
        return None


def paths_of(task: FileTask) -> Iterator[str]:
    """The storage paths a task reads: its file's and its vectors'."""
    yield task.location
    for vector in (task.deletion_vector, task.excluded):
        if vector is not None and vector.storage != "i":
            yield vector.path
