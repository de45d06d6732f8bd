"""Canaries that lose work: blocks that are not stored, stored twice, or lost in silence."""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.below.sinks import Sinks
from kvtide.core.chain import Chain
from kvtide.core.eviction import PrefixAware
from kvtide.core.groups import Key
from kvtide.core.host_pool import HostPool
from kvtide.core.reasons import NotStored, NotSunk
from kvtide.core.requests import Request
from kvtide.core.storing.eager import EagerPlanner
from kvtide.core.storing.lazy import LazyPlanner
from kvtide.core.storing.stores import Stores
from kvtide.sim.canaries.base import Canary, Patches, caught_by


def _no_flush() -> Patches:
    def finished(self: EagerPlanner, request: Request) -> None:
        self._ready.pop(request.id, None)

    return [(EagerPlanner, "finished", finished)]


def _known_when_stored() -> Patches:
    def slots_of(self: HostPool, group: int, keys: Sequence[Key]) -> list[int | None]:
        return [self.cached_slot(group, key) for key in keys]

    def has_none(self: HostPool, group: int, keys: Sequence[Key]) -> bool:
        return not any(self.is_cached(group, key) for key in keys)

    return [(HostPool, "has", HostPool.is_cached), (HostPool, "has_none", has_none), (HostPool, "slots_of", slots_of)]


def _never_look_back() -> Patches:
    missing = EagerPlanner._missing

    def only_new(self: EagerPlanner, request: Request, chain: Chain, first: int) -> list[Chain]:
        size = self._groups[chain.group].block_tokens
        runs = []
        for run in missing(self, request, chain, first):
            behind = request.considered[chain.group] - (run.end_tokens // size - 1)
            if behind < len(run):
                runs.append(run.part(max(0, behind), len(run), size))
        return runs

    return [(EagerPlanner, "_missing", only_new)]


def _silence() -> Patches:
    def lose(self: Stores, why: NotStored, blocks: int) -> None:
        """Say nothing."""

    return [(Stores, "lose", lose)]


def _counted_twice() -> Patches:
    lose = Stores.lose

    def lose_twice(self: Stores, why: NotStored, blocks: int) -> None:
        lose(self, why, 2 * blocks)

    return [(Stores, "lose", lose_twice)]


def _sinks_in_silence() -> Patches:
    def lose(self: Sinks, why: NotSunk, blocks: int) -> None:
        """Say nothing."""

    return [(Sinks, "_lose", lose)]


def _no_adoption() -> Patches:
    def adopt(self: PrefixAware, child: int, parent: int) -> None:
        """Let children whose parent has come be without it."""

    return [(PrefixAware, "adopt", adopt)]


def _short_sighted() -> Patches:
    def clean_target(self: LazyPlanner, loading_blocks: int) -> int:
        return 1

    return [(LazyPlanner, "_clean_target", clean_target)]


def _slots_lost() -> Patches:
    def release(self: PrefixAware, slots: Sequence[int]) -> None:
        """Do not queue them again."""

    return [(PrefixAware, "release", release)]


LOSING_WORK = (
    Canary("F1", "no-flush", "what a finished request leaves is not stored", _no_flush, caught_by("I6")),
    Canary(
        "F2",
        "known-when-stored",
        "a key is known only when its store is complete",
        _known_when_stored,
        caught_by("I6", "I7"),
    ),
    Canary(
        "F3",
        "never-look-back",
        "blocks that were stored once are not looked at again",
        _never_look_back,
        caught_by("I6"),
    ),
    Canary(
        "F3",
        "no-adoption",
        "the head of a prefix that is stored after its tail is evicted before it",
        _no_adoption,
        caught_by("I6"),
    ),
    Canary("F3", "short-sighted", "lazy mode looks one block ahead, not two steps", _short_sighted, caught_by("I6")),
    Canary("F3", "slots-lost", "slots that were pinned are never evicted again", _slots_lost, caught_by("I5", "I6")),
    Canary("F4", "counted-twice", "losses are counted twice", _counted_twice, caught_by("I6")),
    Canary("F4", "sinks-in-silence", "what does not sink is not counted", _sinks_in_silence, caught_by("I6")),
    Canary("F4", "silence", "losses are not counted", _silence, caught_by("I6")),
)
