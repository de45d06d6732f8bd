"""The conversations of `benchmarks/vllm_chat.py` in virtual time: where do follow-ups wait, without a GPU.

python -m tests.vllm.virtual_chat [--decode-ms 7.5] [--conversations 32]

vLLM's real scheduler and kvtide's real halves, in asynchronous scheduling. How long compute and copies take is a model:
a step takes `--decode-ms` and 0.03 ms for each token of a prompt, a copy what its bytes take at 52 GB/s. So differences
between the rows mean something, and the times themselves little.
"""

from __future__ import annotations

import argparse
import heapq
import runpy
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kvtide.copy import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.core import Copy
from kvtide.vllm import kv_tensors, load_ends, overdue, requests, step_times, versions
from tests.vllm.world import BLOCK_TOKENS, World, starts_of

WORKLOAD = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "chat_workload.py"))
BLOCK_BYTES = BLOCK_TOKENS * 128 * 1024
COPY_BYTES_PER_S = 52e9
CERTAIN_S = 6 * (64 << 20) / COPY_BYTES_PER_S
"""So long before its end a load is certain: most of its chunks are issued ahead."""
SUBMIT_S, SCHEDULE_S, UPDATE_S, LAUNCH_S, LAUNCH_PROMPT_S = 0.0003, 0.0005, 0.0005, 0.0015, 0.005
TOKEN_S = 29.4e-6
"""Of a prompt."""
AT_ONCE = 6
MAX_TOKENS = 16_000


@dataclass
class VirtualTime:
    """Now, and what the GPU has to do."""

    now_s: float = 0.0
    compute_ends_s: float = 0.0
    """Of all that was issued."""
    loads_end_s: float = 0.0
    """Of those that the next forward pass waits for."""

    def fence(self, _stripes: object) -> Fence:
        """Return when all compute is over that was issued until now."""
        return partial(float, self.compute_ends_s)  # our engine asks it for the time


class Job(NamedTuple):
    """A copy under way."""

    direction: Direction
    blocks: int
    certain_s: float
    end_s: float


