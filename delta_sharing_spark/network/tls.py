"""Decides which authorities a session trusts, and shows the client's own certificate where it has one."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Any

from delta_sharing_spark.errors import ConfigError, OptionError
from delta_sharing_spark.network.connections import BreakableAdapter

#: The variables that are read, the first that is set: requests', curl's, and together OpenSSL's.
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_FILE, _DIRECTORIES = "SSL_CERT_FILE", "SSL_CERT_DIR"


@dataclass(frozen=True, slots=True)
class Authorities:
    """Certificates to trust instead of certifi's.

    Attributes:
        file: PEM.
        directories: Those whose files are named by hashes, as OpenSSL writes several.
    """

    file: str | None = None
    directories: str | None = None


def trusted(option: str | None) -> Authorities | None:
    """The authorities of the option ``caBundle``, else of the environment; None where neither names any.

    Raises:
        OptionError, ConfigError: What is named does not exist; names the option or the variable.
    """
    if option:
        if not os.path.exists(option):
            raise OptionError(
                f"the option caBundle names the certificates {option}, which do not exist here; correct the path",
                option="caBundle",
            )
        return _at(option)
    for variable in _BUNDLES:
        if path := os.environ.get(variable):
            _check(variable, path, [path])
            return _at(path)
    file, directories = (os.environ.get(variable) or None for variable in (_FILE, _DIRECTORIES))
    if file is not None:
        _check(_FILE, file, [file])
    if directories is not None:
        _check(_DIRECTORIES, directories, directories.split(os.pathsep))
    return None if file is None and directories is None else Authorities(file, directories)


def _at(path: str) -> Authorities:
    return Authorities(directories=path) if os.path.isdir(path) else Authorities(path)


def _check(variable: str, value: str, paths: list[str]) -> None:
    if not any(map(os.path.exists, paths)):
        raise ConfigError(
            f"the environment variable {variable} names the certificates {value}, which do not exist here; correct or unset it"
        )


class TlsAdapter(BreakableAdapter):
    """An adapter with authorities and a TLS context of its own, where they are not None."""

    def __init__(self, authorities: Authorities | None, context: ssl.SSLContext | None, **more: Any) -> None:
        self._authorities = authorities
        self._own = {} if context is None else {"ssl_context": context}
        super().__init__(**more)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, **self._own)

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        return super().proxy_manager_for(*args, **kwargs, **self._own)

    def build_connection_pool_key_attributes(self, *args: Any, **kwargs: Any) -> Any:
        """See requests, which names one authority, and has versions that name a context of their own."""
        host, pool = super().build_connection_pool_key_attributes(*args, **kwargs)
        ours: dict[str, Any] = dict(self._own)
        if self._authorities is not None:
            ours |= {"ca_certs": self._authorities.file, "ca_cert_dir": self._authorities.directories}
        return host, {**pool, **ours}

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        """See requests, which cannot name both a file and directories."""
        if self._authorities is None or not url.lower().startswith("https"):
            super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]
            return
        conn.cert_reqs = "CERT_REQUIRED"
        conn.ca_certs, conn.ca_cert_dir = self._authorities.file, self._authorities.directories
