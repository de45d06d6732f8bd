"""Run prompts on engines whose KV is bf16 and print what came of it as JSON. Run as a program of its own.

python -m tests.vllm.packed_engines MODEL FOLDER WHAT

WHAT is a list of turns, `off` before all others: an engine of vLLM's CPU build does not start once numba is imported.
off, on, auto: packing; FOLDER has a tier on a disk. nothing-packs: on, or auto-nothing-packs: auto, and what packs says
of every block that it does not fit. With -node behind it, FOLDER has the socket of a node.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"


def run(model: Path, folder: Path, what: str) -> dict[str, Any]:
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415 (the environment has to be set)

    from tests.node.real_node import be_patient  # noqa: PLC0415
    from tests.vllm.fixtures import PROMPTS  # noqa: PLC0415
    from tests.vllm.llm import engine  # noqa: PLC0415

    disk = {"type": "disk", "path": str(folder), "size": "64MiB", "deadline_ms": 10_000}
    options: dict[str, Any] = {
        "packing": "on" if what.startswith("nothing-packs") else what.split("-", maxsplit=1)[0],
        **({"node": str(folder / "node.sock")} if what.endswith("-node") else {"host": "8MiB", "tiers": [disk]}),
    }
    said: dict[str, Any] = {}
    connector = {
        "kv_connector": "KVTideConnector",
        "kv_connector_module_path": "kvtide.vllm",
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }
    with (
        contextmanager(be_patient)(),
        counted_as_told() as told,
        engine(model, dtype="bfloat16", kv_transfer_config=connector) as offloading,
    ):
        said["lines"] = lines_about_packing()  # vLLM sets its loggers up when an engine is made
        for turn in ("computed", "loaded"):
            results = []
            for tokens in PROMPTS[1:4]:
                results += offloading.generate(tokens)
                offloading.drain()  # what was stored is known before the next one comes, however busy the machine is
            said[turn] = [[result.tokens, result.logprobs, result.cached_tokens] for result in results]
            offloading.forget_device()
        side = get_kv_transfer_group()._worker
        stats, metrics = side.copy_stats(), offloading.metrics
        side.take_stats()
        said |= {
            "told": told,
            "slots": side._arena.slots if side._arena is not None else None,
            "slots_ready": offloading.manager.gauges().slots,
            "slot_bytes": side._arena.slot_bytes if side._arena is not None else None,
            "block_bytes": offloading.side.config.geometry.block_bytes,
            "stored_bytes": stats.store.bytes,
            "saved_bytes": stats.store.saved_bytes,
            "unpacked_blocks": stats.store.unpacked_blocks,
            "stored_blocks": metrics.stored_blocks,
            "sunk_blocks": metrics.sunk_blocks,
            "fetched_blocks": metrics.fetched_blocks,
            "not_loaded": {reason.value: count for reason, count in metrics.not_loaded.items() if count},
            "not_stored": {reason.value: count for reason, count in metrics.not_stored.items() if count},
            "put_bytes": sum(stats.bytes_put for stats in side._worker.tier_stats().values()),
        }
        offloading.check_at_rest()
    return said


def lines_about_packing() -> list[str]:
    """Return a list that lines of the log will come to."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage()
            if "pack" in line and "device blocks" not in line:  # the start line says more than that
                lines.append(line)

    ours = logging.getLogger("vllm.kvtide")
    ours.setLevel(logging.INFO)
    ours.addHandler(Listener())
    return lines


@contextmanager
def counted_as_told() -> Iterator[Counter[str]]:
    """Add up all counters that the worker tells vLLM."""
    from kvtide.vllm.worker_side import WorkerSide  # noqa: PLC0415 (the environment has to be set)

    told: Counter[str] = Counter()
    take_stats = WorkerSide.take_stats

    def take(side: WorkerSide) -> Any:
        stats = take_stats(side)
        told.update({} if stats is None else stats.data["counters"])
        return stats

    with patch.object(WorkerSide, "take_stats", take):
        yield told


def let_nothing_pack() -> None:
    import numpy as np  # noqa: PLC0415 (vLLM has to be imported first)

    from kvtide.copy import packed_move, threads  # noqa: PLC0415
    from kvtide.copy.packing.codec import Reference  # noqa: PLC0415

    class NothingFits(Reference):
        def pack_into(self, values: Any, tiles: Any) -> Any:
            return np.zeros(len(values), np.bool_)

    def mover(device: Any, arena: Any, unpacked: Any, _: Any, trial: Any) -> packed_move.PackedBlockMover:
        return packed_move.PackedBlockMover(device, arena, unpacked, NothingFits, trial)

    patch.object(threads, "PackedBlockMover", mover).start()


def main() -> None:
    model, folder, *turns = sys.argv[1:]
    # How fast a busy machine packs and fetches is not in question.
    patch("kvtide.copy.packing.trial._RATE_SHARE_MIN", 0.0).start()
    patch("kvtide.core.below.fetch_break_even.FetchBreakEven.pays", lambda *_: True).start()
    if any("nothing-packs" in turn for turn in turns):
        let_nothing_pack()
    said = {turn: run(Path(model), Path(folder), turn) for turn in turns}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
