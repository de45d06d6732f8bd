"""The documents of `benchmarks/vllm_gpu.py` that are asked for all at once, in virtual time: what bounds that.

python -m tests.vllm.virtual_documents [--decode-ms 8]

Twelve documents of 16,000 tokens are in host memory, the device has room for four, and each is answered with 32 tokens.
Four run at a time. A place is taken from the begin of a document's load to its last token, and the link carries one
load at a time. So nobody who copies all bytes is done before the last of the first four loads has begun and three
documents, one after the other, have been loaded and answered in its place: that is the bound.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.virtual_engine import TOKEN_BYTES, VirtualEngine
from tests.vllm.world import BLOCK_TOKENS, text

DOCUMENTS, DOCUMENT_TOKENS, ROOM, ANSWER_TOKENS = 12, 16_000, 4, 32
_BLOCKS = ROOM * DOCUMENT_TOKENS // BLOCK_TOKENS + 97
"""Of the device: 65,536 tokens, of which the last block of an answer is one."""


@dataclass(frozen=True)
class AtOnce:
    """How long all documents took, in virtual time."""

    done_s: float
    steps: int
    bound_s: float


class Engine(VirtualEngine):
    """One engine that is asked for several documents."""

    def ask(self, prompts: dict[str, list[int]], new_tokens: int) -> tuple[float, int]:
        """Ask for all of them now; return the time until the last one is answered, and how many steps computed."""
        begin_s, steps = self.time.now_s, 0
        for name, tokens in prompts.items():
            self.add(name, tokens, new_tokens)
        left, end_s, queue = set(prompts), begin_s, list[Any]()
        while self.scheduler.has_requests() or queue:
            if self.scheduler.has_requests():
                queue.append(self.issue())
                steps += bool(queue[-1][0].total_num_scheduled_tokens)
                if len(queue) < 2:
                    continue
            left -= set(self.finish(*queue.pop(0))[1])
            end_s = end_s if not left and end_s > begin_s else self.time.now_s
        return end_s - begin_s, steps


def at_once(*, decode_ms: float, copy_bytes_per_s: float, token_bytes: int = TOKEN_BYTES) -> AtOnce:
    """Visit all documents one by one, and then ask for all of them."""
    documents = [text(number, DOCUMENT_TOKENS) for number in range(DOCUMENTS)]
    load_s = (DOCUMENT_TOKENS - BLOCK_TOKENS) * token_bytes / copy_bytes_per_s
    decode_s = decode_ms / 1e3
    bound_s = (ROOM - 1) * load_s + DOCUMENTS / ROOM * (load_s + ANSWER_TOKENS * decode_s)
    host_blocks = (DOCUMENTS + 1) * DOCUMENT_TOKENS // BLOCK_TOKENS
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
        engine = Engine(
            Path(folder),
            monkeypatch,
            decode_s=decode_s,
            copy_bytes_per_s=copy_bytes_per_s,
            token_bytes=token_bytes,
            blocks=_BLOCKS,
            host_blocks=host_blocks,
            one_process=True,
        )
        for number, tokens in enumerate(documents):
            engine.ask({f"first {number}": tokens}, 1)
        done_s, steps = engine.ask(
            {f"again {number}": tokens for number, tokens in enumerate(documents)}, ANSWER_TOKENS
        )
        metrics = engine.manager.metrics
        assert metrics.loaded_tokens == DOCUMENTS * (DOCUMENT_TOKENS - BLOCK_TOKENS), metrics.not_loaded
    return AtOnce(done_s, steps, bound_s)


COPIES = {"copies at 53 GB/s": 53e9, "packed, 68 GB/s": 68e9, "copies that take no time": 1e15}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode-ms", type=float, default=8.0, help="a step without a prompt (default: 8)")
    arguments = parser.parse_args()
    _say(f"{'':20}{'':26}{'all done s':>12}{'steps':>7}{'bound s':>9}")
    for heads in (8, 1):
        for name, rate in COPIES.items():
            found = at_once(decode_ms=arguments.decode_ms, copy_bytes_per_s=rate, token_bytes=TOKEN_BYTES * heads // 8)
            _say(f"{f'{heads} KV heads':20}{name:26}{found.done_s:12.3f}{found.steps:7}{found.bound_s:9.3f}")


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 (a command)


if __name__ == "__main__":
    main()
