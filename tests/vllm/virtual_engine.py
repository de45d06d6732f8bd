"""An engine in virtual time: vLLM's real scheduler and kvtide's real halves, and no GPU.

How long compute and copies take is a model: a step takes what a step that only decodes takes, and 0.03 ms for each
token of a prompt; a copy takes what its bytes take at the rate of the link. So differences between runs mean something,
and the times themselves little.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kvtide.copy import CopyEngine, Direction, Fence, Finished, Traffic
from kvtide.core import Copy
from kvtide.vllm import kv_tensors, load_ends, overdue, requests, step_lengths, step_times
from tests.vllm.world import BLOCK_TOKENS, World, starts_of

TOKEN_BYTES = 128 * 1024
COPY_BYTES_PER_S = 52e9
_AHEAD_BYTES = 6 * (64 << 20)
"""So many bytes before its end a load is certain: most of its chunks are issued ahead."""
SUBMIT_S, SCHEDULE_S, UPDATE_S, LAUNCH_S, LAUNCH_PROMPT_S = 0.0003, 0.0005, 0.0005, 0.0015, 0.005
_COMPUTE_TOKEN_S = 29.4e-6
"""Of a prompt."""
MAX_TOKENS = 16_100


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

    def __init__(self, time: VirtualTime, block_bytes: int, bytes_per_s: float) -> None:
        self._time = time
        self._block_bytes = block_bytes
        self._bytes_per_s = bytes_per_s
        self._free_s = dict.fromkeys(Direction, 0.0)
        self._jobs: dict[int, Job] = {}
        self._moved = dict.fromkeys(Direction, 0)

    def submit(self, direction: Direction, copy: Copy, after: Fence | None = None) -> bool:
        compute_s: Any = after() if after is not None else 0.0  # see VirtualTime.fence
        begin_s = max(self._free_s[direction], self._time.now_s + SUBMIT_S, compute_s)
        end_s = self._free_s[direction] = begin_s + len(copy.blocks) * self._block_bytes / self._bytes_per_s
        certain_s = max(self._time.now_s + SUBMIT_S, end_s - _AHEAD_BYTES / self._bytes_per_s)
        self._jobs[copy.id] = Job(direction, len(copy.blocks), certain_s, end_s)
        return True

    def poll(self) -> Finished:
        done = [id_ for id_, job in self._jobs.items() if job.end_s <= self._time.now_s]
        for id_ in done:
            job = self._jobs.pop(id_)
            self._moved[job.direction] += job.blocks * self._block_bytes
        return Finished(tuple(done))

    def certain(self, within_s: float = math.inf) -> Mapping[int, Fence]:
        now_s = self._time.now_s
        loads = {id_: job for id_, job in self._jobs.items() if job.direction is Direction.LOAD}
        certain = {id_: job for id_, job in loads.items() if job.certain_s <= now_s and job.end_s <= now_s + within_s}
        return {id_: partial(self._hold, job) for id_, job in certain.items()}

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


class VirtualEngine(World):
    """One engine whose steps and copies take virtual time."""

    def __init__(
        self,
        path: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        decode_s: float,
        token_bytes: int = TOKEN_BYTES,
        copy_bytes_per_s: float = COPY_BYTES_PER_S,
        asynchronous: bool = True,
        **options: Any,
    ) -> None:
        self.time = VirtualTime()
        self.held_ms: list[float] = []
        """What each step with somebody who did not begin in it waited for loads that were not over yet (F31)."""
        self._decode_s = decode_s
        self._copies = VirtualCopies(self.time, BLOCK_TOKENS * token_bytes, copy_bytes_per_s)
        for module in (requests, load_ends, step_lengths, step_times, overdue):
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
            asynchronous=asynchronous,
            engine_args={"hf_overrides": {"max_position_embeddings": MAX_TOKENS}},
            **options,
        )

    def _make_engine(self, _: object, __: int, slots: int, ___: object, sharing: Any) -> Any:
        return self._copies, sharing.open_arena(slots, 16)

    def check(self) -> None:
        """Nothing is copied, so there is nothing to check."""

    def _forward(self, step: Any) -> dict[str, list[int]]:
        starts = starts_of(step)
        sampled: dict[str, list[int]] = {}
        for name, count in step.num_scheduled_tokens.items():
            sampled[name] = [7] if starts[name] + count >= len(self.tokens[name]) else []
            self.tokens[name] += sampled[name]
        prompts = [count for count in step.num_scheduled_tokens.values() if count > 1]
        if starts:
            self._compute(prompts, others=len(starts) - len(step.scheduled_new_reqs))
        return sampled

    def _compute(self, prompts: list[int], *, others: int) -> None:
        """Let the GPU have a step to do, behind all before it and the loads that it reads.

        `others` do not begin in it.
        """
        time = self.time
        begin_s = max(time.compute_ends_s, time.now_s)
        if others:
            self.held_ms.append(1e3 * max(0.0, time.loads_end_s - begin_s))
        time.now_s += LAUNCH_PROMPT_S if prompts else LAUNCH_S
        took_s = self._decode_s + sum(prompts) * _COMPUTE_TOKEN_S
        time.compute_ends_s = max(time.now_s, max(begin_s, time.loads_end_s) + took_s)

    def issue(self) -> tuple[Any, Any, float]:
        """Return a step, its output, and when that is there."""
        self.time.now_s += SCHEDULE_S
        self.time.loads_end_s = 0.0
        step = self.scheduler.schedule()
        output = self._execute(step)
        return step, output, self.time.compute_ends_s if step.total_num_scheduled_tokens else self.time.now_s

    def finish(self, step: Any, output: Any, end_s: float) -> tuple[list[str], list[str]]:
        """Process an output; return who has got a token, and who has been answered."""
        self.time.now_s = max(self.time.now_s, end_s) + UPDATE_S
        before = len(self.done)
        self._process(step, output)
        pairs = zip(output.req_ids, output.sampled_token_ids, strict=True)
        return [name for name, tokens in pairs if tokens], self.done[before:]
