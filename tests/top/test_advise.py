"""Advice is given with the numbers it rests on, and never without evidence."""

from __future__ import annotations

import pytest

from kvtide.top.advice import Advice
from kvtide.top.advise import advise
from kvtide.top.figures import figures
from kvtide.top.reading import parse
from kvtide.top.state import state
from tests.top.fake import BUSY, grown, metrics

Numbers = dict[str, float | dict[str, float]]

MANY = grown(BUSY, 10)
"""100 requests of 1,000 tokens: enough to say something."""
FULL: Numbers = {"kvtide_slots_free": 0, "kvtide_evicted_blocks_total": 400}
NO_TIERS: Numbers = {
    name: {} if isinstance(value, dict) else 0
    for name, value in BUSY.items()
    if "tier" in name or name == "kvtide_fetched_blocks_total"
}
NO_HOST_HITS: Numbers = {
    "prompt_tokens_by_source_total": {'source="local_compute"': 50_000.0, 'source="local_cache_hit"': 50_000.0},
    "kvtide_loaded_blocks_total": 0,
    "kvtide_loaded_tokens_total": 0,
}


def advice(*changes: Numbers, seconds: float | None = None) -> list[Advice]:
    numbers: Numbers = dict(MANY)
    for change in changes:
        numbers |= change
    reading = parse(metrics(**numbers))
    return advise(figures(reading.counters, seconds, reading.counters), state(reading))


def kinds(*changes: Numbers) -> list[str]:
    return [each.kind for each in advice(*changes)]


def test_a_pool_that_is_not_full_needs_no_memory() -> None:
    (only,) = advice(NO_TIERS)
    assert only.kind == "nothing"
    assert "75.0% full" in only.because
    assert only.numbers["pool_fill"] == 0.75


def test_a_full_pool_whose_blocks_come_back_from_a_tier_needs_memory() -> None:
    (only,) = advice(FULL)
    assert only.kind == "memory"
    assert only.numbers["tiers_share"] == 0.075
    assert "7.5% of prompt tokens had left it and came back from a tier" in only.because


def test_a_full_pool_without_tiers_that_finds_much_probably_needs_memory_or_a_tier() -> None:
    found = advice(FULL, NO_TIERS)
    assert [each.kind for each in found] == ["memory", "tier"]
    assert "probably" in found[0].do
    assert "kvtide plan" in found[0].because
    assert found[0].numbers["host_share"] == 0.3


def test_how_long_a_block_stays_is_said_where_it_is_known() -> None:
    assert "one stays for 40 s" in advice(FULL, seconds=100.0)[0].because  # 160 slots, 4 evicted in a second


def test_a_full_pool_that_evicts_nothing_is_left_alone() -> None:
    (only,) = advice(FULL, {"kvtide_evicted_blocks_total": 0})
    assert (only.kind, "evicted nothing" in only.because) == ("nothing", True)


def test_new_prompts_that_nobody_asks_for_again_are_no_reason_for_memory() -> None:
    assert "memory" not in kinds(FULL, NO_TIERS, NO_HOST_HITS)


def test_blocks_that_are_stored_and_never_loaded_are_a_reason_to_wait_for_the_second_use() -> None:
    (only,) = advice(FULL, NO_TIERS, NO_HOST_HITS)
    assert (only.kind, "second-use" in only.do) == ("policy", True)
    assert only.numbers == {"stored_blocks": 2000, "loaded_blocks": 0, "evicted_blocks": 400}
    assert "more host memory" in only.do  # a pool that is too small looks the same
    assert "Counters do not tell which" in only.because


def test_an_empty_pool_and_blocks_that_are_not_admitted_are_a_reason_to_store_all() -> None:
    lost: Numbers = {"kvtide_not_stored_total": {'reason="not_admitted"': 2000.0}}
    (only,) = advice(NO_TIERS, lost)
    assert (only.kind, "admission=all" in only.do) == ("policy", True)
    assert only.numbers == {"not_admitted_share": 0.5, "pool_fill": 0.75}
    assert "admission=all" not in " ".join(each.do for each in advice(NO_TIERS, lost, FULL))


