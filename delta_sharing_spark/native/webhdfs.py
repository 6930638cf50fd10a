"""Answers of Hadoop's WebHDFS protocol for files and directories.

No answer names a Content-Type: with one, the client asks for a JSON parser that Spark's jars lack.
"""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

#: Bytes of the head of a request, at most.
_MAX_HEAD = 64 << 10
PREFIX = "/webhdfs/v1/"
_REASONS = {
    200: "OK",
    307: "Temporary Redirect",
    403: "Forbidden",
    404: "Not Found",
    400: "Bad Request",
    500: "Internal Server Error",
}


class Request:
    """A request line.

    Attributes:
        method, target: The first two words.
        operation: In capitals; empty where it names none.
        path: Below the prefix, decoded, without slashes at its ends; None for another prefix.
        offset: Where an OPEN begins.
        refused_hosts: Hosts that a redirect named, with their ports, and that did not answer.
        field_names: The names of its header's fields, in lower case.
    """

    def __init__(self, method: str, target: str, field_names: frozenset[str] = frozenset()) -> None:
        parts = urlsplit(target)
        query = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
        self.method, self.target, self.field_names = method, target, field_names
        self.operation = query.get("op", "").upper()
        self.path = unquote(parts.path[len(PREFIX) :]).strip("/") if parts.path.startswith(PREFIX) else None
        offset = query.get("offset", "0")
        self.offset = int(offset) if offset.isdigit() else 0
        self.refused_hosts = frozenset(query.get("excludedatanodes", "").split(","))


def read_request(connection: socket.socket, waiting: bytes) -> tuple[Request | None, bytes]:
    """The next request, None at the connection's end; and the bytes received after it."""
    while (end := waiting.find(b"\r\n\r\n")) < 0:
        if len(waiting) > _MAX_HEAD:
            return None, b""
        received = connection.recv(65536)
        if not received:
            return None, b""
        waiting += received
    head, *fields = waiting[:end].decode("latin-1").split("\r\n")
    line = head.split(" ")
    if len(line) != 3:
        return None, b""
    names = frozenset(field.partition(":")[0].lower() for field in fields)
    return Request(line[0], line[1], names), waiting[end + 4 :]


def answer(status: int, body: bytes) -> bytes:
    """A whole answer, to be sent at once."""
    return head(status, len(body)) + body


def head(status: int, length: int, *, is_last: bool = False) -> bytes:
    """The head of an answer of ``length`` bytes; ``is_last`` where no other answer comes on its connection."""
    close = "Connection: close\r\n" if is_last else ""
    return f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: {length}\r\n{close}\r\n".encode()


def redirect(host: str, target: str) -> bytes:
    """The redirect to the host that answers the request."""
    return f"HTTP/1.1 307 {_REASONS[307]}\r\nLocation: http://{host}{target}\r\nContent-Length: 0\r\n\r\n".encode()


def json_answer(tree: dict[str, Any]) -> bytes:
    """An answer of JSON."""
    return answer(200, json.dumps(tree).encode())


def failure(message: str, status: int = 403, kind: str = "IOException") -> bytes:
    """An error, whose message reaches the user of the query."""
    exception = {"exception": kind, "javaClassName": f"java.io.{kind}", "message": message}
    return answer(status, json.dumps({"RemoteException": exception}).encode())


def not_found(path: str) -> bytes:
    """The error of a path that does not exist."""
    return failure(f"File does not exist: /{path}", 404, "FileNotFoundException")


def status(name: str, length: int | None, moment: int) -> dict[str, Any]:
    """The status of a file of ``length`` bytes, or of a directory (None); ``moment`` in milliseconds since the epoch."""
    is_file = length is not None
    return {
        "type": "FILE" if is_file else "DIRECTORY",
        "length": length or 0,
        "modificationTime": moment,
        "accessTime": moment,
        "blockSize": 128 << 20 if is_file else 0,
        "replication": 1 if is_file else 0,
        "permission": "400" if is_file else "500",
        "owner": "delta-sharing",
        "group": "delta-sharing",
        "pathSuffix": name,
        "childrenNum": 0,
        "fileId": 0,
        "storagePolicy": 0,
    }


def locations(length: int) -> dict[str, Any]:
    """One block on this machine."""
    block = {
        "offset": 0,
        "length": length,
        "hosts": ["localhost"],
        "names": ["localhost"],
        "topologyPaths": ["/default-rack/localhost"],
        "storageTypes": ["DISK"],
        "cachedHosts": [],
        "corrupt": False,
    }
    return {"BlockLocations": {"BlockLocation": [block]}}