class VirtualCopies(CopyEngine):
    """Copies that take their time, one after the other in each direction."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._free_s = dict.fromkeys(Direction, 0.0)
        self._jobs: dict[int, Job] = {}
        self._moved = dict.fromkeys(Direction, 0)

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        compute_s: Any = after() if after is not None else 0.0  # see VirtualTime.fence
        begin_s = max(self._free_s[direction], self._time.now_s + SUBMIT_S, compute_s)
        end_s = self._free_s[direction] = begin_s + len(copy.blocks) * BLOCK_BYTES / COPY_BYTES_PER_S
        certain_s = max(self._time.now_s + SUBMIT_S, end_s - CERTAIN_S)
        self._jobs[copy.id] = Job(direction, len(copy.blocks), certain_s, end_s)
        return True

    def poll(self) -> Finished:
        done = [id_ for id_, job in self._jobs.items() if job.end_s <= self._time.now_s]
        for id_ in done:
            job = self._jobs.pop(id_)
            self._moved[job.direction] += job.blocks * BLOCK_BYTES
        return Finished(tuple(done))

    def certain(self) -> Mapping[int, Fence]:
        loads = {id_: job for id_, job in self._jobs.items() if job.direction is Direction.LOAD}
        return {id_: partial(self._hold, job) for id_, job in loads.items() if job.certain_s <= self._time.now_s}

    def _hold(self, job: Job) -> None:
        self._time.loads_end_s = max(self._time.loads_end_s, job.end_s)

    def wait(self, ids: Iterable[int], timeout_s: float) -> bool:
        return self._until([self._jobs[id_].end_s for id_ in ids if id_ in self._jobs], timeout_s)

    def wait_certain(self, ids: Iterable[int], timeout_s: float) -> bool:
        return self._until([self._jobs[id_].certain_s for id_ in ids if id_ in self._jobs], timeout_s)

    def _until(self, times_s: list[float], timeout_s: float) -> bool:
        latest_s = max(times_s, default=self._time.now_s)
        end_s = self._time.now_s + timeout_s
        self._time.now_s = max(self._time.now_s, min(latest_s, end_s))
        return latest_s <= end_s

    def close(self, timeout_s: float = 5.0) -> bool:
        return True

    def traffic(self, direction: Direction) -> Traffic:
        return Traffic(bytes=self._moved[direction])


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


class VirtualChat(World):
    """One engine, and users that ask it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, *, decode_s: float, **options: Any) -> None:
        self.time = VirtualTime()
        self._decode_s = decode_s
        self.waits = Waits()
        for module in (requests, load_ends, step_times, overdue):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 1.0 + self.time.now_s))
        monkeypatch.setattr(kv_tensors, "fence", self.time.fence)
        monkeypatch.setattr(kv_tensors, "computes", lambda _: self.time.compute_ends_s > self.time.now_s)
        monkeypatch.setattr(kv_tensors, "stripes_of", lambda *_: [SimpleNamespace()])
        monkeypatch.setattr(kv_tensors, "make_copy_engine", self._make_engine)
        super().__init__(
            path,
            max_tokens=MAX_TOKENS,
            step_tokens=8_192,
            max_running=64,
            asynchronous=True,
            engine_args={"hf_overrides": {"max_position_embeddings": MAX_TOKENS}},
            **options,
        )

    def _make_engine(self, _: object, __: int, slots: int, ___: object, sharing: Any) -> Any:
        return VirtualCopies(self.time), sharing.open_arena(slots, 16)

    def check(self) -> None:
        """Nothing is copied, so there is nothing to check."""

    def _forward(self, step: Any) -> dict[str, list[int]]:
        starts = starts_of(step)
        sampled: dict[str, list[int]] = {}
        for name, count in step.num_scheduled_tokens.items():
            sampled[name] = [7] if starts[name] + count >= len(self.tokens[name]) else []
            self.tokens[name] += sampled[name]
        self._compute([count for count in step.num_scheduled_tokens.values() if count > 1], len(starts))
        return sampled

    def _compute(self, prompts: list[int], scheduled: int) -> None:
        """Let the GPU have a step to do, behind all others and behind the loads that it reads."""
        time = self.time
        if not scheduled:
            return
        begin_s = max(time.compute_ends_s, time.now_s)
        self.waits.held_ms.append(1e3 * max(0.0, time.loads_end_s - begin_s))
        time.now_s += LAUNCH_PROMPT_S if prompts else LAUNCH_S
        took_s = self._decode_s + sum(prompts) * TOKEN_S
        time.compute_ends_s = max(time.now_s, max(begin_s, time.loads_end_s) + took_s)

    def converse(self, everything: list[list[Any]]) -> Waits:
        """Let all conversations take place: schedule, issue, and only then process the output of the step before."""
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
                queue.append(self._issue())
                if len(queue) < 2:
                    continue
            if not queue:
                self.time.now_s = max(self.time.now_s, to_come[0][0])
                continue
            for name in self._finish(*queue.pop(0), asked):
                ended = asked.pop(name)
                number, turn = ended.conversation, ended.turn
                said[number] += [7] * everything[number][turn].answer_tokens
                if turn + 1 < len(everything[number]):
                    heapq.heappush(to_come, (self.time.now_s + everything[number][turn + 1].think_s, number, turn + 1))
        self.waits.done_s = self.time.now_s
        return self.waits

    def _issue(self) -> tuple[Any, Any, float]:
        """Return a step, its output, and when that is there."""
        self.time.now_s += SCHEDULE_S
        self.time.loads_end_s = 0.0
        step = self.scheduler.schedule()
        output = self._execute(step)
        return step, output, self.time.compute_ends_s if step.total_num_scheduled_tokens else self.time.now_s

    def _finish(self, step: Any, output: Any, end_s: float, asked: dict[str, Asked]) -> list[str]:
        """Process an output; return who has been answered."""
        self.time.now_s = max(self.time.now_s, end_s) + UPDATE_S
        before = len(self.done)
        self._process(step, output)
        for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            one = asked.get(name)
            if tokens and one is not None and not one.answered:
                one.answered = True
                waited = self.waits.follow_up_ms if one.turn else self.waits.first_ms
                waited.append(1e3 * (self.time.now_s - one.since_s))
        return self.done[before:]


VARIANTS: dict[str, dict[str, Any]] = {
    "kvtide": {},
    "loads behind the step in flight": {"load_late": True},
    "and heard of by reports": {"load_late": True, "one_process": False},
    "everything in the device cache": {"blocks": 32 * 1_000},
}


def converse(variant: str, *, conversations: int, decode_ms: float) -> Waits:
    """Let conversations take place, with kvtide as it is or with something changed."""
    sizes = {"blocks": 256 * conversations + 1, "host_blocks": 640 * conversations}  # the device has a third of all
    options = {**sizes, "one_process": True, **VARIANTS[variant]}
    lengths = replace(WORKLOAD["USUAL"], conversations=conversations)
    everything = WORKLOAD["conversations"](lengths, 101, 500, spacing_s=0.05, think_s=0.5)
    with pytest.MonkeyPatch.context() as monkeypatch, tempfile.TemporaryDirectory() as folder:
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
