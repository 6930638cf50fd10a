"""Calls the endpoints of OpenSharing's volumes, models and agent skills, and holds their records; unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from delta_sharing_spark.errors import DeltaSharingError, NotFoundError, ServerError
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.sharing.address import TableName, check_segment, segment, shares_path
from delta_sharing_spark.sharing.rest import UNKNOWN_CALL, SharingRest, near_name, unless_unknown
from delta_sharing_spark.sharing.wire_records import (
    TemporaryCredentials,
    broken,
    parse_credentials,
    parse_item,
    whole_number,
)

Kind = Literal["volume", "model", "skill"]
KINDS: tuple[Kind, ...] = ("volume", "model", "skill")
READY = "READY"

#: Kinds that an endpoint is known not to share.
_unknown_kinds: ProcessCache[tuple[str, Kind], bool] = ProcessCache(256)
#: The last part of the path by which an endpoint gives credentials of a model's version: the specification has two.
_MODEL_CREDENTIALS = ("temporary-model-version-credentials", "temporary-model-credentials")
_model_credentials: ProcessCache[str, str] = ProcessCache(256)
#: Names looked at to suggest one.
_LOOKED_AT = 500


@dataclass(frozen=True, slots=True)
class _Listed:
    """What a server tells of an asset of any kind."""

    name: str
    schema: str
    share: str
    storage_location: str | None = None
    share_id: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Volume(_Listed):
    """A volume: a directory of files of any kind (OpenSharing, "Volumes")."""


@dataclass(frozen=True, slots=True)
class Model(_Listed):
    """A model; its files are those of its versions (OpenSharing, "ML Models")."""

    comment: str | None = None


@dataclass(frozen=True, slots=True)
class Skill(_Listed):
    """An agent skill: a directory with ``SKILL.md``, which is data here and is never run (OpenSharing, "Agent Skills")."""

    description: str | None = None
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a model. ``status`` is ``READY`` where it has files to read."""

    name: str
    schema: str
    share: str
    version: int
    status: str
    comment: str | None = None
    storage_location: str | None = None
    source: str | None = None
    run_id: str | None = None
    id: str | None = None


Record = Volume | Model | ModelVersion | Skill
_RECORDS: Mapping[Kind, type[Record]] = {"volume": Volume, "model": Model, "skill": Skill}


@dataclass(frozen=True, slots=True)
class AssetName:
    """Which volume, version of a model (the model itself without one) or skill."""

    kind: Kind
    name: TableName
    version: int | None = None

    def __str__(self) -> str:
        return f"{'' if self.version is None else f'version {self.version} of '}{self.kind} {self.name}"

    @property
    def path(self) -> str:
        """Its path below the endpoint."""
        own = f"{_listing(self.kind, self.name.share, self.name.schema)}/{segment(self.name.table)}"
        return own if self.version is None else f"{own}/versions/{self.version}"


def list_assets(rest: SharingRest, kind: Kind, share: str, schema: str | None = None) -> Iterator[Record]:
    """All assets of a kind in a share, or in one schema of it; schema by schema where the server cannot list a share.

    Raises:
        NotFoundError: No such share or schema; or the server does not know such assets, which it is asked once.
    """
    if not shares_kind(rest, kind):
        raise _shares_none(rest, kind)
    what = f"the {kind}s of {share}" + (f".{schema}" if schema else "")
    pages = rest.listed(_listing(kind, share, schema), what, partial(_record, kind, share=share, schema=schema or ""))

    def otherwise(unknown: ServerError) -> Iterator[Record]:
        # A server without the call answers as one without the share: what there is tells them apart.
        schemas = [one.name for one in rest.list_schemas(share)]
        if schema is None:
            for each in schemas:
                yield from list_assets(rest, kind, share, each)
        elif schema.lower() not in map(str.lower, schemas):
            raise unknown
        else:
            _unknown_kinds.put((rest.profile.endpoint, kind), True)
            raise _shares_none(rest, kind) from None

    yield from unless_unknown(pages, otherwise)


def shares_kind(rest: SharingRest, kind: Kind) -> bool:
    """Whether the server is not known to know no assets of a kind."""
    return (rest.profile.endpoint, kind) not in _unknown_kinds


def get_asset(rest: SharingRest, asset: AssetName) -> Record:
    """What the server tells of an asset.

    Raises:
        NotFoundError: There is none: with the near names, or what else is called so.
        ResponseError: The answer is malformed.
    """
    if not shares_kind(rest, asset.kind):
        raise _shares_none(rest, asset.kind)
    try:
        tree = rest.ask_json("GET", asset.path, f"the description of {asset}")
    except ServerError as unknown:
        if unknown.status not in UNKNOWN_CALL:
            raise
        if asset.version is not None:
            raise _without_version(rest, asset, unknown) from None
        return _listed(rest, asset, unknown)
    if asset.version is not None:
        return _version(tree, asset.name)
    return _record(asset.kind, tree, asset.name.share, asset.name.schema)


