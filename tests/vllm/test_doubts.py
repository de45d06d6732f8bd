"""What another connector was to load: until when it is doubted, and whose blocks are doubted with it (F8)."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtide.copy import Direction
from tests.vllm.engines import Control
from tests.vllm.test_beside import (
    REMOTE,
    REMOTE_TOKENS,
    LoadsInAStep,
    NeverLoads,
    Remote,
    StoresAtOnce,
    let_there_be_several,
)
from tests.vllm.world import BLOCK_TOKENS, World, starts_of, text


@pytest.mark.parametrize("runner_v2", [False, True])
@pytest.mark.parametrize(("resumed", "new"), [("now", "shares"), ("shares", "now")])
def test_f8_who_is_resumed_and_who_is_new_are_looked_at_in_the_order_in_which_they_were_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: str, new: str, *, runner_v2: bool
) -> None:
    """Another connector loads for "now", in vain, and "shares" hits that in the same step."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    loads = False

    def offer(_: Any, request: Any, device_tokens: int) -> tuple[int, bool]:
        return (REMOTE_TOKENS if loads and request.request_id == "now" and not device_tokens else 0, False)

    monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer)
    control = Control(StoresAtOnce)
    sizes: dict[str, Any] = {"step_tokens": 256, "blocks": 64, "engine_args": {"scheduling_policy": "priority"}}
    world = NeverLoads(tmp_path, monkeypatch=monkeypatch, asynchronous=True, control=control, **sizes)
    world.scheduler.use_v2_model_runner = runner_v2  # it tells of resumed requests behind new ones
    world.failed = True
    prompt, priorities = text(1, 200), {"now": -1, "shares": 1}
    world.add(resumed, prompt, 60, priority=priorities[resumed])
    for _ in range(4):
        world.step()
    assert world.scheduler.reset_prefix_cache(reset_running_requests=True)  # preempts all
    world.process_all()
    control.engine.arena.memory[:] = 0
    world.kv[0][:] = 0
    loads, world.failed = True, False
    world.add(new, prompt, 60, priority=priorities[new])
    for _ in range(8):
        world.step()  # which looks at all that is stored
    assert world.failed


def test_a_preemption_behind_the_first_token_is_no_failed_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes nothing for computed then, but the token had come."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    offers = iter([REMOTE_TOKENS])

    def offer_once(_: Any, request: Any, device_tokens: int) -> tuple[int, bool]:
        return next(offers, 0) if request.request_id == "now" else 0, False

    monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer_once)
    world = LoadsInAStep(tmp_path, monkeypatch=monkeypatch, step_tokens=512, blocks=64)
    request = world.add("now", text(1, 160), 40)
    world.add("shares", text(1, 160), 60)
    world.step()
    assert request.num_output_tokens == 1
    manager = world.scheduler.kv_cache_manager
    allocate, refused = manager.allocate_slots, iter([True])
    monkeypatch.setattr(
        manager,
        "allocate_slots",
        lambda asks, *args, **more: None if asks is request and next(refused, False) else allocate(asks, *args, **more),
    )
    world.scheduler.running.reverse()  # vLLM preempts the last one
    world.run()
    assert request.num_preemptions == 1
    assert world.manager.metrics.not_stored == {}
    world.check_at_rest()


class Padded(LoadsInAStep):
    """Computes nothing for guesses. vLLM 0.32 puts some into a first step that has one token to compute."""

    padded = False

    def _forward(self, step: Any) -> dict[str, list[int]]:
        guesses = {name: len(tokens) for name, tokens in step.scheduled_spec_decode_tokens.items()}
        self.padded = self.padded or "now" in guesses
        step = copy.copy(step)
        counts = step.num_scheduled_tokens.items()
        step.num_scheduled_tokens = {name: count - guesses.get(name, 0) for name, count in counts}
        return super()._forward(step)


@pytest.mark.parametrize("guesses", [0, 4])
def test_guesses_that_are_refused_are_no_failed_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guesses: int
) -> None:
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = Padded(tmp_path, monkeypatch=monkeypatch, step_tokens=256)
    world.scheduler.num_spec_tokens = world.scheduler.num_lookahead_tokens = guesses
    prompt = text(1, REMOTE_TOKENS + 1)
    world.add("now", prompt, 40)
    world.run()
    assert world.padded == bool(guesses)
    assert world.manager.metrics.not_stored == {}
    world.generate("again", prompt)
    assert world.hits["again"] == REMOTE_TOKENS
    world.check_at_rest()


