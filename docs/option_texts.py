"""Documents every option of a load, by the sections of the page ``options.md``; ``options/declared.py`` declares them."""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """What the page says of an option: what it does, its type and its default where the declaration shows them badly."""

    doc: str
    type: str = ""
    default: str = ""


#: The sections in order, a note above the table, and the options by name.
SECTIONS: dict[str, tuple[str, dict[str, Text]]] = {
    "What to read": (
        "",
        {
            "path": Text(
                "`<profile>#<share>.<schema>.<table>`: the argument of `load()`. The profile is a path or URL of any file system; with inline credentials the path is the bare `<share>.<schema>.<table>`.",
                default="required",
            ),
            "columns": Text(
                "The columns to read, in this order: `a,b`; a nested field as `a.b`, a name with a comma or a blank at its end between backquotes. Only their bytes are fetched. `spark.read.schema(...)` does the same."
            ),
            "where": Text(
                "A SQL boolean expression that every row returned fulfils. It is sent to the server as hints, skips files and row groups, and is applied exactly.",
                type="SQL",
            ),
            "limit": Text("The maximum number of rows; a repeated read gives the same ones."),
            "pushdown": Text(
                "`query`: filters of the Spark query prune what is read. Safe only where the loaded DataFrame serves one query.",
            ),
            "responseFormat": Text(
                "Ask the server for this format only. Left out, the server chooses for the newest version; versions, moments and ranges are "
                "asked for in the delta format. A parquet answer that cannot say what a table needs (column mapping, deletion vectors) "
                "is refused.",
                default="negotiated",
            ),
        },
    ),
    "Time travel": (
        "",
        {
            "versionAsOf": Text("The table as of this version.", type="version"),
            "timestampAsOf": Text("The table as of this moment."),
            "ref": Text("An Iceberg table as of a branch or tag; not through a Flight gateway."),
            "timeZone": Text(
                "The zone of timestamps written without one, in options and in partition values, by any name that Spark knows: `America/New_York`, `EST`, `UTC+1`.",
                default="the session's, see above",
            ),
        },
    ),
    "Change data feed": (
        "",
        {
            "readChangeFeed": Text(
                "Read the change data feed: the table's columns, `_change_type`, `_commit_version` and `_commit_timestamp`."
            ),
            "startingVersion": Text(
                "First version of the feed or stream, inclusive. `latest`, in streams only: changes after the present version."
            ),
            "startingTimestamp": Text("Instead of `startingVersion`: the first version at or after this moment."),
            "endingVersion": Text("Last version of the feed, inclusive.", type="version", default="newest"),
            "endingTimestamp": Text("Instead of `endingVersion`: the last version at or before this moment."),
            "commitTimestampType": Text("`long` gives `_commit_timestamp` as the protocol's milliseconds."),
        },
    ),
    "Streams": (
        "",
        {
            "maxFilesPerTrigger": Text(
                "The maximum number of files in a micro-batch.", default="`1000` unless `maxBytesPerTrigger` is set"
            ),
            "maxBytesPerTrigger": Text(
                "The approximate number of bytes in a micro-batch, which holds at least one file."
            ),
            "maxVersionsPerRpc": Text("The maximum number of versions in one request."),
            "ignoreDeletes": Text("Go on past versions that only delete; their deletes are not told."),
            "ignoreChanges": Text(
                "Go on past versions that rewrite files, and emit the rewritten files: unchanged rows come again."
            ),
            "skipChangeCommits": Text("Leave out versions that delete or rewrite, wholly."),
            "allowAddedColumns": Text(
                "Read on without a column that was added upstream, instead of stopping the stream."
            ),
            "pollInterval": Text(
                "The server is asked for its version at most this often. Under 10 s only against loopback.",
                default="`30s`",
            ),
        },
    ),
    "Access": (
        "",
        {
            "accessMode": Text(
                "`url`: files by presigned URL; `dir`: the table's directory with temporary credentials; `iceberg`: the share's Iceberg catalog; `auto`: what the server offers for the table, url first, and Iceberg where it offers nothing else.",
            ),
            "carryProfile": Text(
                "What executors ask for other URLs and credentials with: the profile (`true`), nothing (`false`: none are renewed there), or, of an OAuth profile, its access token alone (`token`), until that ends.",
            ),
            "storageRegion": Text("Region of the S3 bucket.", default="found"),
            "storageEndpoint": Text("Storage endpoint instead of the cloud's own: MinIO, Azurite, an emulator."),
            "allowedDataHosts": Text(
                "Hosts that data URLs may name with plain http, or that lie on this machine or link-local addresses. https needs no entry elsewhere, and a sharing server on loopback may name loopback.",
                default="none",
            ),
        },
    ),
    "Planning and memory": (
        "",
        {
            "maxSplitBytes": Text("Bytes of files in one Spark partition, about.", default="`128m`"),
            "memoryBudget": Text(
                "Bytes that a task may hold fetched and not yet decoded. A larger row group is read part by part. Outside Spark, by default, all that is read at once has an eighth of the free memory, from `256m` to `1g`.",
                default="`128m`",
            ),
            "maxFilesPerRequest": Text(
                "The number of files in a page of the list of files. Unset, the server decides; the reference server cannot page tables with deletion vectors, column mapping or other reader features.",
                default="none",
            ),
            "serverHints": Text(
                "How filters are sent to the server: as `jsonPredicateHints`, as SQL `predicateHints` (partition columns only, for servers that know no others), or both. Rows are filtered here in any case.",
            ),
            "countByStatistics": Text(
                "Whether the native lane answers what needs no column of the files, as `count(*)` does, from the row counts of their statistics, without the storage."
            ),
            "asyncQuery": Text("Let the server answer a query later and poll for the result."),
        },
    ),
    "Network": (
        "",
        {
            "connectTimeout": Text("To open a connection.", default="`10s`"),
            "readTimeout": Text(
                "Between two bytes of an answer. Unless it is set, a storage may be silent for half of `retryTimeout` at most, or for `connectTimeout` if that is longer.",
                default="`320s`",
            ),
            "retryTimeout": Text("How long transient failures of one request are retried.", default="`10m`"),
            "proxy": Text("Proxy of REST, OAuth and data requests alike.", default="`HTTPS_PROXY`, `NO_PROXY`"),
            "caBundle": Text(
                "A PEM file of certificate authorities, or a directory of them. Certificates are always verified. Else the first that is "
                "set of `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE`, and `SSL_CERT_FILE` with `SSL_CERT_DIR`; else certifi's.",
                default="`REQUESTS_CA_BUNDLE`, ...",
            ),
            "callerOrg": Text("Named to the server in the User-Agent."),
        },
    ),
    "Cache": (
        "",
        {
            "cacheDir": Text("Keep file bytes in this local directory.", default="off"),
            "cacheMaxBytes": Text("Size that the cache is kept under, least recently used first.", default="`10g`"),
        },
    ),
    "Flight gateway": (
        "",
        {
            "gateway": Text(
                "Read through a Flight gateway, `grpc+tls://host:port`, which holds the profile; the path is then the bare `<share>.<schema>.<table>`.",
                default="none",
            ),
            "gatewayTokenFile": Text(
                "A file with the token that the gateway asks for.", default="`DELTA_SHARING_FLIGHT_TOKEN`"
            ),
            "gatewayToken": Text("The token itself.", default="none"),
            "gatewayCertificate": Text("A PEM file of this client's own certificate, for mutual TLS.", default="none"),
            "gatewayKey": Text("A PEM file of its private key.", default="none"),
        },
    ),
    "Inline credentials": (
        "Credentials instead of a profile; the path is then the bare `<share>.<schema>.<table>`.",
        {
            "shareCredentialsVersion": Text("Version of the inline profile: `1` or `2`."),
            "type": Text("`bearer_token`, `oauth_client_credentials`, `basic`."),
            "endpoint": Text("The sharing server's URL."),
            "bearerToken": Text("Token of `bearer_token`."),
            "expirationTime": Text("When the bearer token ends."),
            "icebergEndpoint": Text("The Iceberg catalog of the same shares."),
            "tokenEndpoint": Text("Where OAuth tokens are issued."),
            "clientId": Text("OAuth client."),
            "clientSecret": Text("OAuth client's secret."),
            "scope": Text("OAuth scope."),
            "username": Text("User of `basic`."),
            "password": Text("Password of `basic`."),
        },
    ),
    "Recipients without a secret": (
        "See [Recipients without a secret](identities.md). Each of them may stand in the environment instead, `bearerTokenFile` as `DELTA_SHARING_BEARER_TOKEN_FILE`; options are taken whole, or else the environment.",
        {
            "identityEndpoint": Text(
                "The one endpoint that the token may be shown to; a profile that names another one is refused. The option `endpoint` serves as well.",
                default="required",
            ),
            "bearerTokenFile": Text("A local file with the token, which is read again when it rotates."),
            "bearerTokenCommand": Text(
                'A program and its arguments, `get-token --for sharing` or `["get-token", "--for", "sharing"]`, which prints a token, or JSON with `access_token` and `expires_in` or `expiration`. It is run without a shell, for 30 s at most.'
            ),
            "identity": Text(
                "`azure`: the machine's managed identity; `google`: an id token of its service account; `environment`: a token in an environment variable.",
            ),
            "identityAudience": Text("Whom `azure` and `google` issue the token for."),
            "identityClientId": Text("The client id of an identity that was assigned by a user, for `azure`."),
            "identityVariable": Text("The variable that `environment` reads."),
            "tokenExchangeEndpoint": Text("Exchange the token here for the one that is shown (RFC 8693)."),
            "tokenExchangeAudience": Text("`audience` of the exchange."),
            "tokenExchangeScope": Text("`scope` of the exchange."),
            "tokenExchangeClientId": Text("`client_id` of the exchange."),
        },
    ),
    "A private key of your own": (
        "A profile of type `oauth_jwt_bearer_private_key_jwt` signs with your key only as you say here: [A private key of your own](identities.md#a-private-key-of-your-own). Each may stand in the environment instead, `privateKeyFile` as `DELTA_SHARING_PRIVATE_KEY_FILE`. `identityEndpoint` names the endpoint that may see the tokens.",
        {
            "privateKeyFile": Text(
                "The key: a local regular file of 64 KiB at most, PEM.",
                default="the one that a profile in a local file names",
            ),
            "privateKeyOrigin": Text(
                "The origin (`https://login.example.com`) that may receive assertions: that of the profile's `tokenEndpoint` and `issuer`.",
                default="required",
            ),
            "privateKeyAudience": Text("An `issuer` of another origin, for whom assertions may be as well."),
        },
    ),
    "A certificate of your own": (
        "For servers that demand one of their clients: [Client certificates](identities.md#client-certificates). Each may stand in the environment instead, `clientCertificate` as `DELTA_SHARING_CLIENT_CERTIFICATE`.",
        {
            "clientCertificate": Text(
                "A PEM file of the certificate, for the sharing server and its token endpoint; it may hold the key too. Storage is never shown it."
            ),
            "clientKey": Text("A PEM file of the certificate's key.", default="`clientCertificate`"),
            "clientKeyPassword": Text("The key's password.", default="`DELTA_SHARING_CLIENT_KEY_PASSWORD`"),
        },
    ),
}
