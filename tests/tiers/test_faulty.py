"""The faulty tier keeps the contract when nothing is wrong, and breaks it in the ways it is asked to."""

from __future__ import annotations

import random

import pytest

from kvtide.tiers import HIT, MISS, Faults, FaultyBackend, FaultyTier, Item, KeyResult, QueuedTier, Verdict
from tests.contracts.tier_contract import KeepingContract, answers, block, get, key, lookup, put, room, verdicts


class TestWithoutFaults(KeepingContract):
    def build(self, *, calls_max: int | None = None) -> FaultyTier:
        return FaultyTier(Faults(), threads=2, calls_max=calls_max or 1024)


class TestSlow(KeepingContract):
    def build(self, *, calls_max: int | None = None) -> FaultyTier:
        return FaultyTier(Faults(slow=0.2, slow_s=0.002), threads=2, calls_max=calls_max or 1024)


def test_a_lie_is_found_out_by_the_get() -> None:
    tier = FaultyTier(Faults(lying=1.0))
    assert lookup(tier, [key(1)]) == (HIT,)
    assert get(tier, [Item(key(1), room())]) == (MISS,)
    tier.close()


def test_f8_changed_bytes_are_a_miss_and_counted() -> None:
    tier = FaultyTier(Faults(corrupting=1.0))
    assert put(tier, [Item(key(1), block(1))]) == (HIT,)
    assert verdicts(get(tier, [Item(key(1), room())])) == [Verdict.MISS]
    assert tier.stats().corrupt_records == 1
    tier.close()


@pytest.mark.parametrize(("faults", "why"), [(Faults(down=1.0), "nobody answers"), (Faults(raising=1.0), "a bug")])
def test_f15_a_backend_that_raises_fails_the_call_and_the_next_one_works(faults: Faults, why: str) -> None:
    tier = FaultyTier(faults)
    for _ in range(5):
        (result,) = put(tier, [Item(key(1), block(1))])
        assert result.verdict is Verdict.FAILED
        assert why in result.why
    tier.backend.faults = Faults()
    assert put(tier, [Item(key(1), block(1))]) == (HIT,)
    tier.close()


def test_a_put_that_is_lost_is_a_miss() -> None:
    tier = FaultyTier(Faults(losing=1.0))
    assert put(tier, [Item(key(1), block(1))]) == (HIT,)
    assert get(tier, [Item(key(1), room())]) == (MISS,)
    tier.close()


def test_f18_what_hangs_holds_nobody_back_from_leaving() -> None:
    tier = FaultyTier(Faults(hanging=True), calls_max=2)
    assert tier.lookup(1, [key(1)])
    assert tier.backend.hangs.wait(30.0)
    assert tier.lookup(2, [key(1)])
    assert not tier.lookup(3, [key(1)]), "the queue has a bound"
    assert not tier.wait(0.0)
    assert not tier.close(0.0)
    assert [ticket for ticket, _ in tier.poll()] == [2], "what had not begun"
    tier.backend.release()
    assert tier.close(30.0)
    assert [ticket for ticket, _ in tier.poll()] == [1]


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_faults(seed: int) -> None:
    assert _results(seed) == _results(seed)


def _results(seed: int) -> list[tuple[KeyResult, ...]]:
    faults = Faults(failing=0.3, down=0.1, raising=0.1, lying=0.3, losing=0.2, corrupting=0.3)
    rng = random.Random(seed)
    tier = QueuedTier(FaultyBackend(faults, seed), threads=1)
    found = []
    for _ in range(60):
        item = Item(key(rng.randrange(5)), block(1))
        call = rng.choice((put, get))
        found += [call(tier, [item]), lookup(tier, [item.key])]
    tier.close()
    assert len(set(found)) > 3
    assert not answers(tier, 0)
    return found
