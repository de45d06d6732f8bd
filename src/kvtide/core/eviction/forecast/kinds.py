"""Kinds of visits that the policy `forecast` tells apart, because they come back differently."""

from __future__ import annotations

LEFT_BEHIND = 0
"""What a conversation did not go on from."""
LAST_BLOCK, LAST_BLOCK_LATER = 1, 2
"""The last block of a prompt, of a first and of a later turn. Often it is not full, and never asked for again."""
FIRST_SHARED = 3
"""Beginnings that several conversations share, by how often they were used."""
SHARED_LEVELS = 3
FIRST_TURN = FIRST_SHARED + SHARED_LEVELS
"""Conversations by their turn, and later ones also by whether the last turn came soon after the one before: who has
returned is likely to return again, and who has returned soon is likely to do so soon."""
LATER_TURNS = 3
"""The second, the third, and all others."""
FIRST_DIVERGED = FIRST_TURN + 1 + 2 * LATER_TURNS
"""Second and later turns that added more than they found: not so much a conversation that goes on as another one."""
KINDS = FIRST_DIVERGED + 2
SOON_POOLS = 4
"""Soon is within so many times the pool's size, in blocks touched."""
RUNNING = KINDS
"""The queue, besides one for each kind, of requests that may still go on."""


def kind_of_turn(turn: int, *, soon: bool, diverged: bool = False) -> int:
    """Return the kind of a conversation after `turn` earlier requests, the last of which was `soon` before.

    `diverged`: the last turn added more than it found.
    """
    if diverged and turn:
        return FIRST_DIVERGED + (turn > 1)
    return FIRST_TURN + 2 * min(turn, LATER_TURNS) - soon if turn else FIRST_TURN


def kind_of_last_block(turn: int) -> int:
    """Return the kind of the last block of a prompt."""
    return LAST_BLOCK_LATER if turn else LAST_BLOCK


def is_last_block(kind: int) -> bool:
    """Whether a kind is that of the last block of a prompt."""
    return LAST_BLOCK <= kind <= LAST_BLOCK_LATER


def kind_of_shared(uses: int) -> int:
    """Return the kind of a shared beginning: 1 to 3 uses, up to 15, and more."""
    return FIRST_SHARED + min((uses.bit_length() - 1) // 2, SHARED_LEVELS - 1)


def is_shared(kind: int) -> bool:
    """Whether a kind is that of a shared beginning."""
    return FIRST_SHARED <= kind < FIRST_TURN
