"""A policy alone against a trace: no device pool, no copies, no clock. Fast, for comparing policies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from kvtide.core.eviction import NO_PARENT, POLICIES, EvictionPolicy
from kvtide.core.groups import Key
from kvtide.core.storing.second_use import SecondUse
from kvtide.errors import ConfigError


@dataclass(slots=True)
class PolicyResult:
    """What a policy did with a trace."""

    uses: int = 0
    """Blocks of all prompts."""
    hits: int = 0
    """Blocks that were there, with all before them in the same prompt."""
    policy_s: float = 0.0
    """Time spent in the policy."""

    @property
    def hit_ratio(self) -> float:
        """Share of the blocks that hit."""
        return self.hits / max(1, self.uses)

    @property
    def us_per_op(self) -> float:
        """Microseconds in the policy per block of the trace: looked up, added, evicted or renewed."""
        return self.policy_s / max(1, self.uses) * 1e6


class _Timed:
    """Counts the time spent in the policy."""

    def __init__(self, result: PolicyResult) -> None:
        self._result = result
        self._begin_s = 0.0

    def __enter__(self) -> None:
        self._begin_s = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._result.policy_s += time.perf_counter() - self._begin_s


class PolicyRun:
    """Feeds a policy as a host pool does that stores everything at once."""

    def __init__(self, policy: str, slots: int, *, admission: bool = False) -> None:
        if slots < 1:
            raise ConfigError("slots", slots, "at least one block")
        self.result = PolicyResult()
        self._timed = _Timed(self.result)
        self._pins = [0] * slots
        self._keys: list[Key] = [b""] * slots
        self._policy: EvictionPolicy = POLICIES[policy](slots, self._pins, self._keys)
        self._admission = SecondUse(slots) if admission else None
        self._slot_of: dict[Key, int] = {}
        self._free = list(range(slots - 1, -1, -1))

    def request(self, keys: Sequence[Key], on_device: int = 0) -> int:
        """Serve one prompt; return how many of its leading blocks hit. Those that the device has do not count."""
        slot_of, result = self._slot_of, self.result
        chain: list[int] = []
        for slot in map(slot_of.get, keys):
            if slot is None:
                break
            chain.append(slot)
        found = len(chain)
        result.uses += len(keys)
        result.hits += max(0, found - on_device)
        last = self._admission.count_storable(keys, slot_of.__contains__) if self._admission is not None else len(keys)
        with self._timed:
            self._policy.tick()
            if chain:
                self._policy.use(chain, 1, 1)
        if found < last:
            self._store(keys, chain, last)
        if chain:
            with self._timed:
                self._policy.renew(chain, 1, 1)
        return found

    def _store(self, keys: Sequence[Key], chain: list[int], last: int) -> None:
        """Add what is missing up to `last`. Policies that do not keep prefixes whole may still have parts of it."""
        first = len(chain)
        slot_of = self._slot_of
        while first < last:
            slot = slot_of.get(keys[first])
            if slot is not None:
                with self._timed:
                    self._policy.use([slot], first + 1, 1)
                chain.append(slot)
                first += 1
                continue
            end = first + 1
            while end < last and keys[end] not in slot_of:
                end += 1
            added = self._add(keys[first:end], chain[-1] if chain else NO_PARENT, first)
            chain += added
            if len(added) < end - first:
                return
            first = end

    def _add(self, keys: Sequence[Key], parent: int, first: int) -> list[int]:
        """Add consecutive blocks behind `parent`, as many as there is room for."""
        missing = len(keys) - len(self._free)
        if missing > 0:
            self._make_room(missing, parent)
        slots = [self._free.pop() for _ in range(min(len(keys), len(self._free)))]
        for slot, key in zip(slots, keys, strict=False):
            self._slot_of[key] = slot
            self._keys[slot] = key
        if slots:
            with self._timed:
                self._policy.add(slots, parent, first + 1, 1)
        return slots

    def _make_room(self, missing: int, parent: int) -> None:
        """Evict, but not what the new blocks continue."""
        if parent != NO_PARENT:
            self._pins[parent] += 1
        with self._timed:
            victims = self._policy.evict(missing)
        for slot in victims:
            del self._slot_of[self._keys[slot]]
            self._free.append(slot)
        if parent != NO_PARENT:
            self._pins[parent] -= 1
            with self._timed:
                self._policy.release([parent])


def as_keys(hashes: Sequence[int]) -> list[Key]:
    """Return hashes of a trace as keys of the core."""
    return [value.to_bytes(9, "little", signed=True) for value in hashes]


def run_policy(
    policy: str,
    prompts: Iterable[Sequence[Key]],
    slots: int,
    *,
    admission: bool = False,
    on_device: Iterable[int] | None = None,
) -> PolicyResult:
    """Run a policy over prompts. `on_device` is how many of each prompt's first blocks the device has (none)."""
    run = PolicyRun(policy, slots, admission=admission)
    for keys, there in zip(prompts, repeat(0) if on_device is None else on_device, strict=False):
        run.request(keys, there)
    return run.result
