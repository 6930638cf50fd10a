"""Reads profiles: a server's address and the recipient's credentials (protocol, "Profile File Format"; version 2 by usage)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from delta_sharing_spark.errors import DeltaSharingError, ProfileError
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.options.values import camel_case
from delta_sharing_spark.schema.instants import parse_instant
from delta_sharing_spark.sharing.identity import (
    Identity,
    KeyConsent,
    from_environment,
    identity_of,
    is_header_text,
    key_consent,
)
from delta_sharing_spark.sharing.private_key import PrivateKey, read_key
from delta_sharing_spark.storage.locations import local_file
from delta_sharing_spark.storage.user_files import decoded

#: The environment variable that holds a profile's path, or the profile's JSON itself.
ENVIRONMENT = "DELTA_SHARING_PROFILE"
_NEWEST = 2
#: Bytes of a profile.
LARGEST_PROFILE = 1 << 20
_ADVICE = "ask the provider of the share for a valid profile file"
#: Names by which a profile would have this machine run something, read something or ask for its identity; without signs and case.
_STARTS_SOMETHING = re.compile(
    r"identity|tokenexchange|subjecttoken|^exec|(command|cmd|executable|script|helper|credentialprocess|credentialsource)$"
    r"|(token|secret|password|credentials?|assertion)(file|path|variable|env|environment|source|provider)$"
)
_PRIVATE_KEY = "oauth_jwt_bearer_private_key_jwt"
#: What profiles of version 2 need beside their endpoint, by their types.
_NEEDED = {
    "basic": ("username", "password"),
    "oauth_client_credentials": ("token_endpoint", "client_id", "client_secret"),
    _PRIVATE_KEY: ("token_endpoint", "client_id", "issuer", "audience"),
}
#: Types of profiles that mean the same.
_IDENTITY_TYPE = re.compile(r"identity|exec|command|file|oidc|federat|workload|environment|exchange")


@dataclass(frozen=True, slots=True)
class Profile:
    """A recipient's profile. ``type`` is ``bearer_token``, ``basic``, ``oauth_client_credentials`` or
    ``oauth_jwt_bearer_private_key_jwt``, or ``identity`` where the recipient asked for one; only that type's fields are set.
    Secrets stay out of its ``repr``. ``carried`` tells what issued the token, where it holds no more than that, for
    executors. It is ``carryProfile=token``, or an identity, which renews in the driver's process and is not pickled
    with the profile. ``iceberg_endpoint`` is the address of the Iceberg catalog of the same shares (OpenSharing)."""

    endpoint: str
    type: str = "bearer_token"
    version: int = 1
    bearer_token: str | None = field(default=None, repr=False)
    expiration_time: str | None = None
    token_endpoint: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    issuer: str | None = None
    audience: str | None = None
    private_key: PrivateKey | None = field(default=None, repr=False)
    identity: Identity | None = None
    carried: str | None = None
    iceberg_endpoint: str | None = None

    @property
    def share_credentials_version(self) -> int:
        """The version, as the reference client names it."""
        return self.version

    @staticmethod
    def read_from_file(profile: str | Path | IO[Any]) -> Profile:
        """The profile of a file, by its path or open; raises ProfileError as ``load_profile``."""
        return load_profile(profile_source(profile))

    @staticmethod
    def from_json(json: str | bytes | Mapping[str, Any]) -> Profile:
        """The profile of its JSON, or of the fields of it; raises ProfileError as ``load_profile``."""
        return load_profile(json.decode() if isinstance(json, bytes) else json)

    def __reduce__(self) -> tuple[Any, ...]:
        carried = (
            replace(self, type="bearer_token", identity=None) if self.carried and self.identity is not None else self
        )
        return Profile, tuple(getattr(carried, field.name) for field in fields(carried))

    @property
    def expires(self) -> datetime | None:
        """When the bearer token ends (aware, UTC), if the profile says."""
        return parse_instant(self.expiration_time) if self.expiration_time else None

    @property
    def recipient(self) -> str:
        """The recipient's identity, which is no secret: the user, the OAuth client, where an identity's
        tokens come from, or a digest of the bearer token."""
        if self.identity is not None:
            source = repr((self.identity, self.identity.source))
            return f"{self.type}\n{hashlib.sha256(source.encode()).hexdigest()}"
        identity = (self.type, self.username or "", self.token_endpoint or "", self.client_id or "", self.issuer or "")
        token = hashlib.sha256(self.bearer_token.encode()).hexdigest() if self.bearer_token else ""
        return "\n".join((*identity, token))


def profile_source(source: Any) -> Any:
    """What ``load_profile`` takes, of what the reference client takes as well: an open file, which is its path where it has one."""
    if not hasattr(source, "read"):
        return source
    path = getattr(source, "name", None)
    if isinstance(path, str) and os.path.isfile(path):
        return os.path.abspath(path)
    text = source.read()
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text


def profile_of(source: Any) -> Profile:
    """A profile of ours, or the reference client's by its fields."""
    if isinstance(source, Profile):
        return source
    if not hasattr(source, "share_credentials_version"):
        return load_profile(profile_source(source))
    names = {"share_credentials_version", "type", *(field.name for field in fields(Profile))} - {
        "private_key",
        "version",
    }
    values = {camel_case(name): value for name in names if (value := getattr(source, name, None)) is not None}
    return profile_from_fields(values, "the profile")


