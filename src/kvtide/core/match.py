"""Matching: the longest prefix that every group can resume from. Looking changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvtide.core.groups import Group, Key, Present, common_boundary, longest_resumable
from kvtide.core.host_pool import HostPool
from kvtide.core.reasons import NotLoaded


class Piece(NamedTuple):
    """Consecutive cached blocks of one group."""

    group: int
    first_block: int
    slots: list[int]


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

    @property
    def slots(self) -> list[int]:
        """All slots of all pieces."""
        return [slot for piece in self.pieces for slot in piece.slots]


class Matcher:
    """Looks prefixes up in a host pool."""

    def __init__(self, groups: Sequence[Group], host: HostPool, min_load_tokens: int) -> None:
        self._groups = groups
        self._host = host
        self._step = common_boundary(groups)
        self._min_load_tokens = max(1, min_load_tokens)

    def match(self, request_id: str, keys: Sequence[Sequence[Key]], device_tokens: int, num_tokens: int) -> Match:
        """Find the longest prefix of a request of `num_tokens` tokens, one of which is left to compute."""
        end = num_tokens // self._step * self._step
        limit = (num_tokens - 1) // self._step * self._step
        boundary = longest_resumable(self._groups, device_tokens, limit, self._present(keys))
        tokens = boundary - device_tokens
        missed: dict[NotLoaded, int] = {}
        if limit > boundary:
            missed[self._why(keys, boundary)] = limit - boundary
        if boundary == limit < end and self._all_known(keys, limit):
            missed[NotLoaded.LAST_TOKEN] = end - limit
        if 0 < tokens < self._min_load_tokens:
            missed[NotLoaded.BELOW_BREAK_EVEN] = tokens
            tokens = 0
        pieces = self.pieces(keys, device_tokens, boundary) if tokens else ()
        assert pieces is not None
        return Match(request_id, device_tokens, tokens, pieces, missed)

    def pieces(self, keys: Sequence[Sequence[Key]], floor: int, boundary: int) -> tuple[Piece, ...] | None:
        """Return the blocks that resuming at `boundary` needs beyond `floor`, or None when one is missing.

        `boundary` may lie inside a block (an engine may accept any number of tokens): that block counts too.
        """
        cached = self._host.cached
        pieces = []
        for index, group in enumerate(self._groups):
            first = max(group.first_needed(boundary), floor // group.block_tokens)
            last = -(-boundary // group.block_tokens)
            slot_of = self._host.known(index)
            slots = [slot_of.get(key, -1) for key in keys[index][first:last]]
            if len(slots) < last - first or -1 in slots or not all(cached[slot] for slot in slots):
                return None
            if slots:
                pieces.append(Piece(index, first, slots))
        return tuple(pieces)

    def block_tokens(self, group: int) -> int:
        """Return the block size of a group."""
        return self._groups[group].block_tokens

    def _present(self, keys: Sequence[Sequence[Key]]) -> list[Present]:
        """Return, for each group, a function that tells whether a block is cached."""
        return [self._present_in(index, keys[index]) for index in range(len(self._groups))]

    def _present_in(self, group: int, keys: Sequence[Key]) -> Present:
        slot_of, cached, known = self._host.known(group), self._host.cached, len(keys)

        def is_cached(block: int) -> bool:
            if block >= known:
                return False
            slot = slot_of.get(keys[block])
            return slot is not None and cached[slot] == 1

        return is_cached

    def _why(self, keys: Sequence[Sequence[Key]], boundary: int) -> NotLoaded:
        """Tell why the step behind `boundary` could not be taken."""
        boundary = boundary // self._step * self._step
        cached = self._host.cached
        still_storing = False
        for index, group in enumerate(self._groups):
            first = boundary // group.block_tokens
            last = (boundary + self._step) // group.block_tokens
            if len(keys[index]) < last:
                return NotLoaded.NOT_CACHED
            for key in keys[index][first:last]:
                slot = self._host.known(index).get(key)
                if slot is None:
                    return NotLoaded.NOT_CACHED
                still_storing = still_storing or not cached[slot]
        return NotLoaded.STILL_STORING if still_storing else NotLoaded.GROUP_CANNOT_RESUME

    def _all_known(self, keys: Sequence[Sequence[Key]], boundary: int) -> bool:
        """Whether the step behind `boundary` is cached in every group."""
        return all(
            present(block)
            for group, present in zip(self._groups, self._present(keys), strict=True)
            for block in range(boundary // group.block_tokens, (boundary + self._step) // group.block_tokens)
        )
