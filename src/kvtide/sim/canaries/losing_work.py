"""Canaries that lose work: blocks that are not stored, stored twice, or lost in silence."""
# ruff: noqa: D103 (what each canary takes away is said right above it)

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvtide.core.below.sinks import Sinks
from kvtide.core.chain import Chain
from kvtide.core.eviction import PrefixAware
from kvtide.core.groups import NULL_BLOCK, Key
from kvtide.core.host_pool import HostPool
from kvtide.core.reasons import NotStored
from kvtide.core.requests import Request
from kvtide.core.storing.eager import EagerPlanner
from kvtide.core.storing.lazy import LazyPlanner
from kvtide.core.storing.stores import Stores
from kvtide.sim.canaries.base import Patches, around, canary, returning


@canary("F1", "what a finished request leaves is not stored", "I6")
def no_flush() -> Patches:
    def finished(self: EagerPlanner, request: Request) -> None:
        self._ready.pop(request.id, None)

    return [(EagerPlanner, "finished", finished)]


@canary("F2", "a key is known only when its store is complete", "I6", "I7")
def known_when_stored() -> Patches:
    def slots_of(self: HostPool, group: int, keys: Sequence[Key]) -> list[int | None]:
        return [self.cached_slot(group, key) for key in keys]

    def has_none(self: HostPool, group: int, keys: Sequence[Key]) -> bool:
        return not any(self.is_cached(group, key) for key in keys)

    return [(HostPool, "has", HostPool.is_cached), (HostPool, "has_none", has_none), (HostPool, "slots_of", slots_of)]


@canary("F3", "blocks that were stored once are not looked at again", "I6")
def never_look_back() -> Patches:
    original = EagerPlanner._chain

    def only_new(self: EagerPlanner, request: Request, index: int, first: int, last: int) -> Chain:
        whole = original(self, request, index, first, last)
        behind = min(max(0, request.considered[index] - first), len(whole))
        whole.blocks[:behind] = [NULL_BLOCK] * behind
        return whole

    return [(EagerPlanner, "_chain", only_new)]


@canary("F3", "the head of a prefix that is stored after its tail is evicted before it", "I6")
def no_adoption() -> Patches:
    return [returning(PrefixAware, "adopt")]


@canary("F3", "lazy mode looks one block ahead, not two steps", "I6")
def short_sighted() -> Patches:
    return [returning(LazyPlanner, "_clean_target", 1)]


@canary("F3", "slots that were pinned are never evicted again", "I5", "I6")
def slots_lost() -> Patches:
    return [returning(PrefixAware, "release")]


@canary("F4", "losses are counted twice", "I6")
def counted_twice() -> Patches:
    def twice(lose: Callable[..., None], self: Stores, why: NotStored, blocks: int) -> None:
        lose(self, why, 2 * blocks)

    return [around(Stores, "lose", twice)]


@canary("F4", "what does not sink is not counted", "I6")
def sinks_in_silence() -> Patches:
    return [returning(Sinks, "_lose")]


@canary("F4", "losses are not counted", "I6")
def silence() -> Patches:
    return [returning(Stores, "lose")]