def load_profile(
    source: str | Path | Mapping[str, Any], identity: Identity | None = None, key: KeyConsent | None = None
) -> Profile:
    """Load a profile.

    Args:
        source: A path (local, ``~``, ``dbfs:/``, any fsspec URL), the JSON text itself, or its fields.
        identity: What the recipient asked for by options: it takes the place of the profile's credentials.
        key: What the recipient lets it do with a private key; by default what the environment does.

    Raises:
        ProfileError: Missing, unreadable, malformed, of a newer version, or of an endpoint that the recipient did not allow.
    """
    if isinstance(source, Mapping):
        return profile_from_fields(source, "the profile", identity, key)
    text = str(source).removeprefix("\ufeff").strip()
    if not text:
        raise ProfileError(
            f"the profile is empty text; give a path or the JSON, or leave it out to take that of {ENVIRONMENT}"
        )
    if text.startswith("{"):
        return profile_from_fields(_json_object(text, "the profile"), "the profile", identity, key)
    name = f"the profile {text}"
    fields_of_file = _json_object(_read(text), name)
    # In this machine's own file system, and not in a store that is mounted or asked.
    is_local_file = not text.startswith("dbfs:") and _local(text) is not None
    return profile_from_fields(fields_of_file, name, identity, key, is_local_file=is_local_file)


def profile_by(options: ReadOptions, source: str | Path | Mapping[str, Any] | Profile | None) -> Profile | None:
    """The profile of ``source``, else of the environment, with the identity and the key that options ask for; None without any.

    Raises:
        ProfileError: As ``load_profile``.
    """
    identity, key = identity_of(options), key_consent(options)
    if isinstance(source, Profile):
        if identity is None:
            return source
        source = {"shareCredentialsVersion": source.version, "endpoint": source.endpoint}
    return profile_from_environment(identity, key) if source is None else load_profile(source, identity, key)


def profile_from_environment(identity: Identity | None = None, key: KeyConsent | None = None) -> Profile | None:
    """The profile that ``DELTA_SHARING_PROFILE`` names or holds, else the endpoint of an identity; None without either.

    Args:
        identity: What the recipient asked for by options; by default what the environment asks for.
        key: As for ``load_profile``.

    Raises:
        ProfileError: As ``load_profile``.
    """
    text = os.environ.get(ENVIRONMENT, "").strip()
    if text:
        return load_profile(text, identity, key)
    identity = identity or from_environment(identity_of)
    return None if identity is None else Profile(identity.endpoint, "identity", identity=identity)


def profile_from_fields(
    fields: Mapping[str, Any],
    name: str,
    identity: Identity | None = None,
    key: KeyConsent | None = None,
    *,
    is_local_file: bool = False,
) -> Profile:
    """A profile from its fields; unknown ones are ignored. Errors call it by ``name``.

    Args:
        name: What errors call it.
        identity: As for ``load_profile``. A profile without credentials takes the one that the environment asks for.
        key: As for ``load_profile``.
        is_local_file: Whether they are from a file of this machine, whose private key the recipient may confirm.

    Raises:
        ProfileError: A field is missing or malformed, or the version or type is unknown. Or the profile names a
        command, a file or an identity, or an endpoint that the recipient did not allow.
    """
    _refuse_to_start(fields, name)
    profile = _from_fields(fields, name, identity)
    if profile.type == _PRIVATE_KEY:
        signing = _object(_object(fields.get("auth"), "auth", name).get("privateKey"), "auth.privateKey", name)
        _required(signing, "keyId", name)
        consent = key or from_environment(key_consent)
        uses = {
            "endpoint": profile.endpoint,
            "token_endpoint": profile.token_endpoint or "",
            "audience": profile.issuer or "",
        }
        profile = replace(profile, private_key=read_key(signing, consent, name, **uses, is_local_file=is_local_file))
    catalog = _optional(fields, "icebergEndpoint", name)
    return profile if catalog is None else replace(profile, iceberg_endpoint=catalog.strip().rstrip("/"))


