"""Calls a Flight gateway over one connection per process, and raises its errors as errors of our tree."""

from __future__ import annotations

import base64
import glob
import json
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from delta_sharing_spark.access.flight.messages import from_status, wrap
from delta_sharing_spark.errors import ConfigError, NetworkError, ProfileError, ResponseError
from delta_sharing_spark.network.connections import Canceller
from delta_sharing_spark.network.http import json_object
from delta_sharing_spark.network.process_cache import ProcessCache
from delta_sharing_spark.network.urls import UrlError, is_local_address, is_loopback, parse_url, url_or_none
from delta_sharing_spark.options.declared import ReadOptions
from delta_sharing_spark.schema.table_records import Metadata, Protocol
from delta_sharing_spark.schema.types import backquoted
from delta_sharing_spark.sharing.address import TableName, is_odd
from delta_sharing_spark.sharing.identity import TOKEN_VARIABLE, is_header_text
from delta_sharing_spark.sharing.wire_records import Schema, Share, Table, TableSnapshotHead
from delta_sharing_spark.storage.user_files import LARGEST_CERTIFICATES, UnfitFile, read_text

#: What a gateway does beside the actions of the specification; commands in JSON, answers in JSON.
RENEW, CANCEL, VERSION, DESCRIBE = "RenewFlightEndpoint", "CancelFlightInfo", "TableVersion", "DescribeTable"
_CONNECTIONS_KEPT = 8
#: Bytes of a frame that the gateway may send at once; gRPC's 16 KiB cost a third more of this side's time.
_FRAME_BYTES = 1 << 20
_connections: ProcessCache[GatewayAddress, Any] = ProcessCache(_CONNECTIONS_KEPT)
#: This process, once it has connected to a gateway, and those that had when this one was forked from them.
_speakers: set[int] = set()


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway is, and as whom it is asked; carried in splits.

    Attributes:
        uri: ``grpc+tcp://host:port``, ``grpc+tls://host:port`` or ``grpc+unix:///path``.
        token: Sent with every call; None where the gateway asks for none.
        authority: PEM text of the authority of the gateway's certificate; None means the well-known ones.
        certificate, private_key: PEM text of the caller's own certificate and its key (mutual TLS).
        timeout: Seconds that one call for anything but rows may take, and that a connection may be silent.
        retry_seconds: How long failures of the way to the gateway are repeated.
    """

    uri: str
    token: str | None = field(default=None, repr=False)
    authority: str | None = field(default=None, repr=False)
    certificate: str | None = field(default=None, repr=False)
    private_key: str | None = field(default=None, repr=False)
    timeout: float = 60.0
    retry_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint of a flight.

    Attributes:
        ticket: As text (base64); a file's location in a plan. Secret: it opens rows to its caller.
        locations: Other gateways that its rows can be fetched from.
        expires: Seconds since the epoch; None where it does not expire.
        about: What the gateway states about it: ``bytes``, ``version``.
    """

    ticket: str = field(repr=False)
    locations: tuple[str, ...] = ()
    expires: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flight:
    """The answer of ``GetFlightInfo``: endpoints, the number of rows if it is known, and what else our gateway states."""

    endpoints: tuple[Endpoint, ...]
    rows: int | None
    nbytes: int
    about: Mapping[str, Any]


