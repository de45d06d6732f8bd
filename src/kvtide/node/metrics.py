"""What Prometheus can read of a node, on this machine only.

Everybody on this machine can connect to a port. So one thread answers, one request after the other, each within a
deadline: whoever holds it up holds up metrics, and takes no descriptors from the engines.
"""

from __future__ import annotations

import io
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvtide.errors import ConfigError
from kvtide.node.exported import exported
from kvtide.node.tiers.metrics import tier_metrics

LOOPBACK = "127.0.0.1"
REQUEST_S = 2.0
"""For a request to come, and for its answer to be taken."""
_STOP_TIMEOUT_S = 10.0


class Metrics(Collector):
    """Answers at http://127.0.0.1:PORT/metrics with what was published last, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._status: Mapping[str, Any] = {}
        try:
            self._server = _Listening((LOOPBACK, port), _Handler)
        except OSError as error:
            raise ConfigError("metrics", port, f"a port that can be used ({error.strerror})") from error
        self._server.registry.register(self)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="kvtide-metrics", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where Prometheus finds it."""
        return f"http://{LOOPBACK}:{self.port}/metrics"

    def publish(self, status: Mapping[str, Any]) -> None:
        """Answer with this from now on. It must not change any more."""
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Return it as Prometheus knows it."""
        yield from exported(self._status)
        yield from tier_metrics(self._status)

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP_TIMEOUT_S)


class _Listening(TCPServer):
    """Listens on this machine only. No `HTTPServer`, which asks DNS for its own name."""

    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        self.registry = CollectorRegistry()
        super().__init__(address, handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of somebody who went away, or was late; anything else is a fault of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Within(io.RawIOBase):
    """Reads from a socket until a moment has come, however little comes at a time."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._end_s = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._sock.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Listening
    timeout = REQUEST_S
    server_version = "kvtide"
    sys_version = ""

    def setup(self) -> None:
        """Let all of a request come within the deadline."""
        super().setup()
        self.rfile = io.BufferedReader(_Within(self.connection, self.timeout))

    def do_GET(self) -> None:
        """Answer."""
        self.connection.settimeout(self.timeout)
        is_known = self.path.partition("?")[0] == "/metrics"
        body = generate_latest(self.server.registry) if is_known else b"not here: /metrics\n"
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", CONTENT_TYPE_LATEST if is_known else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing about each request."""
