"""Lists every setting of a session that the JVM connector reads (4.4.0, with its client 1.4.1), and what becomes of it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Literal

from delta_sharing_spark.errors import ConfigError

#: Makes options of a setting's value and of all settings of the session.
_Options = Callable[[str, Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class JvmSetting:
    """One setting of the JVM connector.

    Attributes:
        default: Its value where it is not set.
        text: The option, why nothing needs it, or what to do instead.
        options: The options that an honoured value becomes.
        word: Whether an option means the same, nothing needs it, or it is refused: named, and without effect.
    """

    default: str
    text: str
    options: _Options = lambda value, settings: {}
    word: Literal["option", "not needed", "refused"] = "option"


_not_needed, _refused = partial(JvmSetting, word="not needed"), partial(JvmSetting, word="refused")


def _switch(default: str, name: str, value: str) -> JvmSetting:
    """A switch that, turned from its default, means an option's value."""
    return JvmSetting(default, name, lambda _value, _settings: {name: value})


def proxy_of(setting: Callable[[str], str | None], hosts: Set[str | None]) -> str | None:
    """The proxy by which the JVM connector fetches data from some hosts; None where it uses none.

    Args:
        setting: Gives the value of a setting by its name, None where it is not set.

    Raises:
        ConfigError: Only one of the proxy's host and port is set.
    """
    names = [f"spark.delta.sharing.network.{name}" for name in ("proxyHost", "proxyPort", "noProxyHosts")]
    values = {name: value for name in names if (value := setting(name))}
    if not values.keys() & set(names[:2]):
        return None
    direct = {host.strip().lower() for host in values.get(names[2], "").split(",")}
    return None if hosts <= direct else _proxy("", values)["proxy"]


def _proxy(_value: str, settings: Mapping[str, str]) -> Mapping[str, str]:
    host, port = (settings.get(f"spark.delta.sharing.network.proxy{part}", "").strip() for part in ("Host", "Port"))
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            "spark.delta.sharing.network.proxyHost and proxyPort are a host and a number from 1 to 65535, and belong together; "
            "set both, or unset both and give the option proxy"
        )
    return {"proxy": f"http://{host}:{port}"}


def _pages(_value: str, settings: Mapping[str, str]) -> Mapping[str, str]:
    if settings.get("spark.delta.sharing.queryPagination.enabled", "").strip().lower() != "true":
        return {}  # the JVM connector asks for no pages then, either
    return {"maxFilesPerRequest": settings.get("spark.delta.sharing.maxFilesPerQueryRequest", "100000")}


_HINTS = "hints only make a server send fewer files; rows are filtered here"
_FORMAT = "the format is negotiated for batches, feeds and streams alike"
_URLS = "the task that reads renews URLs, before they end and when the storage refuses them"
_TOKENS = "a token is asked for as the server is: set the option retryTimeout"
_SHARING, _DELTA = "spark.delta.sharing.", "spark.sql.delta.sharing."

