"""Looks into volumes, models and skills from a terminal: ``SHARE.SCHEMA.NAME/PATH``; a model's path begins with a version or an alias."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from delta_sharing_spark.cli.terminal import raw_output
from delta_sharing_spark.errors import AddressError, ConfigError, NotFoundError, RequestRefusedError
from delta_sharing_spark.sharing.address import TableName, parse_schema_name, parse_table_name
from delta_sharing_spark.sharing.assets import KINDS
from delta_sharing_spark.sharing.rest import SharingRest

if TYPE_CHECKING:
    from delta_sharing_spark.assets.asset import Asset
from delta_sharing_spark.client import SharingClient

_COPIED = 1 << 20
#: A slash between backquotes is part of a name.
_NAME_AND_PATH = re.compile(r"((?:[^/`]|`[^`]*`)*)/(.*)", re.DOTALL)


class AssetAddress(NamedTuple):
    """A file or directory of an asset. The profile is empty where the environment names it."""

    profile: str
    name: TableName
    path: str


def parse_asset_address(text: str) -> AssetAddress | None:
    """``[PROFILE#]SHARE.SCHEMA.NAME/[PATH]``; None where the text is of another form. The last ``#`` that fits parts them."""
    marks = [place for place, letter in enumerate(text) if letter == "#"]
    for mark in [*reversed(marks), -1]:
        match = _NAME_AND_PATH.fullmatch(text, mark + 1)
        if match is None or (mark < 0 and (match[1].count(".") < 2 or os.path.exists(text))):
            continue
        with suppress(AddressError):
            return AssetAddress(text[: max(mark, 0)], parse_table_name(match[1]), match[2])
    return None


def needed_asset_address(text: str) -> AssetAddress:
    """The same, where nothing else can stand; raises ConfigError where the text is of another form."""
    address = parse_asset_address(text)
    if address is None:
        raise ConfigError(f"{text!r} names no file of a volume, model or skill; write [PROFILE#]SHARE.SCHEMA.NAME/PATH")
    return address


def opened(client: SharingClient, name: TableName, path: str, kind: str | None) -> tuple[Asset | None, str, list[Any]]:
    """An asset and a path in it; or None with the versions of a model of which the path names none.

    Raises:
        NotFoundError: There is nothing of that name.
        ConfigError: There is more than one, of different kinds.
    """
    candidates = [] if kind is not None else list(_kinds_of(client, name))
    if len(candidates) > 1:
        kinds = " and a ".join(candidates)
        raise ConfigError(f"{name} is a {kinds}: say which with --kind")
    kind = kind or (candidates[0] if candidates else "volume")
    if kind != "model":
        return getattr(client, kind)(str(name)), path, []
    model, (version, _, rest) = client.model(str(name)), path.partition("/")
    if not version:
        return None, "", list(model.versions())
    is_number = version.isdecimal() and len(version) < 20
    return (model.version(int(version)) if is_number else model.alias(version)), rest, []


def _kinds_of(client: SharingClient, name: TableName) -> Iterator[str]:
    for kind in KINDS:
        with suppress(NotFoundError):
            getattr(client, kind)(str(name)).record  # noqa: B018 - asks whether there is one
            yield kind


def listed(client: SharingClient, address: AssetAddress, kind: str | None, recursive: bool) -> list[Any]:
    """What ``ls`` shows: files and directories, or a model's versions."""
    asset, path, versions = opened(client, address.name, address.path, kind)
    if asset is None:
        return versions
    if recursive:
        return list(asset.files(path))
    from delta_sharing_spark.assets.asset import shared_file

    entry = asset.place.info(path)
    return [shared_file(one) for one in (asset.place.entries(path) if entry.name.endswith("/") else [entry])]


def assets_in(client: SharingClient, schema: str) -> dict[str, list[Any]]:
    """The assets of a schema, by the kinds that the server shares."""
    if not isinstance(client.rest, SharingRest):  # a gateway gives tables alone
        return {}
    by_kind: dict[str, list[Any]] = {}
    share, name = parse_schema_name(schema)
    for kind in KINDS:
        with suppress(NotFoundError, RequestRefusedError):
            by_kind[kind] = list(getattr(client, f"{kind}s")(share, name))
    return {kind: assets for kind, assets in by_kind.items() if assets}


def cat(client: SharingClient, address: AssetAddress, kind: str | None) -> None:
    """Write a file to standard output."""
    asset, path, _ = opened(client, address.name, address.path, kind)
    if asset is None:
        raise ConfigError(f"model {address.name} has files by version: write {address.name}/VERSION/PATH")
    with asset.open(path) as file, raw_output() as out:
        while data := file.read(_COPIED):
            out.write(data)


def download(client: SharingClient, address: AssetAddress, arguments: Namespace) -> dict[str, Any]:
    """Download a file or a directory, to one of its name by default; returns what was written."""
    for name in ("columns", "where", "format", "limit", "version", "timestamp", "formulas_as_text"):
        if getattr(arguments, name):
            raise ConfigError(
                f"--{name.replace('_', '-')} is for tables, and {address.name}/ names files; leave it out"
            )
    asset, path, _ = opened(client, address.name, address.path, arguments.kind)
    if asset is None:
        raise ConfigError(f"model {address.name} has files by version: write {address.name}/VERSION")
    is_file = not asset.place.info(path).name.endswith("/")
    own = path.rstrip("/").rpartition("/")[2] or address.name.table
    result = asset.download(path, arguments.output or (own if is_file else f"{own}/"), replace=arguments.force)
    return asdict(result)


def listed_instead(client: SharingClient, name: str, missing: NotFoundError) -> list[Any]:
    """The files of what has a name that no table has; raises ``missing`` where there is nothing of that name."""
    address = AssetAddress("", parse_table_name(name), "")
    if not isinstance(client.rest, SharingRest) or not any(_kinds_of(client, address.name)):
        raise missing from None
    return listed(client, address, None, False)
