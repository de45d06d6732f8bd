"""Looks for a smaller world that fails in the same way: fewer requests, faults, ranks and habits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from kvtide.errors import ConfigError
from kvtide.sim.batch import run_seed
from kvtide.sim.faults import FAULT_KINDS
from kvtide.sim.options import NONE, Overrides, apply_overrides
from kvtide.sim.simulation import Result
from kvtide.sim.world import Habits, World

RUNS_MAX = 2_000
"""Worlds that are tried before the smallest so far is taken."""


class Shrinker:
    """Fixes one thing after the other, and keeps what does not make the violation go away.

    Worlds are described by the options that people can write too, so the smallest one can be run by hand.
    """

    def __init__(self, seed: int, overrides: Overrides) -> None:
        self._seed = seed
        self.overrides: dict[str, str] = dict(overrides)
        self.result: Result = run_seed(seed, overrides)
        self.runs = 1
        found = self.result.found
        self._invariant = found.invariant if found is not None else None

    def shrink(self) -> None:
        """Go round until nothing helps any more."""
        if self._invariant is None:
            return
        shrunk = True
        while shrunk and self.runs < RUNS_MAX:
            shrunk = False
            for candidate in self._candidates():
                shrunk = self._keep_if_it_fails(candidate) or shrunk

    def _candidates(self) -> Iterator[dict[str, str]]:
        """Yield smaller worlds than the present one, each made when it is asked for."""
        yield from self._fewer_requests()
        if "node" in self.overrides:
            yield self.overrides | {"node": "calm"}
        for name in ("tier", "resets", "stops_at", "aborts"):
            yield self.overrides | {name: NONE}
        yield self.overrides | {"step_s": "0"}
        for kind in FAULT_KINDS:
            kept = [other for other in self._world().faults.kinds if other != kind]
            yield self.overrides | {"faults": "+".join(kept) or NONE}
        yield from (self.overrides | {"ranks": str(ranks)} for ranks in range(1, self._world().ranks))
        yield self.overrides | {"replicas": "1"}
        yield self.overrides | {"depth": "1"}
        yield self.overrides | {"layout": "full"}
        for habit in (field.name for field in fields(Habits) if field.type == "bool"):
            yield self.overrides | {habit: "no"}

    def _fewer_requests(self) -> Iterator[dict[str, str]]:
        """Leave out half of the requests, then a quarter, down to single ones."""
        size = max(1, len(self._names()) // 2)
        while True:
            start = 0
            while start < len(self._names()) > 1:
                names = self._names()
                rest = names[:start] + names[start + size :]
                if rest:
                    yield self.overrides | {"requests": "+".join(rest)}
                if self._names() == names:
                    start += size
            if size == 1:
                return
            size //= 2

    def _keep_if_it_fails(self, overrides: dict[str, str]) -> bool:
        """Take a smaller world if it violates the same invariant. Only changes count."""
        try:
            if apply_overrides(World.draw(self._seed), overrides) == self._world():
                return False
            result = run_seed(self._seed, overrides)
        except ConfigError:
            return False
        self.runs += 1
        if self.runs > RUNS_MAX or result.found is None or result.found.invariant != self._invariant:
            return False
        self.overrides, self.result = overrides, result
        return True

    def _world(self) -> World:
        return apply_overrides(World.draw(self._seed), self.overrides)

    def _names(self) -> list[str]:
        return [arrival.name for arrival in self._world().arrivals]
