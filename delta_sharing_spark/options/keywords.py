"""The options of a load as keyword arguments, for type checkers: these find a wrong name or value before anything runs.

A test compares the names with :data:`delta_sharing_spark.options.OPTIONS`. At run time names are free of case.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Literal, TypedDict


class LoadOptions(TypedDict, total=False):
    """Options of a load, but those that methods have arguments for; each may be given as the text that Spark takes."""

    pushdown: Literal["off", "query"]
    responseFormat: Literal["parquet", "delta"]
    versionAsOf: int | str
    timestampAsOf: datetime | date | int | str
    ref: str
    timeZone: str
    readChangeFeed: bool | str
    readChangeData: bool | str
    startingVersion: int | str
    startingTimestamp: datetime | date | int | str
    endingVersion: int | str
    endingTimestamp: datetime | date | int | str
    commitTimestampType: Literal["timestamp", "long"]
    maxFilesPerTrigger: int | str
    maxBytesPerTrigger: int | str
    maxVersionsPerRpc: int | str
    ignoreDeletes: bool | str
    ignoreChanges: bool | str
    skipChangeCommits: bool | str
    allowAddedColumns: bool | str
    pollInterval: float | str
    accessMode: Literal["auto", "url", "dir", "iceberg"]
    carryProfile: bool | Literal["true", "false", "token"]
    storageRegion: str
    storageEndpoint: str
    allowedDataHosts: str
    maxSplitBytes: int | str
    memoryBudget: int | str
    maxFilesPerRequest: int | str
    serverHints: Literal["json", "sql", "both"]
    countByStatistics: bool | str
    asyncQuery: bool | str
    connectTimeout: float | str
    readTimeout: float | str
    retryTimeout: float | str
    proxy: str
    caBundle: str
    callerOrg: str
    cacheDir: str
    cacheMaxBytes: int | str
    gateway: str
    gatewayTokenFile: str
    gatewayToken: str
    gatewayCertificate: str
    gatewayKey: str
    shareCredentialsVersion: str
    type: str
    endpoint: str
    bearerToken: str
    expirationTime: str
    icebergEndpoint: str
    tokenEndpoint: str
    clientId: str
    clientSecret: str
    scope: str
    username: str
    password: str
    identityEndpoint: str
    bearerTokenFile: str
    bearerTokenCommand: str
    identity: Literal["azure", "google", "environment"]
    identityAudience: str
    identityClientId: str
    identityVariable: str
    tokenExchangeEndpoint: str
    tokenExchangeAudience: str
    tokenExchangeScope: str
    tokenExchangeClientId: str
    privateKeyFile: str
    privateKeyOrigin: str
    privateKeyAudience: str
    clientCertificate: str
    clientKey: str
    clientKeyPassword: str


class ClientOptions(LoadOptions, total=False):
    """Options of all loads of a client."""

    columns: str
    where: str
    limit: int | str


class ViewOptions(LoadOptions, total=False):
    """Arguments and options of ``SharedTable.scan``."""

    columns: Sequence[str]
    where: str
    limit: int
    version: int
    timestamp: datetime | date | int | str
