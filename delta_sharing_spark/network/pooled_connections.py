"""Sends requests for bytes over pooled connections, letter by letter, without what requests and urllib3 do for each.

requests knows proxies and certificates, and is asked for the pool of a host. It would spell URLs anew, which breaks those that are
signed. Here their target is written to the socket as it came, and the bytes of the answer land where they are wanted: 0.2 ms of
the processor instead of 1.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import requests
import urllib3
from urllib3._collections import HTTPHeaderDict  # urllib3 2 names it itself

from delta_sharing_spark.network.connections import BreakableAdapter, BreakableConnection, FinalAnswer
from delta_sharing_spark.network.urls import Url

#: The head of an answer over a connection that stays open: status 200 or 206, and a known length.
_PLAIN_HEAD = re.compile(rb"HTTP/1\.1 (20[06])(?: [^\r\n]*)?\r\n((?:[!#-9;-~]+:[^\r\n]*\r\n)+)\r\n")


#: The most headers of an answer, as in http.client.
_MOST_HEADERS = 100


class _HTTPAnswer(FinalAnswer):
    """An answer whose head is read by one expression if it is a plain one: http.client's parser of mails takes eight times as long.

    Attributes:
        fields: The headers, by names in lower case.
    """

    fields: dict[str, str]
    _method: str | None

    def begin(self) -> None:
        """See http.client, which reads all other heads."""
        plain = _PLAIN_HEAD.match(self.fp.peek())
        lines = plain[2].decode("iso-8859-1").split("\r\n")[:-1] if plain else []
        fields = {name.lower(): value.lstrip(" \t") for name, _, value in (line.partition(":") for line in lines)}
        length = fields.get("content-length", "")
        is_persistent = (
            fields.get("connection", "keep-alive").lower() == "keep-alive" and "transfer-encoding" not in fields
        )
        is_single = len(fields) == len(lines) <= _MOST_HEADERS
        is_plain = length.isascii() and length.isdecimal() and is_persistent and is_single
        if plain is None or not is_plain or self._method == "HEAD":
            super().begin()
            lengths = {text.strip() for text in ",".join(self.headers.get_all("content-length", [])).split(",")}
            if len(lengths) > 1 and not self.chunked:
                raise urllib3.exceptions.InvalidHeader("the answer has two lengths")
            self.fields = {name.lower(): value for name, value in self.headers.items()}
            return
        self.fp.read(plain.end())
        self.version, self.status, self.fields = 11, int(plain[1]), fields
        self.length, self.chunked, self.will_close = int(length), False, False


class PooledAnswer:
    """The head of an answer of status 200 or 206, and its body as it arrives; a context manager.

    Attributes:
        status_code: 200 or 206.
        headers: By names in lower case.
        received: Bytes of the body so far.
    """

    def __init__(self, answer: _HTTPAnswer, release: Callable[[bool], None]) -> None:
        self.status_code = answer.status
        self.headers = answer.fields
        self.received = 0
        self._answer, self._release = answer, release

    def read_into(self, room: memoryview) -> int:
        """Read what has arrived, at most ``room``; returns how many bytes, 0 at the end of the body.

        Raises:
            urllib3.exceptions.HTTPError: The connection broke, or ended before the body.
        """
        answer = self._answer
        try:
            if answer.length is None:  # in chunks, or up to the end of the connection
                piece = answer.read1(len(room))
                room[: len(piece)] = piece
                self.received += len(piece)
                return len(piece)
            count = int(answer.fp.readinto1(room[: answer.length])) if answer.length else 0
            if answer.length and not count and len(room):
                raise http.client.IncompleteRead(b"", answer.length)
        except (http.client.HTTPException, OSError) as error:
            raise _urllib3s(error) from None
        answer.length -= count
        self.received += count
        return count

    def __enter__(self) -> PooledAnswer:
        return self

    def __exit__(self, *_: object) -> None:
        answer = self._answer
        is_whole = answer.isclosed() or answer.length == 0
        answer.close()
        self._release(is_whole and not answer.will_close)


#: An answer of requests, or one whose bytes are read as they arrive.
Answer: TypeAlias = requests.Response | PooledAnswer


def send(
    session: requests.Session,
    method: str,
    url: Url,
    headers: Mapping[str, str],
    timeout: tuple[float, float],
    *,
    is_decoded: bool = False,
) -> Answer:
    """Send a request without a body; returns its answer before the body. Redirects are the caller's to follow.

    Args:
        session: The connections of its ``BreakableAdapter`` are used.
        method, url, headers: Of the request; the session's headers are added.
        timeout: Seconds to connect, and between two bytes.
        is_decoded: Whether the caller decodes the body, for which every answer is one of requests.

    Raises:
        requests.RequestException, urllib3.exceptions.HTTPError, OSError: The network failed.
        requests.exceptions.InvalidHeader: A header cannot be sent.
        AddressRefusedError: The connection leads to an address that may not be asked.
    """
    adapter = session.get_adapter(url.root)
    assert isinstance(adapter, BreakableAdapter), "other connections cannot be broken off"
    pool = adapter.pool_for(url, session)
    head = _head(method, url, {**session.headers, **headers}, pool)
    connection: Any = pool._get_conn()

    def release(is_reusable: bool) -> None:
        if not is_reusable:
            connection.close()
        pool._put_conn(connection)

    answer = None
    try:
        sock = _begin(connection, partial(_connect, pool, connection, url, timeout[0]))
        sock.settimeout(timeout[1])
        sock.sendall(head)
        answer = (FinalAnswer if is_decoded else _HTTPAnswer)(sock, method=method)
        answer.begin()
    except BaseException as error:
        if answer is not None:
            answer.close()  # else its file would keep the socket
        release(False)
        if isinstance(error, http.client.HTTPException | OSError) and not isinstance(error, _OF_CONNECTING):
            raise _urllib3s(error) from None
        raise
    if isinstance(answer, _HTTPAnswer) and answer.status in (200, 206):
        return PooledAnswer(answer, release)
    if answer.will_close:
        connection.close()  # its socket is the answer's, until that is closed
    response = requests.Response()
    response.raw = urllib3.HTTPResponse(
        body=answer,
        headers=HTTPHeaderDict(answer.headers.items()),
        status=answer.status,
        reason=answer.reason,
        preload_content=False,
        original_response=answer,
        pool=pool,
        connection=connection,
        request_method=method,
    )
    response.status_code, response.reason, response.url = answer.status, answer.reason, url.text
    response.headers.update(answer.headers)
    return response


#: Errors of a connection that is made, whose own words say more than that it was aborted.
_OF_CONNECTING = (urllib3.exceptions.HTTPError, ssl.SSLError)


def _begin(connection: Any, connect: Callable[[], None]) -> socket.socket:
    """The socket of a connection, open."""
    if isinstance(connection, BreakableConnection):
        return connection.begin(connect)
    if connection.sock is None:  # by a SOCKS proxy
        connect()
    opened: socket.socket = connection.sock
    return opened


def _connect(pool: Any, connection: Any, url: Url, seconds: float) -> None:
    """Open a connection, by way of the pool's proxy if it has one."""
    connection.timeout = seconds
    try:
        if pool.proxy is not None and url.scheme == "https":
            pool._prepare_proxy(connection)
        else:
            connection.connect()
    except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError) as error:
        is_of_tls = isinstance(error, ssl.SSLError) and getattr(connection, "has_connected_to_proxy", False)
        if pool.proxy is None or is_of_tls:
            raise
        raise urllib3.exceptions.ProxyError("Unable to connect to proxy", error) from error


