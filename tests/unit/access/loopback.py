"""A function as an HTTP server on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True)
class Request:
    """``path`` is as sent, with its query; headers are by lower-case name."""

    method: str
    path: str
    headers: dict[str, str]


#: Status, headers and body. The length of the body is filled in where the headers do not say it (for HEAD).
Answer = tuple[int, Mapping[str, str], bytes]


@contextmanager
def answering(answer: Callable[[Request], Answer | None]) -> Iterator[str]:
    """Serve until the block ends; gives the URL. None for an answer closes the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            response = answer(Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            if response is None:
                self.close_connection = True
                return
            status, headers, body = response
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def log_message(self, *args: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

    httpd = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()
