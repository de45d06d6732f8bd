"""Reading `/metrics` of a server: one request with a deadline, and only the lines that are used."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from kvtide.errors import ConfigError
from kvtide.redaction import redacted
from kvtide.top.counts import Counts, Series
from kvtide.top.node_reading import KVTIDE, NODE, life_of, translate

BYTES_MAX = 16 << 20
"""An answer that is longer is not one of `/metrics`."""
OK = 200

OF_VLLM = (
    "vllm:inter_token_latency_seconds",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:prefix_cache_hits",
    "vllm:prefix_cache_queries",
    "vllm:prompt_tokens",
    "vllm:prompt_tokens_by_source",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_prefill_time_seconds",
    "vllm:time_to_first_token_seconds",
)
"""What is used of vLLM's own metrics."""
SUMMED = ("engine", "model_name", "le")
"""Labels that are added up, or (buckets of histograms) not used."""
OF_EACH_ENGINE = (f"{KVTIDE}node_attached",)
"""What is not added up over engines: each has its node or not."""
_WHOSE_ADDRESS = "give the address of vLLM or of a node, not that of Prometheus or Grafana"


class CannotRead(Exception):
    """The server did not answer, in time or at all, or not with metrics. Tried again later."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one answer said."""

    counters: Counts
    """They only grow while the server runs; sums and counts of histograms are among them."""
    gauges: Counts
    models: tuple[str, ...]
    life: str = ""
    """Which life of a node it is. Empty: a server."""

    @property
    def has_kvtide(self) -> bool:
        """Whether the server runs the connector, or is a node."""
        return bool(self.life) or any(
            series.name.startswith(KVTIDE) for part in (self.counters, self.gauges) for series in part
        )


def metrics_url(text: str) -> str:
    """Return the address of the metrics of a server: `localhost:8000` is enough.

    >>> metrics_url("localhost:8000")
    'http://localhost:8000/metrics'
    """
    url = text if "://" in text else f"http://{text}"
    expected = "the address of a server, such as http://localhost:8000"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise ConfigError("URL", redacted(text), expected)
    if parts.username is not None:
        raise ConfigError("URL", redacted(text), "an address without a user name and a password")
    path = parts.path if parts.path.strip("/") else "/metrics"
    return f"{parts.scheme}://{parts.netloc}{path}"


def read(url: str, timeout_s: float) -> Reading:
    """Ask a server for its metrics; raise `CannotRead` if that takes longer or does not work."""
    return parse(_get(url, timeout_s))


def _get(url: str, timeout_s: float) -> str:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = connect(parts.hostname, parts.port, timeout=timeout_s)
    late = threading.Event()
    sockets: list[socket.socket] = []  # the connection forgets its own while the answer is still read

    def give_up() -> None:
        late.set()
        for connected in sockets:
            with suppress(OSError):  # closed meanwhile
                connected.shutdown(socket.SHUT_RDWR)

    # The timeout of a socket begins again with every byte; this one does not.
    deadline = threading.Timer(timeout_s, give_up)
    deadline.daemon = True
    deadline.start()
    try:
        connection.connect()
        sockets.append(connection.sock)
        if late.is_set():
            raise TimeoutError
        connection.request("GET", parts.path, headers={"Accept": "text/plain", "Connection": "close"})
        with connection.getresponse() as response:
            body = response.read(BYTES_MAX + 1)
    except (OSError, HTTPException) as error:
        raise CannotRead(_why(error, late.is_set(), timeout_s, connection.port)) from None
    finally:
        deadline.cancel()
        connection.close()
    if late.is_set():
        raise CannotRead(_why(None, True, timeout_s, connection.port))
    if response.status != OK:
        raise CannotRead(f"it answers {response.status} {response.reason}".rstrip())
    if len(body) > BYTES_MAX:
        raise CannotRead(f"its answer is longer than {BYTES_MAX >> 20} MiB")
    return body.decode("utf-8", "replace")


def _why(error: BaseException | None, late: bool, timeout_s: float, port: int) -> str:
    if late or isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens at port {port}"
    if isinstance(error, ConnectionError):
        return "it ended the connection"
    if isinstance(error, socket.gaierror):
        return "a host of that name is not known"
    if isinstance(error, HTTPException):
        return f"it does not speak HTTP as expected ({type(error).__name__})"
    return str(error)


def _labels(name: str, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    kept = ("engine",) if name in OF_EACH_ENGINE else ()
    return tuple(sorted(pair for pair in labels.items() if pair[0] in kept or pair[0] not in SUMMED))


def parse(text: str) -> Reading:
    """Take what is used out of a text in Prometheus' format; raise `CannotRead` if it is not one."""
    counters, gauges, models = Counts(), Counts(), set[str]()
    if text.lstrip().startswith("<"):
        raise CannotRead(f"its answer is a web page: {_WHOSE_ADDRESS}")
    try:
        for family in text_string_to_metric_families(text):
            if not family.name.startswith((KVTIDE, NODE)) and family.name not in OF_VLLM:
                continue
            into = gauges if family.type == "gauge" else counters
            for sample in family.samples:
                models.update(filter(None, [sample.labels.get("model_name"), sample.labels.get("model")]))
                if sample.name.endswith(("_bucket", "_created")) or not math.isfinite(sample.value):
                    continue
                series = Series(sample.name, _labels(sample.name, sample.labels))
                into[series] = into.get(series, 0.0) + sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise CannotRead(f"its answer is not in Prometheus' format ({error})") from None
    if not counters and not gauges:
        raise CannotRead(f"no metrics of vLLM, or of a node, in its answer: {_WHOSE_ADDRESS}")
    life = life_of(gauges)
    if life:
        translate(counters, gauges)
    return Reading(counters, gauges, tuple(sorted(models)), life)
