"""The engine with offloading: outputs stay what they are, whatever is stored, loaded, lost or aborted."""

from __future__ import annotations

import doctest
import random
from collections.abc import Iterator

import pytest

import kvtide.engine.engine
from kvtide.copy import CopyEngine, DeviceCache, Direction, HostArena, ThreadedCopyEngine
from kvtide.core.messages import Copy
from kvtide.engine import Completion, Engine
from kvtide.errors import ConfigError, CopyError
from tests.engine.support import (
    Fails,
    ask,
    check_conservation,
    expected_outputs,
    faulty,
    outputs,
    play,
    prompt,
    run_to_idle,
    tiny_config,
    traffic,
)
from tests.left_behind import Before

MODES = ["eager", "lazy"]
WINDOWS = [None, 20]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = Before()
    yield
    assert before.new_threads == []


def never(direction: Direction, copy: Copy) -> bool:
    return False


def every_load(direction: Direction, copy: Copy) -> bool:
    return direction is Direction.LOAD


def every_store(direction: Direction, copy: Copy) -> bool:
    return direction is Direction.STORE


def every_third(direction: Direction, copy: Copy) -> bool:
    return copy.id % 3 == 0


def push_out(engine: Engine) -> None:
    """Use all blocks of the device for something else."""
    for seed in range(50, 51 + engine.pool.num_blocks // 6):
        ask(engine, f"other {seed}", prompt(seed, 45))


def come_back(engine: Engine) -> Completion:
    """Let a prompt come back that the device has lost. Whether one does by itself depends on how fast copies are."""
    ask(engine, "before", prompt(1, 45))
    push_out(engine)
    return ask(engine, "again", prompt(1, 45))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("device_blocks", "host_step"), [(34, "4MiB 64"), (40, "4MiB 11"), (34, "60KiB 32"), (600, "4MiB 64")]
)
def test_outputs_are_those_without_offloading(
    window: int | None, mode: str, ranks: int, device_blocks: int, host_step: str
) -> None:
    host, step_tokens = host_step.split()
    config = tiny_config(window, device_blocks=device_blocks, step_tokens=int(step_tokens), ranks=ranks)
    with Engine(config, {"host": host, "mode": mode}) as engine:
        assert outputs(play(engine, traffic())) == expected_outputs(window)
        if (device_blocks, host) == (34, "4MiB"):
            assert come_back(engine).loaded_tokens > 0
        check_conservation(engine)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(
    ("mode", "fails"),
    [
        ("eager", every_load),
        ("eager", every_store),
        ("eager", every_third),
        ("lazy", every_load),
        ("lazy", every_store),
        ("lazy", every_third),
    ],
)
@pytest.mark.parametrize("only_rank", [None, 1])
def test_f8_f10_f15_copies_that_fail_on_any_rank_cost_time_and_no_token(
    window: int | None, mode: str, fails: Fails, only_rank: int | None
) -> None:
    config = tiny_config(window, device_blocks=34, ranks=2)
    with Engine(config, {"host": "4MiB", "mode": mode}, copy_engine=faulty(fails, only_rank=only_rank)) as engine:
        done = play(engine, traffic())
        assert outputs(done) == expected_outputs(window)
        assert engine.manager is not None
        if fails is every_load:
            assert come_back(engine).loaded_tokens == 0
            assert engine.stats.loads_failed > 0
            assert {completion.loaded_tokens for completion in done.values()} == {0}
        if fails is every_store:
            assert engine.manager.metrics.stored_blocks == 0
        check_conservation(engine)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("mode", MODES)
def test_f12_f13_slow_copies_delay_requests_and_stop_nobody(window: int | None, mode: str) -> None:
    config = tiny_config(window, device_blocks=34, ranks=2)
    with Engine(config, {"host": "4MiB", "mode": mode}, copy_engine=faulty(never, delay_polls=7)) as engine:
        assert outputs(play(engine, traffic())) == expected_outputs(window)
        check_conservation(engine)


@pytest.mark.parametrize("seed", range(10))
def test_aborts_failures_and_delays_together_cost_no_token(seed: int) -> None:
    rng = random.Random(seed)
    window, mode = rng.choice(WINDOWS), rng.choice(MODES)

    def fails(direction: Direction, copy: Copy) -> bool:
        return copy.id % 5 == seed % 5

    config = tiny_config(window, device_blocks=rng.choice([34, 50]), step_tokens=rng.choice([9, 40]), ranks=2)
    offload = {"host": rng.choice(["50KiB", "1MiB"]), "mode": mode}
    completions: list[Completion] = []
    with Engine(config, offload, copy_engine=faulty(fails, delay_polls=rng.randrange(5))) as engine:
        for arrival in traffic():
            engine.submit(arrival.request_id, arrival.prompt, arrival.max_new_tokens)
            for _ in range(rng.randrange(4)):
                completions += engine.step()
                if rng.random() < 0.15:
                    engine.abort(f"r{rng.randrange(24)}")
                if rng.random() < 0.02:
                    engine.reset()
        completions += run_to_idle(engine)
        check_conservation(engine)
    assert len(completions) == len(traffic())
    for done in completions:
        expected = expected_outputs(window)[done.request_id]
        assert done.tokens == (expected if done.finish_reason == "length" else expected[: len(done.tokens)])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [9, 64, 65, 100])
