"""An issuer for tests: makes tokens without a sharing server, and counts how often it was asked."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field

from delta_sharing_spark.access.directory.access import StorageToken
from delta_sharing_spark.network.http import NetworkSettings
from delta_sharing_spark.storage.clouds.contract import Secret
from delta_sharing_spark.storage.locations import Location
from support.cloud_secrets import aws_session, azure_sas, gcp_bearer, no_secret

_numbers = itertools.count()


@dataclass(eq=False)
class CountingIssuer:
    """``lifetime`` in seconds of each token; ``delay`` makes asking slow; the access keys made so far are in ``keys``."""

    lifetime: float = 3600.0
    delay: float = 0.0
    asked: list[Location] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    accepted: set[str] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    settings: NetworkSettings = field(default_factory=NetworkSettings, repr=False)

    def issue_token(self, location: Location, seconds: float | None = None) -> StorageToken:
        time.sleep(self.delay)
        with self.lock:
            self.asked.append(location)
            key = f"AKIDTEST{next(_numbers)}"
            self.keys.append(key)
            if self.accepted is not None:
                self.accepted.add(key)
        now = time.time()
        return StorageToken(location, secret_for(location, key), now, now + self.lifetime, "test")


def secret_for(location: Location, key: str = "AKIDTEST") -> Secret:
    match location.kind:
        case "aws":
            return aws_session(key, "secret-access-key", "session-token-text")
        case "azure":
            return azure_sas("sv=2021-06-08&sp=r&sig=c2lnbmF0dXJl")
        case "gcp":
            return gcp_bearer("ya29.bearer-token-text")
        case _:
            return no_secret()
