"""KV cache events: what a router hears over vLLM's own publisher about blocks in host memory."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import BLOCK_TOKENS, engine

msgspec: Any = importlib.import_module("msgspec")  # only vLLM's environment has these two
zmq: Any = importlib.import_module("zmq")

PATIENCE_S = 60


class Router:
    """Hears what the engine publishes."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._heard: Any = self._context.socket(zmq.SUB)
        self._heard.setsockopt(zmq.SUBSCRIBE, b"")
        self._heard.setsockopt(zmq.LINGER, 0)
        self._heard.connect(endpoint)
        self._marks = 0

    def subscribe(self, publisher: Any) -> None:
        """Wait until what is published is heard."""
        end_s = time.monotonic() + PATIENCE_S
        while not self._heard.poll(50):
            assert time.monotonic() < end_s
            publisher.publish(KVEventBatch(ts=0.0, events=[]))

    def host_events(self, publisher: Any) -> list[Any]:
        """Return the events of host memory that were published, up to a mark behind them."""
        self._marks += 1
        publisher.publish(KVEventBatch(ts=-float(self._marks), events=[]))
        events: list[Any] = []
        while self._heard.poll(PATIENCE_S * 1000):
            *_, payload = self._heard.recv_multipart()
            batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
            if batch.ts == -self._marks:
                return events
            events += [event for event in batch.events if getattr(event, "medium", "CPU") == "CPU"]
        raise AssertionError("the mark does not come")

    def close(self) -> None:
        self._heard.close()
        self._context.term()


def test_a_router_hears_what_is_stored_and_removed(llama: Path, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/events"
    router = Router(endpoint)
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": endpoint}
    blocks = len(PROMPTS[5]) // BLOCK_TOKENS
    try:
        with engine(llama, kv_events_config=config, options={"host": (blocks + 1) * 65536}) as offloading:
            assert offloading.side.config.slots == blocks + 1
            publisher = offloading.scheduler.kv_event_publisher
            router.subscribe(publisher)
            offloading.generate(PROMPTS[5])
            offloading.drain()
            offloading.step()
            stored = [event for event in router.host_events(publisher) if isinstance(event, BlockStored)]
            hashes = [hashed for event in stored for hashed in event.block_hashes]
            assert len(set(hashes)) == blocks
            assert {event.medium for event in stored} == {"CPU"}
            assert {event.block_size for event in stored} == {BLOCK_TOKENS}
            assert stored[0].parent_block_hash is None
            assert all(event.parent_block_hash in hashes for event in stored[1:])
            offloading.generate(PROMPTS[11])
            offloading.drain()
            offloading.step()
            removed = [event for event in router.host_events(publisher) if isinstance(event, BlockRemoved)]
            gone = {hashed for event in removed for hashed in event.block_hashes}
            assert gone
            assert gone <= set(hashes)
            offloading.scheduler.reset_connector_cache()
            offloading.generate(PROMPTS[0])  # events travel with a step's output
            assert any(isinstance(event, AllBlocksCleared) for event in router.host_events(publisher))
            offloading.check_at_rest()
    finally:
        router.close()
