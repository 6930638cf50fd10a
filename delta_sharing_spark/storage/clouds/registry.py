"""Lists the clouds, one a line, and finds the cloud of a location, of a secret and of a field of the wire; loads that one alone."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from delta_sharing_spark.errors import AccessModeError, CredentialError
from delta_sharing_spark.storage.locations import Location

if TYPE_CHECKING:
    from delta_sharing_spark.storage.clouds.contract import Cloud, Secret
    from delta_sharing_spark.storage.range_reader import StorageSettings

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


class Entry(NamedTuple):
    """What is decided before a cloud's module is loaded.

    Attributes:
        path: The module and the subclass of ``Cloud``: ``module:Class``.
        schemes: Of its locations, in lower case.
        wire_field: The object that holds its secret in the sharing server's answer ("TemporaryCredentials").
    """

    path: str
    schemes: tuple[str, ...]
    wire_field: str


_HERE = __name__.rpartition(".")[0]
#: By the kind of credential.
CLOUDS: dict[str, Entry] = {
    "aws": Entry(f"{_HERE}.s3:S3", ("s3", "s3a", "s3n"), "awsTempCredentials"),
    "r2": Entry(f"{_HERE}.r2:R2", ("r2",), "r2Credentials"),
    "azure": Entry(f"{_HERE}.azure:Azure", ("abfss", "abfs", "wasbs", "wasb"), "azureUserDelegationSas"),
    "gcp": Entry(f"{_HERE}.gcs:Google", ("gs",), "gcpOauthToken"),
}


def cloud_of(kind: str) -> type[Cloud]:
    """The cloud of a kind of credential; its module is loaded with the first call."""
    return _load(CLOUDS[kind].path)


@lru_cache(maxsize=32)
def _load(path: str) -> type[Cloud]:
    module, _, name = path.partition(":")
    cloud: type[Cloud] = getattr(import_module(module), name)
    return cloud


def cloud_for(secret: Secret, location: Location, settings: StorageSettings) -> Cloud:
    """The requests of a secret's cloud for a location; raises CredentialError where nothing tells where they may go."""
    cloud = cloud_of(secret.kind)
    return cloud(secret, cloud.settings_for(location, settings))


def all_clouds() -> list[type[Cloud]]:
    """All of them, for error answers: nothing tells the cloud of a presigned URL."""
    return [cloud_of(kind) for kind in CLOUDS]


def kinds_on_wire() -> dict[str, str]:
    """The kinds of credentials, by the fields that hold them in the sharing server's answer."""
    return {entry.wire_field: kind for kind, entry in CLOUDS.items()}


def check(secret: Secret, location: Location) -> None:
    """Raise CredentialError if a secret is not for a location's cloud, or a part of it is empty or malformed."""
    cloud = cloud_of(secret.kind) if secret.kind in CLOUDS else None
    if location.kind != secret.kind and (cloud is None or location.kind not in cloud.also_for):
        raise CredentialError(
            f"the credential for {location} is of kind {secret.kind}, but its scheme {location.scheme!r} takes "
            f"{location.kind}; ask the provider to check the sharing server"
        )
    if cloud is not None:
        cloud.check(secret.parts, CLOUDS[secret.kind].wire_field)


def kind_of(scheme: str) -> str | None:
    """The kind of credential that locations of a scheme take; None where they are not read."""
    for kind, entry in CLOUDS.items():  # once a file: sooner than by an expression
        if scheme in entry.schemes:
            return kind
    return "local" if scheme == "file" else None


def schemes() -> str:
    """The schemes that are read, for errors."""
    return ", ".join((*(scheme for entry in CLOUDS.values() for scheme in entry.schemes), "file"))


def scheme_of(location: str) -> str:
    """The scheme in lower case; a bare absolute path is ``file``; empty if there is none."""
    if location.startswith("/"):
        return "file"
    match = _SCHEME.match(location)
    return match[1].lower() if match else ""


def parse_location(text: str) -> Location:
    """Parse a location.

    Raises:
        AccessModeError: Directory access does not read its scheme.
        CredentialError: It is malformed, or has ``.`` or ``..`` segments (a prefix check could be walked around).
    """
    scheme = scheme_of(text)
    kind = kind_of(scheme)
    if kind is None:
        raise AccessModeError(
            f"location {text!r} has the scheme {scheme or 'none'!r}, which directory access does not read "
            f"(it reads {schemes()}); use accessMode=url if the server offers it",
            location=text,
        )
    rest = text if text.startswith("/") else text[len(scheme) + 1 :]
    if kind == "local":
        return _local(text, rest)
    if not rest.startswith("//"):
        raise _malformed(text, f"expected {scheme}://...")
    authority, _, key = rest[2:].partition("/")
    key = key.rstrip("/")
    _refuse_dots(text, key)
    try:
        container, host, service = cloud_of(kind).parse_authority(scheme, authority)
    except ValueError as why:
        raise _malformed(text, str(why)) from None
    return Location(scheme, kind, container, host, key, service)


def _local(text: str, rest: str) -> Location:
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise _malformed(text, "it names a file on another host")
        rest = "/" + path
    if not rest.startswith("/"):
        raise _malformed(text, "expected file:///<absolute path>")
    key = rest.strip("/")
    _refuse_dots(text, key)
    return Location("file", "local", "", "", key)


def _refuse_dots(text: str, key: str) -> None:
    if any(segment in (".", "..") for segment in key.split("/")):
        raise _malformed(text, "it has . or .. segments")


def _malformed(text: str, why: str) -> CredentialError:
    return CredentialError(
        f"location {text!r} cannot be used: {why}; ask the provider to correct the table's location", location=text
    )
