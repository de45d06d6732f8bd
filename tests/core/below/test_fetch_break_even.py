"""Whether waiting for a tier pays is learned from what happens (F19)."""

from __future__ import annotations

from kvtide.core.below.fetch_break_even import FetchBreakEven


def learned(*, compute_s_per_token: float, fetch_s_per_token: float, lookup_s: float = 0.0) -> FetchBreakEven:
    even = FetchBreakEven()
    even.computed(100, 100 * compute_s_per_token)
    even.fetched(100, 100 * fetch_s_per_token)
    for _ in range(200):
        even.looked_up(lookup_s)
    return even


def test_what_is_not_known_is_tried() -> None:
    even = FetchBreakEven()
    assert even.pays(1)
    even.computed(100, 0.001)
    assert even.pays(1)


def test_what_is_faster_wins() -> None:
    assert learned(compute_s_per_token=2.0, fetch_s_per_token=1.0).pays(100)
    assert not learned(compute_s_per_token=1.0, fetch_s_per_token=2.0).pays(100)


def test_few_tokens_do_not_pay_for_the_lookup() -> None:
    even = learned(compute_s_per_token=2.0, fetch_s_per_token=1.0, lookup_s=50.0)
    assert not even.pays(49)
    assert even.pays(51)


def test_one_slow_lookup_is_not_taken_for_the_rule() -> None:
    even = learned(compute_s_per_token=2.0, fetch_s_per_token=1.0)
    even.looked_up(100.0)
    assert even.pays(51)


def test_f19_steps_of_few_tokens_do_not_make_computing_look_dear() -> None:
    """Seen on a GPU: after each fetch the last 16 tokens of a prompt were computed, at 40 times the price of others."""
    even = learned(compute_s_per_token=25e-6, fetch_s_per_token=37e-6)
    for _ in range(50):
        even.computed(8000, 0.2)
        even.computed(16, 0.02)
    assert not even.pays(8000)
    for _ in range(200):
        even.computed(16, 0.02)
    assert not even.pays(8000)


def test_f19_a_short_fetch_does_not_make_long_ones_look_slow() -> None:
    even = learned(compute_s_per_token=25e-6, fetch_s_per_token=10e-6)
    for _ in range(50):
        even.fetched(128, 0.02)
    even.fetched(100_000, 1.0)
    assert even.pays(8000)


def test_a_tier_that_has_become_fast_is_used_again() -> None:
    even = learned(compute_s_per_token=1.0, fetch_s_per_token=2.0)
    for _ in range(100):
        even.fetched(100, 1.0)
    assert even.pays(100)


def test_observations_of_nothing_are_ignored() -> None:
    even = FetchBreakEven()
    even.computed(0, 1.0)
    even.fetched(1, 9.0)
    assert even.pays(1), "what computing costs is not known"
    even = FetchBreakEven()
    even.computed(1, 1.0)
    even.fetched(0, 9.0)
    assert even.pays(1), "what fetching costs is not known"
    even.fetched(1, 0.5)
    assert even.pays(1)


def test_one_token_tells_something() -> None:
    even = FetchBreakEven()
    even.computed(1, 1.0)
    even.fetched(1, 2.0)
    assert not even.pays(1)
