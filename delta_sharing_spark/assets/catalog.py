"""The part of a client that lists and opens volumes, models and agent skills."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from delta_sharing_spark.access.recipient import Recipient
from delta_sharing_spark.access.settings import storage_settings
from delta_sharing_spark.assets.asset import Asset, SharedModel
from delta_sharing_spark.display import Listing
from delta_sharing_spark.errors import AccessModeError, AddressError, NotFoundError, RequestRefusedError
from delta_sharing_spark.errors.tracebacks import short_tracebacks
from delta_sharing_spark.options import parse_options
from delta_sharing_spark.sharing.address import TableName, is_odd, parse_table_name
from delta_sharing_spark.sharing.assets import AssetName, Kind, Model, Record, Skill, Volume, list_assets, shares_kind
from delta_sharing_spark.sharing.rest import SharingRest
from delta_sharing_spark.sharing.wire_records import Schema, Share

if TYPE_CHECKING:
    from delta_sharing_spark.storage.settings import StorageSettings

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@short_tracebacks
class AssetCatalog(Recipient):
    """Volumes, models and skills of a sharing server (OpenSharing). A server of Delta Sharing alone is told in one line."""

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
        return self._asset("volume", name)

    def skill(self, name: str | Skill) -> Asset:
        """An agent skill; as ``volume``. Its files are data: whoever runs them trusts their provider."""
        return self._asset("skill", name)

    def model(self, name: str | Model) -> SharedModel:
        """A model; as ``volume``. ``.versions()``, ``.version(3)``, ``.alias("champion")`` and ``.latest()`` lead to its files."""
        record = name if isinstance(name, Model) else None
        return SharedModel(self._sharing_rest(), self._asset_storage(), _three_parts(name), record)

    def _asset(self, kind: Kind, name: str | Record) -> Asset:
        record = None if isinstance(name, str) else name
        return Asset(self._sharing_rest(), self._asset_storage(), AssetName(kind, _three_parts(name)), record)

    def _assets(self, kind: Kind, share: Share | Schema | str | None, schema: str | None) -> Listing[Any]:
        rest = self._sharing_rest()
        if share is None:
            shares = (listed.name for listed in rest.list_shares())
            return Listing(
                one for each in shares for one in if_listable(each, f"{kind}s", list_assets(rest, kind, each))
            )
        if isinstance(share, Schema):
            name, schema = share.share, share.name
        else:
            name = share if isinstance(share, str) else share.name
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
        return storage_settings(parse_options({"path": "a.b.c", **self.options}))


def if_listable(share: str, what: str, items: Iterable[_T]) -> Iterator[_T]:
    """The items of a share; none, and a warning, of one whose odd name the server itself cannot be asked for."""
    try:
        yield from list(items)
    except (AddressError, NotFoundError, RequestRefusedError) as refusal:
        if not is_odd(share, "share"):
            raise
        _log.warning("share %r is left out of the list of all %s: %s", share, what, refusal)


def _three_parts(name: str | Record) -> TableName:
    if isinstance(name, str):
        return parse_table_name(name)
    return TableName(name.share, name.schema, name.name)
