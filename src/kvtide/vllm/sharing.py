"""Ranks that hold the same KV map one arena (F27): how they find it, or agree that each has its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.parallel_state import get_tp_group

from kvtide.copy import HostArena, numa, shared_memory
from kvtide.copy.shared_arena import SharedArena, front_bytes
from kvtide.core.share import ALL, Share
from kvtide.errors import describe
from kvtide.vllm.log import logger

Gather = Callable[[object], list[Any]]
"""Says something to all ranks of a tensor-parallel group, and returns what each has said, in their order.

All of them have to call it, as often as each other. It ends by the group's own timeout.
"""


def gather_in_group(said: object) -> list[Any]:
    """Gather in vLLM's group of this rank."""
    group = get_tp_group()
    heard: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(heard, said, group=group.cpu_group)
    return heard


@dataclass(frozen=True, slots=True)
class Said:
    """What a rank has to offer, or what kept it from that."""

    offer: shared_memory.Offer | None = None
    node: int | None = None
    """The NUMA node next to its GPU."""
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """With whom a rank shares its arena."""

    share: Share = ALL
    position: int = 0
    """Its number in the group."""
    gather: Gather = gather_in_group

    def open_arena(self, slots: int, slot_bytes: int, *, row_bytes: int = 0, node: int | None = None) -> HostArena:
        """Map the slots of this rank and of those that share them, with rows where blocks are packed (`SharedArena`).

        If that fails on any rank of the group, every rank has an arena of its own, with as many slots less: so the
        memory is no more than was asked for, and reports say how many slots there are.
        """
        if self.share.count == 1:
            return HostArena(slots, slot_bytes)
        said = self._offer(slots * slot_bytes + front_bytes(slots, row_bytes), node)
        arena, failure = self._map(self.gather(said), slots, slot_bytes, row_bytes)
        failures = [failure for failure in self.gather(failure) if failure is not None]
        if said.offer is not None:
            os.close(said.offer.descriptor)  # everybody has it by now, or nobody needs it
        if arena is not None and not failures:
            return arena
        if arena is not None:
            arena.close()
        own = max(1, slots // self.share.count)
        if self.position == 0:
            text = "kvtide: the KV that %d ranks hold alike is kept by each of them, %d blocks instead of %d: %s"
            logger.warning(text, self.share.count, own, slots, failures[0])
        return HostArena(own, slot_bytes)

    def _offer(self, nbytes: int, node: int | None) -> Said:
        """Make the memory, if that is this rank's to do. Whatever happens, the others wait to hear of it."""
        if self.share.index:
            return Said(node=node)
        try:
            return Said(shared_memory.make(nbytes), node)
        except Exception as error:
            return Said(node=node, failure=describe(error))

    def _map(
        self, heard: list[Said], slots: int, slot_bytes: int, row_bytes: int
    ) -> tuple[SharedArena | None, str | None]:
        """Map what the first of those who share has made; return the arena, or why there is none."""
        first = self.position - self.share.index
        offer = heard[first].offer
        if offer is None:
            return None, heard[first].failure
        try:
            file = shared_memory.find(offer)
            try:
                arena = SharedArena(slots, slot_bytes, row_bytes=row_bytes, file=file, share=self.share)
            finally:
                os.close(file)
        except Exception as error:
            return None, describe(error)
        if not self.share.index:
            sharers = heard[first : first + self.share.count]
            nodes = {said.node for said in sharers if said.node is not None}
            if nodes and len(numa.nodes()) > 1:
                _place(arena, nodes)
        return arena, None


ALONE = Sharing()
"""With nobody."""


def _place(arena: SharedArena, nodes: Collection[int]) -> None:
    """Say once from where the pages come, before anybody touches one: from next to the GPUs that read them."""
    try:
        for address, nbytes in arena.pieces:
            if len(nodes) == 1:
                numa.prefer_node(address, nbytes, *nodes)
            else:
                numa.interleave_nodes(address, nbytes, nodes)
    except OSError as error:
        logger.warning("kvtide: shared host memory is not bound to NUMA nodes %s: %s", nodes, describe(error))
