"""Reads S3 through s3fs, with one session credential and nothing of the machine's own configuration."""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any

import aiobotocore.session
from s3fs import S3FileSystem

from delta_sharing_spark.storage.library_errors import StorageSettings
from delta_sharing_spark.storage.locations import Location
from delta_sharing_spark.storage.regions import DEFAULT_REGION
from delta_sharing_spark.storage.secrets import AwsSession
from delta_sharing_spark.storage.transfer import Transfer, close_later

#: At DEBUG these write canonical requests and headers, the session token among them.
_TALKATIVE = ("botocore.auth", "botocore.endpoint", "botocore.httpsession")


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


for _name in _TALKATIVE:
    logging.getLogger(_name).addFilter(_above_debug)


class _SessionFileSystem(S3FileSystem):  # type: ignore[misc]  # s3fs has no types
    """s3fs without fsspec's configuration (``FSSPEC_S3_*``, ``~/.config/fsspec``), which goes by protocol names."""

    protocol = ()
    cachable = False
    retries = 1

    @staticmethod
    def close_session(loop: Any, s3: Any) -> None:
        close_later(loop, partial(s3.__aexit__, None, None, None))


def build(location: Location, secret: AwsSession, settings: StorageSettings) -> Any:
    """A file system for one bucket.

    The session reads no shared configuration or credentials file, no ``AWS_PROFILE`` and no ``AWS_ENDPOINT_URL``;
    its keys are given, so that the provider chain (environment, metadata service) is never asked.
    """
    session = aiobotocore.session.AioSession(
        session_vars={
            "profile": (None, None, None, None),
            "config_file": (None, None, os.devnull, None),
            "credentials_file": (None, None, os.devnull, None),
        }
    )
    # S3 answers a request for a bucket of another region with that region's name, and botocore follows.
    client: dict[str, Any] = {"region_name": settings.region or DEFAULT_REGION}
    if settings.ca_bundle:
        client["verify"] = settings.ca_bundle
    config: dict[str, Any] = {
        "connect_timeout": settings.connect_timeout,
        "read_timeout": settings.read_timeout,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "ignore_configured_endpoint_urls": True,
        "max_pool_connections": 32,
    }
    if settings.proxy:
        config["proxies"] = {"http": settings.proxy, "https": settings.proxy}
    if settings.endpoint:
        config["s3"] = {"addressing_style": "path"}
    return _SessionFileSystem(
        anon=False,
        key=secret.access_key_id,
        secret=secret.secret_access_key,
        token=secret.session_token,
        endpoint_url=settings.endpoint,
        session=session,
        client_kwargs=client,
        config_kwargs=config,
        # More than one would ask for the object's size before every whole read.
        max_concurrency=1,
        skip_instance_cache=True,
        use_listings_cache=False,
    )


async def get(fs: Any, location: Location, transfer: Transfer) -> None:
    """One GetObject of what a transfer is missing; its bytes are kept as they arrive."""
    answer = await fs._call_s3("get_object", Bucket=location.container, Key=location.key, **transfer.headers)
    body, metadata = answer["Body"], answer["ResponseMetadata"]
    try:
        await transfer.receive(metadata["HTTPStatusCode"], metadata["HTTPHeaders"], body.read)
    finally:
        body.close()


async def head(fs: Any, bucket: str, key: str) -> tuple[int, Any]:
    """An object's size and modification time; GetObject permission is enough."""
    answer = await fs._call_s3("head_object", Bucket=bucket, Key=key)
    return answer["ContentLength"], answer["LastModified"]


async def list_page(fs: Any, bucket: str, prefix: str, start: str, token: str | None) -> tuple[list[Any], str | None]:
    """One page of ListObjectsV2: ``(key, size, modified)`` and the next page's token.

    S3 lists what comes after a key, so a few keys before ``start`` may be among them.
    """
    arguments: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "Delimiter": "/"}
    if token is not None:
        arguments["ContinuationToken"] = token
    elif start > prefix:
        arguments["StartAfter"] = start[:-1]
    answer = await fs._call_s3("list_objects_v2", **arguments)
    objects = [(item["Key"], item["Size"], item["LastModified"]) for item in answer.get("Contents", ())]
    return objects, answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
