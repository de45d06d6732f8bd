"""Traffic for `forecast`: conversations that go on, branch, are evicted and come back."""

from __future__ import annotations

import random

from kvtide.core.eviction import NO_PARENT
from tests.core.eviction.forecast.plain import Books

Request = list[bytes]
"""The names of its blocks."""


class Traffic:
    """Draws what happens next, and lets it happen to the books."""

    def __init__(self, books: Books, seed: int) -> None:
        self.draw = random.Random(seed)
        self.books = books
        self.slot_of: dict[bytes, int] = {}
        self.known: list[Request] = []
        self.running: list[Request] = []
        self.names = 0

    def fresh(self, count: int) -> Request:
        self.names += count
        return [b"%d" % number for number in range(self.names - count, self.names)]

    def leading(self, names: Request) -> list[int]:
        """Slots of the blocks at the head that are cached."""
        chain = []
        for name in names:
            if name not in self.slot_of:
                break
            chain.append(self.slot_of[name])
        return chain

    def evict(self, count: int) -> None:
        for slot in self.books.evict(count):
            del self.slot_of[self.books.keys[slot]]

    def store(self, names: Request, parent: int, depth: int) -> list[int]:
        """Let blocks be cached, as many as there is room for."""
        chain = self.books.free[: len(names)]
        for slot, name in zip(chain, names, strict=False):
            self.books.keys[slot], self.slot_of[name] = name, slot
        return self.books.add(len(chain), parent, depth) if chain else []

    def extend(self, names: Request) -> None:
        """Store what is missing, in one piece or in two; sometimes the second piece comes first."""
        chain = self.leading(names)
        missing = names[len(chain) :]
        if any(name in self.slot_of for name in missing):
            return  # orphans that another request has left
        self.books.pin(chain)
        self.evict(max(0, len(missing) - len(self.books.free)))
        self.books.unpin(chain)
        parent, cut = chain[-1] if chain else NO_PARENT, self.draw.randint(0, len(missing))
        if self.draw.random() < 0.1 and 0 < cut < len(missing) <= len(self.books.free):
            orphans = self.store(missing[cut:], NO_PARENT, len(chain) + cut)
            before = self.store(missing[:cut], parent, len(chain))
            self.books.adopt(orphans[0], before[-1])
            return
        for part, depth in ((missing[:cut], len(chain)), (missing[cut:], len(chain) + cut)):
            stored = self.store(part, parent, depth) if part else []
            if len(stored) < len(part):
                break
            parent = stored[-1] if stored else parent

    def begin(self) -> None:
        """A new conversation, or one that goes on from its end or from an earlier point."""
        names: Request = []
        if self.known and self.draw.random() < 0.7:
            names = self.draw.choice(self.known[-12:])
            names = names[: self.draw.choice((2, len(names) - 1, len(names), len(names)))]
        names = names + self.fresh(self.draw.choice((0, 1, 1, 2, 4, 9)))
        if not names or len(names) > self.books.policy.slots // 2:
            return
        chain = self.leading(names)
        if chain and self.draw.random() < 0.8:  # else the device has them
            self.books.use(self.window(chain))
        self.extend(names)
        self.running.append(names)
        self.known.append(names)

    def go_on(self, number: int) -> None:
        names = self.running[number]
        if len(self.leading(names)) == len(names):
            self.running[number] = names + self.fresh(self.draw.randint(1, 3))
            self.extend(self.running[number])
            self.known.append(self.running[number])

    def end(self, number: int) -> None:
        if chain := self.leading(self.running.pop(number)):
            self.books.end(self.window(chain))

    def window(self, chain: list[int]) -> list[int]:
        """Return the chain, or what a group with a window needs of it."""
        return chain[self.draw.randrange(len(chain)) :] if self.draw.random() < 0.1 else chain

    def play(self, steps: int, at_a_time: int) -> None:
        for _ in range(steps):
            if len(self.running) < at_a_time and self.draw.random() < 0.6:
                self.begin()
            elif self.running:
                number = self.draw.randrange(len(self.running))
                (self.go_on if self.draw.random() < 0.3 else self.end)(number)
