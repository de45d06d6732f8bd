"""Copies that do not end, and copy engines that break, on real engines: requests go on, the engine comes to rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvtide.copy import Direction
from kvtide.core import NotLoaded
from kvtide.core import ledger as ledger_module
from kvtide.vllm.log import logger
from tests.vllm.engines import Control
from tests.vllm.fixtures import PROMPTS, Says
from tests.vllm.llm import Engine, engine
from tests.vllm.test_round_trip import assert_same, hit


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer is overdue after a hundredth of a second."""
    monkeypatch.setattr(ledger_module, "OVERDUE_S", 0.01)


def pinned(offloading: Engine) -> int:
    return int(offloading.side._device.count_pinned())


@pytest.mark.parametrize("model", ["llama", "gemma"])
def test_f15_a_request_goes_on_when_its_load_does_not_end(
    model: str, request: pytest.FixtureRequest, control: Control, impatient: None
) -> None:
    path: Path = request.getfixturevalue(model)
    says: Says = request.getfixturevalue(f"{model}_says")
    prompts = PROMPTS[2:5]
    with engine(path, blocks=128) as offloading:
        assert_same(offloading.generate(*prompts), says(*prompts))
        offloading.forget_device()
        control.engine.held.add(Direction.LOAD)
        assert_same(offloading.generate(*prompts), says(*prompts))
        assert offloading.metrics.loaded_tokens == 0
        assert offloading.metrics.not_loaded[NotLoaded.NO_REPORT] > 0
        assert offloading.metrics.transfers_overdue == 1, "the others were not offered anything"
        offloading.drain()
        assert pinned(offloading) > 0, "their blocks may still be written"
        control.engine.held.clear()
        offloading.generate(PROMPTS[0])
        offloading.check_at_rest()
        offloading.forget_device()
        again = offloading.generate(*prompts)
        assert_same(again, says(*prompts))
        assert [result.cached_tokens for result in again] == [hit(tokens) for tokens in prompts]
        offloading.check_at_rest()


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged as an error."""
    said: list[str] = []
    monkeypatch.setattr(logger, "error", lambda text, *words: said.append(text % words))
    return said


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f15_the_engine_comes_to_rest_when_stores_do_not_end(
    llama: Path, llama_says: Says, control: Control, errors: list[str], mode: str
) -> None:
    control.setup["held"] = {Direction.STORE}
    with engine(llama, mode, blocks=32) as offloading:
        for _ in range(2):
            assert_same(offloading.generate(*PROMPTS[:6]), llama_says(*PROMPTS[:6]))
        offloading.drain()
        assert 0 < pinned(offloading) <= offloading.side.config.pin_budget_blocks
        assert not offloading.scheduler.connector.has_pending_block_frees(), "nobody waits for them"
        [error] = errors
        assert "rank 0: no report" in error
        control.engine.held.clear()
        offloading.generate(PROMPTS[0])
        offloading.check_at_rest()


def test_f16_a_request_is_aborted_while_its_load_is_overdue(llama: Path, control: Control, impatient: None) -> None:
    with engine(llama) as offloading:
        offloading.generate(PROMPTS[2])
        offloading.forget_device()
        control.engine.held.add(Direction.LOAD)
        name = offloading.add(PROMPTS[2])
        for _ in range(3):
            offloading.step()
        offloading.llm.llm_engine.abort_request([name])
        offloading.drain()
        control.engine.held.clear()
        offloading.generate(PROMPTS[0])
        offloading.check_at_rest()


@pytest.mark.parametrize("mode", ["eager", "lazy"])
def test_f17_a_copy_engine_that_breaks_turns_kvtide_off_and_nothing_else(
    llama: Path, llama_says: Says, control: Control, errors: list[str], mode: str
) -> None:
    def broken() -> Any:
        raise OSError("a bug")

    with engine(llama, mode) as offloading:
        assert_same(offloading.generate(*PROMPTS[:6]), llama_says(*PROMPTS[:6]))
        offloading.drain()
        control.engine.poll = broken  # type: ignore[method-assign]
        assert_same(offloading.generate(*PROMPTS[:6]), llama_says(*PROMPTS[:6]))
        offloading.drain()
        planned = offloading.manager._ledger._last_id
        assert_same(offloading.generate(*PROMPTS), llama_says(*PROMPTS))
        assert offloading.manager._ledger._last_id == planned, "no load is paid for, and no store planned"
        [of_rank, of_scheduler] = errors
        assert "OSError: a bug" in of_rank
        assert "kvtide is off" in of_scheduler
        offloading.check_at_rest()