@pytest.mark.parametrize(
    ("reason", "do"),
    [("evicted_from_device", "mode=eager"), ("queue_full", "pin_budget"), ("unpacked_full", "packing=auto")],
)
def test_blocks_that_could_not_wait_or_had_no_place_are_a_reason_for_another_policy(reason: str, do: str) -> None:
    (only,) = advice(NO_TIERS, {"kvtide_not_stored_total": {f'reason="{reason}"': 500.0}})
    assert (only.kind, do in only.do) == ("policy", True)
    assert only.numbers == {f"{reason}_share": 0.2}
    assert kinds(NO_TIERS, {"kvtide_not_stored_total": {f'reason="{reason}"': 50.0}}) == ["nothing"]


def tier(found: float, missing: float, used: float = 0.5) -> Numbers:
    labels = 'tier="disk",rank="0"'
    return {
        "kvtide_tier_off": {labels: 0.0},
        "kvtide_tier_bytes_used": {labels: used * 1000},
        "kvtide_tier_bytes_budget": {labels: 1000.0},
        "kvtide_tier_keys_total": {
            'tier="disk",call="lookup",outcome="hit"': found,
            'tier="disk",call="lookup",outcome="miss"': missing,
        },
    }


def test_a_full_tier_that_misses_needs_room() -> None:
    (only,) = advice(tier(500, 500, used=0.99))
    assert (only.kind, only.do) == ("tier", "Give tier disk more room.")
    assert only.numbers == {"looked_up_keys": 1000, "found_share": 0.5, "tier_fill": 0.99}
    assert kinds(tier(500, 500, used=0.5)) == ["nothing"]
    assert kinds(tier(990, 10, used=0.99)) == ["nothing"]


def test_a_tier_that_has_nothing_of_what_is_asked_for_is_of_no_use() -> None:
    (only,) = advice(tier(1, 999))
    assert (only.kind, "Take tier disk away" in only.do) == ("tier", True)
    assert kinds(tier(0, 100)) == ["nothing"]  # too few to say


def test_a_tier_that_is_late_costs_hits() -> None:
    (only,) = advice(NO_TIERS, {"kvtide_not_loaded_total": {'reason="tier_late"': 10_000.0}})
    assert (only.kind, only.numbers) == ("tier", {"tier_late_share": 0.1})


@pytest.mark.parametrize(
    ("change", "do"),
    [
        ({"kvtide_transfers_unanswered": 1}, "Find the rank that hangs"),
        ({"kvtide_stopped": 1}, "Restart the server"),
        ({"kvtide_tier_off": {'tier="disk",rank="0"': 1.0}}, "Look after tier disk"),
    ],
)
def test_what_is_broken_comes_before_all_other_advice_even_with_little_traffic(change: Numbers, do: str) -> None:
    for numbers in ((FULL, change), (BUSY, change)):
        (only,) = advice(*numbers)
        assert only.kind == "repair"
        assert only.do.startswith(do)
        assert only.numbers


def test_records_that_did_not_verify_are_said_beside_all_other_advice() -> None:
    corrupt: Numbers = {"kvtide_tier_corrupt_records_total": {'tier="disk"': 1.0}}
    assert kinds(FULL, corrupt) == ["repair", "memory"]
    assert kinds(BUSY, corrupt) == ["repair", "unknown"]
    assert advice(FULL, corrupt)[0].numbers == {"corrupt_records": 1}


def test_with_little_traffic_nothing_is_said_but_that() -> None:
    few = {**FULL, "time_to_first_token_seconds_count": 19}
    assert kinds(few) == ["unknown"]
    short: Numbers = {"prompt_tokens_by_source_total": {'source="local_compute"': 1999.0}}
    assert kinds(FULL, short) == ["unknown"]


def test_every_advice_has_numbers() -> None:
    changes: list[tuple[Numbers, ...]] = [(), (FULL,), (FULL, NO_TIERS), (NO_TIERS,), (BUSY,), (tier(1, 999),)]
    for change in changes:
        assert all(each.numbers and each.because for each in advice(*change))
