"""An engine that mixes keys up costs its neighbours at a node nothing: it is answered or refused, and that ends."""

from __future__ import annotations

import random

import pytest

from kvtide.core import BelowConfig, FullAttention
from kvtide.core.eviction import POLICIES
from kvtide.core.index.calls import Again, Found, LookUp, Offer, Release, Reserve, Reserved, Settle
from kvtide.core.index.shared import SharedIndex
from kvtide.core.messages import Answer, Clear, Report
from kvtide.errors import ProtocolError
from kvtide.node.space import make_index

SLOTS, STEPS, SIZE = 24, 300, 128
"""Blocks are as large as what is worth asking tiers for."""
BELOW = {
    "nothing": None,
    "nothing that is written": BelowConfig(),
    "all, at once": BelowConfig(through=frozenset({"all"})),
    "all, when it leaves": BelowConfig(on_evict=frozenset({"all"})),
}
KEYS = [f"key {number}".encode() for number in range(30)]


class MixedUp:
    """Offers, looks up and gives back, with keys in any order, twice, and behind any other one."""

    def __init__(self, policy: str, seed: int, below: BelowConfig | None = None) -> None:
        self._draw = random.Random(seed)
        index, _ = make_index((FullAttention(SIZE),), SLOTS, policy, 1, below)
        self.index = SharedIndex(index)
        self.index.grow(SLOTS)
        self.index.attach(1, SLOTS)
        self._leases: list[int] = []
        self._runs: list[int] = []
        self._waiting: list[int] = []
        self._look_ups = 0

    def step(self) -> None:
        what = self._draw.choice([self._offer, self._offer, self._look_up, self._again, self._release, self._settle])
        what()
        self.answer_tiers()

    def answer_tiers(self) -> None:
        """Let them have most of what they are asked for, whatever it is."""
        while errands := self.index.plan():
            for errand in errands:
                blocks = 0 if isinstance(errand, Clear) else len(errand.names)
                hits = tuple(position for position in range(blocks) if self._draw.random() < 0.9)
                self.index.report(Report(0, answers=(Answer(errand.id, hits),)))

    def end(self) -> None:
        self.index.closed(1)
        self.index.ended(1)
        self.answer_tiers()

    def _keys(self) -> list[bytes]:
        first, count = self._draw.randrange(25), self._draw.randrange(1, 6)
        return KEYS[first : first + count] if self._draw.random() < 0.5 else self._draw.choices(KEYS, k=count)

    def _offer(self) -> None:
        parent, end_tokens = self._draw.choice([None, *KEYS]), SIZE * self._draw.randrange(1, 5)
        needs_prefix, touch = self._draw.random() < 0.5, self._draw.random() < 0.6
        offer = Offer(0, self._keys(), parent, end_tokens, [], needs_prefix, touch)
        try:
            reserved = self.index.handle(1, Reserve(1, [offer], 10))
        except ProtocolError:
            return
        assert isinstance(reserved, Reserved)
        self._runs += [run.id for taken in reserved.taken for run in taken.runs]

    def _look_up(self) -> None:
        keys = self._keys()
        self._look_ups += 1
        try:
            self._found(self.index.handle(1, LookUp(self._look_ups, [keys], 0, SIZE * len(keys) + 1)))
        except ProtocolError:
            return

    def _again(self) -> None:
        if self._waiting:
            self._found(self.index.handle(1, Again(self._waiting.pop(self._draw.randrange(len(self._waiting))))))

    def _found(self, found: object) -> None:
        assert isinstance(found, Found)
        if found.lease is not None:
            self._leases.append(found.lease)
        if found.waits:
            self._waiting.append(found.id)

    def _release(self) -> None:
        if self._leases:
            lease = self._leases.pop(self._draw.randrange(len(self._leases)))
            self.index.handle(1, Release(lease, self._draw.random() < 0.7))

    def _settle(self) -> None:
        if self._runs:
            run = self._runs.pop(self._draw.randrange(len(self._runs)))
            self.index.handle(1, Settle([run], self._draw.random() < 0.8))


@pytest.mark.parametrize("below", BELOW)
@pytest.mark.parametrize("policy", POLICIES)
def test_keys_in_any_order_end_nothing_and_all_slots_are_free_or_cached_afterwards(policy: str, below: str) -> None:
    for seed in range(30):
        engine = MixedUp(policy, seed, BELOW[below])
        for _ in range(STEPS):
            engine.step()
        engine.end()
        counts = engine.index.counts()
        assert counts["free"] + counts["cached"] == SLOTS, f"seed {seed}"


def test_what_is_to_come_after_itself_is_refused() -> None:
    engine = MixedUp("prefix", 0)
    with pytest.raises(ProtocolError):
        engine.index.handle(1, Reserve(1, [Offer(0, KEYS[:3], KEYS[2], SIZE, [], False, False)], 10))


def test_a_key_that_is_there_twice_is_not_brought_up_twice() -> None:
    engine = MixedUp("prefix", 0, BelowConfig())
    with pytest.raises(ProtocolError):
        engine.index.handle(1, LookUp(1, [[KEYS[0], KEYS[0]]], 0, 2 * SIZE + 1))
    assert not engine.index.plan()
