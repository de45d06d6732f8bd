"""A second engine finds on disk what a first one has computed, encrypted: `python examples/restart_from_disk.py`.

Needs `pip install cryptography`. In vLLM the option `tiers` is written in the same way.
"""

from __future__ import annotations

import secrets
import tempfile
from pathlib import Path

from kvtide.engine import Engine, EngineConfig, ModelConfig

PROMPT = [(7 * at * at + 13 * at) % 500 for at in range(400)]


def serve(folder: Path, key_file: Path) -> tuple[int, ...]:
    """Start an engine with a disk below host memory, ask it one question, and stop it."""
    disk = {
        "type": "disk",
        "path": str(folder),
        "size": "64MiB",
        "deadline_ms": 10_000,  # a request waits so long for a tier that does not move
        "encryption_key_file": str(key_file),
    }
    config = EngineConfig(model=ModelConfig(), device_blocks=64)
    with Engine(config, offload={"host": "16MiB", "tiers": [disk]}) as engine:
        engine.submit("question", PROMPT, max_new_tokens=4)
        (reply,) = engine.run()
        assert engine.manager is not None
        metrics = engine.manager.metrics
        print(f"{reply.loaded_tokens} of {reply.prompt_tokens} tokens loaded, {metrics.sunk_blocks} blocks sunk")
        return reply.tokens


def main() -> None:
    """Serve, restart, serve again."""
    with tempfile.TemporaryDirectory() as name:
        folder, key_file = Path(name, "store"), Path(name, "key")
        folder.mkdir()
        key_file.touch(mode=0o600)  # kvtide refuses a key that others can read
        key_file.write_text(secrets.token_hex(32))
        assert serve(folder, key_file) == serve(folder, key_file)


if __name__ == "__main__":
    main()
