"""The engine without offloading."""

from __future__ import annotations

import random

import pytest

from kvtide.engine import Engine, EngineConfig
from kvtide.errors import ProtocolError, RequestRefused
from tests.engine import reference
from tests.engine.support import (
    ask,
    check_conservation,
    expected_outputs,
    outputs,
    play,
    prompt,
    run_to_idle,
    tiny_config,
    traffic,
)
from tests.left_behind import Before

WINDOWS = [None, 20]


@pytest.mark.parametrize("window", WINDOWS)
def test_outputs_are_those_of_a_dense_transformer(window: int | None) -> None:
    config = tiny_config(window, step_tokens=10)
    with Engine(config) as engine:
        assert ask(engine, "a", prompt(1, 33), 5).tokens == reference.greedy(config.model, prompt(1, 33), 5)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("device_blocks", "step_tokens", "max_running"),
    [(600, 256, 16), (600, 5, 8), (40, 16, 8), (34, 64, 3), (34, 33, 1)],
)
def test_outputs_do_not_depend_on_how_the_work_is_cut(
    window: int | None, ranks: int, device_blocks: int, step_tokens: int, max_running: int
) -> None:
    config = tiny_config(
        window, device_blocks=device_blocks, step_tokens=step_tokens, ranks=ranks, max_running=max_running
    )
    with Engine(config) as engine:
        assert outputs(play(engine, traffic())) == expected_outputs(window)
        check_conservation(engine)


@pytest.mark.parametrize("window", WINDOWS)
def test_requests_that_were_preempted_go_on_where_they_were(window: int | None) -> None:
    with Engine(tiny_config(window, device_blocks=32, step_tokens=32)) as engine:
        assert outputs(play(engine, traffic())) == expected_outputs(window)
        assert engine.stats.preemptions > 0
        check_conservation(engine)


@pytest.mark.parametrize("seed", range(6))
def test_aborted_requests_leave_the_others_and_the_pool_as_they_should_be(seed: int) -> None:
    window = WINDOWS[seed % 2]
    rng = random.Random(seed)
    expected = expected_outputs(window)
    completions = []
    with Engine(tiny_config(window, device_blocks=36, step_tokens=24)) as engine:
        for arrival in traffic():
            engine.submit(arrival.request_id, arrival.prompt, arrival.max_new_tokens)
            if rng.random() < 0.5:
                engine.abort(f"r{rng.randrange(24)}")
            completions += engine.step()
        completions += run_to_idle(engine)
        check_conservation(engine)
    reasons = {"length": 0, "aborted": 0}
    for done in completions:
        reasons[done.finish_reason] += 1
        assert done.tokens == expected[done.request_id][: len(done.tokens)]
        assert (len(done.tokens) == len(expected[done.request_id])) or done.finish_reason == "aborted"
    assert sum(reasons.values()) == len(traffic())
    assert reasons["aborted"] > 0


def test_aborting_what_is_unknown_or_over_is_not_an_error() -> None:
    with Engine(tiny_config()) as engine:
        assert not engine.abort("nobody")
        ask(engine, "a", prompt(1, 9))
        assert not engine.abort("a")


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("length", [7, 8, 9, 64, 65])
def test_a_prompt_that_is_still_on_the_device_is_not_computed_again(window: int | None, length: int) -> None:
    with Engine(tiny_config(window)) as engine:
        first = ask(engine, "a", prompt(1, length))
        computed = engine.stats.prefill_tokens
        second = ask(engine, "b", prompt(1, length))
        hit = (length - 1) // 8 * 8  # whole blocks, and at least one token is computed
        assert (first.device_tokens, second.device_tokens) == (0, hit)
        assert engine.stats.prefill_tokens - computed == length - hit
        assert second.tokens == first.tokens


def test_the_next_turn_of_a_conversation_finds_the_generated_tokens_too() -> None:
    with Engine(tiny_config(window_tokens=20)) as engine:
        first = ask(engine, "turn 1", prompt(1, 30), 12)
        second = ask(engine, "turn 2", [*prompt(1, 30), *first.tokens, *prompt(2, 5)])
        assert second.device_tokens == 40  # of the 41 whose KV was computed


def test_completions_say_where_the_prompt_came_from_and_how_long_it_took() -> None:
    with Engine(tiny_config()) as engine:
        done = ask(engine, "a", prompt(1, 30), 3)
    assert (done.request_id, done.prompt_tokens, done.loaded_tokens) == ("a", 30, 0)
    assert done.finish_reason == "length"
    assert done.ttft_s is not None
    assert 0 < done.ttft_s < 60


@pytest.mark.parametrize(
    ("tokens", "max_new_tokens", "why"),
    [
        ([], 1, "the prompt is empty"),
        ([1], 0, "max_new_tokens=0"),
        ([1, 96], 1, "token ids are from 0 to 95"),
        ([-1], 1, "token ids are from 0 to 95"),
        (prompt(1, 60), 30, "it can need 12 blocks, and the device has 10"),
    ],
)
def test_f12_requests_that_can_never_be_served_are_refused_and_others_go_on(
    tokens: list[int], max_new_tokens: int, why: str
) -> None:
    with Engine(tiny_config(device_blocks=10)) as engine:
        engine.submit("good", prompt(2, 70), 4)
        with pytest.raises(RequestRefused, match=why):
            engine.submit("bad", tokens, max_new_tokens)
        assert [done.request_id for done in run_to_idle(engine)] == ["good"]


def test_a_second_request_with_the_same_id_is_refused_while_the_first_is_there() -> None:
    with Engine(tiny_config()) as engine:
        engine.submit("a", prompt(1, 9), 1)
        with pytest.raises(RequestRefused, match="a request with this id is not over yet"):
            engine.submit("a", prompt(1, 9), 1)
        run_to_idle(engine)
        ask(engine, "a", prompt(1, 9))


@pytest.mark.parametrize("window", WINDOWS)
def test_the_largest_request_that_is_accepted_can_be_served(window: int | None) -> None:
    config = tiny_config(window, device_blocks=20, step_tokens=16)
    length = largest_accepted(config)
    with Engine(config) as engine:
        for name in ("a", "b", "c"):
            engine.submit(name, prompt(ord(name), length - 8), 8)
        with pytest.raises(RequestRefused):
            engine.submit("d", prompt(4, length - 7), 8)
        assert len(run_to_idle(engine)) == 3


def largest_accepted(config: EngineConfig) -> int:
    return max(n for n in range(1, 400) if config.most_blocks(n) <= config.device_blocks)


def test_after_a_reset_nothing_is_found_and_requests_start_again() -> None:
    with Engine(tiny_config()) as engine:
        first = ask(engine, "a", prompt(1, 40), 6)
        engine.submit("b", prompt(1, 40), 6)
        engine.submit("c", prompt(2, 40), 6)
        engine.step()
        computed = engine.stats.prefill_tokens
        engine.reset()
        done = {completion.request_id: completion for completion in run_to_idle(engine)}
        assert done["b"].tokens == first.tokens
        assert engine.stats.prefill_tokens - computed >= 80
        check_conservation(engine)


def test_an_engine_without_offloading_has_no_manager_and_no_thread() -> None:
    before = Before()
    with Engine(tiny_config()) as engine:
        assert engine.manager is None
        assert engine.idle
        assert engine.run() == []
        assert before.new_threads == []


def test_a_closed_engine_says_so() -> None:
    engine = Engine(tiny_config())
    engine.close()
    engine.close()
    with pytest.raises(ProtocolError, match="closed"):
        engine.step()
    with pytest.raises(ProtocolError, match="closed"):
        engine.submit("a", [1], 1)