class Garbles(World):
    """Who reads KV that is wrong computes KV that is wrong."""

    def _forward(self, step: Any) -> dict[str, list[int]]:
        sampled = super()._forward(step)
        starts = starts_of(step)
        while wrong := [name for name, start in starts.items() if not self._is_right(name, start)]:
            for name in wrong:  # which may be what others read
                self._garble(name, starts.pop(name), step.num_scheduled_tokens[name])
        return sampled

    def _is_right(self, name: str, tokens: int) -> bool:
        stamps = np.array(self._stamps_of(name, 0)[:tokens], dtype=np.uint64)
        return np.array_equal(self.kv[0][0, self._table(name, 0)].reshape(-1)[:tokens], stamps)

    def _garble(self, name: str, first: int, count: int) -> None:
        table = self._table(name, 0)
        for position in range(first, first + count):
            self.kv[0][:, table[position // BLOCK_TOKENS], position % BLOCK_TOKENS] = 1

    def _check_reads(self, name: str, group: int, first: int, last: int) -> None:
        """Look at nothing: what is computed in a step that has read what did not come, vLLM gives up."""


class AnyLoads(Garbles):
    """Another connector loads some tokens of some requests, and half of these loads fail."""

    draw: random.Random

    def begin(self, draw: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the other connector offer, and remember what it was to load."""
        self.draw, self.to_load, self.hit_in_vain = draw, dict[str, tuple[int, int]](), set[str]()

        def offer(_: Any, request: Any, device_tokens: int) -> tuple[int, bool]:
            blocks = (len(request.prompt_token_ids) - 1 - device_tokens) // BLOCK_TOKENS
            return (draw.randint(1, blocks) * BLOCK_TOKENS if blocks > 0 and draw.random() < 0.5 else 0, False)

        def placed(_: Any, request: Any, __: Any, tokens: int) -> None:
            if tokens:
                first = self.side._requests.known[request.request_id].device_tokens
                self.to_load[request.request_id] = first, first + tokens

        monkeypatch.setattr(Remote, "get_num_new_matched_tokens", offer)
        monkeypatch.setattr(Remote, "update_state_after_alloc", placed)

    def _execute(self, step: Any) -> Any:
        invalid: set[int] = set()
        for name in starts_of(step):
            first, last = self.to_load.pop(name, (0, 0))
            if self.draw.random() < 0.5:
                self._write(name, 0, first, last)
            else:
                invalid.update(self._table(name, 0)[first // BLOCK_TOKENS : last // BLOCK_TOKENS])
        self.kv[0][:, list(invalid)] = 0
        output = super()._execute(step)
        if invalid:
            output.kv_connector_output.invalid_block_ids = invalid | output.kv_connector_output.invalid_block_ids
            running = (request.request_id for request in self.scheduler.running)
            self.hit_in_vain.update(name for name in running if invalid & set(self._table(name, 0)))
        return output


@pytest.mark.parametrize("seed", [335, *range(12)])
def test_f8_whatever_others_load_or_not_the_host_holds_what_its_keys_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed)
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = AnyLoads(
        tmp_path,
        monkeypatch=monkeypatch,
        asynchronous=draw.random() < 0.7,
        mode=draw.choice(["eager", "eager", "lazy"]),
        step_tokens=draw.choice([128, 256]),
        blocks=draw.choice([32, 48, 64]),
        host_blocks=200,
        control=Control(StoresAtOnce),
        engine_args={"scheduling_policy": draw.choice(["fcfs", "priority"])},
    )
    world.scheduler.use_v2_model_runner = draw.random() < 0.5
    world.begin(draw, monkeypatch)
    for number in range(120):
        if draw.random() < 0.5 and len(world.scheduler.requests) < 8:
            prompt = text(draw.randint(0, 2), draw.randint(20, 200))
            world.add(f"r{number}", prompt, draw.randint(1, 40), priority=draw.randint(0, 3))
        if draw.random() < 0.1 and world.scheduler.requests:
            world.abort(draw.choice(list(world.scheduler.requests)))
        for name in sorted(world.hit_in_vain):
            if world.asynchronous and draw.random() < 0.2:  # vLLM 0.32 may wait for ever for tokens that it gave up
                world.hit_in_vain.discard(name)
                if name in world.scheduler.requests:
                    world.abort(name)
        world.step()  # which looks at all that is stored
    world.process_all()
    world.abort(*world.scheduler.requests)
    world.run()
    world.check_at_rest()
    assert not world.side._requests._doubts._since


class AbortedBefore(Garbles, NeverLoads):
    """A request "now" is aborted before vLLM hears that its load has failed."""

    def _process(self, step: Any, output: Any) -> None:
        if "now" in self.scheduler.requests:
            self.abort("now")
        super()._process(step, output)


def test_f8_who_has_hit_blocks_of_a_request_that_was_aborted_in_doubt_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those who share a block that has not come, vLLM lets the first compute it again. The others go on."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    world = AbortedBefore(tmp_path, monkeypatch=monkeypatch, asynchronous=True, step_tokens=256)
    world.add("now", text(1, 200), 60)
    world.add("shares", text(1, 200), 60)
    world.step()
    world.add("shares, too", text(1, 110), 60)
    for _ in range(30):
        world.step()  # which looks at all that is stored
    assert world.failed
    assert world.hits["shares, too"] == REMOTE_TOKENS
    world.abort("shares", "shares, too")
    world.run()
    assert world.manager.metrics.stored_blocks == 0
    world.check_at_rest()


class FailsOnce(Garbles, NeverLoads):
    """The load of a request "now" fails."""


@pytest.mark.parametrize("fails", [False, True])
def test_f8_nor_who_has_hit_them_and_waits_for_a_load_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """If that fails, the request begins anew, without them."""
    let_there_be_several(monkeypatch, others=[REMOTE])
    control = Control()
    sizes: dict[str, Any] = {"step_tokens": 64, "max_tokens": 400}
    chunks = {"long_prefill_token_threshold": 48}
    world = FailsOnce(tmp_path, monkeypatch=monkeypatch, control=control, engine_args=chunks, **sizes)
    prompt = [*text(1, 200), *text(5, 60)]
    world.generate("before", prompt)
    world.evict_device()
    before = world.manager.metrics.stored_blocks
    world.add("now", prompt[:200], 60)
    while not world.failed:
        world.step()
    control.engine.held = {Direction.LOAD}
    world.add("waits", prompt, 60)
    world.step()
    assert control.engine.waiting, "for what is behind the blocks of the other one"
    world.abort("now")
    control.engine.failing = {Direction.LOAD} if fails else set()
    control.engine.held = set()
    world.step()
    control.engine.failing = set()
    world.run()  # which looks at all that is stored
    assert (world.manager.metrics.stored_blocks > before) == fails
    world.check_at_rest()
