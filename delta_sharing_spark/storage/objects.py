"""Reads the objects of one location with one secret, and local files in the same way: byte ranges, whole objects, listings."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import requests

from delta_sharing_spark.errors import ConfigError, DeltaSharingError, FileError
from delta_sharing_spark.network.bodies import TruncatedBodyError, read_body, tells_length
from delta_sharing_spark.network.connections import Canceller, canceller_here
from delta_sharing_spark.network.urls import UrlError, host_of, parse_url
from delta_sharing_spark.storage.answers import failure_of
from delta_sharing_spark.storage.clouds.contract import Cloud, Secret, UnreadableAnswer
from delta_sharing_spark.storage.clouds.registry import check, cloud_for
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.range_reader import (
    FileVersion,
    HttpWay,
    Lease,
    RangeReader,
    Request,
    StorageSettings,
    Transfer,
)
from delta_sharing_spark.storage.ranges import Range

_T = TypeVar("_T")

#: The most bytes of an object that is read whole (a commit or a checkpoint of the log), and of a page of a listing.
_LARGEST_OBJECT, _LARGEST_PAGE = 1 << 30, 32 << 20


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
        check(secret, location)
        self.location = location
        self.credential = credential
        self.settings = settings
        self._cloud = None if location.is_local else cloud_for(secret, location, settings)
        #: A data file that was read with the credential, kept alike by those of other settings.
        self._data_read: list[Location] = []

    @property
    def host(self) -> str:
        """How errors name the other end, in the region that is asked by now."""
        if self._cloud is None or self.settings.endpoint:
            return self.settings.endpoint or "this machine"
        return host_of(self._cloud.object_url(self.location))

    @property
    def tells_absence(self) -> bool:
        """Whether what does not exist is never answered by a refusal."""
        return self._cloud is not None and self._cloud.tells_absence

    def with_settings(self, settings: StorageSettings) -> Storage:
        """The same credential, with other bounds on retries."""
        other = copy.copy(self)
        other.settings = settings
        return other

    def fetch(self, location: Location, transfer: Transfer, canceller: Canceller, *, what: str) -> None:
        """Receive what ``transfer`` is missing of an object; a broken transfer goes on from the byte it reached."""
        if self._cloud is None:
            missing = transfer.missing
            transfer.keep(_read_file(location, what, missing.start, missing.end))
            return
        cloud = self._cloud
        CloudWay(self, cloud, "GET", lambda: cloud.object_url(location), what).fill(transfer, canceller)

    def get(
        self, location: Location, start: int | None = None, end: int | None = None, *, what: str = ""
    ) -> bytes | memoryview:
        """A whole object, or its bytes ``[start, end)``; one request, unless it breaks."""
        what = what or str(location)
        if start is not None and end is not None:
            transfer = Transfer(Range(start, end), FileVersion(what, None))
            self.fetch(location, transfer, canceller_here(what), what=what)
            return transfer.data
        if (cloud := self._cloud) is None:
            return _read_file(location, what)

        def receive(answer: requests.Response) -> bytes:
            data = read_body(answer, _LARGEST_OBJECT)
            if not tells_length(answer.headers) and len(data) != (size := self.info(location, what=what).size):
                raise TruncatedBodyError(
                    f"{len(data)} of {size} bytes came, in an answer that does not tell its length"
                )
            return data

        return self._request("GET", lambda: cloud.object_url(location), receive, what)

    def info(self, location: Location, *, what: str = "") -> StoredObject:
        """Size and modification time of one object; one request, and never a listing."""
        what = what or str(location)
        if (cloud := self._cloud) is None:
            with _in_our_words(what):
                return StoredObject.of_file(location.key.rpartition("/")[2], os.stat(location.path))

        def receive(answer: requests.Response) -> tuple[int, int]:
            # The body of an answer to HEAD is as long as its headers say of the object, and is not there.
            body = b"" if cloud.info_method == "HEAD" else read_body(answer, _LARGEST_PAGE)
            return cloud.info(answer.headers, body)

        name = location.key.rpartition("/")[2]
        return StoredObject(name, *self._request(cloud.info_method, lambda: cloud.info_url(location), receive, what))

    def list_from(self, directory: Location, start_name: str, *, what: str = "") -> list[StoredObject]:
        """The objects right in ``directory`` whose name is ``start_name`` or sorts after it, sorted by name."""
        what = what or str(directory)
        if self._cloud is None:
            return _files_in(directory, start_name, what)
        prefix = f"{directory.key}/" if directory.key else ""
        objects: list[StoredObject] = []
        token: str | None = None
        while True:
            entries, token = self.list_page(directory, token, start_name, what=what)
            for key, size, modified in entries:
                name = key[len(prefix) :]
                if key.startswith(prefix) and name and "/" not in name and name >= start_name:
                    objects.append(StoredObject(name, size, modified))
            if token is None:
                return sorted(objects)

    def list_page(
        self, directory: Location, token: str | None, start_name: str = "", *, deep: bool = False, what: str
    ) -> tuple[list[StoredObject], str | None]:
        """One page of what lies right in a directory of a cloud, or anywhere below it, by whole keys; and the next page's token."""
        cloud, prefix = self._cloud, f"{directory.key}/" if directory.key else ""
        assert cloud is not None, "local directories have no pages"
        entries, following = self._request(
            "GET",
            lambda: cloud.list_url(directory, prefix, prefix + start_name, token, deep=deep),
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

    def _request(self, method: str, url_of: Callable[[], str], receive: Callable[[Any], _T], what: str) -> _T:
        """Make a request until it is answered for good."""
        assert self._cloud is not None, "local files are not requested"

        def readable(answer: requests.Response) -> _T:
            try:
                return receive(answer)
            except UnreadableAnswer as why:
                if method == "HEAD" or tells_length(answer.headers):
                    raise
                raise TruncatedBodyError(f"{why}, and the answer does not tell its length") from None

        try:
            return CloudWay(self, self._cloud, method, url_of, what).ask(readable, canceller_here(what))
        except UnreadableAnswer as why:
            raise FileError(
                f"{what}: the storage at {self.host} answered what its protocol does not have ({why}); look for a proxy in "
                f"between, and ask the provider if there is none",
                file=what,
            ) from None


class CloudWay(HttpWay):
    """The way of one request to a cloud: in the region and at the time that it says.

    Args:
        storage: What is asked.
        cloud: Makes its requests.
        method: ``GET`` or ``HEAD``.
        url_of: Makes the URL, anew after each correction.
        what: How errors name what is read.
    """

    most_corrections = 2
    endless = "{host} goes on naming other regions or times; set the option storageRegion, and check the clock of this machine"
    unreachable = (
        "the storage at {host} could not be reached ({failure}); check the network from this machine to {host}, "
        "or use accessMode=url if the server offers it"
    )
    not_ready = (
        "the storage at {host} goes on answering that it is not ready ({failure}); try again later, "
        "or use accessMode=url if the server offers it"
    )

    def __init__(self, storage: Storage, cloud: Cloud, method: str, url_of: Callable[[], str], what: str) -> None:
        super().__init__(storage.settings, what)
        self._storage, self._cloud, self._method, self._url_of = storage, cloud, method, url_of

    @property
    def host(self) -> str:
        return self._storage.host

    def request(self, headers: Mapping[str, str]) -> Request:
        cloud, settings = self._cloud, self.settings
        corrections, url = cloud.corrections, self._url_of()
        try:
            parts = parse_url(url)
        except UrlError as why:
            raise ConfigError(
                f"{self.what}: the storage's address cannot be asked: {why}; check the option storageEndpoint, and ask the "
                f"provider where the table lies if it is not set"
            ) from None
        # An endpoint that the user names may be on this machine; a location that the server names may not.
        may_be_local = settings.endpoint is not None and settings.trusts_endpoint
        all_headers = {**headers, **cloud.headers(self._method, url)}
        return Request(self._method, parts, all_headers, may_be_local, (corrections, headers))

    def corrected(self, request: Request, answer: requests.Response, body: Callable[[], bytes]) -> Request | None:
        cloud = self._cloud
        corrections, headers = request.state
        if cloud.corrected(answer.status_code, answer.headers, body()) or cloud.corrections != corrections:
            return self.request(headers)
        return None

    def failure(self, request: Request, answer: requests.Response, body: bytes) -> Exception:
        return failure_of(answer.status_code, answer.headers, body, what=self.what, method=self._method, host=self.host)

    def address_refused(self, request: Request, address: str) -> DeltaSharingError:
        return FileError(
            f"{self.what}: the storage at {self.host} leads to {address}, an address of this machine or its network; name "
            f"it in the option storageEndpoint if you trust it",
            file=self.what,
        )


def object_reader(
    lease: Lease[Storage], location: Location, *, name: str, size: int | None, is_data: bool = True
) -> RangeReader[Storage]:
    """A ``ByteSource`` over a storage.

    Args:
        lease: Gives the storage.
        location: The file.
        name: How errors name it.
        size: Planned bytes; None where the plan does not say.
        is_data: Whether it is a data file, as opposed to one of the log.
    """

    def fill(storage: Storage, transfer: Transfer, canceller: Canceller) -> None:
        storage.fetch(location, transfer, canceller, what=f"file {name}")
        if is_data:
            storage.note_data_read(location)

    return RangeReader(lease, fill, FileVersion(name, size))


def _read_file(location: Location, what: str, start: int = 0, end: int | None = None) -> bytes:
    """The bytes ``[start, end)`` of a local file, as many of them as it has; all of it by default."""
    with _in_our_words(what), open(location.path, "rb") as file:
        file.seek(start)
        return file.read(-1 if end is None else end - start)


def _files_in(directory: Location, start_name: str, what: str) -> list[StoredObject]:
    """The files right in a directory whose name is ``start_name`` or sorts after it, sorted; none where it does not exist."""
    try:
        with _in_our_words(what), os.scandir(directory.path) as directory_entries:
            files = [entry for entry in directory_entries if entry.name >= start_name and entry.is_file()]
            return sorted(StoredObject.of_file(entry.name, entry.stat()) for entry in files)
    except FileNotFoundError:
        return []


@contextmanager
def _in_our_words(what: str) -> Iterator[None]:
    """Turns what the system says of local files into errors of ``Storage``."""
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except OSError as error:
        raise FileError(
            f"{what}: {os.strerror(error.errno or 0)} ({type(error).__name__}); look for the cause on this machine",
            file=what,
        ) from None
