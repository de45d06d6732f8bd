"""What gauges mean: how full the pool and the tiers are at one moment, and which tiers are off."""

from __future__ import annotations

from dataclasses import dataclass

from kvtide.top.counts import Counts
from kvtide.top.node_reading import KVTIDE, NODE
from kvtide.top.reading import Reading


@dataclass(frozen=True, slots=True)
class Pool:
    """The host pool."""

    slots: float
    free: float
    pinned: float
    bytes: float | None
    """Of all ranks. Of a server from the bytes that a stored block has; None before one was stored."""

    @property
    def fill(self) -> float | None:
        """The part of all slots that is in use."""
        return 1 - self.free / self.slots if self.slots else None


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier, all ranks together."""

    used_bytes: float | None
    """None: the tier does not say."""
    budget_bytes: float | None
    off_ranks: tuple[str, ...]
    """On which it is switched off after failures."""

    @property
    def fill(self) -> float | None:
        """The part of its budget that is in use."""
        return self.used_bytes / self.budget_bytes if self.used_bytes is not None and self.budget_bytes else None


@dataclass(frozen=True, slots=True)
class Space:
    """One namespace of a node."""

    model: str
    slots: float
    cached: float
    engines: float

    @property
    def fill(self) -> float | None:
        """The part of all slots that has a block."""
        return self.cached / self.slots if self.slots else None


@dataclass(frozen=True, slots=True)
class Node:
    """What only a node has."""

    engines: dict[str, float]
    """Lives of engines, "open" and "ending"."""
    memory_bytes: float
    free_bytes: float
    quarantined: float
    """Slots that processes of ended engines may still use."""
    is_crowded: bool
    """There is no room for another connection."""
    namespaces: dict[str, Space]
    tiers: dict[str, bool]
    """Whether each is in use for all models that have engines."""


@dataclass(frozen=True, slots=True)
class Link:
    """Between a server and the node that keeps its host memory."""

    engines: int
    away: int
    """Those of them that are without their node."""


@dataclass(frozen=True, slots=True)
class State:
    """A server at one moment."""

    running: float
    waiting: float
    pool: Pool
    tiers: dict[str, Tier]
    waits: dict[str, float]
    """Blocks that wait to be stored or to go below, requests that wait for tiers, transfers that nobody answers for."""
    stopped_engines: float
    """On which a rank cannot copy any more: they serve without kvtide until the server is restarted."""
    link: Link | None = None
    """None: it is no server whose host memory a node keeps."""
    node: Node | None = None
    """None: it is a server."""


def state(reading: Reading) -> State:
    """Read the gauges."""
    gauges = reading.gauges
    names = ("backlog_blocks", "sink_queue_blocks", "searches", "transfers_unanswered")
    return State(
        running=gauges.total("vllm:num_requests_running"),
        waiting=gauges.total("vllm:num_requests_waiting"),
        pool=_pool(reading),
        tiers={name: _tier(gauges, name) for name in gauges.by(f"{KVTIDE}tier_off", "tier")},
        waits={name: gauges.total(f"{KVTIDE}{name}") for name in names},
        stopped_engines=gauges.total(f"{KVTIDE}stopped"),
        link=_link(gauges),
        node=_node(gauges) if reading.life else None,
    )


def _link(gauges: Counts) -> Link | None:
    attached = gauges.by(f"{KVTIDE}node_attached", "engine")
    return Link(len(attached), sum(not each for each in attached.values())) if attached else None


def _node(gauges: Counts) -> Node:
    namespaces = _namespaces(gauges)
    return Node(
        engines=gauges.by(f"{NODE}engines", "state"),
        memory_bytes=gauges.total(f"{NODE}memory_bytes"),
        free_bytes=gauges.total(f"{NODE}free_bytes"),
        quarantined=gauges.total(f"{NODE}slots_quarantined"),
        is_crowded=gauges.total(f"{NODE}connections") >= gauges.total(f"{NODE}connections_max"),
        namespaces=namespaces,
        tiers={tier: _is_in_use(gauges, tier, namespaces) for tier in gauges.by(f"{NODE}tier_up", "tier")},
    )


def _is_in_use(gauges: Counts, tier: str, namespaces: dict[str, Space]) -> bool:
    up = gauges.by(f"{NODE}tier_up", "namespace", tier=tier)
    # What is one engine's alone has no tiers, and no row.
    return all(up[name] for name, space in namespaces.items() if space.engines and name in up)


def _namespaces(gauges: Counts) -> dict[str, Space]:
    return {
        name: Space(
            model=next(iter(gauges.by(f"{NODE}slots", "model", namespace=name))),
            slots=slots,
            cached=gauges.total(f"{NODE}slots_cached", namespace=name),
            engines=gauges.total(f"{NODE}namespace_engines", namespace=name),
        )
        for name, slots in gauges.by(f"{NODE}slots", "namespace").items()
    }


def _pool(reading: Reading) -> Pool:
    gauges, counters = reading.gauges, reading.counters
    stored = counters.total(f"{KVTIDE}stored_blocks_total")
    moved = counters.total(f"{KVTIDE}transfer_bytes_total", direction="store")
    slots = gauges.total(f"{KVTIDE}slots")
    stored_bytes = slots * moved / stored if stored and moved else None
    return Pool(
        slots=slots,
        free=gauges.total(f"{KVTIDE}slots_free"),
        pinned=gauges.total(f"{KVTIDE}slots_pinned"),
        bytes=_ready_bytes(gauges) if reading.life else stored_bytes,
    )


def _ready_bytes(gauges: Counts) -> float | None:
    """Return the memory of a node that engines can use by now: its models have blocks of different sizes."""
    ready, nbytes = (gauges.by(f"{NODE}{name}", "namespace") for name in ("slots_ready", "namespace_bytes"))
    slots = gauges.by(f"{NODE}slots", "namespace")
    return sum(nbytes.get(name, 0.0) * ready.get(name, 0.0) / count for name, count in slots.items() if count) or None


def _tier(gauges: Counts, name: str) -> Tier:
    off = gauges.by(f"{KVTIDE}tier_off", "rank", tier=name)
    return Tier(
        used_bytes=_known(gauges, f"{KVTIDE}tier_bytes_used", name),
        budget_bytes=_known(gauges, f"{KVTIDE}tier_bytes_budget", name),
        off_ranks=tuple(rank for rank, is_off in off.items() if is_off),
    )


def _known(gauges: Counts, name: str, tier: str) -> float | None:
    return gauges.total(name, tier=tier) if tier in gauges.by(name, "tier") else None
