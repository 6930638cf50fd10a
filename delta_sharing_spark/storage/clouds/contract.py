"""Defines what each cloud is to this package: its locations, its secret, its requests, its answers, and how other engines name it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple
from urllib.parse import quote

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.network.bodies import declared_length
from delta_sharing_spark.network.http import json_object, parse_count
from delta_sharing_spark.network.retry import http_seconds
from delta_sharing_spark.schema.instants import parse_instant, to_millis
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.range_reader import StorageSettings

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Engine = Literal["fsspec", "deltalake", "polars", "duckdb"]
#: What a refusal says: the credential has ended; it is not (or no longer) accepted; or this request is not allowed with it.
Refused = Literal["ended", "credential", "request"]
#: Buckets, as S3 and Google name them.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,221}")


class UnreadableAnswer(ValueError):
    """An answer that is not what the cloud's protocol says; the text says why."""


class Cause(NamedTuple):
    """What some error answers mean beyond their status.

    Attributes:
        meaning, action: Why (empty where that is not certain), and what to do.
        refused: What such an answer refuses; None where neither another credential nor another try mends it.
    """

    meaning: str
    action: str
    refused: Refused | None = None


ARCHIVED = Cause(
    "it is archived", "ask the provider to restore it, and to keep the files of shared tables out of the archive"
)
NO_CONTAINER = Cause(
    "its bucket or container does not exist there",
    "ask the provider where the table lies, and check the option storageEndpoint if it is set",
)
DISABLED = Cause("the provider's storage account is disabled", "ask the provider")
REQUESTER_PAYS = Cause(
    "whoever reads the bucket is to pay for it (requester pays), which this reader cannot",
    "ask the provider to turn that off for recipients",
)
NO_KEY = Cause(
    "the key that it is encrypted with cannot be used", "ask the provider to look at the state of the key (KMS)"
)
WRITERS_KEY = Cause(
    "it is encrypted with a key that only its writer has (SSE-C, a customer-provided key)",
    "ask the provider to store shared tables under keys of the storage itself",
)
REFUSED_KEY = Cause(
    "the credential may not use the key that it is encrypted with (KMS)",
    "ask the provider to allow that, or use accessMode=url if the server offers it",
    "credential",
)


@dataclass(frozen=True, slots=True)
class Secret:
    """What a storage credential consists of, which no repr shows.

    Attributes:
        kind: Of its cloud, by the registry; ``local`` for none.
        parts: By their names on the wire.
    """

    kind: str
    parts: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


#: Local files need none.
NO_SECRET = Secret("local")


