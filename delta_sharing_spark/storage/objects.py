"""Reads the objects of one location with one secret: byte ranges, whole objects, listings; a secret that is refused is renewed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

import requests

from delta_sharing_spark.errors import (
    ConfigError,
    CorruptFileError,
    CredentialError,
    DeltaSharingError,
    FileError,
    FileGoneError,
    NetworkError,
)
from delta_sharing_spark.network.bodies import TruncatedBodyError, read_body, read_start, tells_length
from delta_sharing_spark.network.connections import (
    AddressRefusedError,
    Canceller,
    canceller_here,
    refusing_local_addresses,
)
from delta_sharing_spark.network.http import data_session
from delta_sharing_spark.network.kept_connections import Answer, KeptAnswer, send
from delta_sharing_spark.network.retry import RetryableError, WrongRangeError, retry
from delta_sharing_spark.network.urls import UrlError, host_of, parse_url
from delta_sharing_spark.storage import local_files
from delta_sharing_spark.storage.answers import failure_of
from delta_sharing_spark.storage.clouds import UnreadableAnswer, cloud_for
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.ranges import UNKNOWN_SIZE, Range, check_range
from delta_sharing_spark.storage.secrets import NoSecret, Secret, StorageSettings, fits, settings_for
from delta_sharing_spark.storage.transfer import FileVersion, Transfer, exchange, wrong_bytes

T = TypeVar("T")

#: The most bytes of an object that is read whole (a commit or a checkpoint of the log), of a page of a listing, and of an error.
_LARGEST_OBJECT, _LARGEST_PAGE, _LARGEST_ERROR = 1 << 30, 32 << 20, 64 << 10
#: How often a storage may tell how to ask otherwise: in another region, at another time.
_MOST_CORRECTIONS = 2


class Storage:
    """One location's objects, read with one secret. Safe to call from several threads.

    Paths are ``Location``s; ``what`` names the object in errors. All methods raise:

    * FileNotFoundError: The object does not exist.
    * StorageRefusal (a PermissionError): The storage refuses this credential, or this object.
    * NetworkError: The retries are used up, or a certificate or a proxy refuses.
    * FileError: Anything else the storage answered.
    * ReadCancelled: The reader went away.

    Attributes:
        location: The location it was opened for.
        credential: The uuid of the token it reads with.
        settings: How it is reached.
    """

    def __init__(self, location: Location, secret: Secret, settings: StorageSettings, *, credential: str = "") -> None:
        if not fits(secret, location):
            raise CredentialError(
                f"location {location} takes a credential of kind {location.kind}, but one of kind {secret.kind} was "
                f"given; ask the provider to check the sharing server"
            )
        secret.check()
        self.location = location
        self.credential = credential
        self.settings = settings
        self._cloud = (
            None if isinstance(secret, NoSecret) else cloud_for(secret, settings_for(secret, location, settings))
        )
        #: A data file that was read with the credential, kept alike by those of other settings.
        self._data_read: list[Location] = []

    @property
    def host(self) -> str:
        """How errors name the other end, in the region that is asked by now."""
        if self._cloud is None or self.settings.endpoint:
            return self.settings.endpoint or "this machine"
        return host_of(self._cloud.object_url(self.location))

    def with_settings(self, settings: StorageSettings) -> Storage:
        """The same credential, with other bounds on retries."""
        other = copy.copy(self)
        other.settings = settings
        return other

    def fetch(self, location: Location, transfer: Transfer, canceller: Canceller, *, what: str) -> None:
        """Receive what ``transfer`` is missing of an object; a broken transfer goes on from the byte it reached."""
        if self._cloud is None:
            missing = transfer.missing
            transfer.keep(local_files.read(location, what, missing.start, missing.end))
            return
        self._request(
            "GET",
            self._cloud.object_url,
            location,
            lambda response: transfer.receive(response, canceller),
            what,
            canceller=canceller,
            transfer=transfer,
        )

    def get(
        self, location: Location, start: int | None = None, end: int | None = None, *, what: str = ""
    ) -> bytes | memoryview:
        """A whole object, or its bytes ``[start, end)``; one request, unless it breaks."""
        what = what or str(location)
        if start is not None and end is not None:
            transfer = Transfer(Range(start, end), FileVersion(what, None))
            self.fetch(location, transfer, canceller_here(what), what=what)
            return transfer.data
        if self._cloud is None:
            return local_files.read(location, what)

        def receive(answer: requests.Response) -> bytes:
            data = read_body(answer, _LARGEST_OBJECT)
            if not tells_length(answer.headers) and len(data) != (size := self.info(location, what=what).size):
                raise TruncatedBodyError(
                    f"{len(data)} of {size} bytes came, in an answer that does not tell its length"
                )
            return data

        return self._request("GET", self._cloud.object_url, location, receive, what)

    def info(self, location: Location, *, what: str = "") -> StoredObject:
        """Size and modification time of one object; one request, and never a listing."""
        what = what or str(location)
        if self._cloud is None:
            return local_files.info(location, what)
        cloud = self._cloud

        def receive(answer: requests.Response) -> tuple[int, int]:
            # The body of an answer to HEAD is as long as its headers say of the object, and is not there.
            body = b"" if cloud.info_method == "HEAD" else read_body(answer, _LARGEST_PAGE)
            return cloud.info(answer.headers, body)

        name = location.key.rpartition("/")[2]
        return StoredObject(name, *self._request(cloud.info_method, cloud.info_url, location, receive, what))

    def list_from(self, directory: Location, start_name: str, *, what: str = "") -> list[StoredObject]:
        """The objects right in ``directory`` whose name is ``start_name`` or sorts after it, sorted by name."""
        what = what or str(directory)
        if self._cloud is None:
            return local_files.entries(directory, start_name, what)
        prefix = f"{directory.key}/" if directory.key else ""
        listed: list[StoredObject] = []
        token: str | None = None
        while True:
            entries, token = self.list_page(directory, token, start_name, what=what)
            for key, size, modified in entries:
                name = key[len(prefix) :]
                if key.startswith(prefix) and name and "/" not in name and name >= start_name:
                    listed.append(StoredObject(name, size, modified))
            if token is None:
                return sorted(listed)

    def list_page(
        self, directory: Location, token: str | None, start_name: str = "", *, deep: bool = False, what: str
    ) -> tuple[list[StoredObject], str | None]:
        """One page of what lies right in a directory of a cloud, or anywhere below it, by whole keys; and the next page's token."""
        cloud, prefix = self._cloud, f"{directory.key}/" if directory.key else ""
        assert cloud is not None, "local directories have no pages"
        entries, following = self._request(
            "GET",
            lambda location: cloud.list_url(location, prefix, prefix + start_name, token, deep=deep),
            directory,
            lambda answer: cloud.page(read_body(answer, _LARGEST_PAGE)),
            what,
        )
        if following is not None and following == token:
            raise FileError(
                f"{what}: the storage at {self.host} goes on with the same page of the listing; ask the provider to "
                f"check it",
                file=what,
            )
        return entries, following

    def note_data_read(self, location: Location) -> None:
        """Note that bytes of a data file were read with this credential."""
        if not self._data_read:
            self._data_read.append(location)

    def still_reads_data(self) -> bool:
        """Whether a data file that was read before with this credential can be read now."""
        return any(self.reads(location) for location in self._data_read)

    def reads(self, location: Location) -> bool:
        """Whether a byte of an object can be read now."""
        try:
            self.get(location, 0, 1)
        except (PermissionError, FileNotFoundError, DeltaSharingError):
            return False
        return True

    def _request(
        self,
        method: str,
        url_of: Callable[[Location], str],
        location: Location,
        receive: Callable[[Any], T],
        what: str,
        *,
        canceller: Canceller | None = None,
        transfer: Transfer | None = None,
    ) -> T:
        """Make a request until it is answered for good."""
        cloud, settings, canceller = self._cloud, self.settings, canceller or canceller_here(what)
        assert cloud is not None, "local files are not requested"
        session = data_session(settings)

        def once() -> T:
            way, url = cloud.way, url_of(location)
            headers = {"Accept-Encoding": "identity", **cloud.headers(method, url)}
            if transfer is not None:
                headers["Range"] = transfer.missing.header
            timeout = (settings.connect_timeout, settings.read_timeout)

            def answered(response: Answer) -> T:
                if isinstance(response, KeptAnswer) or response.status_code in (200, 206):
                    try:
                        return receive(response)
                    except UnreadableAnswer as why:
                        if method == "HEAD" or tells_length(response.headers):
                            raise
                        raise TruncatedBodyError(f"{why}, and the answer does not tell its length") from None
                body = b"" if method == "HEAD" else read_start(response, _LARGEST_ERROR)[0]
                if cloud.corrected(response.status_code, response.headers, body) or cloud.way != way:
                    raise _AnotherWay
                raise failure_of(response.status_code, response.headers, body, what=what, method=method, host=self.host)

            def ask() -> Answer:
                # An endpoint that the user names may be on this machine; a location that the server names may not.
                with nullcontext() if settings.endpoint and settings.trusts_endpoint else refusing_local_addresses():
                    # A listing, or an object of the log, has its body decoded.
                    return send(session, method, parse_url(url), headers, timeout, is_decoded=transfer is None)

            return exchange(ask, answered, url=url, settings=settings, canceller=canceller, what=what)

        def attempt() -> T:
            canceller.check()
            for _ in range(_MOST_CORRECTIONS + 1):
                try:
                    return once()
                except _AnotherWay:
                    continue
            raise FileError(
                f"{what}: {self.host} goes on naming other regions or times; set the option storageRegion, and check the "
                f"clock of this machine",
                file=what,
            )

        def sleep(seconds: float) -> None:
            with canceller.watching():
                settings.sleep(seconds)

        try:
            return retry(
                attempt,
                settings,
                reached=lambda: 0 if transfer is None else transfer.arrived,
                sleep=sleep,
                what=what,
            )
        except RetryableError as failure:
            raise self._given_up(failure, what) from None
        except AddressRefusedError as refusal:
            raise FileError(
                f"{what}: the storage at {self.host} leads to {refusal}, an address of this machine or its network; name it in the "
                f"option storageEndpoint if you trust it",
                file=what,
            ) from None
        except UrlError as why:
            raise ConfigError(
                f"{what}: the storage's address cannot be asked: {why}; check the option storageEndpoint, and ask the provider "
                f"where the table lies if it is not set"
            ) from None
        except UnreadableAnswer as why:
            raise FileError(
                f"{what}: the storage at {self.host} answered what its protocol does not have ({why}); look for a proxy in "
                f"between, and ask the provider if there is none",
                file=what,
            ) from None
        except (FileNotFoundError, PermissionError) as refusal:
            raise refusal.with_traceback(
                None
            ) from None  # a read may go on after it, and its frames would hold the bytes

    def _given_up(self, failure: RetryableError, what: str) -> DeltaSharingError:
        host = self.host
        if isinstance(failure, WrongRangeError):
            return wrong_bytes(what, failure, f" at {host}")
        if failure.error is not None:
            return failure.error
        if failure.busy:
            return NetworkError(
                f"{what}: the storage at {host} goes on answering that it is not ready ({failure}); try again later, "
                f"or use accessMode=url if the server offers it",
                host=host,
                busy=True,
            )
        return NetworkError(
            f"{what}: the storage at {host} could not be reached ({failure}); "
            f"check the network from this machine to {host}, or use accessMode=url if the server offers it",
            host=host,
        )


