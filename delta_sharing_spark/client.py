"""Lists and opens what a sharing server shares with one recipient, from Python."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from delta_sharing_spark.access.asking import storage_settings
from delta_sharing_spark.access.load import Recipient, ScanListing
from delta_sharing_spark.assets.asset import Asset, SharedModel
from delta_sharing_spark.display import Explanation, Listing
from delta_sharing_spark.errors import (
    AccessModeError,
    AddressError,
    NotFoundError,
    RequestRefusedError,
    short_tracebacks,
)
from delta_sharing_spark.network.urls import url_or_none
from delta_sharing_spark.options.declared import parse_options
from delta_sharing_spark.sharing.address import TableName, is_odd, parse_schema_name, parse_table_name, text_of
from delta_sharing_spark.sharing.assets import AssetName, Kind, Model, Skill, Volume, list_assets, shares_kind
from delta_sharing_spark.sharing.profile import Profile
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.wire_records import Schema, Share, Table
from delta_sharing_spark.storage.range_reader import StorageSettings
from delta_sharing_spark.table import Scan, SharedTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from typing_extensions import Unpack

    from delta_sharing_spark.options.keywords import ClientOptions, ViewOptions
    from delta_sharing_spark.spark.views import RegisteredView

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
#: What completion leaves out: it serves this package.
_INTERNAL = frozenset(
    {"rest", "options", "scans", "shares_among", "load_options", "options_for", "with_options", "is_of"}
)


@short_tracebacks
class SharingClient(Recipient):
    """A client of one sharing server, as one recipient.

    Args:
        profile: A path (local or any fsspec URL), the profile's JSON, its fields, or a ``Profile``; None takes
            ``DELTA_SHARING_PROFILE``, or the endpoint of an identity.
        engine: How Spark reads: ``"native"``, ``"python"`` or ``"auto"``, see ``Scan.to_spark``.
        **options: Options of every load, by their names (``accessMode="dir"``, ``caBundle=...``). Those of an identity
            (``identity="azure"``, ``bearerTokenFile=...``, with ``identityEndpoint``) take the place of the profile's credentials.

    Raises:
        ProfileError: The profile is missing or malformed.
        OptionError: An unknown option.

    Examples:
        >>> client = SharingClient("config.share")          # doctest: +SKIP
        >>> client.table("share.schema.table").scan(columns=["city"]).to_pandas()          # doctest: +SKIP
    """

    def __init__(
        self,
        profile: str | Path | Mapping[str, Any] | Profile | None = None,
        engine: str = "auto",
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(profile, engine, **options)
        end = self.profile.expires
        if end is not None and end <= datetime.now(timezone.utc):
            warnings.warn(
                f"the profile's bearer token ended at {end:%Y-%m-%d %H:%M} UTC, as its expirationTime says; ask the provider for a "
                f"new profile if the server refuses it",
                stacklevel=3,
            )

    @classmethod
    def over(cls, gateway: str, token: str | None = None, engine: str = "auto", **options: Any) -> SharingClient:
        """A client of a Flight gateway, which holds the profile; tables are read through it.

        Args:
            gateway: ``grpc+tls://host:port`` or ``grpc+tcp://host:port``.
            token: The gateway's token; ``gatewayTokenFile`` and ``DELTA_SHARING_FLIGHT_TOKEN`` are other ways to give it.
            engine: As for the client of a profile; the native lane needs files, and a gateway gives rows.
            **options: Options of every load.

        Raises:
            OptionError: An option that does not go with a gateway.
        """
        if token is not None:
            options["gatewayToken"] = token
        options["gateway"] = gateway
        return cls(None, engine, **options)

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in _INTERNAL]

    def __getitem__(self, name: str) -> SharedTable:
        """``client["share.schema.table"]`` is ``client.table("share.schema.table")``, and completes names in a notebook."""
        return self.table(name)

    def _ipython_key_completions_(self) -> list[str]:
        return [str(_name_of(table, Table)) for table in self.list_all_tables()]

    def __repr__(self) -> str:
        # What is no URL may be a token in the wrong place.
        endpoint = self.profile.endpoint if url_or_none(self.profile.endpoint) else "an endpoint that is no URL"
        return f"SharingClient({endpoint!r})"

    def _repr_html_(self) -> str:
        """The server and its shares; a server that does not answer is an error."""
        return f"<p>{escape(repr(self))}</p>" + Listing(self.rest.list_shares())._repr_html_()

    def last_scans(self) -> Sequence[ScanListing]:
        """What Spark's latest scans of this client's tables were answered, the newest last: filters, hints, files, bytes.

        These are scans by the native lane on classic sessions, where Spark asks for the files of each query; 100 are kept.
        """
        return Listing(self.scans)

    def list_shares(self) -> Sequence[Share]:
        """All shares."""
        return Listing(self.rest.list_shares())

    def list_schemas(self, share: Share | str) -> Sequence[Schema]:
        """All schemas of a share."""
        name = _share_of(share)
        return self._listed(lambda: self.rest.list_schemas(name), name)

    def list_tables(self, schema: Schema | str) -> Sequence[Table]:
        """All tables of a schema; a string is ``share.schema``."""
        share, name = (schema.share, schema.name) if isinstance(schema, Schema) else parse_schema_name(schema)
        return self._listed(lambda: self.rest.list_tables(share, name), share, name)

    def list_all_tables(self, share: Share | str | None = None) -> Sequence[Table]:
        """All tables of a share, or of all shares.

        A share whose name breaks the protocol's rules, and that the server itself cannot be asked for, is left out of
        the list of all with a warning.
        """
        if share is not None:
            name = _share_of(share)
            return self._listed(lambda: self.rest.list_all_tables(name), name)
        shares = (each.name for each in self.rest.list_shares())
        return Listing(one for name in shares for one in _if_listable(name, "tables", self.rest.list_all_tables(name)))

    def _listed(self, ask: Callable[[], Iterable[_T]], *names: str) -> Listing[_T]:
        """What the server lists; where it has not what is named, the error tells the near names."""
        try:
            return Listing(ask())
        except NotFoundError as error:
            raise (self.rest.with_near_names(error, *names) if isinstance(self.rest, SharingRest) else error) from None

    def table(self, table: str | Table) -> SharedTable:
        """A table by its three-part name, or as a listing holds it. No request is made yet.

        Raises:
            AddressError: ``table`` is not a table's name.
        """
        return SharedTable(self, _name_of(table, Table))

    def volumes(self, share: Share | Schema | str | None = None, schema: str | None = None) -> Sequence[Volume]:
        """All volumes, or those of a share, or of a schema of it.

        Raises:
            NotFoundError: No such share or schema, or a server that shares no volumes.
        """
        return self._assets("volume", share, schema)

    def models(self, share: Share | Schema | str | None = None, schema: str | None = None) -> Sequence[Model]:
        """All models; as ``volumes``."""
        return self._assets("model", share, schema)

    def skills(self, share: Share | Schema | str | None = None, schema: str | None = None) -> Sequence[Skill]:
        """All agent skills; as ``volumes``."""
        return self._assets("skill", share, schema)

    def volume(self, name: str | Volume) -> Asset:
        """A volume by its three-part name, or as a listing holds it. No request is made yet.

        Raises:
            AddressError: ``name`` is no name.
        """
        return self._asset("volume", Volume, name)

    def skill(self, name: str | Skill) -> Asset:
        """An agent skill; as ``volume``. Its files are data: whoever runs them trusts their provider."""
        return self._asset("skill", Skill, name)

    def model(self, name: str | Model) -> SharedModel:
        """A model; as ``volume``. ``.versions()``, ``.version(3)``, ``.alias("champion")`` and ``.latest()`` lead to its files."""
        record = name if isinstance(name, Model) else None
        return SharedModel(self._sharing_rest(), self._asset_storage(), _name_of(name, Model), record)

    def _asset(self, kind: Kind, of: type[Volume | Skill], name: str | Volume | Skill) -> Asset:
        record = name if isinstance(name, of) else None
        return Asset(self._sharing_rest(), self._asset_storage(), AssetName(kind, _name_of(name, of)), record)

    def _assets(self, kind: Kind, share: Share | Schema | str | None, schema: str | None) -> Listing[Any]:
        rest = self._sharing_rest()
        if share is None:
            shares = (listed.name for listed in rest.list_shares())
            return Listing(
                one for each in shares for one in _if_listable(each, f"{kind}s", list_assets(rest, kind, each))
            )
        name, schema = (share.share, share.name) if isinstance(share, Schema) else (_share_of(share), schema)
        try:
            return Listing(list_assets(rest, kind, name, schema))
        except NotFoundError as error:
            raise (rest.with_near_names(error, name, schema or "") if shares_kind(rest, kind) else error) from None

    def _sharing_rest(self) -> SharingRest:
        if not isinstance(self.rest, SharingRest):
            raise AccessModeError(
                "a Flight gateway gives the rows of tables, and no volumes, models or skills; make a client of the profile itself"
            )
        return self.rest

    def _asset_storage(self) -> StorageSettings:
        return storage_settings(parse_options({"path": "a.b.c", **self.options}, is_in_spark=False))

    def sql(
        self,
        spark: SparkSession,
        query: str,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
        engine: str | None = None,
    ) -> DataFrame:
        """Run any Spark query over shared tables by their three-part names, beside the session's own tables.

        Spark's own reader reads where it fits all tables of the query (the native lane), and asks for what each scan needs.
        Elsewhere the Python source reads what the client's options say, and on Connect what Spark's plan needs of each table.
        ``client.explain_sql(query)`` tells which. ``VERSION AS OF`` and ``TIMESTAMP AS OF`` with a literal read a
        table as of then.

        Args:
            spark: A classic or Connect session.
            query: A query; write its result by ``.write`` of what is returned.
            args: Values of the query's parameters, as ``spark.sql`` takes them.
            engine: As ``Scan.to_spark``; one table that the native lane does not fit sends all to the Python source.

        Raises:
            PredicateError: The text is not a query (an INSERT, a command); nothing has run then.
            OptionError: An unknown engine.
            DeltaSharingError: A shared table cannot be loaded.
        """
        from delta_sharing_spark.spark.session_settings import in_session
        from delta_sharing_spark.spark.sql import run

        return run(in_session(self, spark), spark, query, args, engine)

    def query(
        self, spark: SparkSession, build: Callable[[Callable[[str], DataFrame]], DataFrame], engine: str | None = None
    ) -> DataFrame:
        """A DataFrame over shared tables, read as ``sql`` reads them.

        Args:
            spark: A classic or Connect session.
            build: Is called with a function that takes ``share.schema.table`` and gives the table's DataFrame; returns
                the DataFrame wanted. On Connect it may be called several times, first over tables that cannot be executed.
                Where it executes something, or builds another DataFrame at each call, its tables are then loaded whole.
            engine: As in ``sql``.

        Raises:
            OptionError: An unknown engine.
            DeltaSharingError: A shared table cannot be loaded.

        Examples:
            >>> client.query(spark, lambda t: t("s.d.orders").where("total > 10").groupBy("city").count())  # doctest: +SKIP
        """
        from delta_sharing_spark.spark.session_settings import in_session
        from delta_sharing_spark.spark.sql import query

        return query(in_session(self, spark), spark, build, engine)

    def explain_sql(
        self,
        query: str | Callable[[Callable[[str], DataFrame]], DataFrame],
        spark: SparkSession | None = None,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
        engine: str | None = None,
    ) -> str:
        """Tell which lane a query takes, and what it asks of each shared table; nothing is run, and no file is listed.

        By the native lane these are the columns, the condition and the rows that each scan of Spark's plan asks for, and the filters
        that leave out no file. By the Python source it is what each table is loaded with.

        Args:
            query: As in ``sql``, or a function as in ``query``.
            spark: The session whose plan is asked; the active one by default.
            args: Values of the query's parameters.
            engine: As in ``sql``.

        Raises:
            ConfigError: No session is active.
        """
        from delta_sharing_spark.spark.sql import explain

        return Explanation(explain(self, query, spark, args, engine))

    def register(
        self,
        spark: SparkSession,
        tables: str | Sequence[str] | Mapping[str, str] | None = None,
        engine: str | None = None,
        **options: Unpack[ViewOptions],
    ) -> Sequence[RegisteredView]:
        """Make shared tables temporary views of a session, for plain ``spark.sql``.

        Each view is a snapshot, planned now; ``refresh`` plans anew. A view is called ``<schema>_<table>`` where no name is
        given for it. A table or view of that name that was not registered here is left alone; a name that is given replaces
        or hides it.

        Args:
            spark: A classic or Connect session.
            tables: A share, by its name: all its tables; a table's three-part name, or several; views' names to tables;
                None for all tables of all shares.
            engine: As ``Scan.to_spark``.
            **options: Options of each scan (``version=3``, ``where="..."``).

        Returns:
            The views. A table of a share that cannot be loaded, or whose view's name is taken, has none, and ``problem`` says
            why. A table that was named and cannot be loaded raises.

        Raises:
            AddressError: Two tables that were named would have one view.
            DeltaSharingError: A table that was named cannot be loaded.
        """
        from delta_sharing_spark.spark.views import register_views

        def load_of(name: TableName) -> Scan:
            return self.table(str(name)).scan(**options)

        return register_views(self, spark, tables, engine, load_of, self.list_all_tables)

    def refresh(self, spark: SparkSession, views: str | Sequence[str] | None = None) -> Sequence[RegisteredView]:
        """Plan registered views anew, by their names; all of this client's by default.

        Raises:
            OptionError: A view was not registered.
            DeltaSharingError: A table cannot be loaded.
        """
        from delta_sharing_spark.spark.views import refresh_views

        return refresh_views(self, spark, views)


def _if_listable(share: str, what: str, items: Iterable[_T]) -> Iterator[_T]:
    """The items of a share; none, and a warning, of one whose odd name the server itself cannot be asked for."""
    try:
        yield from list(items)
    except (AddressError, NotFoundError, RequestRefusedError) as refusal:
        if not is_odd(share, "share"):
            raise
        _log.warning("share %r is left out of the list of all %s: %s", share, what, refusal)


def _name_of(name: object, kind: type[Table | Volume | Model | Skill]) -> TableName:
    """A three-part name, as text or as a listing of its kind holds it; raises AddressError for anything else."""
    if isinstance(name, kind):
        return TableName(name.share, name.schema, name.name)
    return parse_table_name(text_of(name, f"'<share>.<schema>.<{kind.__name__.lower()}>', or take one of a listing"))


def _share_of(share: object) -> str:
    return share.name if isinstance(share, Share) else text_of(share, "the name of a share, or take one of a listing")
