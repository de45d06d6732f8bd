"""The tier that keeps nothing."""

from __future__ import annotations

from kvtide.tiers import NullTier, open_tiers, parse_tiers
from tests.contracts.tier_contract import AnsweringContract
from tests.tiers.support import NAMESPACE


class TestNullTier(AnsweringContract):
    def build(self, *, calls_max: int | None = None) -> NullTier:
        return NullTier() if calls_max is None else NullTier(calls_max)


def test_it_is_a_type_of_tier() -> None:
    (tier,) = open_tiers(parse_tiers([{"type": "null"}]), NAMESPACE, rank=0, slot_bytes_max=1)
    assert isinstance(tier, NullTier)
