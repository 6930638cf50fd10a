"""An embedded Delta Sharing server over Delta tables on local disk: every endpoint of the protocol, on loopback."""

from __future__ import annotations

import base64
import errno
import itertools
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from delta_sharing_spark.sharing.address import parse_table_name
from delta_sharing_spark.sharing.identity import jwt_claims
from delta_sharing_spark.storage.own_files import followed, written
from delta_sharing_spark.testing.server.answers import Pages
from delta_sharing_spark.testing.server.data_urls import Signer, serve_data
from delta_sharing_spark.testing.server.endpoints import Catalog, CredentialVendor, Endpoints, kind_of
from delta_sharing_spark.testing.server.faults import Faults
from delta_sharing_spark.testing.server.http import SIGNED, SocketServer
from delta_sharing_spark.testing.server.iceberg_catalog import ICEBERG, IcebergCatalog, IcebergTable
from delta_sharing_spark.testing.server.queries import TableQueries
from delta_sharing_spark.testing.server.responses import PREFIX, Refusal, Request, Response, json_response, segments
from delta_sharing_spark.testing.server.settings import ServerSettings, SharedAsset, SharedTable
from delta_sharing_spark.testing.server.table_logs import TableLogs

#: Bytes of the body of a request with a token, and of one for a token.
_LONGEST_BODY, _LONGEST_FORM = 16 << 20, 64 << 10
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"


