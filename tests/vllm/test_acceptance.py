"""What becomes of an offer: vLLM takes all of it, or nothing, or answers later; connectors around kvtide, a part.

vLLM itself takes either all or nothing of what kvtide offers (`test_versions.py` looks at the statements in each
version's scheduler). A part of an offer is taken when a connector around kvtide passes less of it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvtide.core import NotLoaded
from tests.vllm.test_scenarios import BLOCKS, PROMPT, Make, make
from tests.vllm.world import BLOCK_TOKENS, World, full, replayed, sliding, text

__all__ = ["make"]

OFFER = BLOCKS * BLOCK_TOKENS

Answer = tuple[int | None, bool]


def with_an_offer(world: World) -> World:
    """Let the host have `PROMPT`, and the device not."""
    world.generate("first", PROMPT)
    world.evict_device()
    return world


def pass_on(world: World, change: Callable[[Answer], Answer]) -> list[Answer]:
    """Put a connector around kvtide that changes its answers; return what kvtide has answered, as it comes."""
    answers: list[Answer] = []
    connector: Any = world.connector
    ask = connector.get_num_new_matched_tokens

    def changed(request: Any, device_tokens: int) -> Answer:
        answers.append(ask(request, device_tokens))
        return change(answers[-1])

    connector.get_num_new_matched_tokens = changed
    return answers


# ---------------------------------------------------------------------- a part


@pytest.mark.parametrize("layout", ["full", "sliding"])
@pytest.mark.parametrize("old_worker", [False, True], ids=["0.32", "0.24"])
@pytest.mark.parametrize("mode", ["eager", "lazy"])
@pytest.mark.parametrize("part", [BLOCK_TOKENS, 3 * BLOCK_TOKENS, 3 * BLOCK_TOKENS + 5])
def test_a_part_of_an_offer_is_loaded(make: Make, part: int, mode: str, old_worker: bool, layout: str) -> None:
    groups = [full()] if layout == "full" else [full(), sliding(32)]
    world = make(groups=groups, mode=mode, old_worker=old_worker, blocks=14 if layout == "full" else 28)
    world.generate("first", PROMPT)
    world.generate("another", text(2, 120))  # lazy mode stores what this one is about to evict
    world.evict_device()
    answers = pass_on(world, lambda answer: (min(part, answer[0] or 0), answer[1]))
    assert world.generate("again", PROMPT) == part
    assert answers == [(OFFER, True)]
    assert world.hits["again"] == part
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_ACCEPTED] == OFFER - part


def test_what_was_not_taken_is_offered_to_the_next_request(make: Make) -> None:
    world = with_an_offer(make())
    parts = iter([BLOCK_TOKENS, OFFER])
    answers = pass_on(world, lambda answer: (next(parts), answer[1]))
    assert world.generate("a part", PROMPT) == BLOCK_TOKENS
    world.evict_device()
    assert world.generate("all of it", PROMPT) == OFFER
    assert answers == [(OFFER, True)] * 2


# ---------------------------------------------------------------------- nothing


def test_another_connector_is_chosen(make: Make) -> None:
    """A MultiConnector tells kvtide of the blocks, and of no tokens. On a real engine: test_multi_connector.py."""
    world = with_an_offer(make())
    pass_on(world, lambda _: (0, False))
    assert world.generate("again", PROMPT) == 0
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_ACCEPTED] == OFFER


def test_hits_no_longer_than_the_window_that_is_replayed_are_not_taken(make: Make) -> None:
    """The one place where vLLM itself refuses an offer (0.31: DeepSeek V4.1, whose sliding groups are not cached)."""
    world = make(groups=[full(), replayed(window=40)], blocks=64)
    short = PROMPT[: 2 * BLOCK_TOKENS + 3]
    world.generate("short", short)
    world.evict_device()
    answers = pass_on(world, lambda answer: answer)
    assert world.generate("short again", short) == 0
    assert answers == [(2 * BLOCK_TOKENS, True)]
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_ACCEPTED] == 2 * BLOCK_TOKENS


def test_longer_hits_are_loaded_and_their_window_is_replayed(make: Make) -> None:
    world = with_an_offer(make(groups=[full(), replayed(window=40)], blocks=64))
    assert world.generate("again", PROMPT) == OFFER
    assert 0 < world.hits["again"] < OFFER
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_ACCEPTED] == 0


def test_skip_reading_prefix_cache_is_offered_nothing(make: Make) -> None:
    """vLLM from 0.31 would refuse, older ones would take it."""
    world = with_an_offer(make())
    answers = pass_on(world, lambda answer: answer)
    world.add("again", PROMPT, skip_reading_prefix_cache=True)
    world.run()
    assert answers == [(0, False)]
    assert world.manager.metrics.loaded_tokens == 0


# ---------------------------------------------------------------------- later


def test_an_offer_is_repeated_while_another_connector_looks(make: Make) -> None:
    """A MultiConnector answers None for all as long as one of its connectors does."""
    world = with_an_offer(make())
    looking = iter([True] * 3)
    answers = pass_on(world, lambda answer: (None, False) if next(looking, False) else answer)
    assert world.generate("again", PROMPT) == OFFER
    assert answers == [(OFFER, True)] * 4
    assert world.manager.metrics.not_loaded[NotLoaded.NOT_ACCEPTED] == 0


@pytest.fixture
def crowded(make: Make) -> World:
    """A world in which a request has an offer, and no room for it as long as another one runs."""
    world = with_an_offer(make(blocks=1 + 10))
    world.add("long", text(2, 5 * BLOCK_TOKENS), new_tokens=20)
    world.step()
    world.step()
    world.add("again", PROMPT)
    for _ in range(3):
        world.step()
    assert len(world.scheduler.waiting) == 1
    return world


def test_an_offer_is_kept_while_allocation_fails(crowded: World) -> None:
    answers = pass_on(crowded, lambda answer: answer)
    crowded.step()
    assert answers == [(OFFER, True)]
    assert crowded.manager.gauges().slots_pinned == BLOCKS, "one offer, however often it was made"
    crowded.run()
    assert "again" in crowded.done
    assert crowded.manager.metrics.loaded_tokens == OFFER
    assert crowded.manager.metrics.not_loaded[NotLoaded.NOT_ACCEPTED] == 0


def test_an_offer_ends_with_its_request(crowded: World) -> None:
    crowded.abort("again")
    assert crowded.manager.gauges().slots_pinned == 0
    crowded.run()
    assert crowded.manager.metrics.loaded_tokens == 0


# ---------------------------------------------------------------------- all


@pytest.mark.parametrize("limit", [{"step_tokens": 32}, {"engine_args": {"long_prefill_token_threshold": 32}}], ids=str)
def test_limits_of_a_step_do_not_bound_a_load(make: Make, limit: dict[str, Any]) -> None:
    """Chunks are what is computed: a load takes all of an offer in one step."""
    world = with_an_offer(make(**limit))
    world.add("again", PROMPT)
    world.step()
    assert world.manager.metrics.loaded_tokens == OFFER
    world.run()
    assert world.hits["again"] == OFFER


def test_a_whole_prompt_is_offered_up_to_its_last_block(make: Make) -> None:
    """vLLM would take all of it, and compute the last token again in a block that others may share."""
    world = make()
    whole = text(1, OFFER)
    world.generate("first", whole)
    world.evict_device()
    answers = pass_on(world, lambda answer: answer)
    assert world.generate("again", whole) == OFFER - BLOCK_TOKENS
    assert answers == [(OFFER - BLOCK_TOKENS, True)]
