"""I6: a policy that keeps prefixes whole does not evict a block while a longer cached prefix needs it (F3).

The tail of a prefix is of no use without its head, so such an eviction loses more than is counted.
"""

from __future__ import annotations

from kvtide.core.messages import Plan
from kvtide.sim.checkers.base import Checker
from kvtide.sim.checkers.observed import Observed
from kvtide.sim.request import SimRequest
from kvtide.sim.violation import Violation
from kvtide.sim.world import World

KEEP_PREFIXES_WHOLE = ("prefix", "forecast")


class PrefixesChecker(Checker):
    """Counts the visible blocks that continue each block."""

    invariant = "I6"

    @classmethod
    def concerns(cls, world: World) -> bool:
        """Other policies look at single blocks."""
        return world.policy in KEEP_PREFIXES_WHOLE

    def __init__(self, world: World, observed: Observed) -> None:
        super().__init__(world, observed)
        self._children: dict[int, int] = {}
        self._removed: list[int] = []

    def stored(self, contents: list[int]) -> None:
        """Take note of the blocks that these continue."""
        for content in contents:
            parent = self.observed.parent_of(content)
            self._children[parent] = self._children.get(parent, 0) + 1

    def removed(self, contents: list[int]) -> None:
        """Take note that these continue nothing any more. Tails may be named after heads: look when all were named."""
        for content in contents:
            parent = self.observed.parent_of(content)
            self._children[parent] = self._children.get(parent, 0) - 1
            self._removed.append(content)

    def plan_made(self, plan: Plan) -> None:
        """Slots are taken for what a plan begins."""
        self._check()

    def after_end(self, request: SimRequest, preempted: bool) -> None:
        """And for what a request leaves."""
        self._check()

    def after_reset(self, below: bool) -> None:
        """Start again."""
        self._children.clear()
        self._removed.clear()

    def _check(self) -> None:
        removed, self._removed = self._removed, []
        for content in removed:
            if self._children.get(content) and content not in self.observed.visible:
                what = self.observed.tokens.describe(content)
                raise Violation("I6", f"{what} is evicted, and {self._children[content]} visible blocks continue it")
