"""How long the steps of an engine are, and kvtide with one thing changed: functions that are sent to vLLM's workers.

What is changed here cannot be set by users. It is changed in a running engine, so that two states of one part can be
measured in turn, in one run.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any


def watch_steps(worker: Any) -> None:
    """Take down when each step begins, what it computes, and whether kvtide copies beside it. Begins anew if called."""
    runner = worker.model_runner
    is_watched = hasattr(worker, "watched_steps")
    worker.watched_steps = []
    if is_watched:
        return
    execute = runner.execute_model

    def watched(scheduled: Any, *rest: Any, **named: Any) -> Any:
        begin_s, tokens, requests = (
            time.perf_counter(),
            scheduled.total_num_scheduled_tokens,
            scheduled.num_scheduled_tokens,
        )
        done = execute(scheduled, *rest, **named)
        worker.watched_steps.append((begin_s, tokens, len(requests), _is_copying()))
        return done

    runner.execute_model = watched


def _is_copying() -> bool:
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group  # noqa: PLC0415 (see below)

    side = getattr(get_kv_transfer_group(), "_worker", None) if has_kv_transfer_group() else None
    return bool(getattr(getattr(side, "_worker", None), "busy", False))


def read_steps(worker: Any) -> dict[str, Any]:
    """Return how long it took from one step to the next, in ms, by what the first of the two computed."""
    steps = [step for step in worker.watched_steps if step[1]]
    names = ("decode", "decode beside copies", "with up to 1024 new tokens", "with more")
    kinds: dict[str, list[float]] = {name: [] for name in names}
    for (begin_s, tokens, requests, copying), (end_s, *_) in pairwise(steps):
        if end_s - begin_s > 1.0:
            continue  # nobody was there
        name = "decode" if tokens == requests else "with more" if tokens > 1024 else "with up to 1024 new tokens"
        kinds[name].append(1e3 * (end_s - begin_s))
        if name == "decode" and copying:
            kinds["decode beside copies"].append(1e3 * (end_s - begin_s))
    return {name: _summary(values) for name, values in kinds.items() if len(values) > 1}


def _summary(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    found = {"count": len(values), "mean": statistics.fmean(values), "p50": cuts[49], "p90": cuts[89], "p99": cuts[98]}
    return {name: round(value, 2) for name, value in found.items()}


# ---------------------------------------------------------------------- kvtide with one thing changed


def _worker_side() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: PLC0415 (only where vLLM runs)

    return get_kv_transfer_group()._worker


def wait_at_once(_worker: Any) -> None:
    """Let the very next step wait for loads that were announced, as it was before F31 was looked at."""
    side = _worker_side()
    loads = side.loads
    loads.arrived = lambda _: loads.heard.update(loads.certain)


def announce_at_once(_worker: Any) -> None:
    """Announce loads when all of them is issued, however short steps are."""
    _worker_side()._steps = SimpleNamespace(begin=lambda **_: None, short_s=math.inf)


def announce_late(_worker: Any) -> None:
    """Announce loads when their bytes are there."""
    _worker_side()._announces_early = False


def load_late(_worker: Any) -> None:
    """Let loads wait for the step that computes when they are planned."""
    side = _worker_side()
    begin_step = side.begin_step

    def begin_late(step: Any) -> None:
        step.frees_deferred = False
        begin_step(step)

    side.begin_step = begin_late


def copy_nothing(_worker: Any) -> None:
    """End all copies at once: what is left is the cost of planning them. Answers to what was seen before are wrong."""
    from kvtide.copy import NullCopyEngine  # noqa: PLC0415 (only where kvtide is used)

    engine, nothing = _worker_side()._engine, NullCopyEngine()
    engine.submit, engine.poll, engine.wait = nothing.submit, nothing.poll, nothing.wait


def wait_for_stores(_worker: Any) -> None:
    """Let steps without anything to compute wait for stores for 3 ms, as they did once."""
    _worker_side()._worker._wait_timeout_s = 0.003


def report_late(_worker: Any) -> None:
    """Let the scheduler hear of copies by reports alone, as from a worker in another process."""
    from kvtide.vllm.step_messages import Looked  # noqa: PLC0415 (only where kvtide is used)

    _worker_side().look = Looked


def store_beside_prompts(_worker: Any) -> None:
    """Hold stores of running requests back while steps only decode, at most so many of them in a row."""
    held_max = 64
    side = _scheduler_side()
    planner = side.manager._planner
    plan_step, plan_stores = side.plan, planner.plan
    held, only_decodes = 0, False

    def plan(step: Any) -> Any:
        nonlocal only_decodes
        only_decodes = 0 < step.total_num_scheduled_tokens == len(step.num_scheduled_tokens)
        return plan_step(step)

    def plan_or_hold(loading_blocks: int) -> None:
        nonlocal held
        if only_decodes and planner.waiting and held < held_max:
            held += 1
        else:
            held = 0
            plan_stores(loading_blocks)

    side.plan, planner.plan = plan, plan_or_hold


def _scheduler_side() -> Any:
    import gc  # noqa: PLC0415 (only in the processes that run vLLM)

    from kvtide.vllm.scheduler_side import SchedulerSide  # noqa: PLC0415 (only where kvtide is used)

    gc.unfreeze()  # vLLM hides what it has made at start
    found = [thing for thing in gc.get_objects() if isinstance(thing, SchedulerSide)]
    if not found:
        raise RuntimeError("the scheduler is in another process, as it is with vLLM's CPU build")
    return found[0]


def load_after_forward(_worker: Any) -> None:
    """Begin loads when the forward pass of their step is issued, so that writing them down is in nobody's way."""
    from kvtide.core import Plan  # noqa: PLC0415 (only where kvtide is used)
    from kvtide.vllm import kv_tensors  # noqa: PLC0415

    side = _worker_side()
    begin_step, forward_issued = side.begin_step, side.forward_issued
    held: list[tuple[Any, Any]] = []

    def begin(step: Any) -> None:
        if not step.idle and step.plan.loads:
            held.append((step.plan, kv_tensors.fence(side._stripes)))  # they need not wait for this step's compute
            step.plan = dataclasses.replace(step.plan, loads=())
        begin_step(step)

    def issued() -> None:
        forward_issued()
        while held:
            plan, fence = held.pop()
            side.loads.begin(plan.loads)
            side._worker.start(Plan(plan.step, loads=plan.loads), fence)

    side.begin_step, side.forward_issued = begin, issued


def turns_of(mib: int) -> Callable[[Any], None]:
    """Let others in after so many MiB of a copy."""

    def change(_worker: Any) -> None:
        for lane in _worker_side()._engine._lanes.values():
            lane._gap = lane._gap._replace(turn_bytes=mib << 20)
            lane._piece_bytes = min(lane._piece_bytes, mib << 20)

    return change


VARIANTS: dict[str, Callable[..., None]] = {
    "wait-at-once": wait_at_once,
    "announce-at-once": announce_at_once,
    "announce-late": announce_late,
    "copy-nothing": copy_nothing,
    "load-after-forward": load_after_forward,
    "load-late": load_late,
    "report-late": report_late,
    "store-beside-prompts": store_beside_prompts,
    "wait-for-stores": wait_for_stores,
    **{f"turn-{mib}": turns_of(mib) for mib in (2, 4, 8)},
}
"""By what stands behind the `@` of a mode."""
