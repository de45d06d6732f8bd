"""KV cache events: what a router hears over vLLM's own publisher about blocks in host memory."""

from __future__ import annotations

import importlib
import socket
import time
from pathlib import Path
from typing import Any

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import BLOCK_TOKENS, engine

msgspec: Any = importlib.import_module("msgspec")  # only vLLM's environment has these two
zmq: Any = importlib.import_module("zmq")


class Router:
    """Hears what the engine publishes."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self._context = zmq.Context()
        self._heard: Any = self._context.socket(zmq.SUB)
        self._heard.setsockopt(zmq.SUBSCRIBE, b"")
        self._heard.setsockopt(zmq.LINGER, 0)
        self._heard.connect(self.endpoint)

    def host_events(self, wait_ms: int = 1_500) -> list[Any]:
        """Return the events of host memory until nothing more comes for a while."""
        events = []
        while self._heard.poll(wait_ms):
            *_, payload = self._heard.recv_multipart()
            batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
            events += [event for event in batch.events if getattr(event, "medium", "CPU") == "CPU"]
        return events

    def close(self) -> None:
        self._heard.close()
        self._context.term()


def test_a_router_hears_what_is_stored_and_removed(llama: Path) -> None:
    router = Router()
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": router.endpoint.replace("127.0.0.1", "*")}
    blocks = len(PROMPTS[5]) // BLOCK_TOKENS
    try:
        with engine(llama, kv_events_config=config, options={"host": (blocks + 1) * 65536}) as offloading:
            assert offloading.side.config.slots == blocks + 1
            time.sleep(1)  # for the subscription to arrive
            offloading.generate(PROMPTS[5])
            offloading.drain()
            offloading.step()
            stored = [event for event in router.host_events() if isinstance(event, BlockStored)]
            hashes = [hashed for event in stored for hashed in event.block_hashes]
            assert len(set(hashes)) == blocks
            assert {event.medium for event in stored} == {"CPU"}
            assert {event.block_size for event in stored} == {BLOCK_TOKENS}
            assert stored[0].parent_block_hash is None
            assert all(event.parent_block_hash in hashes for event in stored[1:])
            offloading.generate(PROMPTS[11])
            offloading.drain()
            offloading.step()
            removed = [event for event in router.host_events() if isinstance(event, BlockRemoved)]
            gone = {hashed for event in removed for hashed in event.block_hashes}
            assert gone
            assert gone <= set(hashes)
            offloading.scheduler.reset_connector_cache()
            offloading.generate(PROMPTS[0])  # events travel with a step's output
            assert any(isinstance(event, AllBlocksCleared) for event in router.host_events())
            offloading.check_at_rest()
    finally:
        router.close()