def _head(method: str, url: Url, headers: Mapping[str, str | bytes], pool: Any) -> bytes:
    """The head of a request; to a proxy that reads what is sent it names the whole URL (RFC 9112, section 3.2.2).

    Raises:
        requests.exceptions.InvalidHeader: A header would say more than it should, or holds what no header can.
    """
    is_forwarded = pool.proxy is not None and url.scheme == "http"
    if "host" not in headers:  # else it is signed
        headers = {"Host": url.authority, **headers}
    if is_forwarded:
        headers = {**headers, **pool.proxy_headers}
    lines = [f"{method} {url.text if is_forwarded else url.target} HTTP/1.1"]
    lines += [
        f"{key}: {value if isinstance(value, str) else value.decode('latin-1')}" for key, value in headers.items()
    ]
    text = "\r\n".join((*lines, "", ""))
    if not (text.count("\n") == len(lines) + 1 == text.count("\r") and text.isascii()):
        raise requests.exceptions.InvalidHeader("a header holds a line break or letters beyond ASCII")
    return text.encode("ascii")


def _urllib3s(error: Exception) -> urllib3.exceptions.HTTPError:
    """An error of http.client or a socket as the one that urllib3 makes of it."""
    if isinstance(error, TimeoutError):
        return urllib3.exceptions.TimeoutError("the time between two bytes is over")
    return urllib3.exceptions.ProtocolError(type(error).__name__, error)
