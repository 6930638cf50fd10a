"""Cloudflare R2 (OpenSharing, "R2Credentials"), which speaks S3's protocol at an endpoint of each account."""

from __future__ import annotations

import re
from dataclasses import replace

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.storage.clouds.s3 import S3
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.range_reader import StorageSettings

#: Accounts, with a jurisdiction where they have one.
_HOST = re.compile(r"[a-z0-9]{1,63}(?:\.[a-z0-9-]{1,20})?\.r2\.cloudflarestorage\.com")
_AMAZON = re.compile(r"\bamazonaws\.|\.(?:c2s\.ic|sc2s\.sgov|csp\.hci\.ic)\.gov\b|\.adc-e\.uk\b")


class R2(S3):
    """S3's requests, to the user's endpoint or the location's own, never to Amazon's."""

    also_for = ("aws",)  # servers write its locations as ``r2://`` or as ``s3://``

    @classmethod
    def parse_authority(cls, scheme: str, authority: str) -> tuple[str, str, str]:
        bucket, separator, host = authority.partition("@")
        bucket, host = super().parse_authority(scheme, bucket)[0], host.lower()
        if separator and not _HOST.fullmatch(host):
            raise ValueError("its host is not <account>.r2.cloudflarestorage.com, and R2's keys are shown to no other")
        return bucket, host, host

    @classmethod
    def settings_for(cls, location: Location, settings: StorageSettings) -> StorageSettings:
        # An endpoint that the user names stands in for every cloud's own, unless it is Amazon's, named for other tables.
        endpoint = settings.endpoint if settings.endpoint and not _AMAZON.search(settings.endpoint.lower()) else None
        if endpoint is None and not location.host:
            raise CredentialError(
                f"the keys for {location} are Cloudflare R2's, and nothing tells its account, so that they are sent nowhere; set "
                f"the option storageEndpoint to https://<account>.r2.cloudflarestorage.com, or ask the provider to share it as "
                f"r2://<bucket>@<account>.r2.cloudflarestorage.com/<path>"
            )
        region = settings.region if endpoint else None
        return replace(settings, endpoint=endpoint or f"https://{location.host}", region=region or "auto")
