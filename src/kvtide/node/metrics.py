"""What Prometheus can read of a node, on this machine only."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvtide.errors import ConfigError

LOOPBACK = "127.0.0.1"
_GAUGES = {
    "memory_bytes": "Memory for blocks.",
    "free_bytes": "Memory that no namespace has.",
    "connections": "Connections of engines and operators.",
}
_COUNTERS = {
    "refused": "Connections that were refused.",
    "closed": "Connections that were closed because of what they sent.",
}


class Metrics(Collector):
    """Answers at http://127.0.0.1:PORT/metrics with what was published last, from threads of its own."""

    def __init__(self, port: int) -> None:
        self._status: Mapping[str, Any] = {}
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, LOOPBACK, registry)
        except OSError as error:
            raise ConfigError("metrics", port, f"a port that can be used ({error.strerror})") from error
        self.port = int(self._server.server_port)

    def publish(self, status: Mapping[str, Any]) -> None:
        """Answer with this from now on. It must not change any more."""
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Return it as Prometheus knows it."""
        status = self._status
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"kvtide_node_{name}", text, status.get(name, 0))
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(f"kvtide_node_{name}", text, status.get(name, 0))
        states = [engine["state"] for engine in status.get("engines", ())]
        engines = GaugeMetricFamily("kvtide_node_engines", "Lives of engines, open or ending.", labels=["state"])
        for state in ("open", "ending"):
            engines.add_metric([state], states.count(state))
        yield engines
        slots = GaugeMetricFamily("kvtide_node_slots", "Slots of a namespace.", labels=["namespace", "state"])
        for namespace in status.get("namespaces", ()):
            slots.add_metric([namespace["name"], "all"], namespace["slots"])
            slots.add_metric([namespace["name"], "ready"], namespace["ready_slots"])
        yield slots

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)
        assert isinstance(self._thread, threading.Thread)
