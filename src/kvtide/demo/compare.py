"""Runs one workload in every mode and keeps what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from kvtide.demo.settings import DemoSettings
from kvtide.demo.workload import Conversation, Tokens, Turn, arrivals, conversations
from kvtide.engine import Completion, Engine

REFERENCE = "unlimited"
MODES = ("none", "eager", "lazy")
RUNS = (REFERENCE, *MODES)
"""All runs: the reference has a device pool that holds everything; "none" has a small one and no offloading."""

OnTurn = Callable[[str, int], None]
"""Called with the run and the turns it has done: first with 0."""

Served = list[tuple[Turn, Completion]]
Serve = Callable[[list[Turn], list[list[int]]], Served]
"""Called with turns that arrive together, and their prompts; returns them in the order in which they end."""


@dataclass(slots=True)
class RunResult:
    """What one run did."""

    run: str
    replies: list[list[Tokens]] = field(default_factory=list)
    """Per conversation, the generated tokens of each turn."""
    ttft_ms: list[float] = field(default_factory=list)
    """Time from submit to the first token, of follow-up turns."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt tokens that were found on the device or loaded from the host."""
    prefill_tokens: int = 0
    loaded_tokens: int = 0
    copy_s: float = 0.0
    stored_bytes: int = 0
    wall_s: float = 0.0

    @property
    def hit_ratio(self) -> float:
        """Share of all prompt tokens that did not have to be computed."""
        return self.reused_tokens / self.prompt_tokens

    def ttft_ms_at(self, percent: float) -> float:
        """Return a percentile of the time to the first token of follow-up turns."""
        return float(np.percentile(self.ttft_ms, percent))

    def add(self, turn: Turn, completion: Completion) -> None:
        """Take in a turn that is over."""
        self.replies[turn.conversation].append(completion.tokens)
        self.prompt_tokens += completion.prompt_tokens
        self.reused_tokens += completion.device_tokens + completion.loaded_tokens
        if turn.number and completion.ttft_s is not None:
            self.ttft_ms.append(completion.ttft_s * 1000)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What all runs did."""

    settings: DemoSettings
    results: dict[str, RunResult]
    """In the order in which they ran."""

    def first_difference(self, run: str) -> Turn | None:
        """Return the first turn whose output is not that of the reference run; None if all are equal."""
        expected, got = self.results[REFERENCE].replies, self.results[run].replies
        for turns in arrivals(self.settings):
            for turn in turns:
                if got[turn.conversation][turn.number] != expected[turn.conversation][turn.number]:
                    return turn
        return None

    @property
    def identical_outputs(self) -> bool:
        """Whether every mode generated exactly the tokens of the reference run."""
        return all(self.first_difference(run) is None for run in self.results)


def compare_modes(settings: DemoSettings, on_turn: OnTurn) -> Comparison:
    """Run the workload of `settings` in every mode."""
    said = conversations(settings)
    return Comparison(settings, {run: _run(settings, run, said, on_turn) for run in RUNS})


def play(settings: DemoSettings, run: str, said: list[Conversation], on_turn: OnTurn, serve: Serve) -> RunResult:
    """Let all conversations take their turns, as `serve` serves them."""
    result = RunResult(run, replies=[[] for _ in said])
    done = 0
    begin_s = time.perf_counter()
    for turns in arrivals(settings):
        prompts = [said[turn.conversation].prompt(result.replies[turn.conversation]) for turn in turns]
        for turn, completion in serve(turns, prompts):
            result.add(turn, completion)
            done += 1
            on_turn(run, done)
    result.wall_s = time.perf_counter() - begin_s
    return result


def _run(settings: DemoSettings, run: str, said: list[Conversation], on_turn: OnTurn) -> RunResult:
    with _engine(settings, run) as engine:
        return served(engine, settings, run, said, on_turn)


def served(engine: Engine, settings: DemoSettings, run: str, said: list[Conversation], on_turn: OnTurn) -> RunResult:
    """Serve all conversations on an engine that has not served any."""
    on_turn(run, 0)
    result = play(settings, run, said, on_turn, partial(_serve, engine, settings.output_tokens))
    stats = engine.stats
    result.prefill_tokens = stats.prefill_tokens
    result.loaded_tokens = stats.loaded_tokens
    result.copy_s = stats.store_s + stats.load_s
    result.stored_bytes = stats.store_bytes
    return result


def _engine(settings: DemoSettings, run: str) -> Engine:
    if run == REFERENCE:
        return Engine(settings.engine(settings.unlimited_blocks))
    return Engine(settings.engine(settings.device_blocks), None if run == "none" else settings.offload(run))


def _serve(engine: Engine, output_tokens: int, turns: list[Turn], prompts: list[list[int]]) -> Served:
    """Step until these turns are over. Copies go on beside the next ones."""
    for turn, prompt in zip(turns, prompts, strict=True):
        engine.submit(turn.request_id, prompt, output_tokens)
    by_id = {turn.request_id: turn for turn in turns}
    ended: Served = []
    while len(ended) < len(turns):
        ended += [(by_id[completion.request_id], completion) for completion in engine.step()]
    return ended
