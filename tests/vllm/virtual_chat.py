"""The conversations of `benchmarks/vllm_chat.py` in virtual time: where do follow-ups wait, without a GPU.

python -m tests.vllm.virtual_chat [--decode-ms 7.5] [--conversations 32]

What is real and what is a model: `virtual_engine.py`. A step takes `--decode-ms`, and more for the tokens of a prompt.
"""

from __future__ import annotations

import argparse
import heapq
import math
import runpy
import statistics
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kvtide.vllm import step_lengths, versions
from tests.vllm.virtual_engine import VirtualEngine

WORKLOAD = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "chat_workload.py"))
AT_ONCE = 6


@dataclass
class Waits:
    """What users waited for, in milliseconds."""

    first_ms: list[float] = field(default_factory=list)
    follow_up_ms: list[float] = field(default_factory=list)
    held_ms: list[float] = field(default_factory=list)
    """Steps, for a load that is not over yet (F31)."""
    done_s: float = 0.0


@dataclass
class Asked:
    """A question that is being answered."""

    conversation: int
    turn: int
    since_s: float
    answered: bool = False


class VirtualChat(VirtualEngine):
    """One engine, and users that ask it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits = Waits(held_ms=self.held_ms)

    def converse(self, everything: list[list[Any]]) -> Waits:
        """Let all conversations take place.

        With asynchronous scheduling: schedule, issue, and only then process the output of the step before.
        """
        to_come = [(turns[0].think_s, number, 0) for number, turns in enumerate(everything)]
        heapq.heapify(to_come)
        said: list[list[int]] = [[] for _ in everything]
        asked: dict[str, Asked] = {}
        queue: list[tuple[Any, Any, float]] = []
        while to_come or asked or queue:
            while to_come and to_come[0][0] <= self.time.now_s and len(asked) < AT_ONCE:
                _, number, turn = heapq.heappop(to_come)
                said[number] += everything[number][turn].tokens
                name = f"{number}.{turn}"
                asked[name] = Asked(number, turn, self.time.now_s)
                self.add(name, said[number], everything[number][turn].answer_tokens)
            if self.scheduler.has_requests():
                queue.append(self.issue())
                if len(queue) <= self.asynchronous:
                    continue
            if not queue:
                self.time.now_s = max(self.time.now_s, to_come[0][0])
                continue
            for name in self._finish_step(*queue.pop(0), asked):
                ended = asked.pop(name)
                number, turn = ended.conversation, ended.turn
                said[number] += [7] * everything[number][turn].answer_tokens
                if turn + 1 < len(everything[number]):
                    heapq.heappush(to_come, (self.time.now_s + everything[number][turn + 1].think_s, number, turn + 1))
        self.waits.done_s = self.time.now_s
        return self.waits

    def _finish_step(self, step: Any, output: Any, end_s: float, asked: dict[str, Asked]) -> list[str]:
        """Process an output; return who has been answered."""
        heard, done = self.finish(step, output, end_s)
        for name in heard:
            one = asked.get(name)
            if one is not None and not one.answered:
                one.answered = True
                waited = self.waits.follow_up_ms if one.turn else self.waits.first_ms
                waited.append(1e3 * (self.time.now_s - one.since_s))
        return done


VARIANTS: dict[str, dict[str, Any]] = {
    "kvtide": {},
    "loads told of when they are issued": {"tell_early": True},
    "loads behind the step in flight": {"load_late": True},
    "and heard of by reports": {"load_late": True, "one_process": False},
    "without asynchronous scheduling": {"asynchronous": False},
    "everything in the device cache": {"blocks": 32 * 1_000},
}


def converse(variant: str, *, conversations: int, decode_ms: float) -> Waits:
    """Let conversations take place, with kvtide as it is or with something changed."""
    sizes = {"blocks": 256 * conversations + 1, "host_blocks": 640 * conversations}  # the device has a third of all
    options = {**sizes, "one_process": True, **VARIANTS[variant]}
    lengths = replace(WORKLOAD["USUAL"], conversations=conversations)
    everything = WORKLOAD["conversations"](lengths, 101, 500, spacing_s=0.05, think_s=0.5)
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
        if options.pop("tell_early", False):
            monkeypatch.setattr(step_lengths.StepLengths, "short_s", math.inf)
        if options.pop("load_late", False):
            monkeypatch.setattr(versions, "defers_frees", lambda *_: False)
        return VirtualChat(Path(folder), monkeypatch, decode_s=decode_ms / 1e3, **options).converse(everything)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decode-ms", type=float, default=7.5, help="a step without a prompt (default: 7.5)")
    parser.add_argument("--conversations", type=int, default=32, help="of four turns (default: 32)")
    arguments = parser.parse_args()
    _say(f"{'':34}{'first p50':>10}{'follow-up p50':>15}{'p90':>7}{'p99':>7}{'held, most ms':>15}{'all done s':>12}")
    for variant in VARIANTS:
        waits = converse(variant, conversations=arguments.conversations, decode_ms=arguments.decode_ms)
        cuts = statistics.quantiles(waits.follow_up_ms, n=100, method="inclusive")
        _say(
            f"{variant:34}{statistics.median(waits.first_ms):10.1f}{cuts[49]:15.1f}{cuts[89]:7.1f}{cuts[98]:7.1f}"
            f"{max(waits.held_ms):15.2f}{waits.done_s:12.2f}"
        )


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 (a command)


if __name__ == "__main__":
    main()
