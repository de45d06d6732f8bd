"""The conversations of `vllm_chat.py` as a trace: what would host memory of some size find, without a GPU.

    python benchmarks/chat_trace.py > chat.jsonl
    kvtide replay chat.jsonl --block-tokens 16 --device 16GiB --host 30GiB [--packing] [--policy forecast]

Conversations take turns, as they do where all users think for about as long: all first turns, then all second ones. The
answers that they had are part of the next turn. So the 32 conversations of the first round have 39.9 GiB of KV in the
end, those of the second 36.9 (Llama-3.1-8B, 128 KiB for a token).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import count, islice

from chat_workload import USUAL, Lengths, Turn, conversations

BLOCK_TOKENS = 16
VOCAB = 128_256


class Talk:
    """One conversation, and what it has said so far."""

    def __init__(self, turns: list[Turn], fresh: Iterator[int]) -> None:
        self._turns = iter(turns)
        self._fresh = fresh
        self._tokens = 0
        self._hashes: list[int] = []

    def ask(self) -> dict[str, object] | None:
        """Return its next request, or None. A block that is not full has a hash of its own."""
        turn = next(self._turns, None)
        if turn is None:
            return None
        prompt_tokens = self._tokens + len(turn.tokens)
        self._tokens = prompt_tokens + turn.answer_tokens
        self._hashes += islice(self._fresh, prompt_tokens // BLOCK_TOKENS - len(self._hashes))
        rest = [next(self._fresh)] if prompt_tokens % BLOCK_TOKENS else []
        return {
            "input_length": prompt_tokens,
            "output_length": turn.answer_tokens,
            "hash_ids": self._hashes + rest,
        }


def requests(lengths: Lengths, rounds: int, spacing_ms: int) -> Iterator[dict[str, object]]:
    """Yield requests in the order in which they come."""
    fresh, times_ms = count(), count(0, spacing_ms)
    for number in range(1, rounds + 1):
        everything = conversations(lengths, 100 + number, VOCAB, spacing_s=1.0, think_s=1.0)  # when they come is ours
        talks = [Talk(turns, fresh) for turns in everything]
        while asked := [request for talk in talks if (request := talk.ask()) is not None]:
            yield from ({"timestamp": next(times_ms), **request} for request in asked)


def main() -> None:
    """Print a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="times 32 conversations (default: 2)")
    parser.add_argument("--spacing-ms", type=int, default=300, help="between two requests (default: 300)")
    arguments = parser.parse_args()
    for request in requests(USUAL, arguments.rounds, arguments.spacing_ms):
        print(json.dumps(request))


if __name__ == "__main__":
    main()
