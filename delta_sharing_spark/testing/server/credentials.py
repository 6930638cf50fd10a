"""Temporary credentials: who makes them for which kind of storage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

from delta_sharing_spark.testing.server.responses import Response, bad_request, json_response
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedTable


class CredentialVendor(Protocol):
    """Makes credentials for one location of a table."""

    def __call__(self, location: str, table: SharedTable) -> dict[str, Any]:
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
    scheme = location.partition(":")[0]
    vendor = vendors.get(scheme)
    if vendor is not None:
        body = vendor(location, table)
    elif scheme == "file":
        body = {"expirationTime": int((time.time() + settings.credential_ttl) * 1000)}
    else:
        raise bad_request(f"Temporary credentials are not supported for scheme {scheme}")
    return json_response({"credentials": {"location": location, **body}})


def _covers(known: str, location: str) -> bool:
    known = known.rstrip("/")
    return location == known or location.startswith(known + "/")
