"""What happened, and why something did not: `python examples/events_and_metrics.py`.

Events tell a router which blocks can be loaded; metrics count everything, with a reason for each loss. In vLLM the same
numbers are on `/metrics`, and the same events go out with `--kv-events-config`.
"""

from __future__ import annotations

from kvtide import OffloadManager
from kvtide.core.events import CacheEvent, Removed, Stored
from kvtide.engine import Engine, EngineConfig, ModelConfig


def follow(known: set[tuple[int, bytes]], events: list[CacheEvent]) -> None:
    """Keep a listener's picture of the host up to date."""
    for event in events:
        if isinstance(event, Stored):
            known.update((event.group, key) for key in event.keys)
        elif isinstance(event, Removed):
            known.difference_update((event.group, key) for key in event.keys)
        else:  # cleared, or events were lost: begin again
            known.clear()


def show(manager: OffloadManager) -> None:
    """Print the numbers that an operator looks at first."""
    metrics, gauges = manager.metrics, manager.gauges()
    print(f"host: {gauges.slots_cached} of {gauges.slots} slots hold a block, {metrics.evicted_blocks} were evicted")
    print(f"loaded {metrics.loaded_tokens} tokens, stored {metrics.stored_blocks} blocks")
    for reason, tokens in metrics.not_loaded.items():
        print(f"not loaded: {tokens} tokens, {reason.value}")
    for why, blocks in metrics.not_stored.items():
        print(f"not stored: {blocks} blocks, {why.value}")


def main() -> None:
    """Serve more than the host can hold, and look at what became of it."""
    config = EngineConfig(model=ModelConfig(), device_blocks=16)
    known: set[tuple[int, bytes]] = set()
    with Engine(config, offload={"host": "3MiB", "events": True}) as engine:
        assert engine.manager is not None
        for user in range(4):
            engine.submit(f"user {user}", [(user + 3 * at) % 500 for at in range(200)], max_new_tokens=8)
            engine.run()
            follow(known, engine.manager.take_events())
        show(engine.manager)
        assert len(known) == engine.manager.gauges().slots_cached, "the listener knows what the host has"


if __name__ == "__main__":
    main()
