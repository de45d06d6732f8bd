"""Policies as plain as they can be, lists that are searched, and how others are compared with them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvtide.core.eviction import EvictionPolicy
from kvtide.core.groups import Key
from tests.contracts.eviction_contract import BLOCK_TOKENS, Pool, clear

NAMES = 60
"""So many blocks come and go: more than there are slots, so that what was given up comes back."""


class Plain(EvictionPolicy):
    """What these have in common: parents and time do not matter, and what is pinned is passed over."""

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key]) -> None:
        super().__init__(slots, pins, keys)
        self.passed_over: dict[int, list[int]] = {}
        """The lists that slots come back to."""

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots[::-1]:
            if slot in self.passed_over:
                self.passed_over.pop(slot).append(slot)


class PlainARC(Plain):
    """ARC, as in the paper."""

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key]) -> None:
        super().__init__(slots, pins, keys)
        self.once: list[int] = []
        self.often: list[int] = []
        self.once_gone: list[Key] = []
        self.often_gone: list[Key] = []
        self.border = 0.0

    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        for slot in chain[::-1]:
            once, often, key = len(self.once_gone), len(self.often_gone), self.keys[slot]
            if key in self.once_gone:
                self.once_gone.remove(key)
                self.border = min(self.slots, self.border + max(1, often / once))
                self.often.append(slot)
            elif key in self.often_gone:
                self.often_gone.remove(key)
                self.border = max(0, self.border - max(1, once / often))
                self.often.append(slot)
            else:
                self.once.append(slot)

    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        for slot in chain[::-1]:
            if slot in self.passed_over:
                self.passed_over[slot] = self.often
                continue
            (self.once if slot in self.once else self.often).remove(slot)
            self.often.append(slot)

    def renew(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        for slot in chain[::-1]:
            for home in (self.once, self.often):
                if slot in home:
                    home.remove(slot)
                    home.append(slot)

    def evict(self, count: int) -> list[int]:
        victims: list[int] = []
        while len(victims) < count and self.once + self.often:
            if not self.often or len(self.once) > self.border:
                home, gone = self.once, self.once_gone
            else:
                home, gone = self.often, self.often_gone
            slot = home.pop(0)
            if self.pins[slot]:
                self.passed_over[slot] = home
                continue
            victims.append(slot)
            key = self.keys[slot]
            if key not in gone:
                gone.append(key)
        while self.once_gone and len(self.once) + len(self.once_gone) > self.slots:
            self.once_gone.pop(0)
        while len(self.once_gone) + len(self.often_gone) > self.slots:
            (self.often_gone or self.once_gone).pop(0)
        return victims

    def clear(self) -> None:
        for known in (self.once, self.often, self.passed_over, self.once_gone, self.often_gone):
            known.clear()


class PlainS3FIFO(Plain):
    """S3-FIFO, as in the paper, but one use is enough to pass."""

    def __init__(self, slots: int, pins: Sequence[int], keys: Sequence[Key]) -> None:
        super().__init__(slots, pins, keys)
        self.small: list[int] = []
        self.main: list[int] = []
        self.uses: dict[int, int] = {}
        self.failed: list[Key] = []

    def add(self, chain: Sequence[int], parent: int, end_tokens: int, block_tokens: int) -> None:
        for slot in chain[::-1]:
            self.uses[slot] = 0
            key = self.keys[slot]
            if key in self.failed:
                self.failed.remove(key)
                self.main.append(slot)
            else:
                self.small.append(slot)

    def use(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        for slot in chain:
            self.uses[slot] = min(3, self.uses[slot] + 1)

    def renew(self, chain: Sequence[int], end_tokens: int, block_tokens: int) -> None:
        """Do nothing."""

    def evict(self, count: int) -> list[int]:
        victims: list[int] = []
        while len(victims) < count and self.small + self.main:
            home = self.small if not self.main or len(self.small) > max(1, self.slots // 10) else self.main
            slot = home.pop(0)
            if self.pins[slot]:
                self.passed_over[slot] = home
            elif self.uses[slot]:
                self.uses[slot] = 0 if home is self.small else self.uses[slot] - 1
                self.main.append(slot)
            else:
                victims.append(slot)
                self.note_failure(slot, home)
        return victims

    def note_failure(self, slot: int, home: list[int]) -> None:
        key = self.keys[slot]
        if home is self.small and key not in self.failed:
            self.failed.append(key)
            if len(self.failed) > self.slots - max(1, self.slots // 10):
                self.failed.pop(0)

    def clear(self) -> None:
        for known in (self.small, self.main, self.passed_over, self.failed):
            known.clear()


class Twins:
    """A policy and its plain twin: the same happens to both, and the same must leave."""

    def __init__(self, policy: type[EvictionPolicy], plain: type[EvictionPolicy], slots: int) -> None:
        self.names = [b""] * slots
        self.pools = Pool(policy, slots, self.names), Pool(plain, slots, self.names)
        self.victims = 0

    def evict(self, count: int) -> None:
        victims, expected = (pool.evict(count) for pool in self.pools)
        assert victims == expected
        self.victims += len(victims)

    def add(self, names: list[bytes]) -> None:
        """Make room, and add as many as fit."""
        self.evict(max(0, len(names) - len(self.pools[0].free)))
        chain = self.pools[0].free[: len(names)]
        for slot, name in zip(chain, names, strict=False):
            self.names[slot] = name
        for pool in self.pools if chain else ():
            pool.add(len(chain))

    def touch(self, what: str, slots: list[int]) -> None:
        """Do something to cached slots."""
        for pool in self.pools if slots else ():
            if what == "use":
                pool.policy.use(slots, BLOCK_TOKENS, BLOCK_TOKENS)
            elif what == "renew":
                pool.policy.renew(slots, BLOCK_TOKENS, BLOCK_TOKENS)
            elif what == "pin":
                pool.pin(slots)
            else:
                pool.unpin([slot for slot in slots if pool.pins[slot]])

    def play(self, seed: int) -> int:
        """Let many things happen; return how many slots have left."""
        draw = random.Random(seed)
        for _ in range(300):
            what, size = draw.choice(["add", "add", "add", "use", "renew", "pin", "unpin", "evict"]), draw.randint(1, 5)
            cached = list(self.pools[0].parent)
            if what == "add":
                self.add([b"%d" % draw.randrange(NAMES) for _ in range(size)])
            elif what == "evict":
                self.evict(size)
            else:
                self.touch(what, draw.sample(cached, min(size, len(cached))))
            if draw.random() < 0.005:
                for pool in self.pools:
                    clear(pool)
        return self.victims
