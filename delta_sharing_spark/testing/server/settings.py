"""How the embedded server behaves: every deviation that real servers show is a switch here."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

_NAMESPACE = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@dataclass(slots=True)
class ServerSettings:
    """Read at every request, so tests may change them while the server runs.

    Attributes:
        engine: ``reference``: as the reference server of delta-io/delta-sharing (``reference_engine``).
        url_ttl: Seconds until a data URL expires.
        url_style: ``plain`` (``exp``), ``s3`` (``X-Amz-Date``, ``X-Amz-Expires``) or ``azure`` (``se``) beside the signature.
        expired_style: What an expired URL answers: S3's 403, S3's 400 (``ExpiredToken``), Azure's 403, GCS's 400.
        expiration_timestamps: Whether file lines carry ``expirationTimestamp``.
        min_url_expiration: Whether the last line carries ``minUrlExpirationTimestamp``.
        end_stream_action: Whether ``includeEndStreamAction=true`` is honoured.
        bare_end_stream: The last line without its ``endStreamAction`` wrapper, as the protocol's example prints it.
        capabilities: False: the header ``delta-sharing-capabilities`` is not known (an old server).
        prefer: The format where the table allows both and the client takes both.
        predicate_hints: ``apply`` drops files that cannot match; ``over-return`` drops only every other of them;
            ``ignore``; ``naive`` evaluates ``not`` and ``isNull`` over ranges as the reference server does, which
            loses files.
        limit_hints: Whether ``limitHint`` cuts the list of files.
        page_size: Most files of a page, also for clients that do not ask; None for no bound.
        list_page_size: Most items of a listing.
        missing_items: Empty listings have no ``items`` field.
        all_tables: Whether the endpoint that lists all tables exists.
        end_after_newest: Whether a change feed may end after the newest version's time; False: refused, as the reference server does.
        metadata_at_version: Whether metadata is told of the version or time that is asked for; False: always the newest.
        version_by_get: Whether the version is told by GET; False: only by the deprecated HEAD.
        refresh_token_ttl, page_token_ttl: Seconds.
        file_id_hash: Whether ``fileidhash`` is known and echoed.
        async_polls: None: asynchronous queries are not known; else so many polls answer ``pending``.
        async_error: Message with which every asynchronous query fails.
        async_status: Whether ``queryStatus`` carries ``status`` (real servers leave it out).
        announce_size: Whether metadata carries ``size`` and ``numFiles``.
        repeat_head: Pages after the first repeat protocol and metadata.
        credential_ttl: Seconds that temporary credentials for ``file:`` are valid.
        wrapped_credentials: Whether a table's credentials stand in ``credentials``.
        credential_location: Whether a table's credentials name the location.
        wrapped_assets: Whether the credentials of volumes, models and skills are wrapped like a table's, against OpenSharing.
        get_table: Whether GET of a table tells its format (OpenSharing).
        assets: Whether volumes, models and skills are known (OpenSharing).
        unknown_calls: Last parts of an asset's paths that are not known, such as ``all-volumes``.
        known_features: A request that names another reader feature is refused; None takes any.
        empty_pages: The first page of a listing is empty, and goes on.
        rewrite: Applied to every line of a table's answer; None drops the line.
    """

    engine: Literal["protocol", "reference"] = "protocol"
    url_ttl: float = 3600.0
    url_style: Literal["plain", "s3", "azure"] = "plain"
    expired_style: Literal["s3", "s3-400", "azure", "gcs"] = "s3"
    expiration_timestamps: bool = True
    min_url_expiration: bool = True
    end_stream_action: bool = True
    bare_end_stream: bool = False
    capabilities: bool = True
    prefer: Literal["parquet", "delta"] = "parquet"
    predicate_hints: Literal["apply", "over-return", "ignore", "naive"] = "apply"
    limit_hints: bool = True
    page_size: int | None = None
    list_page_size: int = 500
    missing_items: bool = False
    all_tables: bool = True
    end_after_newest: bool = True
    metadata_at_version: bool = True
    version_by_get: bool = True
    refresh_token_ttl: float = 3600.0
    page_token_ttl: float = 3 * 86400.0
    file_id_hash: bool = True
    async_polls: int | None = None
    async_error: str | None = None
    async_status: bool = True
    announce_size: bool = True
    repeat_head: bool = True
    credential_ttl: float = 3600.0
    wrapped_credentials: bool = True
    credential_location: bool = True
    wrapped_assets: bool = False
    get_table: bool = True
    assets: bool = True
    unknown_calls: tuple[str, ...] = ()
    known_features: tuple[str, ...] | None = None
    empty_pages: bool = False
    rewrite: Callable[[dict[str, Any]], dict[str, Any] | None] | None = field(default=None, repr=False)


def id_of(name: str) -> str:
    """The id of what is called so."""
    return str(uuid.uuid5(_NAMESPACE, name))


@dataclass(frozen=True, slots=True)
class SharedTable:
    """A table of a share.

    Attributes:
        share, schema, name: Where it stands.
        root: Its location: a ``file:`` URI, or what ``location`` of the metadata says in directory mode.
        path: Local directory that the log is read from.
        access_modes: As announced; None leaves the field out.
        location: As announced; None: ``root`` where ``dir`` is offered.
        auxiliary_locations: As announced.
        history: Whether versions, changes and credentials are shared.
        start_version: The first version that may be asked for.
        id, comment, properties: For listings.
        format: What Get Table tells; a table that is not ``delta`` is described by nothing else.
    """

    share: str
    schema: str
    name: str
    path: str
    access_modes: tuple[str, ...] | None = None
    location: str | None = None
    auxiliary_locations: tuple[str, ...] = ()
    history: bool = True
    start_version: int = 0
    id: str | None = None
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    format: str = "delta"

    def __str__(self) -> str:
        return f"{self.share}.{self.schema}.{self.name}"

    @property
    def root(self) -> str:
        return f"file://{self.path}"

    collection: ClassVar[str] = "tables"

    def names(self) -> dict[str, Any]:
        """Names and ids, as listings and Get Table answer them."""
        names = {"name": self.name, "schema": self.schema, "share": self.share, "shareId": id_of(self.share)}
        return {**names, "id": self.id or id_of(str(self))}

    def directory_fields(self) -> dict[str, Any]:
        """``location``, ``auxiliaryLocations`` and ``accessModes`` of listings and metadata."""
        modes = self.access_modes
        fields = {
            "location": self.root if self.location is None and "dir" in (modes or ()) else self.location,
            "auxiliaryLocations": list(self.auxiliary_locations) or None,
            "accessModes": None if modes is None else list(modes),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def item(self) -> dict[str, Any]:
        """Its fields in a listing."""
        more = {"comment": self.comment, "properties": dict(self.properties) or None}
        optional = {name: value for name, value in more.items() if value is not None}
        return self.names() | self.directory_fields() | optional


@dataclass(frozen=True, slots=True)
class SharedAsset:
    """A volume, a model, a version of a model, or a skill.

    Attributes:
        share, schema, name: Where it stands.
        collection: ``volumes``, ``models`` or ``skills``.
        location: ``storageLocation``; None leaves the field out.
        fields: Further fields of its answers (``description``, ``comment``, ``status``...).
        versions: Those of a model, by number.
        aliases: Numbers of versions by alias.
    """

    share: str
    schema: str
    name: str
    collection: str
    location: str | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    versions: dict[int, SharedAsset] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.share}.{self.schema}.{self.name}"

    def item(self) -> dict[str, Any]:
        """Its fields, as listings and its own call answer them."""
        own = "modelName" if "version" in self.fields else "name"
        item = {own: self.name, "schema": self.schema, "share": self.share, "shareId": id_of(self.share)}
        if self.location is not None:
            item["storageLocation"] = self.location
        return {**item, "id": id_of(f"{self.collection} {self} {self.fields.get('version', '')}"), **self.fields}
