"""A server on loopback that answers `/metrics` with what a test gives it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.ports import free_port

RECORDED = (Path(__file__).parent / "vllm-0.32.0.metrics").read_text()
"""What a real server answered: vLLM's CPU build with kvtide, see tests/vllm/test_top.py."""


KVTIDE = (
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    "from kvtide.cli import main; sys.exit(main())",
)
"""The command, which hears Ctrl-C and a hang-up also where the tests run in the background of a shell, or by nohup."""


class FakeServer:
    """Serves a text; `delay_s` between its bytes makes it slow, another `status` makes it refuse."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.status = 200
        self.delay_s = 0.0
        self.asked = 0
        self.port = free_port()
        self._listening: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def start(self) -> None:
        """Listen; on the same port as before, if it was stopped: nobody else has got it meanwhile."""
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.asked += 1
                body = fake.text.encode()
                self.send_response(fake.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    for at in range(0, len(body), 1 if fake.delay_s else len(body)):
                        self.wfile.write(body[at : at + 1] if fake.delay_s else body)
                        time.sleep(fake.delay_s)
                except OSError:
                    pass  # who asked has left

            def log_message(self, *_: object) -> None: ...

        class Listening(ThreadingHTTPServer):
            daemon_threads = True

        self._listening = Listening(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._listening.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close the port."""
        if self._listening is not None:
            self._listening.shutdown()
            self._listening.server_close()
            self._listening = None


@contextmanager
def fake_server(text: str) -> Iterator[FakeServer]:
    server = FakeServer(text)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def metrics(**numbers: float | dict[str, float]) -> str:
    """Return a text in Prometheus' format.

    `kvtide_loaded_tokens_total=5`, or by labels: `kvtide_not_loaded_total={'reason="reset"': 5}`. What ends in
    "_total", "_sum" or "_count" is a counter or part of a histogram, all else a gauge.
    """
    lines = []
    for name, value in numbers.items():
        base, kind = name, "counter" if name.endswith("_total") else "gauge"
        for suffix in ("_sum", "_count"):
            if name.endswith(suffix):
                base, kind = name.removesuffix(suffix), "summary"
        lines.append(f"# TYPE vllm:{base} {kind}")
        for labels, number in (value if isinstance(value, dict) else {"": value}).items():
            extra = f",{labels}" if labels else ""
            lines.append(f'vllm:{name}{{engine="0",model_name="llama"{extra}}} {float(number)}')
    return "\n".join(lines) + "\n"


BUSY: dict[str, float | dict[str, float]] = {
    "num_requests_running": 3,
    "num_requests_waiting": 1,
    "prompt_tokens_by_source_total": {
        'source="local_compute"': 2000,
        'source="local_cache_hit"': 5000,
        'source="external_kv_transfer"': 3000,
    },
    "time_to_first_token_seconds_sum": 4,
    "time_to_first_token_seconds_count": 10,
    "request_prefill_time_seconds_sum": 2.1,
    "request_prefill_time_seconds_count": 10,
    "request_prefill_kv_computed_tokens_sum": 2000,
    "request_prefill_kv_computed_tokens_count": 10,
    "inter_token_latency_seconds_sum": 1,
    "inter_token_latency_seconds_count": 100,
    "kvtide_requests_total": 10,
    "kvtide_loaded_tokens_total": 3000,
    "kvtide_loaded_blocks_total": 100,
    "kvtide_fetched_blocks_total": 25,
    "kvtide_stored_blocks_total": 200,
    "kvtide_evicted_blocks_total": 40,
    "kvtide_transfer_bytes_total": {'direction="store"': 200 << 20, 'direction="load"': 100 << 20},
    "kvtide_transfer_seconds_sum": {'direction="store"': 2, 'direction="load"': 1},
    "kvtide_not_loaded_total": {'reason="not_cached"': 1800, 'reason="last_token"': 200, 'reason="reset"': 0},
    "kvtide_not_stored_total": {'reason="host_full"': 12},
    "kvtide_not_sunk_total": {'reason="failed"': 7},
    "kvtide_slots": 160,
    "kvtide_slots_free": 40,
    "kvtide_slots_pinned": 8,
    "kvtide_transfers_unanswered": 0,
    "kvtide_tier_off": {'tier="disk",rank="0"': 0, 'tier="disk",rank="1"': 0, 'tier="valkey",rank="0"': 0},
    "kvtide_tier_bytes_used": {'tier="disk",rank="0"': 1 << 30, 'tier="disk",rank="1"': 1 << 30},
    "kvtide_tier_bytes_budget": {'tier="disk",rank="0"': 4 << 30, 'tier="disk",rank="1"': 4 << 30},
    "kvtide_tier_bytes_total": {'tier="disk",call="put"': 64 << 20, 'tier="disk",call="get"': 32 << 20},
    "kvtide_tier_keys_total": {
        'tier="disk",call="lookup",outcome="hit"': 50,
        'tier="disk",call="lookup",outcome="miss"': 150,
    },
}
"""A server that was used for a while: 10 requests of 1,000 prompt tokens each, half of them on the device."""


def at_node(*attached: int, away_tokens: float = 0) -> str:
    """Return what a server whose host memory a node keeps says: 1 or 0 for each engine, and no host pool."""
    own = {name: value for name, value in BUSY.items() if "slots" not in name and "tier" not in name}
    own["kvtide_not_loaded_total"] = {'reason="node_away"': away_tokens}
    lines = [f'vllm:kvtide_node_attached{{engine="{n}",model_name="llama"}} {each}' for n, each in enumerate(attached)]
    return "\n".join([metrics(**grown(own, 10)), "# TYPE vllm:kvtide_node_attached gauge", *lines, ""])


def grown(numbers: dict[str, float | dict[str, float]], times: float) -> dict[str, float | dict[str, float]]:
    """Return the numbers of a server that has done as much `times` as often: its counters grow, its gauges do not."""

    def one(name: str, value: float | dict[str, float]) -> float | dict[str, float]:
        if not name.endswith(("_total", "_sum", "_count")):
            return value
        return {labels: times * each for labels, each in value.items()} if isinstance(value, dict) else times * value

    return {name: one(name, value) for name, value in numbers.items()}
