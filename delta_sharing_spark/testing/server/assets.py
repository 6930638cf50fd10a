"""Volumes, models and agent skills of OpenSharing: what is shared, and its endpoints."""

from __future__ import annotations

from collections.abc import Mapping

from delta_sharing_spark.testing.server.catalog import Catalog, page
from delta_sharing_spark.testing.server.credentials import CredentialVendor, credentials_of
from delta_sharing_spark.testing.server.responses import Refusal, Response, bad_request, json_response, not_found
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedAsset

#: The collections of a schema, and what one of each is.
COLLECTIONS = {"volumes": "volume", "models": "model", "skills": "skill"}
_MODEL_CREDENTIALS = ("temporary-model-version-credentials", "temporary-model-credentials")


class AssetEndpoints:
    """Routes requests for assets.

    Args:
        catalog, settings, vendors: Of the server.
    """

    def __init__(self, catalog: Catalog, settings: ServerSettings, vendors: Mapping[str, CredentialVendor]) -> None:
        self._catalog, self._settings, self._vendors = catalog, settings, vendors
        self._assets: dict[tuple[str, str, str, str], SharedAsset] = {}

    def add(self, asset: SharedAsset) -> None:
        """Share an asset; replaces one of its collection and name."""
        self._catalog.add_schema(asset.share, asset.schema)
        self._assets[_key(asset.collection, asset.share, asset.schema, asset.name)] = asset

    def kind_of(self, segments: list[str]) -> str | None:
        """``all-volumes``, ``volumes``, ``volume``, ``volume-credentials``, the same of models and skills,
        ``model-versions``, ``model-version``, ``model-alias``; None for what is no asset's."""
        match segments:
            case ["shares", _, everything] if everything.removeprefix("all-") in COLLECTIONS:
                return everything
            case ["shares", _, "schemas", _, collection, *rest] if collection in COLLECTIONS:
                one = COLLECTIONS[collection]
                match rest:
                    case []:
                        return collection
                    case [_]:
                        return one
                    case [_, last] if one != "model" and last == f"temporary-{one}-credentials":
                        return f"{one}-credentials"
                    case [_, "versions"] if one == "model":
                        return "model-versions"
                    case [_, "versions", _] if one == "model":
                        return "model-version"
                    case [_, "aliases", _] if one == "model":
                        return "model-alias"
                    case [_, "versions", _, last] if one == "model" and last in _MODEL_CREDENTIALS:
                        return "model-credentials"
        return None

    def answer(self, kind: str, method: str, segments: list[str], parameters: Mapping[str, str]) -> Response:
        """Answer a request of a kind that ``kind_of`` gave.

        Raises:
            Refusal: An error answer.
        """
        last = segments[-1]
        if not self._settings.assets or last in self._settings.unknown_calls:
            raise not_found("the endpoint does not exist")
        if method != ("POST" if kind.endswith("-credentials") else "GET"):
            raise Refusal(405, "METHOD_NOT_ALLOWED", f"{method} is not allowed here")
        if kind.startswith("all-"):
            self._catalog.share(segments[1])
            return self._listing(kind.removeprefix("all-"), segments[1], None, parameters)
        self._catalog.schema(segments[1], segments[3])
        collection = segments[4]
        if kind == collection:
            return self._listing(collection, segments[1], segments[3], parameters)
        asset = self._assets.get(_key(collection, segments[1], segments[3], segments[5]))
        if asset is None:
            raise not_found(f"{COLLECTIONS[collection]} '{segments[5]}' does not exist")
        if kind == "model-versions":
            ready = [one.item() for one in asset.versions.values() if one.fields["status"] == "READY"]
            return json_response(page(ready, parameters, self._settings))
        if kind in ("model-version", "model-alias", "model-credentials"):
            asset = _version(
                asset, "version" if kind == "model-credentials" else kind.removeprefix("model-"), segments[7]
            )
            if kind == "model-credentials" and asset.fields["status"] != "READY":
                raise bad_request(f"version {segments[7]} of model {asset} is {asset.fields['status']}, not READY")
        if kind.endswith("-credentials"):
            location = asset.location or ""
            body = credentials_of(location, asset, self._vendors, self._settings)
            return json_response(
                {"credentials": {"location": location, **body}} if self._settings.wrapped_assets else body
            )
        return json_response(asset.item())

    def _listing(self, collection: str, share: str, schema: str | None, parameters: Mapping[str, str]) -> Response:
        items = [
            asset.item()
            for (kind, of_share, of_schema, _), asset in self._assets.items()
            if kind == collection and of_share == share.lower() and (schema is None or of_schema == schema.lower())
        ]
        return json_response(page(items, parameters, self._settings))


def _version(model: SharedAsset, by: str, text: str) -> SharedAsset:
    number = model.aliases.get(text) if by == "alias" else int(text) if text.isdecimal() else None
    version = None if number is None else model.versions.get(number)
    if version is None:
        raise not_found(f"{by} '{text}' of model {model} does not exist")
    return version


def _key(collection: str, share: str, schema: str, name: str) -> tuple[str, str, str, str]:
    return collection, share.lower(), schema.lower(), name.lower()
