"""New weights never meet old KV, whichever way vLLM is told of them and whatever is being copied (F9).

Weights are changed as RL frameworks do: a method of the worker, called with `collective_rpc`. vLLM's CPU build has no
memory to give back when it sleeps, so there the worker's own part is a stand-in: it overwrites the KV cache.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from vllm.v1.worker.cpu_worker import CPUWorker

from kvtide.copy import Direction, threads
from kvtide.copy.move import BlockMover, Moved
from kvtide.core import Copy, NotLoaded, NotStored
from kvtide.errors import StillCopying
from kvtide.vllm import sleeping
from tests.vllm.engines import Control
from tests.vllm.fixtures import PROMPTS
from tests.vllm.llm import Engine, Result, as_result, engine, make_llm, prompt, say
from tests.vllm.test_round_trip import assert_same, hit
from tests.vllm.test_tiers import disk

BEFORE, DURING = PROMPTS[2], PROMPTS[3]
"""Stored before the weights change; being stored when they do."""
TRAINED: dict[str, Any] = {"worker_extension_cls": "tests.vllm.test_reset.Trained"}


class Trained:
    """What RL frameworks add to vLLM's worker."""

    model_runner: Any

    def new_weights(self, path: str) -> None:
        """Load weights into the model that serves."""
        self.model_runner.reload_weights(iter(load_file(Path(path) / "model.safetensors").items()))


