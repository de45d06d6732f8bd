"""A conversation whose KV the device has evicted comes back from host memory: `python examples/embedded_engine.py`.

Needs nothing but kvtide. The engine is small and runs on a CPU; what it does with kvtide is what any engine does.
"""

from __future__ import annotations

from kvtide.engine import Completion, Engine, EngineConfig, ModelConfig

ANN = list(range(200))
BOB = list(range(300, 500))


def serve(offload: dict[str, object] | None) -> list[Completion]:
    """Let Ann ask, then Bob, whose prompt drives hers out of the device, then Ann again."""
    config = EngineConfig(model=ModelConfig(), device_blocks=16)
    with Engine(config, offload=offload) as engine:
        engine.submit("ann 1", ANN, max_new_tokens=8)
        first = engine.run()
        engine.submit("bob 1", BOB, max_new_tokens=8)
        second = engine.run()
        engine.submit("ann 2", [*ANN, *first[0].tokens, 1, 2, 3], max_new_tokens=8)
        return [*first, *second, *engine.run()]


def computed_tokens(reply: Completion) -> int:
    """Return how much of a prompt was neither on the device nor on the host."""
    return reply.prompt_tokens - reply.device_tokens - reply.loaded_tokens


def main() -> None:
    """Compare an engine without offloading with one that has it."""
    without, with_kvtide = serve(None), serve({"host": "64MiB"})
    for before, after in zip(without, with_kvtide, strict=True):
        assert before.tokens == after.tokens, "offloading never changes what comes out"
        found = f"{after.device_tokens} found on the device, {after.loaded_tokens} loaded from the host"
        computed, before_computed = computed_tokens(after), computed_tokens(before)
        print(f"{after.request_id}: {computed} of {after.prompt_tokens} prompt tokens computed, {found}")
        print(f"       without kvtide: {before_computed} computed")


if __name__ == "__main__":
    main()
