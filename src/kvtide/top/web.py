"""The live view as a page, for browsers on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, ClassVar

from kvtide.errors import ConfigError
from kvtide.top.alarms import alarms
from kvtide.top.as_json import points_json, server_json
from kvtide.top.history import Server

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""By which browsers may ask for it. Another name is a page from elsewhere that wants to look inside (DNS rebinding)."""
TIMEOUT_S = 10.0
"""For a browser to ask, and to take the answer."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def serve(servers: Callable[[], list[Server]], port: int, interval_s: float, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; `ready` hears its address."""
    try:
        listening = Listening((LOOPBACK, port), Handler)
    except OSError as error:
        raise ConfigError("--web", port, f"a port that can be used ({error.strerror})") from None
    with listening:
        listening.servers, listening.interval_s = servers, interval_s
        ready(f"http://{LOOPBACK}:{listening.server_port}/")
        listening.serve_forever(poll_interval=0.2)


class Listening(ThreadingHTTPServer):
    """Listens on this machine only."""

    daemon_threads = True
    servers: Callable[[], list[Server]]
    interval_s: float

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away before it was answered; anything else is a fault of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, or with what it shows."""

    server: Listening
    timeout = TIMEOUT_S
    server_version = "kvtide"
    sys_version = ""
    types: ClassVar = {"/": "text/html; charset=utf-8", "/data": "application/json"}

    def do_GET(self) -> None:
        """Answer a browser."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in NAMES:
            self._answer(403, "text/plain", b"only for this machine\n")
        elif self.path not in self.types:
            self._answer(404, "text/plain", b"not here\n")
        else:
            body = page() if self.path == "/" else data(self.server.servers(), self.server.interval_s)
            self._answer(200, self.types[self.path], body)

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing about each request."""


def page() -> bytes:
    """Return the page; it asks for `/data` by itself."""
    return files("kvtide.top").joinpath("page.html").read_bytes()


def data(servers: list[Server], interval_s: float) -> bytes:
    """Return what the page shows."""
    shown = [{**server_json(server), "alarms": alarms(server), "points": points_json(server)} for server in servers]
    return json.dumps({"interval_s": interval_s, "servers": shown}).encode()