@pytest.fixture(scope="session")
def trained(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with other weights."""
    path = tmp_path_factory.mktemp("trained")
    shutil.copy(llama / "config.json", path)
    tensors = load_file(llama / "model.safetensors")
    other = {name: weight.flip(0) if "proj" in name else weight for name, weight in tensors.items()}
    save_file({name: weight.contiguous() for name, weight in other.items()}, path / "model.safetensors")
    return path


Says = Callable[..., list[Result]]


def answers(model: Path) -> Says:
    """Return what a fresh engine with these weights says."""
    with engine(model, None) as plain:
        known = {len(tokens): plain.generate(tokens, max_tokens=8)[0] for tokens in (BEFORE, DURING)}

    def says(*prompts: list[int], max_tokens: int = 4) -> list[Result]:
        found = [known[len(tokens)] for tokens in prompts]
        return [Result(each.tokens[:max_tokens], each.logprobs[:max_tokens], 0) for each in found]

    return says


@pytest.fixture(scope="session")
def llama_says(llama: Path) -> Says:
    return answers(llama)


@pytest.fixture(scope="session")
def trained_says(trained: Path, llama_says: Says) -> Says:
    says = answers(trained)
    assert not says(BEFORE)[0].same_as(llama_says(BEFORE)[0])
    return says


def train(offloading: Engine, path: Path) -> None:
    offloading.llm.collective_rpc("new_weights", args=(str(path),))


def reset(offloading: Engine) -> None:
    assert offloading.llm.reset_prefix_cache()


def reset_running(offloading: Engine) -> None:
    assert offloading.llm.reset_prefix_cache(reset_running_requests=True)


def reset_all(offloading: Engine) -> None:
    assert offloading.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)


def pause(offloading: Engine) -> None:
    offloading.core.pause_scheduler("abort")
    offloading.core.resume_scheduler()


def pause_and_keep(offloading: Engine) -> None:
    offloading.core.pause_scheduler("keep")
    offloading.core.resume_scheduler()


ASK: list[Callable[[Engine], None]] = [reset, reset_running, reset_all, pause, pause_and_keep]


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f9_whichever_way_vllm_is_asked_while_a_store_runs(
    llama: Path, trained: Path, llama_says: Says, trained_says: Says, *, control: Control, tmp_path: Path, mode: str
) -> None:
    prompts = [BEFORE, DURING]
    weights = cycle([(trained, trained_says), (llama, llama_says)])
    with engine(llama, mode, blocks=32, options={"tiers": [disk(tmp_path)]}, **TRAINED) as offloading:
        for times, (ask, (path, says)) in enumerate(zip(ASK, weights, strict=False), start=1):
            offloading.generate(BEFORE)
            offloading.drain()
            control.engine.held.add(Direction.STORE)
            offloading.generate(prompt(100 + times, 300))
            offloading.step()
            assert control.engine.waiting
            assert offloading.manager.gauges().slots_cached > 0
            loaded, fetched = offloading.metrics.loaded_tokens, offloading.metrics.fetched_blocks
            ask(offloading)
            assert offloading.metrics.resets == times
            assert offloading.manager.gauges().slots_cached == 0
            assert offloading.manager.gauges().store_pins > 0
            train(offloading, path)
            assert_same(offloading.generate(*prompts), says(*prompts))
            assert (offloading.metrics.loaded_tokens, offloading.metrics.fetched_blocks) == (loaded, fetched)
            control.engine.held.clear()
            offloading.forget_device()
            assert_same(offloading.generate(*prompts), says(*prompts))
            offloading.check_at_rest()


def test_f9_what_new_weights_computed_is_not_served_by_the_next_engine_with_the_old_ones(
    llama: Path, trained: Path, llama_says: Says, trained_says: Says, tmp_path: Path
) -> None:
    options = {"tiers": [disk(tmp_path)]}
    with engine(llama, options=options, **TRAINED) as offloading:
        train(offloading, trained)
        reset(offloading)
        assert_same(offloading.generate(BEFORE, DURING), trained_says(BEFORE, DURING))
        offloading.drain()
        assert offloading.metrics.sunk_blocks > 0
    with engine(llama, options=options) as restarted:
        assert_same(restarted.generate(BEFORE, DURING), llama_says(BEFORE, DURING))
        assert restarted.metrics.fetched_blocks == 0


@pytest.mark.parametrize("ask", [reset, reset_running])
@pytest.mark.parametrize("copied", [False, True])
def test_f9_a_request_whose_load_runs_or_is_over_begins_anew(
    llama: Path, trained: Path, trained_says: Says, control: Control, ask: Callable[[Engine], None], *, copied: bool
) -> None:
    with engine(llama, **TRAINED) as offloading:
        offloading.generate(BEFORE)
        offloading.forget_device()
        control.engine.held.add(Direction.LOAD)
        offloading.add(BEFORE)
        for _ in range(2):
            offloading.step()
        assert control.engine.waiting
        if copied:  # and vLLM knows, but has not scheduled the request again
            control.engine.held.clear()
            offloading.step()
            assert offloading.metrics.loaded_tokens == hit(BEFORE)
        ask(offloading)
        train(offloading, trained)
        control.engine.held.clear()
        [output] = offloading.drain()
        assert_same([as_result(output)], trained_says(BEFORE))
        assert offloading.metrics.not_loaded[NotLoaded.RESET] == (0 if copied else hit(BEFORE))
        offloading.check_at_rest()


def test_f9_a_request_that_was_aborted_while_it_loads_does_not_stop_a_reset(
    llama: Path, trained: Path, trained_says: Says, control: Control
) -> None:
    with engine(llama, **TRAINED) as offloading:
        offloading.generate(BEFORE)
        offloading.forget_device()
        control.engine.held.add(Direction.LOAD)
        name = offloading.add(BEFORE)
        for _ in range(2):
            offloading.step()
        assert control.engine.waiting
        offloading.llm.llm_engine.abort_request([name])
        pause(offloading)
        train(offloading, trained)
        assert_same(offloading.generate(DURING), trained_says(DURING))
        control.engine.held.clear()
        offloading.check_at_rest()


def test_f9_a_request_that_runs_goes_on_with_the_new_weights_alone(
    llama: Path, trained: Path, control: Control
) -> None:
    with engine(llama, **TRAINED) as offloading:
        control.engine.held.add(Direction.STORE)
        offloading.add(BEFORE, max_tokens=12)
        for _ in range(6):
            offloading.step()
        [request] = offloading.scheduler.requests.values()
        so_far = list(request.output_token_ids)
        assert 0 < len(so_far) < 12
        reset_running(offloading)
        train(offloading, trained)
        control.engine.held.clear()
        [output] = offloading.drain()
        offloading.forget_device()
        offloading.generate(BEFORE)
        offloading.check_at_rest()
    result = as_result(output)
    assert list(result.tokens[: len(so_far)]) == so_far
    with engine(trained, None) as plain:
        [expected] = plain.generate(BEFORE + so_far, max_tokens=12 - len(so_far))
    assert result.tokens[len(so_far) :] == expected.tokens


def test_f9_while_requests_run_vllm_refuses_and_the_host_is_empty_all_the_same(llama: Path, llama_says: Says) -> None:
    with engine(llama) as offloading:
        offloading.generate(BEFORE)
        offloading.drain()
        offloading.add(DURING, max_tokens=8)
        for _ in range(3):
            offloading.step()
        assert not offloading.llm.reset_prefix_cache()
        assert offloading.manager.gauges().slots_cached == 0
        [output] = offloading.drain()
        assert_same([as_result(output)], llama_says(DURING, max_tokens=8))
        reset(offloading)
        offloading.check_at_rest()


def test_f9_an_engine_in_a_process_of_its_own_gets_new_weights_while_it_stores(
    llama: Path, trained: Path, llama_says: Says, trained_says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server runs: the engine steps by itself, and a pause waits until it has nothing to do."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
    prompts = [BEFORE, DURING]
    llm = make_llm(llama, **TRAINED)
    try:
        assert_same(say(llm, *prompts), llama_says(*prompts))
        assert llm.reset_prefix_cache(reset_running_requests=True)
        llm.collective_rpc("new_weights", args=(str(trained),))
        assert_same(say(llm, *prompts), trained_says(*prompts))
        llm.sleep(1)
        llm.wake_up()
        llm.collective_rpc("new_weights", args=(str(llama),))
        assert_same(say(llm, *prompts), llama_says(*prompts))
    finally:
        llm.llm_engine.engine_core.shutdown()


class Gate:
    """Stops copies in the middle, until it is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        """A copy has begun since the gate was closed."""
        self.copying = self.begun = 0

    def close(self) -> None:
        self.open.clear()
        self.reached.clear()

    def mover(self, *args: Any) -> BlockMover:
        gate = self

        class Gated(BlockMover):
            def move(self, direction: Direction, copy: Copy) -> Moved:
                gate.copying += 1
                gate.begun += 1
                gate.reached.set()
                assert gate.open.wait(60)
                moved = super().move(direction, copy)
                gate.copying -= 1
                return moved

        return Gated(*args)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Copies by the threads that copy in earnest, one block at a time behind a gate."""
    gate = Gate()
    monkeypatch.setattr(threads, "BlockMover", gate.mover)
    yield gate
    gate.open.set()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> list[int]:
    """Let workers overwrite the KV cache when they sleep. Returns, for each time, how many copies ran."""
    copying: list[int] = []

    def sleep(worker: Any, level: int = 1) -> None:
        copying.append(gate.copying)
        for layer in worker.model_runner.kv_caches:
            layer.fill_(1e4)

    monkeypatch.setattr(CPUWorker, "sleep", sleep)
    return copying


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_sleeps_when_its_copies_are_over(
    llama: Path, trained: Path, trained_says: Says, *, gate: Gate, memory: list[int], tmp_path: Path, level: int
) -> None:
    prompts = [BEFORE, DURING]
    with engine(llama, options={"tiers": [disk(tmp_path)]}, **TRAINED) as offloading:
        offloading.generate(BEFORE)
        offloading.drain()
        gate.close()
        offloading.generate(DURING)
        offloading.step()
        assert gate.reached.wait(30)
        timer = threading.Timer(0.3, gate.open.set)
        timer.start()
        offloading.llm.sleep(level)
        timer.join()
        assert memory == [0]
        offloading.llm.wake_up()
        train(offloading, trained)
        for _ in range(2):
            assert_same(offloading.generate(*prompts), trained_says(*prompts))
            offloading.forget_device()
        assert offloading.metrics.loaded_tokens == hit(BEFORE) + hit(DURING)
        offloading.check_at_rest()


def test_what_a_request_leaves_behind_when_the_engine_falls_asleep_is_not_stored_from_memory_that_is_gone(
    llama: Path, trained: Path, trained_says: Says, gate: Gate, memory: list[int]
) -> None:
    with engine(llama, **TRAINED) as offloading:
        name = offloading.add(BEFORE)
        for _ in range(2):
            offloading.step()
        offloading.llm.sleep(1)  # ends the request: what it has computed would be stored in the next step
        assert memory == [0]
        assert offloading.metrics.not_stored[NotStored.RESET] > 0
        begun = gate.begun
        offloading.drain()
        assert gate.begun == begun
        offloading.llm.llm_engine.abort_request([name])  # or `generate` waits for it
        offloading.llm.wake_up()
        train(offloading, trained)
        assert_same(offloading.generate(BEFORE), trained_says(BEFORE))
        offloading.check_at_rest()


def test_a_copy_that_never_ends_keeps_the_engine_awake_and_old_kv_is_not_served(
    llama: Path, trained: Path, trained_says: Says, *, gate: Gate, memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sleeping, "COPIES_WAIT_S", 0.1)
    prompts = [BEFORE, DURING]
    with engine(llama, **TRAINED) as offloading:
        offloading.generate(BEFORE)
        offloading.drain()
        gate.close()
        offloading.generate(DURING)
        offloading.step()
        assert gate.reached.wait(30)
        with pytest.raises(StillCopying, match="still being copied"):
            offloading.llm.sleep(1)
        assert memory == []
        offloading.core.resume_scheduler()
        reset_running(offloading)
        train(offloading, trained)
        assert_same(offloading.generate(*prompts), trained_says(*prompts))
        assert offloading.metrics.loaded_tokens == 0
        gate.open.set()
        offloading.check_at_rest()
        offloading.llm.sleep(1)
        assert memory == [0]
        offloading.llm.wake_up()
        assert_same(offloading.generate(*prompts), trained_says(*prompts))
        offloading.check_at_rest()