@dataclass(slots=True)
class Identity:
    """Credentials the server accepts; several kinds at once.

    Attributes:
        token: The bearer token; None accepts none.
        username, password: Basic authentication.
        client_id, client_secret: OAuth client credentials.
        token_ttl: Seconds that an issued OAuth token is valid.
        check_token: Decides on a bearer token that somebody else issued; None accepts none.
        check_assertion: Decides on the claims of a private-key JWT and its raw text; None refuses such requests.
        issued: OAuth tokens to the time they end.
        token_requests: How many tokens were asked for.
    """

    token: str | None = field(default=None, repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    token_ttl: float = 3600.0
    check_token: Callable[[str], bool] | None = field(default=None, repr=False)
    check_assertion: Callable[[dict[str, Any], str], bool] | None = field(default=None, repr=False)
    issued: dict[str, float] = field(default_factory=dict, repr=False)
    token_requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def check(self, header: str | None) -> None:
        """Let a REST request pass; raises Refusal (401) where it may not."""
        scheme, _, value = (header or "").partition(" ")
        value = value.strip()
        if scheme.lower() == "bearer" and value:
            if self.token is not None and secrets.compare_digest(value.encode(), self.token.encode()):
                return
            if self.issued.get(value, 0.0) > time.time():
                return
            if self.check_token is not None and self.check_token(value):
                return
        if scheme.lower() == "basic" and self.username is not None:
            expected = _basic(self.username, self.password)
            if secrets.compare_digest(value.encode(), expected.encode()):
                return
        raise Refusal(401, "UNAUTHENTICATED", "The bearer token is missing or incorrect.")

    def revoke(self) -> None:
        """End every OAuth token now."""
        with self._lock:
            self.issued.clear()

    def token_response(self, request: Request) -> Response:
        """Answer a request to the OAuth token endpoint."""
        with self._lock:
            self.token_requests += 1
        form = dict(parse_qsl(request.body.decode("utf-8", "replace")))
        if not self._granted(request.headers.get("authorization"), form):
            return json_response({"error": "invalid_client", "error_description": "unknown client or grant"}, 401)
        token = secrets.token_urlsafe(24)
        with self._lock:
            self.issued[token] = time.time() + self.token_ttl
        return json_response({"access_token": token, "token_type": "Bearer", "expires_in": int(self.token_ttl)})

    def _granted(self, header: str | None, form: dict[str, str]) -> bool:
        grant = form.get("grant_type")
        if grant == "client_credentials" and self.client_id is not None:
            if header is not None:
                return header.partition(" ")[2].strip() == _basic(self.client_id, self.client_secret)
            return form.get("client_id") == self.client_id and form.get("client_secret") == self.client_secret
        if grant == JWT_BEARER and self.check_assertion is not None:
            claims = jwt_claims(form.get("assertion", ""))
            return claims is not None and self.check_assertion(claims, form["assertion"])
        return False


def _basic(user: str, password: str | None) -> str:
    return base64.b64encode(f"{user}:{password or ''}".encode()).decode()


class SharingServer:
    """A sharing server in threads of this process; use it in a ``with`` statement.

    Args:
        shares: Directories of tables, by share, schema and table: ``{"s": {"default": {"t": path}}}``; or by full
            name: ``{"s.default.t": path}``.
        token: The bearer token; drawn if None.
        host, port: Where to listen; port 0 takes a free one.
        settings: How the server behaves; may be changed while it runs.

    Attributes:
        settings, faults, catalog, iceberg: To be changed while it runs; the last is the Iceberg catalog.
        identity: Who may ask; more than the bearer token if so changed.
        vendors: Who makes temporary credentials, by the location's scheme.
        requests: What was served, oldest first.
        failures: Errors of the server itself; a test may assert that there are none.
    """

    def __init__(
        self,
        shares: Mapping[str, Any] | None = None,
        token: str | None = None,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        settings: ServerSettings | None = None,
    ) -> None:
        self.settings = settings or ServerSettings()
        self.faults = Faults()
        self.identity = Identity(token or secrets.token_urlsafe(16))
        self.catalog = Catalog()
        self.iceberg = IcebergCatalog()
        self.vendors: dict[str, CredentialVendor] = {}
        self._signer = Signer(secrets.token_bytes(32), self.settings)
        pages = Pages(self._signer, self.settings, self.faults)
        queries = TableQueries(TableLogs(), pages, self._signer, self.settings)
        self._endpoints = Endpoints(self.catalog, queries, self.settings, self.vendors)
        self._socket = SocketServer((host, port), self.faults, self.kind_of, self.admit, self.answer)
        self.requests, self.failures = self._socket.requests, self._socket.failures
        self.host, self.port = host, int(self._socket.server_address[1])
        self._thread: threading.Thread | None = None
        for name, named_tables in _flat(shares or {}):
            self.add_table(name, named_tables)

    # Life

    def start(self) -> SharingServer:
        """Serve from a thread of its own."""
        self._thread = threading.Thread(
            target=self._socket.serve_forever, args=(0.05,), name="sharing-server", daemon=True
        )
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop serving and end all connections."""
        if self._thread is not None:
            self._socket.shutdown()
            self._thread.join()
            self._thread = None
        self._socket.close_connections()
        self._socket.server_close()

    def __enter__(self) -> SharingServer:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.close()

    # What is shared

    def add_table(
        self,
        name: str,
        path: str | os.PathLike[str],
        *,
        access_modes: tuple[str, ...] | list[str] | None = None,
        location: str | None = None,
        auxiliary_locations: tuple[str, ...] | list[str] = (),
        **fields: Any,
    ) -> SharedTable:
        """Share the table at ``path`` as ``share.schema.table``; replaces one of that name.

        Args:
            name: The last two periods part schema and table off; odd parts may stand in backquotes, as in an address.
            access_modes: ``accessModes`` as announced, such as ``("url", "dir")``; None leaves the field out.
            location: As announced; where ``dir`` is offered, the ``file:`` URI of ``path`` by default.
            auxiliary_locations: As announced.
            **fields: Further fields of :class:`SharedTable` (``history``, ``start_version``, ``comment``...).
        """
        modes = None if access_modes is None else tuple(access_modes)
        parts, root = _parts(name), os.path.abspath(path)
        table = SharedTable(*parts, root, modes, location, tuple(auxiliary_locations), **fields)
        self.catalog.add(table)
        return table

    def add_iceberg_table(
        self, name: str, document: str | os.PathLike[str], location: str | None = None, **fields: Any
    ) -> IcebergTable:
        """Share an Iceberg table as ``share.schema.table``, and as nothing else: its catalog is that of the profile.

        Args:
            document: The file of its newest metadata.
            location: Where that lies for recipients; by default its ``file:`` URI.
            **fields: Further fields of the catalog's table, such as ``config`` with the credentials that it vends.
        """
        directory = os.path.dirname(os.path.dirname(os.path.abspath(document)))
        self.add_table(name, directory, format="iceberg", access_modes=("dir",))
        return self.iceberg.add(name, document, location, **fields)

    def add_volume(self, name: str, path: str | os.PathLike[str], **fields: Any) -> SharedAsset:
        """Share a directory as a volume.

        Args:
            name: ``share.schema.volume``.
            path: The directory, or its location where that is elsewhere (``s3://...``).
            **fields: Further fields of its answers.
        """
        return self._add_asset("volumes", name, path, fields)

    def add_skill(self, name: str, path: str | os.PathLike[str], description: str, **fields: Any) -> SharedAsset:
        """Share a directory with a ``SKILL.md`` as an agent skill; arguments as for ``add_volume``."""
        return self._add_asset("skills", name, path, {"description": description, **fields})

    def add_model(
        self,
        name: str,
        path: str | os.PathLike[str],
        version: int = 1,
        *,
        status: str = "READY",
        aliases: Sequence[str] = (),
        **fields: Any,
    ) -> SharedAsset:
        """Share a directory as a version of a model; arguments as for ``add_volume``, and the version's status and aliases."""
        asset = self.catalog.find("models", *_parts(name))
        model = asset if isinstance(asset, SharedAsset) else self._add_asset("models", name, None, {})
        own = {"version": version, "status": status, **fields}
        model.versions[version] = replace(model, location=_location(path), fields=own, versions={}, aliases={})
        model.aliases.update(dict.fromkeys(aliases, version))
        return model

    def _add_asset(
        self, collection: str, name: str, path: str | os.PathLike[str] | None, fields: Mapping[str, Any]
    ) -> SharedAsset:
        asset = SharedAsset(*_parts(name), collection, None if path is None else _location(path), fields)
        self.catalog.add(asset)
        return asset

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def endpoint(self) -> str:
        """The prefix of the protocol's paths."""
        return f"http://{self.address}{PREFIX}"

    @property
    def token_endpoint(self) -> str:
        """Of OAuth."""
        return f"http://{self.address}/oauth/token"

    @property
    def token(self) -> str:
        """The bearer token."""
        assert self.identity.token is not None
        return self.identity.token

    def profile(self, kind: str = "bearer_token") -> dict[str, Any]:
        """A profile, with the secrets of :attr:`identity`.

        Args:
            kind: ``bearer_token`` (version 1), ``basic`` or ``oauth_client_credentials`` (version 2).
        """
        if kind == "bearer_token":
            until = datetime.now(timezone.utc) + timedelta(days=1)
            fields = {"bearerToken": self.token, "expirationTime": f"{until:%Y-%m-%dT%H:%M:%S.0Z}"}
            return {"shareCredentialsVersion": 1, "endpoint": self.endpoint, **fields, **self._iceberg_endpoint()}
        version: dict[str, Any] = {"shareCredentialsVersion": 2, "type": kind, "endpoint": self.endpoint}
        version |= self._iceberg_endpoint()
        if kind == "basic":
            return version | {"username": self.identity.username, "password": self.identity.password}
        if kind == "oauth_client_credentials":
            secrets_of = {"clientId": self.identity.client_id, "clientSecret": self.identity.client_secret}
            return version | {"tokenEndpoint": self.token_endpoint, **secrets_of}
        raise ValueError(f"no profile of type {kind!r} is made here")

    def _iceberg_endpoint(self) -> dict[str, str]:
        return {"icebergEndpoint": f"http://{self.address}{ICEBERG}"} if self.iceberg.tables else {}

    def write_profile(self, path: str | os.PathLike[str], kind: str = "bearer_token") -> str:
        """Write a profile to a file, readable by its owner only; returns the path for ``<path>#share.schema.table``.

        Raises:
            OSError: It cannot be written, or what is there is no file.
        """
        target = followed(Path(path))
        if os.path.lexists(target) and not (target.is_symlink() or target.is_file()):
            raise FileExistsError(errno.EEXIST, "it is there and no file")
        with written(target, mode=0o600) as file:
            file.write(json.dumps(self.profile(kind), indent=2).encode())
        return str(path)

    # What was served

    def count(self, kind: str | None = None) -> int:
        """How many requests of a kind were served (of all kinds by default)."""
        return sum(1 for r in list(self.requests) if kind is None or r.kind == kind)

    def bytes_sent(self, kind: str = "data") -> int:
        """Bytes of the bodies sent in answer to requests of a kind."""
        return sum(r.bytes for r in list(self.requests) if r.kind == kind)

    def under_way(self, kind: str = "data") -> tuple[int, float]:
        """How many answered requests of a kind were under way at once, at most and on average between the first and the last."""
        answered = [(r.began, r.ended) for r in list(self.requests) if r.kind == kind and r.ended]
        if not answered:
            return 0, 0.0
        changes = sorted([(began, 1) for began, _ in answered] + [(ended, -1) for _, ended in answered])
        most = max(itertools.accumulate(step for _, step in changes))
        span = changes[-1][0] - changes[0][0]
        return most, sum(ended - began for began, ended in answered) / span if span else 1.0

    def reset_metrics(self) -> None:
        self.requests.clear()

    def data_url(self, path: str | os.PathLike[str], ttl: float | None = None) -> str:
        """A signed data URL of any local file, valid for ``ttl`` seconds (``url_ttl`` of the settings by default)."""
        expires_ms = int((time.time() + (self.settings.url_ttl if ttl is None else ttl)) * 1000)
        return self._signer.url(f"http://{self.address}", self._signer.terms(expires_ms), os.path.abspath(path))

    def expire_queries(self) -> None:
        """Forget every asynchronous query."""
        self._endpoints.expire_queries()

    def expire_urls(self) -> None:
        """Every data URL given out so far stops working now."""
        self._signer.generation += 1

    # Called by the connections

    def kind_of(self, path: str) -> tuple[str, str]:
        """A request's kind, and the local path of the file that a data URL names."""
        if path.startswith("/data/"):
            return "data", self._signer.name_of(path.removeprefix("/data/"))
        if path == "/oauth/token":
            return "token", ""
        if path.startswith(ICEBERG + "/"):
            return "iceberg", ""
        return (kind_of(segments(path)) if path.startswith(PREFIX + "/") else "unknown"), ""

    def admit(self, request: Request) -> int:
        """The bytes that a request's body may have; raises Refusal where the request has no token, and needs one."""
        if request.kind in SIGNED:
            return 0
        if request.kind == "token":
            return _LONGEST_FORM
        self.identity.check(request.headers.get("authorization"))
        return _LONGEST_BODY

    def answer(self, request: Request) -> Response:
        """Answer one request that is admitted; raises Refusal for an error answer."""
        if request.kind == "data":
            return serve_data(request, self._signer, self.settings)
        if request.kind == "token":
            return self.identity.token_response(request)
        if request.kind == "iceberg":
            return self.iceberg.answer(request)
        return self._endpoints.answer(request)


def _parts(name: str) -> tuple[str, str, str]:
    """Share, schema and name, whatever stands in them."""
    if "`" in name:
        odd = parse_table_name(name)
        return odd.share, odd.schema, odd.table
    share, schema, own = name.rsplit(".", 2)
    return share, schema, own


def _location(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    is_uri = ":" in text.partition("/")[0] and not os.path.splitdrive(text)[0]
    return text if is_uri else Path(os.path.abspath(text)).as_uri()


def _flat(shares: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Tables by full name out of nested mappings."""
    for name, value in shares.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, os.fspath(value)