def _from_fields(fields: Mapping[str, Any], name: str, identity: Identity | None) -> Profile:
    version = _version(fields, name)
    kind = str(fields.get("type") or "bearer_token").strip().lower()
    endpoint = _required(fields, "endpoint", name).strip().rstrip("/")
    if identity is None and kind == "bearer_token" and "bearerToken" not in fields:
        identity = from_environment(identity_of)
    if identity is not None:
        if not identity.allows(endpoint):
            raise ProfileError(
                f"{name} names the endpoint {endpoint}, and the token of {identity} may be shown to {identity.endpoint} only: no "
                f"token was asked for; set identityEndpoint to the other one if you trust it"
            )
        return Profile(endpoint, "identity", version, identity=identity)
    if kind == "bearer_token":
        token, end = _required(fields, "bearerToken", name).strip(), fields.get("expirationTime")
        if not is_header_text(token):
            raise ProfileError(
                f"'bearerToken' in {name} has characters that no token has, such as a line break; {_ADVICE}"
            )
        return Profile(endpoint, kind, version, bearer_token=token, expiration_time=str(end) if end else None)
    if version < 2:
        raise ProfileError(f"{name}: type {kind!r} needs shareCredentialsVersion 2, it says {version}; {_ADVICE}")
    if kind in _NEEDED:
        return _profile_of(kind, fields, name, endpoint, version)
    if _IDENTITY_TYPE.search(kind):
        raise ProfileError(f"{name} is of type {kind!r}; {_ASK_YOURSELF}")
    raise ProfileError(f"{name}: the type {kind!r} is unknown; upgrade delta-sharing-spark, or {_ADVICE}")


_ASK_YOURSELF = (
    "a profile, which others write, starts no command, reads no token's file and asks for no identity of yours: leave that out, "
    "and ask for it yourself by an option (bearerTokenFile, bearerTokenCommand, identity) with identityEndpoint"
)


def _refuse_to_start(fields: Mapping[str, Any], name: str) -> None:
    """Refuse a profile that names a command, a file with a token or an identity, however deep and in whatever spelling."""
    waiting: list[Any] = [fields]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            for key in map(str, value):
                if _STARTS_SOMETHING.search("".join(c for c in key.lower() if c.isalnum())):
                    raise ProfileError(f"{name} has the field {key[:100]!r}; {_ASK_YOURSELF}")
            waiting.extend(value.values())
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)


def _profile_of(kind: str, fields: Mapping[str, Any], name: str, endpoint: str, version: int) -> Profile:
    """A profile of version 2, with what its type needs."""
    holder = _object(fields.get("auth"), "auth", name) if kind == _PRIVATE_KEY else fields
    values: dict[str, Any] = {field: _required(holder, camel_case(field), name) for field in _NEEDED[kind]}
    if "token_endpoint" in values:  # as it stands: one that ends in a slash may be another one
        values["token_endpoint"] = values["token_endpoint"].strip()
    scope = None if kind == "basic" else _optional(holder, "scope", name)
    return Profile(endpoint, kind, version, **values, scope=scope)


