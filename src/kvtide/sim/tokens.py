"""What the content of a block is: a stamp that says which tokens, which group and which weights it was made from.

Every distinct sequence of tokens is a node, a small number. So a whole prefix is compared by comparing two integers,
and what a model would generate after a prefix can be made up from its node.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvtide.core.groups import Key

VOCABULARY = 4
"""Few tokens, so that prompts that were drawn apart often begin alike."""
GROUP_BITS = 2
EPOCH_BITS = 4
EPOCHS_MAX = 1 << EPOCH_BITS
_SHIFT = GROUP_BITS + EPOCH_BITS

NOTHING = 0
"""The stamp of memory that was never written."""
MOVING = -1
"""The stamp of memory that a copy has begun to write and not finished."""
TORN = -2
"""The stamp of memory that was copied from something that changed meanwhile."""

KEY_BYTES = 4
ROOT = 0
"""The node of the empty sequence."""


def stamp(node: int, epoch: int, group: int) -> int:
    """Return the stamp of a block of `group` whose last token written ends the sequence `node`."""
    return (node + 1) << _SHIFT | epoch << GROUP_BITS | group


def stamps(nodes: Sequence[int], epoch: int, group: int) -> list[int]:
    """Return the stamps of many sequences."""
    tail = epoch << GROUP_BITS | group
    return [(node + 1) << _SHIFT | tail for node in nodes]


def node_of_key(key: Key) -> int:
    """Return the sequence whose last block has this key."""
    return int.from_bytes(key, "big")


def node_of(content: int) -> int:
    """Return the sequence that a stamp stands for."""
    return (content >> _SHIFT) - 1


def epoch_of(content: int) -> int:
    """Return the version of the weights that a stamp was computed with."""
    return content >> GROUP_BITS & (EPOCHS_MAX - 1)


def group_of(content: int) -> int:
    """Return the group of a stamp."""
    return content & ((1 << GROUP_BITS) - 1)


class Tokens:
    """All sequences of one world. Nodes are numbered in the order in which they are first seen."""

    def __init__(self) -> None:
        self._following: dict[int, int] = {}
        self.before: list[int] = [ROOT]
        """The node of each sequence without its last token."""
        self.length: list[int] = [0]
        """Number of tokens of each node."""
        self.keys: list[Key] = [ROOT.to_bytes(KEY_BYTES, "big")]
        """The key of a block that ends at each node. Keys say nothing of the weights: that is what makes F9."""

    def after(self, node: int, token: int) -> int:
        """Return the node of a sequence with one more token."""
        edge = node * VOCABULARY + token
        known = self._following.get(edge)
        if known is not None:
            return known
        new = len(self.length)
        self._following[edge] = new
        self.length.append(self.length[node] + 1)
        self.before.append(node)
        self.keys.append(new.to_bytes(KEY_BYTES, "big"))
        return new

    def generated(self, node: int) -> int:
        """Return the node that follows when the model goes on: the same every time, and not easy to foresee."""
        return self.after(node, ((node + 1) * 40503 >> 7) % VOCABULARY)

    def describe(self, content: int) -> str:
        """Say in words what a stamp stands for."""
        if content in (NOTHING, MOVING, TORN):
            return {NOTHING: "nothing", MOVING: "a copy under way", TORN: "torn bytes"}[content]
        node = node_of(content)
        return f"prefix n{node} ({self.length[node]} tokens) of group {group_of(content)}, weights {epoch_of(content)}"
