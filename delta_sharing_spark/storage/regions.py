"""Finds the region of an S3 bucket, which S3 tells to everyone, whatever they may read."""

from __future__ import annotations

import logging
from functools import lru_cache

import requests

from delta_sharing_spark.network.http import data_session
from delta_sharing_spark.storage.secrets import StorageSettings

_log = logging.getLogger(__name__)

DEFAULT_REGION = "us-east-1"
#: The domains of AWS's other partitions, by the beginning of their regions' names.
_DOMAINS = {
    "cn-": "amazonaws.com.cn",
    "eusc-": "amazonaws.eu",
    "us-iso-": "c2s.ic.gov",
    "us-isob-": "sc2s.sgov.gov",
    "us-isof-": "csp.hci.ic.gov",
    "eu-isoe-": "cloud.adc-e.uk",
}


def s3_domain(region: str) -> str:
    """The domain in which a region's S3 is: ``s3.<region>.<domain>``."""
    return next((domain for start, domain in _DOMAINS.items() if region.startswith(start)), "amazonaws.com")


def find_region(bucket: str, settings: StorageSettings) -> str:
    """The bucket's region; ``us-east-1`` for another endpoint than Amazon's, and where S3 cannot be asked."""
    if settings.region:
        return settings.region
    if settings.endpoint:
        return DEFAULT_REGION
    try:
        return _asked(bucket, settings)
    except requests.RequestException as error:
        _log.warning("the region of bucket %s could not be asked for (%s)", bucket, type(error).__name__)
        return DEFAULT_REGION


@lru_cache(maxsize=256)  # of answers: where there was none, the next caller asks
def _asked(bucket: str, settings: StorageSettings) -> str:
    url, timeout = f"https://s3.amazonaws.com/{bucket}", settings.connect_timeout
    answer = data_session(settings).head(url, timeout=timeout, allow_redirects=False)
    return answer.headers.get("x-amz-bucket-region") or DEFAULT_REGION