def _object(value: Any, key: str, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ProfileError(f"Cannot find the {key!r} field in {name}; {_ADVICE}")
    return value


def _version(fields: Mapping[str, Any], name: str) -> int:
    raw = fields.get("shareCredentialsVersion")
    if raw is None:
        raise ProfileError(f"Cannot find the 'shareCredentialsVersion' field in {name}; {_ADVICE}")
    try:
        version = int(raw) if not isinstance(raw, (bool, float)) else -1
    except (TypeError, ValueError):
        version = -1
    if version < 1:
        raise ProfileError(f"'shareCredentialsVersion' in {name} is {raw!r}, not a version number; {_ADVICE}")
    if version > _NEWEST:
        raise ProfileError(
            f"'shareCredentialsVersion' in {name} is {version} which is too new, this release reads up to {_NEWEST}; "
            f"upgrade delta-sharing-spark"
        )
    return version


def _required(fields: Mapping[str, Any], key: str, name: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ProfileError(f"Cannot find the {key!r} field in {name}; {_ADVICE}")
    return _encodable(value, key, name)


def _optional(fields: Mapping[str, Any], key: str, name: str) -> str | None:
    value = fields.get(key)
    return _encodable(value, key, name) if isinstance(value, str) and value else None


def _encodable(value: str, key: str, name: str) -> str:
    """Refuse half a character, which JSON may escape (``\\ud800``) but no header, form or URL can carry."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ProfileError(f"{key!r} in {name} is not valid text; {_ADVICE}") from None
    return value


def _json_object(text: str, name: str) -> dict[str, Any]:
    try:
        fields: Any = json.loads(text)
    except json.JSONDecodeError as error:
        # Not the text around it, which may be the token.
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise ProfileError(f"{name} is not valid JSON ({where}); mend it there, or {_ADVICE}") from None
    except (ValueError, RecursionError):
        raise ProfileError(f"{name} is not valid JSON; {_ADVICE}") from None
    if not isinstance(fields, dict):
        raise ProfileError(f"{name} is not a JSON object; {_ADVICE}")
    return fields


def _read(path: str) -> str:
    try:
        data = _bytes(path)
    except FileNotFoundError:
        raise ProfileError(f"the profile {path} does not exist{_meant(path)}; check its path") from None
    except DeltaSharingError as error:
        raise ProfileError(f"the profile {path} cannot be read: {error}") from None
    # What cloud file systems raise has no common root (botocore, azure, aiohttp); it all means: not readable.
    except Exception as error:
        raise ProfileError(
            f"the profile {path} cannot be read ({type(error).__name__}: {error}); check its path, and its permissions"
        ) from None
    if len(data) > LARGEST_PROFILE:
        raise ProfileError(f"the profile {path} has more than {LARGEST_PROFILE >> 10} KiB; check its path")
    try:
        return decoded(data)
    except UnicodeDecodeError:
        raise ProfileError(f"the profile {path} is not text in UTF-8 or UTF-16; check its path") from None


def with_directory(source: str) -> str:
    """A profile's path with the directory of this process, where it is a relative one; anything else stays as it is."""
    text = source.strip()
    if text.startswith(("{", "~", "/")) or ":" in text.partition("/")[0]:
        return source  # the JSON itself, a whole path or a URL
    with suppress(FileNotFoundError):  # the working directory is gone
        return os.path.abspath(text)
    return source


def _meant(path: str) -> str:
    """Which file a relative path, or one with ``~``, means here: Spark's workers have a directory and a home of their own."""
    local = _local(path)
    with suppress(FileNotFoundError):  # the working directory itself is gone
        if local is not None and (whole := os.path.abspath(local)) != path:
            return f" (here it means {whole})"
    return ""


def _bytes(path: str) -> bytes:
    """A file's bytes; of a file that is too large only as many as show that it is."""
    local = _local(path)
    if local is not None:
        try:
            with local.open("rb") as file:
                return file.read(LARGEST_PROFILE + 1)
        except FileNotFoundError:
            if not path.startswith("dbfs:") or Path("/dbfs").is_dir():
                raise
            # Without Databricks' mount Spark's Hadoop may know the scheme.
    if path.startswith(("https://", "http://")):
        return _download(path)
    from delta_sharing_spark.storage.user_files import read_bytes

    return read_bytes(path, LARGEST_PROFILE + 1)


def _download(url: str) -> bytes:
    """Download a profile from a web server, by our own session: fsspec would need another package for it."""
    from delta_sharing_spark.network.http import NetworkSettings
    from delta_sharing_spark.network.urls import is_private, parse_url
    from delta_sharing_spark.sharing.transport import RequestPurpose, read_bytes, send, with_retries

    if not is_private(parse_url(url)):
        raise ValueError("it is not https, and a profile holds a secret")
    settings = NetworkSettings(read_timeout=60.0, retry_seconds=60.0)
    purpose = RequestPurpose("the profile", "web server", refused="check its path")

    def ask() -> bytes:
        response = send(settings, "GET", url, purpose)
        return read_bytes(response, "the profile", LARGEST_PROFILE)

    return with_retries(settings, ask)


def _local(path: str) -> Path | None:
    """The path on this machine, or None for a URL of another storage."""
    if path.startswith("dbfs:/"):
        return Path("/dbfs") / path[len("dbfs:/") :].lstrip("/")
    if path.startswith("file:"):
        from urllib.parse import unquote, urlsplit

        return Path(local_file(unquote(urlsplit(path).path)))
    if "://" in path:
        return None
    return Path(path).expanduser()
