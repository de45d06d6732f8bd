"""Conversations in virtual time: what makes follow-ups start sooner, and what others wait for that."""

from __future__ import annotations

import statistics

import pytest

from tests.vllm.virtual_chat import VARIANTS, Waits, converse


@pytest.fixture(scope="module")
def waits() -> dict[str, Waits]:
    return {variant: converse(variant, conversations=16, decode_ms=7.5) for variant in VARIANTS}


def test_follow_ups_start_sooner_with_each_step_that_they_do_not_wait(waits: dict[str, Waits]) -> None:
    medians = {variant: statistics.median(each.follow_up_ms) for variant, each in waits.items()}
    in_cache = medians["everything in the device cache"]
    assert in_cache < medians["kvtide"] < medians["loads behind the step in flight"]
    assert medians["loads behind the step in flight"] < medians["and heard of by reports"]


@pytest.mark.parametrize("decode_ms", [3.0, 4.5, 7.5, 12.0])
def test_f31_nobody_waits_long_for_the_load_of_somebody_else(decode_ms: float) -> None:
    """However short steps are: a load is told of so late that the step which takes it up need not wait."""
    waits = converse("kvtide", conversations=16, decode_ms=decode_ms)
    assert max(waits.held_ms) < decode_ms / 5


@pytest.mark.parametrize("decode_ms", [3.0, 7.5])
def test_f31_nor_where_no_step_is_scheduled_before_the_last_one_is_over(decode_ms: float) -> None:
    waits = converse("without asynchronous scheduling", conversations=16, decode_ms=decode_ms)
    assert max(waits.held_ms) < decode_ms / 2


def test_all_conversations_take_place(waits: dict[str, Waits]) -> None:
    for each in waits.values():
        assert (len(each.first_ms), len(each.follow_up_ms)) == (16, 48)
