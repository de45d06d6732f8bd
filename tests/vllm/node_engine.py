"""An engine at a node in a process of its own, which does what it is told, line by line, and answers in JSON.

python -m tests.vllm.node_engine MODEL RANKS NODE IN OUT

NODE is a socket, or "none": an engine without kvtide. IN and OUT are descriptors. Each line of IN is a JSON object with
what to `say` (prompts), or what else to do; each answer is a line of OUT.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.vllm.digests import keys_on_device, on_device, wipe

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # for a function that is called in the workers
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

BLOCKS = 64


def look(_worker: Any) -> dict[str, Any]:
    """Say what one rank has: its process, descriptors, threads, memory of nodes, and digests of its blocks."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415 (in a worker)

    side = get_kv_transfer_group()._worker
    stats = side.copy_stats()
    return {
        "pid": os.getpid(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("kvtide")),
        "mapped": _mapped(),
        "stored_bytes": stats.store.bytes,
        "loaded_bytes": stats.load.bytes,
        "on_device": on_device(side),
    }


def _mapped() -> list[dict[str, Any]]:
    """Return the mappings of memory that came from a node: inode and bytes."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:kvtide" in line:
            bounds, _, _, _, inode, _ = line.split(maxsplit=5)
            first, last = (int(bound, 16) for bound in bounds.split("-"))
            found.append({"inode": inode, "bytes": last - first})
    return found


class Told:
    """Does what it is told."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __call__(self, order: dict[str, Any]) -> dict[str, Any]:
        if "say" in order:
            return self._say(order)
        if "look" in order:
            return {
                "ranks": self._engine.llm.collective_rpc(look),
                "keys": keys_on_device(self._engine.pool),
                **self._numbers(),
            }
        if "reset" in order:
            return {"reset": self._engine.llm.reset_prefix_cache()}
        self._engine.forget_device()
        if "wipe" in order:
            self._engine.llm.collective_rpc(wipe)
        return {}

    def _say(self, order: dict[str, Any]) -> dict[str, Any]:
        results = self._engine.generate(*order["say"], max_tokens=order["max_tokens"], together=order["together"])
        if order["drain"]:
            self._engine.drain()
        if order["forget"]:
            self._engine.forget_device()
        said = [[result.tokens, result.logprobs, result.cached_tokens] for result in results]
        return {"results": said, **self._numbers()}

    def _numbers(self) -> dict[str, Any]:
        if self._engine.scheduler.connector is None:
            return {}
        metrics, gauges = self._engine.metrics, self._engine.manager.gauges()
        return {
            "loaded_tokens": metrics.loaded_tokens,
            "stored_blocks": metrics.stored_blocks,
            "failed": [metrics.stores_failed, metrics.loads_failed],
            "not_loaded": {reason.value: count for reason, count in metrics.not_loaded.items() if count},
            "not_stored": {reason.value: count for reason, count in metrics.not_stored.items() if count},
            "pins": [gauges.store_pins, gauges.transfers, self._engine.side._device.count_pinned()],
        }


def main() -> None:
    model, ranks, node, read, write = sys.argv[1:]
    from tests.node.real_node import be_patient  # noqa: PLC0415 (the environment has to be set first)
    from tests.vllm.llm import engine  # noqa: PLC0415 (the environment has to be set first)

    arguments: dict[str, Any] = {"blocks": BLOCKS}
    if ranks != "0":  # in processes of their own
        arguments |= {"tensor_parallel_size": int(ranks), "distributed_executor_backend": "mp"}
    if node != "none":
        arguments["kv_transfer_config"] = {
            "kv_connector": "KVTideConnector",
            "kv_connector_module_path": "kvtide.vllm",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"node": node},
        }
    with (
        contextmanager(be_patient)(),
        engine(Path(model), None if node == "none" else "eager", **arguments) as started,
        os.fdopen(int(read)) as orders,
        os.fdopen(int(write), "w") as answers,
    ):
        told = Told(started)
        answers.write(json.dumps({"pid": os.getpid()}) + "\n")
        answers.flush()
        for line in orders:
            answers.write(json.dumps(told(json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
