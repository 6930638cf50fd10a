"""Azure's Blob service, and OneLake, which speaks its protocol: a shared access signature, accounts, blobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote
from xml.etree.ElementTree import Element

from delta_sharing_spark.errors import CredentialError
from delta_sharing_spark.storage.clouds import contract
from delta_sharing_spark.storage.locations import Location, StoredObject
from delta_sharing_spark.storage.range_reader import StorageSettings

#: The version of the protocol: the first that has the SAS of a directory is 2020-02-10.
_VERSION = "2021-12-02"
_CONTAINER = re.compile(r"\$root|\$web|[A-Za-z0-9][A-Za-z0-9-]{0,62}")
#: Workspaces of OneLake have names of their users' choice, or ids.
_WORKSPACE = re.compile(r"[^\x00-\x1f\x7f-\x9f/\\@:?#]{1,256}")
_ONELAKE = re.compile(r"\.(?:dfs|blob)\.(?:fabric|pbidedicated)\.")
#: An account, for accounts in DNS zones the zone (``z12``; of OneLake's private links ``z3f``), the service, and the cloud's domain.
_HOST = re.compile(r"([a-z0-9][a-z0-9-]{0,62}(?:\.z[0-9a-f]{1,4})?)\.(?:dfs|blob)\.([a-z0-9][a-z0-9.-]*[a-z0-9])")
_FIXED_SAS_PROVIDER = "org.apache.hadoop.fs.azurebfs.sas.FixedSASTokenProvider"
_RESTORED = contract.Cause("it is still being restored from the archive", "try again when that is done")
_ADDRESS = contract.Cause(
    "the credential is for other addresses than this machine's",
    "ask the provider to let this machine's address in",
    "credential",
)
_ACCOUNT_KEY = contract.Cause(
    "the storage account takes no credential that was made with its key",
    "ask the provider to have the sharing server issue user delegation SAS",
    "credential",
)
_FIREWALL = contract.Cause(
    "",
    "ask the provider whether the storage account's firewall lets this machine in, and whether the credential is still valid",
    "request",
)


class Azure(contract.Cloud):
    """Azure's Blob service, whichever endpoint a location names: Get Blob, Get Blob Properties, List Blobs.

    The secret is a shared access signature ("AzureUserDelegationSAS"), as a query string without its ``?``.
    """

    parts = ("sasToken",)
    alphabet = re.compile(r"[A-Za-z0-9._~%&=+,:/!*'()@$-]+")
    tells_absence = True
    credential_codes = frozenset(
        {"AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation", "PublicAccessNotPermitted"}
    )
    causes = (
        (r"\ABlobArchived\n", contract.ARCHIVED),
        (r"\ABlobBeingRehydrated\n", _RESTORED),
        (r"\A(?:ContainerNotFound|FilesystemNotFound)\n|The specified container does not exist", contract.NO_CONTAINER),
        (r"\A(?:AccountIsDisabled|InsufficientAccountPermissions)\n", contract.DISABLED),
        (r"(?i)\ABlobUsesCustomerSpecifiedEncryption\n", contract.WRITERS_KEY),
        (r"\AAuthorizationSourceIPMismatch\n", _ADDRESS),
        (r"\AKeyBasedAuthenticationNotPermitted\n", _ACCOUNT_KEY),
        (r"\AAuthorizationFailure\n", _FIREWALL),
    )
    end_text = ">Signature not valid in the specified time frame"

    def __init__(self, secret: contract.Secret, settings: StorageSettings) -> None:
        self._sas, self._endpoint = secret.parts["sasToken"], settings.endpoint

    @classmethod
    def parse_authority(cls, scheme: str, authority: str) -> tuple[str, str, str]:
        container, separator, host = authority.rpartition("@")
        host = host.lower()
        is_onelake = _ONELAKE.search(host) is not None
        container = unquote(container) if is_onelake else container
        pattern = _WORKSPACE if is_onelake else _CONTAINER
        parts = _HOST.fullmatch(host)
        if not separator or not pattern.fullmatch(container) or container in (".", "..") or parts is None:
            raise ValueError(f"expected {scheme}://<container>@<account>.dfs.core.windows.net/<path>")
        return container, host, f"{parts[1]}.blob.{parts[2]}"

    @classmethod
    def parts_of(cls, fields: Mapping[str, str | None]) -> dict[str, str]:
        # Without what a file or a URL leaves around it, its ``+`` as base64 means it.
        parts = (fields.get("sasToken") or "").strip().removeprefix("?").split("&")
        return {"sasToken": "&".join(part.replace("+", "%2B") if part.startswith("sig=") else part for part in parts)}

    @classmethod
    def check(cls, parts: Mapping[str, str], name: str) -> None:
        super().check(parts, name)
        if "sig=" not in parts["sasToken"]:
            raise CredentialError(
                f"{name}.sasToken has no signature (the parameter sig); ask the provider to check the sharing server"
            )

    @classmethod
    def iceberg_properties(cls, location: Location) -> Iterable[tuple[Mapping[str, str], str]]:
        for account in (f".{location.host}", f".{_account(location)}", ""):
            yield {"sasToken": f"adls.sas-token{account}"}, f"adls.sas-token-expires-at-ms{account}"

    @classmethod
    def code_of(cls, status: int, headers: Mapping[str, str]) -> str:
        return headers.get("x-ms-error-code", "")

    def object_url(self, location: Location) -> str:
        return f"{self._container_url(location)}/{quote(location.key, safe='/-_.~')}?{self._sas}"

    def list_url(self, location: Location, prefix: str, start: str, token: str | None, *, deep: bool = False) -> str:
        # A prefix is listed from its beginning: ``start`` is the caller's to apply.
        query = {"restype": "container", "comp": "list", "prefix": prefix, **contract.delimiter(deep)}
        return f"{self._container_url(location)}?{contract.query_text(query | ({'marker': token} if token else {}))}&{self._sas}"

    def page(self, body: bytes) -> tuple[list[StoredObject], str | None]:
        root = contract.xml_root(body, "EnumerationResults")
        entries = []
        for blob in root.iterfind("{*}Blobs/{*}Blob"):
            properties = blob.find("{*}Properties")
            if properties is None:
                raise contract.UnreadableAnswer("a blob has no properties")
            if contract.xml_text(properties, "ResourceType") == "directory":
                continue
            size, moment = (
                contract.xml_text(properties, "Content-Length"),
                contract.xml_text(properties, "Last-Modified"),
            )
            entries.append(contract.entry(_name(blob), size, moment))
        entries += [StoredObject(_name(prefix), 0, 0) for prefix in root.iterfind("{*}Blobs/{*}BlobPrefix")]
        return entries, contract.xml_text(root, "NextMarker") or None

    def headers(self, method: str, url: str) -> dict[str, str]:
        return {"x-ms-version": _VERSION}

    def engine_options(self, engine: contract.Engine, location: Location) -> dict[str, Any]:
        account, endpoint = _account(location), self._endpoint or f"https://{location.service}"
        connection = f"BlobEndpoint={endpoint};SharedAccessSignature={self._sas}"
        if engine == "fsspec":
            # As a connection string, and not as a SAS: adlfs takes one of the environment before a SAS.
            return {"account_name": account, "connection_string": connection}
        if engine == "duckdb":
            # It compares the account's name with the path's, and reads abfss by the DFS endpoint.
            dfs = self._endpoint or f"https://{_dfs_host(location)}"
            connection = f"AccountName={account};DfsEndpoint={dfs};{connection}"
            return {"TYPE": "azure", "CONNECTION_STRING": connection, "SCOPE": self.engine_uri(location, "s3")}
        values = {"azure_storage_account_name": account, "azure_storage_sas_token": self._sas}
        if self._endpoint:
            values["azure_storage_endpoint"] = self._endpoint
            if self._endpoint.startswith("http://"):
                values["azure_allow_http"] = "true"
        return values

    def hadoop_options(self, location: Location, expires: float, token_provider: str | None) -> dict[str, str]:
        if location.scheme in ("wasbs", "wasb"):
            return {f"fs.azure.sas.{location.container}.{location.service}": self._sas}
        return {
            f"fs.azure.account.auth.type.{location.host}": "SAS",
            f"fs.azure.sas.token.provider.type.{location.host}": _FIXED_SAS_PROVIDER,
            f"fs.azure.sas.fixed.token.{location.host}": self._sas,
        }

    @classmethod
    def engine_uri(cls, location: Location, scheme: str) -> str:
        if location.scheme in ("wasbs", "wasb", "abfs") and scheme == "s3":
            return str(replace(location, scheme="abfss", host=_dfs_host(location)))
        return str(location)

    def _container_url(self, location: Location) -> str:
        return f"{(self._endpoint or f'https://{location.service}').rstrip('/')}/{quote(location.container, safe='$')}"


def _account(location: Location) -> str:
    return location.host.partition(".")[0]


def _dfs_host(location: Location) -> str:
    return location.service.replace(".blob.", ".dfs.", 1)


def _name(element: Element) -> str:
    name = contract.object_key(element.findtext("{*}Name"))
    return unquote(name) if element.find("{*}Name[@Encoded='true']") is not None else name