class Cloud(ABC):
    """One cloud, and its requests with one credential. URLs hold all that is asked for; ``headers`` are made for each request.

    Attributes:
        parts: The parts of its secret, by their names on the wire.
        alphabet: What each may consist of: no white space, nothing that ends a header.
        optional: The parts that servers may leave out.
        also_for: Other kinds of locations that its secret is for.
        info_method: How an object's size and time are asked for.
        tells_absence: Whether it answers 404 for what does not exist, whatever the credential may do.
        ended_codes, credential_codes: Error codes by which a credential has ended or is not accepted, whatever the status.
        transient: Error codes of statuses that are otherwise final.
        causes: What error answers mean, by an expression that is found in the code, a line break and the body; the first one counts.
        end_text: What bodies say of a credential that has ended: a whole sentence, for a key may have any word in it.
    """

    parts: ClassVar[tuple[str, ...]]
    alphabet: ClassVar[re.Pattern[str]] = re.compile(r"[!-~]+")
    optional: ClassVar[frozenset[str]] = frozenset()
    also_for: ClassVar[tuple[str, ...]] = ()
    info_method: ClassVar[str] = "HEAD"
    tells_absence: ClassVar[bool] = False
    ended_codes: ClassVar[frozenset[str]] = frozenset()
    credential_codes: ClassVar[frozenset[str]] = frozenset()
    transient: ClassVar[frozenset[str]] = frozenset()
    causes: ClassVar[tuple[tuple[str, Cause], ...]] = ()
    end_text: ClassVar[str | None] = None

    @classmethod
    def parse_authority(cls, scheme: str, authority: str) -> tuple[str, str, str]:
        """The bucket or container of a location, the host that it names, and the host that serves it; both empty for none.

        Raises:
            ValueError: It is malformed; says why.
        """
        if not _BUCKET.fullmatch(authority):
            raise ValueError(f"expected {scheme}://<bucket>/<path>")
        return authority, "", ""

    @classmethod
    def parts_of(cls, fields: Mapping[str, str | None]) -> dict[str, str]:
        """The parts of a secret by what a server sent, not yet checked."""
        return {
            name: (fields.get(name) or "").strip()
            for name in cls.parts
            if name not in cls.optional or fields.get(name) is not None
        }

    @classmethod
    def check(cls, parts: Mapping[str, str], name: str) -> None:
        """Raise CredentialError if a part is empty, or has characters that cannot stand in it; ``name`` is the secret's."""
        for part in cls.parts:
            value = parts.get(part, "")
            if cls.alphabet.fullmatch(value) or (part in cls.optional and part not in parts):
                continue
            why = (
                "has characters that cannot stand there;"
                if value.strip()
                else "is empty; nothing else is used in its place:"
            )
            raise CredentialError(
                f"the sharing server issued a credential whose {name}.{part} {why} ask the provider to check the sharing server"
            )

    @classmethod
    def iceberg_properties(cls, location: Location) -> Iterable[tuple[Mapping[str, str], str]]:
        """The properties by which Iceberg's catalogs name the parts, and that of its end in milliseconds; the first set counts."""
        return ()

    @classmethod
    def settings_for(cls, location: Location, settings: StorageSettings) -> StorageSettings:
        """The settings by which its secrets are shown to a location; raises CredentialError where nothing tells its host."""
        return settings

    @classmethod
    def code_of(cls, status: int, headers: Mapping[str, str]) -> str:
        """The error code of an answer without a body; empty for none."""
        return ""

    @abstractmethod
    def __init__(self, secret: Secret, settings: StorageSettings) -> None: ...

    @abstractmethod
    def object_url(self, location: Location) -> str:
        """Where an object's bytes are."""

    @abstractmethod
    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        """One page of the objects right under a prefix, from the key ``start`` on where the cloud can begin there.

        ``deep`` asks for all objects under it, and for no directories.
        """

    @abstractmethod
    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        """The objects and directories of a page, and the next page's token; raises UnreadableAnswer."""

    def info_url(self, location: Location) -> str:
        """Where an object's size and time are; the permission to read it is enough."""
        return self.object_url(location)

    def info(self, headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
        """An object's size in bytes, and its modification time in milliseconds; raises UnreadableAnswer."""
        return size_and_time(declared_length(headers), headers.get("last-modified", ""))

    def headers(self, method: str, url: str) -> dict[str, str]:
        """The headers that show the credential."""
        return {}

    @property
    def corrections(self) -> object:
        """What answers have corrected of the requests; other threads may be answered first."""
        return None

    def corrected(self, status: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether an error answer says what to do otherwise, so that the next request is made another way."""
        return False

    def engine_options(self, engine: Engine, location: Location) -> dict[str, Any]:
        """The credential as an engine's storage options; raises CredentialError where it takes none."""
        raise CredentialError(
            f"{engine} cannot take the credential for {location}; use accessMode=url or dir of this package"
        )

    def hadoop_options(self, location: Location, expires: float, token_provider: str | None) -> dict[str, str]:
        """The credential as Hadoop's configuration; raises CredentialError where Hadoop takes none.

        Args:
            expires: When it ends, in seconds since the epoch.
            token_provider: The Java class that hands a token over, where the connector has none.
        """
        raise CredentialError(
            f"Hadoop cannot take the credential for {location}; use accessMode=url or dir of this package"
        )

    @classmethod
    def engine_uri(cls, location: Location, scheme: str) -> str:
        """A location as other engines write it; ``scheme`` is theirs for S3."""
        return str(location)


def query_text(parameters: Mapping[str, str]) -> str:
    """A query as signatures want it: sorted, and everything but unreserved characters encoded."""
    return "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(parameters.items()))


def delimiter(deep: bool) -> dict[str, str]:
    """The parameter of a listing that leaves out what lies deeper."""
    return {} if deep else {"delimiter": "/"}


def entry(key: object, size: object, time: object) -> StoredObject:
    """An object of a page; raises UnreadableAnswer where it has no key, size or time."""
    return StoredObject(object_key(key), *size_and_time(size, time))


def object_key(text: object) -> str:
    """An object's key; raises UnreadableAnswer where it has none."""
    if not isinstance(text, str) or not text:
        raise UnreadableAnswer("an object has no name")  # left out, it would be one fewer
    return text


def xml_root(body: bytes, name: str) -> Element:
    """The root of an XML body, which must be of a name; raises UnreadableAnswer."""
    import xml.etree.ElementTree as ElementTree

    if b"<!DOCTYPE" in body:
        raise UnreadableAnswer("it defines entities")
    try:
        root = ElementTree.fromstring(body)  # noqa: S314  what could expand was refused above
    except ElementTree.ParseError:
        raise UnreadableAnswer("it is no XML") from None
    if root.tag.rpartition("}")[2] != name:
        raise UnreadableAnswer(f"it is no {name}")
    return root


def xml_text(element: Element, name: str) -> str:
    """The text of a child, whatever its namespace; empty for none."""
    return element.findtext(f"{{*}}{name}") or ""


def json_body(body: bytes) -> dict[str, Any]:
    """The object that a JSON body holds; raises UnreadableAnswer."""
    tree = json_object(body)
    if tree is None:
        raise UnreadableAnswer("it is no JSON object")
    return tree


def size_and_time(size: object, time: object) -> tuple[int, int]:
    """A size, and a time in milliseconds, which some clouds write as ISO 8601 has it, and others as HTTP."""
    count, instant = parse_count(str(size)), parse_instant(str(time))
    if count is None:
        raise UnreadableAnswer("a size is missing" if size is None else f"a size is {str(size)[:50]!r}")
    if instant is not None:
        return count, to_millis(instant)
    seconds = http_seconds(str(time))
    if seconds is None:
        raise UnreadableAnswer(f"a time is {str(time)[:50]!r}")
    return count, int(seconds * 1000)