#: The settings by their names.
JVM_SETTINGS: Mapping[str, JvmSetting] = {
    f"{_SHARING}network.timeout": JvmSetting(
        "320s", "readTimeout, connectTimeout", lambda value, _: {"readTimeout": value, "connectTimeout": value}
    ),
    f"{_SHARING}network.maxRetryDuration": JvmSetting(
        "600000", "retryTimeout", lambda value, _: {"retryTimeout": f"{value.strip()}ms"}
    ),
    f"{_SHARING}network.numRetries": _refused("3", "retries are bounded by time: set the option retryTimeout"),
    f"{_SHARING}network.retrySleepInterval": _not_needed("1000", "pauses grow, or are what the server asks for"),
    f"{_SHARING}network.proxyHost": JvmSetting("", "proxy", _proxy),
    f"{_SHARING}network.proxyPort": JvmSetting("", "proxy", _proxy),
    f"{_SHARING}network.noProxyHosts": _refused(
        "",
        "the option proxy leads to every host: unset proxyHost and proxyPort, and set HTTPS_PROXY and NO_PROXY in the environment "
        "of the driver and the executors",
    ),
    f"{_SHARING}network.sslTrustAll": _refused(
        "false", "certificates are always verified: name the server's authority by the option caBundle"
    ),
    f"{_SHARING}network.never.use.https": _refused(
        "false", "https never becomes http: let the profile name the endpoint as it is"
    ),
    f"{_SHARING}network.maxConnections": _not_needed("64", "connections are opened as reads need them"),
    f"{_SHARING}network.useAsyncQuery": _switch("false", "asyncQuery", "true"),
    f"{_SHARING}network.asyncQueryRetryInterval": _not_needed("10000", "the pauses between polls grow"),
    f"{_SHARING}network.asyncQueryTimeout": _refused(
        "600000", "a pending query is polled for ten minutes, or for the option retryTimeout if that is longer"
    ),
    f"{_SHARING}query.includeEndStreamAction": _not_needed("false", "the end of an answer is always asked for"),
    f"{_SHARING}queryPagination.enabled": JvmSetting("false", "maxFilesPerRequest", _pages),
    f"{_SHARING}maxFilesPerQueryRequest": JvmSetting("100000", "maxFilesPerRequest", _pages),
    f"{_SHARING}jsonPredicateHints.enabled": _switch("true", "serverHints", "sql"),
    f"{_SHARING}jsonPredicateV2Hints.enabled": _not_needed("true", _HINTS),
    f"{_SHARING}jsonPredicateHints.partialFilter.enabled": _not_needed("false", _HINTS),
    f"{_SHARING}limitPushdown.enabled": _not_needed("true", "rows are cut to the limit here"),
    f"{_SHARING}streaming.queryTableVersionIntervalSeconds": JvmSetting(
        "30s", "pollInterval", lambda value, _: {"pollInterval": value}
    ),
    f"{_SHARING}oauth.tokenExchangeMaxRetries": _refused("5", _TOKENS),
    f"{_SHARING}oauth.tokenExchangeMaxRetryDurationInSeconds": _refused("60", _TOKENS),
    f"{_SHARING}oauth.tokenRenewalThresholdInSeconds": _not_needed(
        "600", "a token is renewed ten minutes or a tenth of its life before it ends, and when it is refused"
    ),
    f"{_SHARING}profile.provider.class": _refused(
        "io.delta.sharing.client.DeltaSharingFileProfileProvider",
        "no Java class gives the profile: give its path or its fields as options, or use bearerTokenFile or bearerTokenCommand",
    ),
    f"{_SHARING}profile.optionsProvider.enabled": _refused(
        "true", "credentials in options are always read: leave them out"
    ),
    f"{_SHARING}client.class": _refused(
        "io.delta.sharing.client.DeltaSharingRestClient", "no Java class is the client"
    ),
    f"{_SHARING}client.useStructuralSchemaMatch": _not_needed("false", "schemas are compared by their structure"),
    f"{_SHARING}client.sparkParquetIOCache.enabled": _not_needed("false", "the option cacheDir keeps bytes"),
    f"{_SHARING}client.logPreSignedUrlAccess.enabled": _refused("false", "URLs are secrets, which no log may show"),
    f"{_SHARING}client.streamReadRetry.enabled": _not_needed("false", "reads are always retried"),
    f"{_SHARING}client.skipFileIdHashVerification": _not_needed("false", "a server that ignores the header is read"),
    f"{_SHARING}loadDataFilesInMemory": _not_needed("false", "the option memoryBudget bounds what a task holds"),
    f"{_SHARING}preSignedUrl.expirationMs": _not_needed("3600000", _URLS),
    f"{_SHARING}driver.refreshCheckIntervalMs": _not_needed("60000", _URLS),
    f"{_SHARING}driver.refreshThresholdMs": _not_needed("900000", _URLS),
    f"{_SHARING}driver.accessThresholdToExpireMs": _not_needed("3600000", _URLS),
    f"{_SHARING}executor.refreshThresholdMs": _not_needed("600000", _URLS),
    f"{_DELTA}forceDeltaFormat": _switch("false", "responseFormat", "delta"),
    f"{_DELTA}enableDeltaFormatBatch": _not_needed("true", "the JVM connector does not read it since 4.0"),
    f"{_DELTA}streamingAutoResolveResponseFormat": _not_needed("false", _FORMAT),
    f"{_DELTA}cdfStreamingAutoResolveResponseFormat": _not_needed("false", _FORMAT),
    f"{_DELTA}enableAutoResolveForCdf": _not_needed("false", _FORMAT),
    f"{_DELTA}streamingEnableHistoricalProtocol": _not_needed("false", "every version's schema is compared"),
    f"{_DELTA}cdfEnableHistoricalProtocol": _not_needed("false", "every version's schema is compared"),
    f"{_DELTA}streamingConvertStartingTimestampToVersion": _not_needed(
        "false", "the server finds the version of a moment"
    ),
}