def test_f1_a_prompt_that_was_computed_in_one_step_comes_back_whole(window: int | None, mode: str, length: int) -> None:
    config = tiny_config(window, device_blocks=50, step_tokens=128)
    with Engine(config, {"host": "4MiB", "mode": mode}) as engine:
        first = ask(engine, "first", prompt(1, length), 1)
        push_out(engine)
        again = ask(engine, "again", prompt(1, length), 1)
        assert (again.device_tokens, again.loaded_tokens) == (0, (length - 1) // 8 * 8)
        assert again.tokens == first.tokens


def test_the_next_turn_loads_what_the_last_turn_generated() -> None:
    with Engine(tiny_config(20, device_blocks=50), {"host": "4MiB"}) as engine:
        first = ask(engine, "turn 1", prompt(1, 30), 20)
        push_out(engine)
        turn = [*prompt(1, 30), *first.tokens, *prompt(2, 5)]
        second = ask(engine, "turn 2", turn)
        assert second.loaded_tokens == 48  # of the 49 whose KV was computed
    with Engine(tiny_config(20)) as alone:
        assert ask(alone, "turn 2", turn).tokens == second.tokens


@pytest.mark.parametrize("mode", MODES)
def test_f19_a_learned_break_even_changes_no_token(mode: str) -> None:
    config = tiny_config(None, device_blocks=34, step_tokens=64)
    with Engine(config, {"host": "4MiB", "mode": mode, "min_load_tokens": "auto"}) as engine:
        assert outputs(play(engine, traffic())) == expected_outputs(None)
        come_back(engine)
        assert engine.stats.loaded_tokens > 0, "the first loads are made, to learn what they cost"


def test_f9_after_a_reset_nothing_is_loaded() -> None:
    with Engine(tiny_config(device_blocks=50), {"host": "4MiB"}) as engine:
        first = ask(engine, "first", prompt(1, 64))
        push_out(engine)
        engine.reset()
        again = ask(engine, "again", prompt(1, 64))
        assert (again.device_tokens, again.loaded_tokens) == (0, 0)
        assert again.tokens == first.tokens
        push_out(engine)
        assert ask(engine, "third", prompt(1, 64)).loaded_tokens == 56  # what was computed since is stored again


def test_f14_requests_that_share_a_prefix_on_the_host_all_get_it() -> None:
    with Engine(tiny_config(device_blocks=60), {"host": "4MiB"}, copy_engine=faulty(never, delay_polls=3)) as engine:
        first = ask(engine, "first", prompt(1, 64))
        push_out(engine)
        for number in range(6):
            engine.submit(f"r{number}", prompt(1, 64), 4)
        for done in run_to_idle(engine):
            assert done.tokens == first.tokens
            assert done.loaded_tokens + done.device_tokens == 56


def test_f16_blocks_of_an_aborted_load_are_not_reused_before_it_has_ended() -> None:
    with Engine(tiny_config(device_blocks=20), {"host": "4MiB"}, copy_engine=faulty(never, delay_polls=4)) as engine:
        ask(engine, "first", prompt(1, 64))
        push_out(engine)
        engine.submit("again", prompt(1, 64), 4)
        engine.step()
        free = engine.pool.num_free
        engine.abort("again")
        assert (engine.pool.num_free, engine.pool.num_pinned) == (free, 20 - free)
        run_to_idle(engine)
        check_conservation(engine)


def test_f17_a_copy_engine_that_raises_costs_hits_only() -> None:
    def broken(direction: Direction, copy: Copy) -> bool:
        raise OSError("the device fell off the bus")

    with Engine(tiny_config(device_blocks=34), {"host": "4MiB"}, copy_engine=faulty(broken)) as engine:
        assert outputs(play(engine, traffic())) == expected_outputs(None)
        assert engine.stats.loaded_tokens == 0
        check_conservation(engine)


@pytest.mark.parametrize("mode", MODES)
def test_closing_in_the_middle_of_everything_leaves_no_thread(mode: str) -> None:
    engine = Engine(tiny_config(device_blocks=34, ranks=2), {"host": "1MiB", "mode": mode})
    for arrival in traffic()[:8]:
        engine.submit(arrival.request_id, arrival.prompt, arrival.max_new_tokens)
        engine.step()
    engine.close()
    engine.close()  # the fixture looks for threads


def test_bad_options_are_refused_before_a_thread_is_started() -> None:
    for options in ({"host": "1"}, {"host": "1MiB", "pin_budget": 99}, {}):
        with pytest.raises(ConfigError):
            Engine(tiny_config(device_blocks=34), options)


def test_a_rank_that_cannot_start_takes_the_threads_of_the_others_with_it() -> None:
    def second_rank_fails(rank: int, device: DeviceCache, arena: HostArena) -> CopyEngine:
        if rank == 1:
            raise CopyError("no such device")
        return ThreadedCopyEngine(device, arena)

    with pytest.raises(CopyError, match="no such device"):
        Engine(tiny_config(ranks=2), {"host": "1MiB"}, copy_engine=second_rank_fails)


def test_the_example_in_the_documentation_works() -> None:
    assert doctest.testmod(kvtide.engine.engine).failed == 0


def test_stats_tell_what_was_copied() -> None:
    with Engine(tiny_config(device_blocks=50, ranks=2), {"host": "4MiB"}) as engine:
        ask(engine, "first", prompt(1, 64), 1)
        block_bytes = 2 * engine.config.geometry().block_bytes
        assert engine.stats.store_bytes == 8 * block_bytes
        push_out(engine)
        ask(engine, "again", prompt(1, 64), 1)
        stats = engine.stats
        assert stats.load_bytes == 7 * block_bytes
        assert stats.loaded_tokens == 56
        assert stats.store_s > 0
        assert stats.load_s > 0
