"""Matching: the longest prefix that every group can resume from. Looking changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtide.core.groups import FullAttention, Group, Key, Present, common_boundary, longest_resumable
from kvtide.core.host_pool import HostPool
from kvtide.core.reasons import NotLoaded


class Piece(NamedTuple):
    """Consecutive cached blocks of one group."""

    group: int
    first_block: int
    slots: list[int]


def all_slots(pieces: Iterable[Piece]) -> list[int]:
    """Return the slots of all of them."""
    slots: list[int] = []
    for piece in pieces:
        slots += piece.slots
    return slots


@dataclass(slots=True, eq=False)
class Lease:
    """Slots that keep what they hold until it is released."""

    slots: list[int]
    id: int = 0
    life: int = 0
    """Where a shared index has granted it: by which name, and in which life of the connection."""
    used: bool = False
    """It was loaded from."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """What the host can give a request beyond what the device has."""

    request_id: str
    device_tokens: int
    tokens: int
    """Tokens that can be loaded: what the engine is offered."""
    pieces: tuple[Piece, ...] = ()
    missed: Mapping[NotLoaded, int] = field(default_factory=dict)
    """Tokens of whole blocks that cannot be loaded, by reason."""
    num_tokens: int = 0
    """Tokens of the request."""
    waits: bool = False
    """More may be there than is known yet: reserve, and ask again in a later step. Or admit at once, and go without."""
    lease: Lease | None = None
    """What keeps it, where looking up leases."""

    @property
    def slots(self) -> list[int]:
        """All slots of all pieces."""
        return all_slots(self.pieces)


class Matcher:
    """Looks prefixes up in a host pool.

    Groups of full attention come first: they need every block, so they are simply read from the front, and what they
    have bounds the rest. The others then look for the best boundary below that.
    """

    def __init__(self, groups: Sequence[Group], host: HostPool) -> None:
        self._groups = groups
        self._full = [index for index, group in enumerate(groups) if isinstance(group, FullAttention)]
        self._others = [index for index, group in enumerate(groups) if not isinstance(group, FullAttention)]
        self._host = host
        self._step = common_boundary(groups)

    def match(
        self,
        request_id: str,
        keys: Sequence[Sequence[Key]],
        device_tokens: int,
        num_tokens: int,
        pays: Callable[[int], bool],
    ) -> Match:
        """Find the longest prefix of a request of `num_tokens` tokens, one of which is left to compute.

        `pays` says whether loading so many tokens is worth it.
        """
        end = num_tokens // self._step * self._step
        limit = (num_tokens - 1) // self._step * self._step
        boundary, full_slots = self._longest(keys, device_tokens, limit)
        tokens = boundary - device_tokens
        missed: dict[NotLoaded, int] = {}
        if limit > boundary:
            missed[self._why(keys, boundary)] = limit - boundary
        if boundary == limit < end and self._next_step_is_cached(keys, limit):
            missed[NotLoaded.LAST_TOKEN] = end - limit
        if tokens and not pays(tokens):
            missed[NotLoaded.BELOW_BREAK_EVEN] = tokens
            tokens = 0
        pieces = self.pieces(keys, device_tokens, boundary, full_slots) if tokens else ()
        assert pieces is not None
        return Match(request_id, device_tokens, tokens, pieces, missed, num_tokens)

    def pieces(
        self,
        keys: Sequence[Sequence[Key]],
        device_tokens: int,
        boundary: int,
        full_slots: Mapping[int, list[int]] | None = None,
    ) -> tuple[Piece, ...] | None:
        """Return the blocks that resuming at `boundary` needs beyond the device's, or None when one is missing.

        `boundary` may lie inside a block (an engine may accept any number of tokens): that block counts too.
        `full_slots` are the slots of groups of full attention, if they have been looked up before.
        """
        pieces = []
        for index, group in enumerate(self._groups):
            first = max(group.first_needed(boundary), device_tokens // group.block_tokens)
            last = -(-boundary // group.block_tokens)
            if full_slots is not None and index in full_slots:
                slots = full_slots[index][: last - first]
            else:
                slots = self._host.leading_slots(index, keys[index][first:last])
            if len(slots) < last - first or not group.can_resume_at(boundary):
                return None
            if slots:
                pieces.append(Piece(index, first, slots))
        return tuple(pieces)

    def _longest(
        self, keys: Sequence[Sequence[Key]], device_tokens: int, limit: int
    ) -> tuple[int, dict[int, list[int]]]:
        """Return the best boundary, and what groups of full attention have from `device_tokens` on."""
        full_slots = {}
        for index in self._full:
            size = self._groups[index].block_tokens
            first = device_tokens // size
            slots = self._host.leading_slots(index, keys[index][first : limit // size])
            full_slots[index] = slots
            limit = min(limit, (first + len(slots)) * size // self._step * self._step)
        others = [self._groups[index] for index in self._others]
        present = [self._present(index, keys[index]) for index in self._others]
        return longest_resumable(others, device_tokens, limit, present, self._step), full_slots

    def _present(self, group: int, keys: Sequence[Key]) -> Present:
        is_cached, known = self._host.is_cached, len(keys)
        return lambda block: block < known and is_cached(group, keys[block])

    def _why(self, keys: Sequence[Sequence[Key]], boundary: int) -> NotLoaded:
        """Tell why the step behind `boundary` could not be taken."""
        some_group_has_it = some_key_unknown = False
        for index, first, last in self._next_step(boundary):
            step = keys[index][first:last]
            some_group_has_it |= len(step) == last - first and all(self._host.is_cached(index, key) for key in step)
            some_key_unknown |= len(step) < last - first or None in self._host.slots_of(index, step)
        if not some_key_unknown:  # if all of it were cached, it could be taken
            return NotLoaded.STILL_STORING
        return NotLoaded.GROUP_CANNOT_RESUME if some_group_has_it else NotLoaded.NOT_CACHED

    def _next_step_is_cached(self, keys: Sequence[Sequence[Key]], boundary: int) -> bool:
        return all(
            len(self._host.leading_slots(index, keys[index][first:last])) == last - first
            for index, first, last in self._next_step(boundary)
        )

    def _next_step(self, boundary: int) -> Iterator[tuple[int, int, int]]:
        """Yield group, first and last block of the step behind a boundary."""
        boundary = boundary // self._step * self._step
        for index, group in enumerate(self._groups):
            yield index, boundary // group.block_tokens, (boundary + self._step) // group.block_tokens
