"""A sharing server whose answers were recorded and are given again, damaged."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from delta_sharing_spark.testing.server import SharingServer

_KEPT = ("content-type", "delta-table-version", "delta-sharing-capabilities")


class Replay:
    """Passes requests on to the embedded server and records the answers; or answers with bytes that were put ``instead``.

    Data files come from the embedded server itself.
    """

    def __init__(self, name: str, path: Path, access_modes: tuple[str, ...] | None = None) -> None:
        self.real = SharingServer()
        self.real.start()
        self.real.add_table(name, path, access_modes=access_modes, history=True)
        self.answers: dict[str, bytes] = {}
        self.instead: dict[str, bytes] = {}
        replay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                replay.handle(self)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.real.close()

    @property
    def profile(self) -> dict[str, Any]:
        """Leads here; the real endpoint's path is kept."""
        fields = self.real.profile()
        endpoint = str(fields["endpoint"])
        return {
            **fields,
            "endpoint": endpoint.replace(endpoint.split("/")[2], f"127.0.0.1:{self._server.server_port}", 1),
        }

    def handle(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        host = str(self.real.profile()["endpoint"]).split("/")[2]
        connection = http.client.HTTPConnection(host, timeout=20)
        headers = {
            k: v for k, v in request.headers.items() if k.lower() not in ("host", "accept-encoding", "content-length")
        }
        connection.request(request.command, request.path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        place = f"{request.command} {request.path.partition('?')[0]}"
        if answer.status == 200:
            if place in self.instead:
                content = self.instead[place]
            elif content:
                self.answers[place] = content
        request.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() in _KEPT:
                request.send_header(name, value)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)
