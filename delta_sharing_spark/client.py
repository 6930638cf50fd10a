"""Python's face: browse a sharing server, as one recipient."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delta_sharing_spark.access.settings import transport_of
from delta_sharing_spark.display import Listing
from delta_sharing_spark.errors import AddressError, ProfileError
from delta_sharing_spark.options import parse_options
from delta_sharing_spark.sharing.actions import Schema, Share, Table
from delta_sharing_spark.sharing.address import TableName, parse_table_name
from delta_sharing_spark.sharing.profile import ENVIRONMENT, Profile, load_profile, profile_from_environment
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.table import SharedTable, option_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class SharingClient:
    """A recipient's view of one sharing server.

    Args:
        profile: A path (local or any fsspec URL), the profile's JSON, its fields, or a ``Profile``; None takes
            ``DELTA_SHARING_PROFILE``.
        **options: Options of every load, by their names (``accessMode="dir"``, ``caBundle=...``).

    Raises:
        ProfileError: The profile is missing or malformed.
        OptionError: An unknown option.

    >>> client = SharingClient("config.share")          # doctest: +SKIP
    >>> client.table("share.schema.table").scan(columns=["city"]).to_pandas()          # doctest: +SKIP
    """

    def __init__(self, profile: str | Path | Mapping[str, Any] | Profile | None = None, **options: object) -> None:
        self._source = profile
        self.profile = _profile(profile)
        self.options = {name: option_text(value) for name, value in options.items()}
        self.rest = SharingRest(self.profile, transport_of(parse_options({"path": "a.b.c", **self.options})))

    def __repr__(self) -> str:
        return f"SharingClient({self.profile.endpoint!r})"

    def list_shares(self) -> Sequence[Share]:
        """All shares."""
        return Listing(self.rest.list_shares())

    def list_schemas(self, share: Share | str) -> Sequence[Schema]:
        """All schemas of a share."""
        return Listing(self.rest.list_schemas(share if isinstance(share, str) else share.name))

    def list_tables(self, schema: Schema | str) -> Sequence[Table]:
        """All tables of a schema; a string is ``share.schema``."""
        if isinstance(schema, str):
            share, _, name = schema.rpartition(".")
            if not share or not name:
                raise AddressError(f"{schema!r} does not name a schema; write <share>.<schema>")
        else:
            share, name = schema.share, schema.name
        return Listing(self.rest.list_tables(share, name))

    def list_all_tables(self, share: Share | str | None = None) -> Sequence[Table]:
        """All tables of a share, or of all shares."""
        shares = [s.name for s in self.rest.list_shares()] if share is None else [getattr(share, "name", share)]
        return Listing(t for name in shares for t in self.rest.list_all_tables(str(name)))

    def table(self, name: str | Table) -> SharedTable:
        """A table by its three-part name, or as a listing shows it. Nothing is asked yet."""
        if isinstance(name, Table):
            return SharedTable(self, TableName(name.share, name.schema, name.name))
        return SharedTable(self, parse_table_name(name))

    def sql(self, spark: SparkSession, query: str) -> DataFrame:
        """Run any Spark query over shared tables by their three-part names, beside the session's own tables.

        Each table is loaded with just the columns and conditions the query needs of it; Spark runs the query itself.
        ``client.explain_sql(query)`` tells what is narrowed.

        Raises:
            DeltaSharingError: A shared table cannot be loaded.
        """
        from delta_sharing_spark.spark.sql import run

        return run(self, spark, query)

    def explain_sql(self, query: str) -> str:
        """What each shared table of a query is loaded with, and why not less."""
        from delta_sharing_spark.spark.sql import explain

        return explain(self, query)

    def options_for(self, name: TableName) -> dict[str, str]:
        """The options of a Spark load of a table: its path, and the credentials unless the profile is a path."""
        if isinstance(self._source, (str, Path)) and not str(self._source).strip().startswith("{"):
            return {**self.options, "path": f"{self._source}#{name}"}
        if self._source is None:
            named = os.environ.get(ENVIRONMENT, "").strip()
            if named and not named.startswith("{"):
                return {**self.options, "path": f"{named}#{name}"}
        return {**self.options, **_inline(self.profile), "path": str(name)}

    def load_options(self, name: TableName, more: Mapping[str, str]) -> dict[str, str]:
        """The options of a load in this process."""
        return {**self.options, **more, "path": str(name)}


def _profile(source: str | Path | Mapping[str, Any] | Profile | None) -> Profile:
    if isinstance(source, Profile):
        return source
    if source is not None:
        return load_profile(source)
    profile = profile_from_environment()
    if profile is None:
        raise ProfileError(
            f"no profile was given and {ENVIRONMENT} is not set; give a path, the JSON, or set {ENVIRONMENT}"
        )
    return profile


def _inline(profile: Profile) -> dict[str, str]:
    """A profile as options of a Spark load."""
    if profile.private_key is not None:
        raise ProfileError(
            "a profile with a private key cannot be given to Spark as options; give the client the path of its profile file"
        )
    fields = {
        "shareCredentialsVersion": str(profile.version),
        "type": profile.type if profile.version > 1 else None,
        "endpoint": profile.endpoint,
        "bearerToken": profile.bearer_token,
        "expirationTime": profile.expiration_time,
        "tokenEndpoint": profile.token_endpoint,
        "clientId": profile.client_id,
        "clientSecret": profile.client_secret,
        "scope": profile.scope,
        "username": profile.username,
        "password": profile.password,
    }
    return {name: value for name, value in fields.items() if value is not None}
