"""Where an engine stands: how many of its ranks, and how many engines of its server, share this machine's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Placement:
    """One engine on one machine."""

    engine: int = 0
    """Its number among the engines of its server (`--data-parallel-size`), on all machines."""
    engines_here: int = 1
    """So many engines of this server are on this machine, at least: see `placement_of`."""
    ranks_here: int | None = None
    """Ranks of this engine on this machine. None: all of them."""
    among_others: bool = False
    """Whether its server has other engines, here or elsewhere."""

    def here(self, ranks: int) -> int:
        """Return how many of an engine's ranks are on this machine."""
        return ranks if self.ranks_here is None else self.ranks_here


def placement_of(parallel: Any, engine_id: str | None = None) -> Placement:
    """Read vLLM's `ParallelConfig`, and the `engine_id` of its connectors.

    Engines of models without experts are told that they are alone (`data_parallel_size` is 1), but also which one they
    are: the last one on a machine knows how many there are from its own number, the first that there are others only
    from the end of its id.
    """
    local = getattr(parallel, "data_parallel_rank_local", None) or 0
    engines = max(1, parallel.data_parallel_size_local, local + 1)
    index = getattr(parallel, "data_parallel_index", 0)
    others = parallel.data_parallel_size > 1 or index > 0 or (engine_id or "").endswith(f"_dp{index}")
    return Placement(index, engines, _ranks_here(parallel), others)


def _ranks_here(parallel: Any) -> int:
    if parallel.distributed_executor_backend != "ray":
        return int(parallel.local_world_size)
    # Ray places ranks where it finds room, and vLLM's numbers of nodes stay at one.
    return min(int(parallel.world_size), _bundles_here(parallel.placement_group) or 1)


def _bundles_here(group: Any) -> int:
    """Return how many places of a Ray placement group are on this machine. 0: that cannot be told."""
    if group is None:
        return 0
    try:
        import ray  # noqa: PLC0415 (only where vLLM uses it)
        from ray.util import placement_group_table  # noqa: PLC0415

        nodes = placement_group_table(group)["bundles_to_node_id"].values()
        here = ray.get_runtime_context().get_node_id()
    except Exception as error:  # whatever Ray says, it is no reason not to start
        from kvtide.vllm.log import logger  # noqa: PLC0415 (options can be read where vLLM is not)

        logger.warning("kvtide: Ray does not say which ranks are on this machine, so memory is not checked: %s", error)
        return 0
    return sum(node == here for node in nodes)
