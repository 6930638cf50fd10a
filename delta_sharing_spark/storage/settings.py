"""Defines how storage is reached in directory mode."""

from __future__ import annotations

from dataclasses import dataclass

from delta_sharing_spark.network.settings import NetworkSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(NetworkSettings):
    """How storage is reached, none of it secret.

    Attributes:
        region: AWS region; None finds it (S3 names the right one when asked in the wrong one).
        endpoint: The URL, with its scheme, of an endpoint to use instead of the cloud's own (MinIO, Azurite, an emulator).
    """

    region: str | None = None
    endpoint: str | None = None