class GatewayConnection:
    """The calls of a recipient.

    Every method raises the gateway's error as it was there, and NetworkError where the gateway cannot be reached.
    """

    def __init__(self, address: GatewayAddress) -> None:
        self.address = address

    def flights(self, criteria: str = "") -> Iterator[tuple[str, str, str]]:
        """Share, schema and name of each table whose three-part name begins with ``criteria``."""
        with self._errors():
            for info in self._client().list_flights(criteria.encode(), self._options()):
                share, schema, table = (name.decode() for name in info.descriptor.path)
                yield share, schema, table

    def flight(self, command: Mapping[str, Any]) -> Flight:
        """Plan the rows of a command."""
        with self._errors():
            descriptor = flight.FlightDescriptor.for_command(json.dumps(command))
            info = self._client().get_flight_info(descriptor, self._options())
        about = _object(info.app_metadata, self.address.uri)
        endpoints = tuple(_endpoint(endpoint, self.address.uri) for endpoint in info.endpoints)
        return Flight(endpoints, None if info.total_records < 0 else info.total_records, info.total_bytes, about)

    def ask(self, action: str, command: Mapping[str, Any]) -> Any:
        """The JSON that an action answers."""
        return _json(self._act(action, json.dumps(command).encode()), self.address.uri)

    def version(self, table: str, moment: str | None = None) -> int:
        """The newest version of a table, or the first one at or after a moment (ISO-8601 with zone)."""
        return self.number(table, self.ask(VERSION, {"table": table, "timestamp": moment}))

    def number(self, table: str, value: object) -> int:
        """A version or a count of an answer for a table; raises ResponseError where it is none."""
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.malformed(table, f"{value!r} is not a version or a count")
        return value

    def version_in(self, table: str, tree: Mapping[str, Any]) -> int | None:
        """The version that an answer for a table is of; None where it tells none, and ResponseError where it is no version."""
        return None if tree.get("version") is None else self.number(table, tree["version"])

    def malformed(self, table: str, why: str) -> ResponseError:
        """The error of an answer for a table that this client cannot read."""
        return ResponseError(
            f"the Flight gateway {self.address.uri} answers for {table} what this client cannot read ({why}); "
            f"use the same version of delta-sharing-spark on both sides"
        )

    def renewed(self, endpoint: Endpoint) -> Endpoint:
        """The same endpoint with a later end."""
        expired = flight.FlightEndpoint(
            base64.b64decode(endpoint.ticket),
            list(endpoint.locations),
            pa.scalar(int((endpoint.expires or 0) * 1e9), pa.timestamp("ns", "UTC")),
        )
        answer = self._act(RENEW, wrap(expired.serialize()))
        return _endpoint(flight.FlightEndpoint.deserialize(answer), self.address.uri)

    def stream(self, ticket: str, skip: int, canceller: Canceller) -> Generator[pa.RecordBatch, None, None]:
        """The batches of an endpoint behind the first ``skip`` rows: a ticket gives the same rows in the same order each time.

        Raises:
            ReadCancelled: By ``canceller``.
        """
        with self._errors():
            reader = self._client().do_get(flight.Ticket(base64.b64decode(ticket)), self._options(has_timeout=False))
            canceller.use(reader.cancel)
            try:
                for chunk in iter(reader.read_chunk, None):
                    if skip < chunk.data.num_rows:
                        yield chunk.data.slice(skip)
                    skip = max(0, skip - chunk.data.num_rows)
            finally:
                reader.cancel()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turns pyarrow's exceptions into errors of our tree."""
        try:
            yield
        except (pa.ArrowException, OSError, KeyError) as error:
            raise from_status(error, self.address.uri, has_token=self.address.token is not None) from None

    def forget(self) -> None:
        """Close the connection of this process, so that the next call makes another: the gateway may have been restarted."""
        _connections.forget(self.address)

    def _act(self, action: str, body: bytes) -> bytes:
        with self._errors():
            results = list(self._client().do_action(flight.Action(action, body), self._options()))
        if len(results) != 1:
            raise ResponseError(
                f"the Flight gateway {self.address.uri} answers {action} {len(results)} times; check its version"
            )
        return bytes(results[0].body)

    def _client(self) -> Any:
        return _connections.get_or_make(self.address, lambda: _connect(self.address))

    def _options(self, *, has_timeout: bool = True) -> Any:
        headers = [(b"authorization", f"Bearer {self.address.token}".encode())] if self.address.token else []
        return flight.FlightCallOptions(timeout=self.address.timeout if has_timeout else None, headers=headers)


