"""Run prompts on two ranks that hold the same KV, and print what came of it as JSON. Run as a program of its own.

python -m tests.vllm.same_kv MODEL HOST

Twice: computed, and loaded.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.vllm.digests import digest, keys_on_device, on_device, wipe

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # for a function that is called in the workers
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0|1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def look(_worker: Any) -> dict[str, Any]:
    """Say what one rank has on its device and on the host."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415 (in a worker)

    side = get_kv_transfer_group()._worker
    arena = side._arena
    return {
        "slots": arena.slots,
        "bytes": arena.memory.nbytes,
        **_mapping(int(arena.memory.ctypes.data)),
        "on_host": sorted(digest(slot.tobytes()) for slot in arena.memory if slot.any()),
        "on_device": on_device(side),
        "stored_bytes": side.copy_stats().store.bytes,
        "loaded_bytes": side.copy_stats().load.bytes,
    }


def _mapping(address: int) -> dict[str, Any]:
    """Return what the system says of the memory at an address."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"{address:x}-"))
    fields = lines[at].split(maxsplit=5)
    proportional = next(line for line in lines[at:] if line.startswith("Pss:"))
    return {"inode": fields[4], "path": fields[5], "proportional_bytes": int(proportional.split()[1]) * 1024}


def main() -> None:
    model, host = sys.argv[1:]
    from tests.vllm.fixtures import PROMPTS  # noqa: PLC0415 (the environment has to be set first)
    from tests.vllm.llm import BLOCK_TOKENS, engine  # noqa: PLC0415 (likewise)

    said: dict[str, Any] = {}
    with engine(Path(model), tensor_parallel_size=2, options={"host": host}) as offloading:
        for turn in ("computed", "loaded"):
            before = offloading.metrics.loaded_tokens
            results = offloading.generate(*PROMPTS[:4])
            offloading.drain()
            said[turn] = {
                "results": [[result.tokens, result.logprobs] for result in results],
                "cached": [result.cached_tokens for result in results],
                "loaded_tokens": offloading.metrics.loaded_tokens - before,
                "failed": [offloading.metrics.stores_failed, offloading.metrics.loads_failed],
                "ranks": offloading.llm.collective_rpc(look),
                "keys": keys_on_device(offloading.pool),
                "slots_cached": offloading.manager.gauges().slots_cached,
            }
            offloading.forget_device()
            offloading.llm.collective_rpc(wipe)
        offloading.check_at_rest()
        config = offloading.side.config
        said |= {"slots": config.slots, "host_bytes": config.host_bytes, "block_tokens": BLOCK_TOKENS}
        said["block_bytes"] = config.geometry.block_bytes
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