def model_versions(rest: SharingRest, model: AssetName) -> Iterator[ModelVersion]:
    """The versions of a model that are READY; raises NotFoundError where there is no such model."""
    try:
        for version in rest.listed(
            f"{model.path}/versions", f"the versions of {model}", partial(_version, name=model.name)
        ):
            if version.status == READY:
                yield version
    except ServerError as unknown:
        if unknown.status in UNKNOWN_CALL:
            get_asset(rest, model)  # tells whether there is such a model
        raise


def model_alias(rest: SharingRest, model: AssetName, alias: str) -> ModelVersion:
    """The version of a model that an alias stands for; raises NotFoundError where there is no such model or alias."""
    what = f"the alias {alias!r} of {model}"
    try:
        tree = rest.ask_json("GET", f"{model.path}/aliases/{segment(check_segment(alias, 'alias'))}", what)
    except ServerError as unknown:
        if unknown.status not in UNKNOWN_CALL:
            raise
        raise _without_version(rest, model, unknown, f"alias {alias!r}") from None
    return _version(tree, model.name)


def asset_credentials(rest: SharingRest, asset: AssetName) -> TemporaryCredentials:
    """Temporary storage credentials for an asset's location.

    Raises:
        ServerError: The server gives none.
        ResponseError: The answer is malformed.
    """
    what = f"the storage credentials of {asset}"
    if asset.kind != "model":
        calls: tuple[str, ...] = (f"temporary-{asset.kind}-credentials",)
    else:
        working = _model_credentials.get(rest.profile.endpoint)
        calls = _MODEL_CREDENTIALS if working is None else (working,)
    first: ServerError | None = None
    for call in calls:
        try:
            tree = rest.ask_json("POST", f"{asset.path}/{call}", what)
        except ServerError as unknown:
            if unknown.status not in UNKNOWN_CALL:
                raise
            first = first or unknown
            continue
        if asset.kind == "model":
            _model_credentials.put(rest.profile.endpoint, call)
        return parse_credentials(tree, str(asset))
    assert first is not None
    raise first


def _listing(kind: Kind, share: str, schema: str | None) -> str:
    return f"{shares_path(share)}/all-{kind}s" if schema is None else f"{shares_path(share, schema)}/{kind}s"


def _listed(rest: SharingRest, asset: AssetName, unknown: ServerError) -> Record:
    """An asset that the server cannot be asked for, as its list has it; else an error that says what there is."""
    kind, name = asset.kind, asset.name
    names = []
    try:
        for record in list_assets(rest, kind, name.share, name.schema):
            if record.name.lower() == name.table.lower():
                return record
            names.append(record.name)
    except NotFoundError as missing:
        if not shares_kind(rest, kind):
            raise
        raise rest.with_near_names(missing, name.share, name.schema) from None
    hint = near_name(kind, name.table, names[:_LOOKED_AT], f"{name.share}.{name.schema}")
    try:
        tables = islice(rest.list_tables(name.share, name.schema), _LOOKED_AT)
        if any(table.name.lower() == name.table.lower() for table in tables):
            hint = f"it is a table: client.table({str(name)!r})"
    except DeltaSharingError:
        pass  # the error is known already, and this only explains it
    why = f"{asset} is not shared with this profile, or there is none; {hint}"
    raise NotFoundError(why, status=unknown.status, is_unlisted=True) from None


def _without_version(rest: SharingRest, asset: AssetName, unknown: ServerError, what: str = "") -> ServerError:
    """The error of a version or an alias that there is not; that of the model where there is no such model either."""
    model = AssetName("model", asset.name)
    get_asset(rest, model)
    ready = ", ".join(str(version.version) for version in islice(model_versions(rest, model), 20)) or "none"
    return NotFoundError(
        f"{model} has no {what or f'version {asset.version}'}; its versions that are ready: {ready}",
        status=unknown.status,
        is_unlisted=True,
    )


def _shares_none(rest: SharingRest, kind: Kind) -> NotFoundError:
    return NotFoundError(
        f"the sharing server at {rest.profile.endpoint} shares tables only, as far as {kind}s go: it does not know this part of "
        f"OpenSharing; ask the provider",
        status=404,
    )


def _record(kind: Kind, item: Any, share: str, schema: str) -> Record:
    return parse_item(_RECORDS[kind], item, share=share, schema=schema)


def _version(item: Any, name: TableName) -> ModelVersion:
    fields = item if isinstance(item, dict) else {}
    number = whole_number(fields.get("version"))
    if number is None:
        raise broken(f"a version of model {name} has no number")
    fields = {**fields, "name": fields.get("modelName") or name.table, "version": None}
    version = parse_item(ModelVersion, fields, "status", share=name.share, schema=name.schema, version=number)
    return replace(version, status=version.status.upper())
