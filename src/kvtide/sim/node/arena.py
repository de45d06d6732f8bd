"""The memory that a node has made for one namespace. It outlives the node, as long as somebody maps it."""

from __future__ import annotations

from array import array

from kvtide.sim.tokens import NOTHING

Name = tuple[int, int]
"""Of a namespace: the number of the model, and 0, or a number that one engine has for itself."""

WEIGHTS_OF_MODEL = 8
"""Models are told apart by the weights that their bytes are made from. These may change, less often than that."""


class Arena:
    """A stamp for each slot of each part: slot i of every part is block i."""

    def __init__(self, namespace: Name, slots: int, parts: int) -> None:
        self.namespace = namespace
        self.parts: list[array[int]] = [array("q", [NOTHING]) * slots for _ in range(parts)]
        self.is_over = False
        """The node that made it is dead."""

    def holds(self, slot: int, content: int) -> bool:
        """Whether every part of a slot has its bytes."""
        return all(part[slot] == content for part in self.parts)
