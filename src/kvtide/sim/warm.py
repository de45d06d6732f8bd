"""What another server has left in the tiers, which had served the same requests before."""

from __future__ import annotations

from kvtide.core.messages import Name
from kvtide.sim.request import SimRequest
from kvtide.sim.tokens import node_of_key, stamp
from kvtide.sim.world import World


def contents_of(world: World, weights: int = 0) -> dict[Name, int]:
    """Return all blocks of all requests of a world, made with some weights."""
    contents: dict[Name, int] = {}
    for arrival in world.arrivals:
        request = SimRequest.arrive(arrival, arrival.name, world.tokens, world.groups)
        for group, keys in enumerate(request.keys):
            contents.update({(group, key): stamp(node_of_key(key), weights, group) for key in keys})
    return contents
