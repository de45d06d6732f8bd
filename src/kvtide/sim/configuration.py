"""How the manager under test is configured for a world."""

from __future__ import annotations

from kvtide.core.config import Geometry, OffloadConfig
from kvtide.core.groups import ChunkedLocal, FullAttention, Group, SlidingWindow, StateSpace
from kvtide.sim.attention import Attention, Chunked, Full, Sliding, State
from kvtide.sim.world import World

BLOCK_BYTES = 1


def config_of(world: World) -> OffloadConfig:
    """Return the configuration of the manager under test."""
    geometry = Geometry(
        groups=tuple(map(_group, world.told_groups)),
        block_bytes=BLOCK_BYTES,
        device_blocks=world.device_blocks,
        ranks=world.ranks,
        step_tokens=world.step_tokens,
        parts=world.ranks // world.replicas,
    )
    return OffloadConfig.build(
        geometry,
        {
            "host": world.host_slots * geometry.slot_bytes,
            "mode": world.mode,
            "policy": world.policy,
            "admission": world.admission,
            "pin_budget": world.pin_budget,
            "min_load_tokens": "auto" if world.min_load_tokens is None else world.min_load_tokens,
            "events": True,
            "min_fetch_tokens": world.tier.min_fetch_tokens if world.tier is not None else 1,
        },
        world.tier.config() if world.tier is not None else None,
    )


def _group(attention: Attention) -> Group:
    """Say in the core's words what a group is."""
    size = attention.block_tokens
    if isinstance(attention, Sliding):
        return SlidingWindow(size, attention.window_tokens)
    if isinstance(attention, Chunked):
        return ChunkedLocal(size, attention.chunk_tokens)
    assert isinstance(attention, Full | State)
    return FullAttention(size) if isinstance(attention, Full) else StateSpace(size)