def _connect(address: GatewayAddress) -> Any:
    if _speakers - {os.getpid()}:
        raise ConfigError(
            f"the Flight gateway {address.uri} cannot be asked by this process: it was forked from one that had asked a gateway, and "
            f"gRPC then waits without end; start it by multiprocessing's 'spawn' or 'forkserver', or ask first in the children"
        )
    _speakers.add(os.getpid())
    milliseconds = int(address.timeout * 1000)
    # Without calls under way pings would be too many for a server; with one they tell a silent connection from a slow one.
    options = [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", milliseconds),
        ("grpc.http2.max_frame_size", _FRAME_BYTES),
    ]
    try:
        return flight.connect(
            address.uri,
            tls_root_certs=address.authority,
            cert_chain=address.certificate,
            private_key=address.private_key,
            generic_options=options,
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise NetworkError(
            f"the Flight gateway {address.uri} cannot be connected to ({error}); write grpc+tcp://host:port or grpc+tls://host:port"
        ) from None


def _endpoint(endpoint: Any, uri: str) -> Endpoint:
    end = endpoint.expiration_time
    return Endpoint(
        base64.b64encode(endpoint.ticket.ticket).decode(),
        _locations(endpoint, uri),
        None if end is None else end.value / 1e9,
        _object(endpoint.app_metadata, uri),
    )


def _locations(endpoint: Any, uri: str) -> tuple[str, ...]:
    """Where else an endpoint's rows are. They get the gateway's token: so they are encrypted where it is, and not of this machine
    unless it is."""
    named = [location.uri.decode("utf-8", "replace") for location in endpoint.locations]
    others = [text for text in named if text != uri and not text.startswith("arrow-flight-reuse-connection:")]
    return tuple(_location(other, uri) for other in others)


def _location(text: str, uri: str) -> str:
    """A location of a gateway's answer, written anew from its parts; raises ResponseError where it may not have the token."""
    gateway = url_or_none(uri)  # None for a socket of this machine
    try:
        location = parse_url(text)
    except UrlError as why:
        raise _no_location(uri, f"what is no address: {why}", "advertise grpc+tls://host:port") from None
    if location.scheme not in ("grpc", "grpc+tcp", "grpc+tls") or not location.port:
        raise _no_location(uri, f"what is no address: {location.root}", "advertise grpc+tls://host:port")
    if gateway is not None and gateway.scheme == "grpc+tls" != location.scheme:
        unsafe = f"{location.root} to read from, without the TLS that it has itself"
        raise _no_location(uri, unsafe, "advertise grpc+tls:// addresses")
    is_here = gateway is None or is_loopback(gateway.host) or is_local_address(gateway.host)
    if not is_here and (is_loopback(location.host) or is_local_address(location.host)):
        raise _no_location(
            uri, f"{location.root} to read from, which is this machine or its network", "advertise its own"
        )
    return location.root


def _no_location(uri: str, named: str, advice: str) -> ResponseError:
    return ResponseError(f"the Flight gateway {uri} names {named}; ask its operator to {advice}")


def _object(data: bytes, uri: str) -> Mapping[str, Any]:
    tree = json_object(data or b"{}")
    if tree is None:
        raise _unlike_ours(uri)
    return tree


def _json(data: bytes, uri: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise _unlike_ours(uri) from None


def _unlike_ours(uri: str) -> ResponseError:
    return ResponseError(
        f"the Flight gateway {uri} does not answer as a gateway of delta-sharing-spark does; check its address"
    )


def gateway_address(options: ReadOptions) -> GatewayAddress:
    """The gateway of a load, with its token and certificates; raises ProfileError where a file cannot be read or the token cannot be sent."""
    assert options.gateway is not None
    token = options.gateway_token or _text(options.gateway_token_file) or os.environ.get(TOKEN_VARIABLE, "")
    token = token.strip()
    if token and not is_header_text(token):
        raise ProfileError(
            "the Flight gateway's token has a blank, or a letter beyond ASCII, which no header carries; "
            "give one of the gateway's tokens"
        )
    return GatewayAddress(
        options.gateway,
        token or None,
        _text(options.ca_bundle),
        _text(options.gateway_certificate),
        _text(options.gateway_key),
        options.read_timeout,
        options.retry_timeout,
    )


def _text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return read_text(path, LARGEST_CERTIFICATES)
    except UnfitFile as why:
        raise ProfileError(f"the file {path} of a Flight gateway's options {why}; check its path and rights") from None


class FlightCatalog:
    """The listings and descriptions of ``SharingRest``, by the calls of a gateway."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    def list_shares(self) -> Iterator[Share]:
        """All shares that have tables."""
        yield from (Share(name) for name in dict.fromkeys(share for share, _, _ in self._connection.flights()))

    def list_schemas(self, share: str) -> Iterator[Schema]:
        """All schemas of a share that have tables."""
        yield from (
            Schema(name, share) for name in dict.fromkeys(table.schema for table in self.list_all_tables(share))
        )

    def list_tables(self, share: str, schema: str) -> Iterator[Table]:
        """All tables of a schema."""
        yield from (table for table in self.list_all_tables(share) if table.schema.lower() == schema.lower())

    def list_all_tables(self, share: str) -> Iterator[Table]:
        """All tables of a share. Names are compared without case, as servers compare them."""
        prefix = backquoted(share) if is_odd(share, "share") else share
        for criteria in (f"{glob.escape(prefix)}.*", ""):  # a gateway compares its criteria with case
            listed = self._connection.flights(criteria)
            tables = [Table(name, of, schema) for of, schema, name in listed if of.lower() == share.lower()]
            if tables:
                break
        yield from tables

    def table_version(self, table: TableName, starting_timestamp: str | None = None) -> int:
        """The table's version; with a timestamp (ISO-8601 with zone) the earliest at or after it."""
        return self._connection.version(str(table), starting_timestamp)

    def metadata(self, table: TableName) -> TableSnapshotHead:
        """Version, id and schema; the gateway passes on nothing else of what the share states about a table."""
        tree = self._connection.ask(DESCRIBE, {"table": str(table)})
        if not isinstance(tree, dict) or not isinstance(tree.get("schema"), dict):
            raise self._connection.malformed(str(table), "the description is no object with a schema")
        metadata = Metadata(str(tree.get("id") or ""), json.dumps(tree["schema"]), ())
        return TableSnapshotHead(self._connection.version_in(str(table), tree), "delta", Protocol(1), metadata)
