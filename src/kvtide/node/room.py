"""Room for namespaces: from which budget, what may be given back for a new one, and who has to be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kvtide.copy.memory_left import memory_left
from kvtide.node.arenas import NodeArena
from kvtide.node.errors import Refused
from kvtide.node.giving_back import GivingBack
from kvtide.node.huge_pages import reserved_bytes
from kvtide.node.shares import Budget, Budgets, Share
from kvtide.units import size_text

WORTH_HAVING = 20
"""Less than this part of what a namespace may have is no room: it would keep it for its whole life."""


class Room:
    """All memory of a node."""

    def __init__(self, memory_bytes: int, shares: Iterable[Share], say: Callable[[str], None]) -> None:
        self._budgets = Budgets(memory_bytes, shares)
        self._giving_back = GivingBack(say)

    def budget_of(self, description: Mapping[str, object]) -> Budget:
        """Return where a namespace takes its memory from."""
        return self._budgets.of(description)

    def to_give_back(self, budget: Budget, idle: Iterable[tuple[str, int]]) -> list[str]:
        """Return which namespaces that no engine uses have to go, so that a new one has all that it may have.

        `idle` are their names and bytes, those that have been idle for longest first.
        """
        self._giving_back.look()
        soon_bytes = budget.free_bytes + self._giving_back.bytes_of(budget)
        names: list[str] = []
        for name, nbytes in idle:
            if soon_bytes < budget.each_bytes:
                names.append(name)
                soon_bytes += nbytes
        return names

    def give_back(self, arenas: Sequence[NodeArena], budget: Budget, nbytes: int) -> None:
        """Give memory back that nobody uses any more."""
        self._giving_back.give_back(arenas, budget, nbytes)

    def check_size(self, budget: Budget, block_bytes: int) -> None:
        """Raise `Refused` if one block would never fit."""
        if budget.each_bytes < block_bytes:
            room = f"one block takes {size_text(block_bytes)}, and it may have {size_text(budget.each_bytes)}"
            raise Refused(f"{room} of {budget.label}: start the node with more (--memory, --share)", for_good=True)

    def check(self, budget: Budget, block_bytes: int, models: Iterable[str]) -> None:
        """Raise `Refused` if there is no room worth having now, or more will be soon. `models`: who has the memory."""
        self._giving_back.look()
        if self._giving_back.bytes_of(budget):
            raise Refused("memory of a model that no engine uses is being given back for it", for_good=False)
        if budget.free_bytes < max(block_bytes, budget.each_bytes // WORTH_HAVING):
            left = f"{size_text(budget.free_bytes)} are left of {budget.label}"
            others = ", ".join(sorted(set(models)))
            what = f"end the engines of {others}, or start the node with a --share for each model"
            raise Refused(f"{left}, and one block takes {size_text(block_bytes)}: {what}", for_good=False)

    def status(self) -> dict[str, object]:
        """Return how it is divided, as JSON."""
        self._giving_back.look()
        shares = [
            {"model": budget.model, "bytes": budget.nbytes, "free_bytes": budget.free_bytes}
            for budget in self._budgets.all
        ]
        return {"free_bytes": self._budgets.free_bytes, "shares": shares}

    def close(self) -> None:
        """End what was begun."""
        self._giving_back.close()


def check_left(nbytes: int) -> None:
    """Raise `Refused` if others have taken memory since the node was started: the kernel would kill somebody."""
    left = memory_left()
    if nbytes > max(left.nbytes, reserved_bytes()):
        what = "end what has taken it since the node was started, or start the node with less (--memory)"
        raise Refused(f"it takes {size_text(nbytes)}, and can have {left.expected}: {what}", for_good=False)