class _AnotherWay(Exception):
    """The storage told how to ask: in another region, at another time."""


class StorageLease(Protocol):
    """A location's storage, whose credential is kept valid."""

    def storage(self) -> Storage:
        """The storage, with a credential that should work now; renewed first if it is about to expire."""

    def refused(self, storage: Storage, location: Location, name: str, refusal: PermissionError, refusals: int) -> None:
        """Prepare another credential, after the storage refused the file ``name`` for the ``refusals``-th time in one read.

        Raises:
            DeltaSharingError: There is no other credential; says what to do.
        """


class ObjectSource:
    """A ``ByteSource`` over a storage.

    Args:
        lease: Gives the storage.
        location: The file.
        name: How errors name it.
        size: Planned bytes; None where the plan does not say.
        is_data: Whether it is a data file, as opposed to one of the log.
    """

    def __init__(
        self, lease: StorageLease, location: Location, *, name: str, size: int | None, is_data: bool = True
    ) -> None:
        self.name = name
        self.size = size if size is not None else UNKNOWN_SIZE
        self._lease = lease
        self._location = location
        self._is_data = is_data
        self._version = FileVersion(name, size)
        self._canceller = Canceller(f"file {name}")

    def read(self, start: int, length: int) -> memoryview:
        """See ``ByteSource.read``; one request, unless it breaks. A transfer goes on from the byte it reached.

        Raises:
            FileGoneError, CorruptFileError, CredentialError, NetworkError, FileError
            ReadCancelled: By ``close``.
        """
        check_range(self, start, length)
        transfer = Transfer(Range(start, start + length), self._version)
        refusals = 0
        while length:
            with self._canceller.watching():
                storage = self._lease.storage()
            try:
                storage.fetch(self._location, transfer, self._canceller, what=f"file {self.name}")
                break
            except FileNotFoundError:
                raise FileGoneError(
                    f"file {self.name}: the storage no longer has it; the table was probably rewritten or vacuumed: "
                    f"reload it",
                    file=self.name,
                ) from None
            except PermissionError as refusal:
                refusals += 1
                with self._canceller.watching():
                    self._lease.refused(storage, self._location, self.name, refusal, refusals)
        if transfer.arrived != length:
            raise CorruptFileError(
                f"file {self.name} has {start + transfer.arrived} bytes, needed were {start + length}; "
                f"it was replaced or is damaged: reload the table",
                file=self.name,
            )
        if self._is_data and length:
            storage.note_data_read(self._location)
        return transfer.data

    def close(self) -> None:
        """Break off reads under way in any thread. Connections belong to the process and stay open."""
        self._canceller.break_off()
