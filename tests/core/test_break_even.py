"""What both break-evens do alike (F19)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvtide.core.below.fetch_break_even import FetchBreakEven
from kvtide.core.break_even import RETRY_EVERY, BreakEven, fade
from kvtide.core.loading.load_break_even import LoadBreakEven


def dear_fetches() -> FetchBreakEven:
    even = FetchBreakEven()
    even.computed(100, 100.0)
    even.fetched(100, 200.0)
    return even


def dear_loads() -> LoadBreakEven:
    even = LoadBreakEven()
    even.computed(100, 0.1)
    even.loaded(100, 1.0)
    return even


@pytest.mark.parametrize("dear", [dear_fetches, dear_loads])
def test_now_and_then_it_is_tried_again(dear: Callable[[], BreakEven]) -> None:
    even = dear()
    tries = []
    for asked in range(1, 4 * RETRY_EVERY + 1):
        pays = even.pays(100)
        even.decided(tried=pays)
        if pays:
            tries.append(asked)
    assert tries == [RETRY_EVERY, 2 * RETRY_EVERY, 3 * RETRY_EVERY, 4 * RETRY_EVERY]


@pytest.mark.parametrize("dear", [dear_fetches, dear_loads])
def test_prompts_of_one_length_tell_the_price_of_a_token(dear: Callable[[], BreakEven]) -> None:
    """No line goes through one length; then twice the tokens are taken to cost twice as much."""
    even = dear()
    assert even._compute_s(200) == 2 * even._compute_s(100)


def test_after_16384_tokens_what_was_seen_before_counts_half() -> None:
    assert [fade(tokens) for tokens in (0, 16_384, 32_768)] == pytest.approx([1.0, 0.5, 0.25])


def test_what_computing_cost_long_ago_fades() -> None:
    even = FetchBreakEven()
    even.fetched(100, 1.0)
    for _ in range(50):
        even.computed(1_000, 100.0)
    assert even.pays(100)
    for _ in range(100):
        even.computed(1_000, 1.0)
    assert not even.pays(100)
