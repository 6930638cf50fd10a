"""Temporary credentials: who makes them for which kind of storage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from delta_sharing_spark.testing.server.responses import Response, bad_request, json_response
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedAsset, SharedTable


class CredentialVendor(Protocol):
    """Makes credentials for one location of a table or an asset."""

    def __call__(self, location: str, table: SharedTable | SharedAsset) -> dict[str, Any]:
        """The ``credentials`` object: one kind of secret, and ``expirationTime`` in milliseconds.

        ``location`` is filled in where it is missing.
        """


def vend(
    table: SharedTable, asked: str | None, vendors: Mapping[str, CredentialVendor], settings: ServerSettings
) -> Response:
    """Answer a request for temporary credentials.

    Raises:
        Refusal: The table is not shared by directory, the location is not the table's, or nobody vends for its scheme.
    """
    if table.access_modes is None or "dir" not in table.access_modes:
        raise bad_request(f"Temporary table credentials are not supported on table: {table}")
    root = table.location if table.location is not None else table.root
    location = (asked or root).rstrip("/")
    if not any(_covers(known, location) for known in (root, *table.auxiliary_locations)):
        raise bad_request(f"The location {location} is not one of table {table}")
    body = credentials_of(location, table, vendors, settings)
    if settings.credential_location:
        body = {"location": location, **body}
    return json_response({"credentials": body} if settings.wrapped_credentials else body)


def credentials_of(
    location: str, shared: SharedTable | SharedAsset, vendors: Mapping[str, CredentialVendor], settings: ServerSettings
) -> dict[str, Any]:
    """One kind of secret for a location, and its expiry.

    Raises:
        Refusal: Nobody vends for its scheme.
    """
    scheme = location.partition(":")[0]
    vendor = vendors.get(scheme)
    if vendor is not None:
        return vendor(location, shared)
    if scheme == "file":
        return {"expirationTime": int((time.time() + settings.credential_ttl) * 1000)}
    raise bad_request(f"Temporary credentials are not supported for scheme {scheme}")


def _covers(known: str, location: str) -> bool:
    known = known.rstrip("/")
    return location == known or location.startswith(known + "/")
