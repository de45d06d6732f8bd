"""Configuration: everything is validated here, once, before anything is allocated (F22).

Two sources meet: the geometry, which only the engine knows, and the options, which people write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from kvtide.core.eviction import POLICIES
from kvtide.core.groups import ChunkedLocal, Group, SlidingWindow, common_boundary
from kvtide.errors import ConfigError
from kvtide.options import check_names, parse_choice, parse_count, parse_flag, parse_size

Mode = Literal["eager", "lazy"]
Admission = Literal["all", "second-use"]
"""Which blocks are stored on the host, or taken by a tier below it."""


_GROUPS_MAX = 256
"""The host pool remembers the group of a slot in one byte. Models have a handful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """What the engine knows about its KV cache."""

    groups: tuple[Group, ...]
    block_bytes: int
    """Bytes of one device block on one rank, all layers together. One size, whatever group owns the block."""
    device_blocks: int
    """Blocks in the device pool that can be allocated (the null block does not count)."""
    ranks: int = 1
    step_tokens: int = 2048
    """Most tokens that the engine computes in one step."""
    parts: int | None = None
    """How many different parts a block has: ranks that hold the same bytes keep one copy on the host (F27). None: each
    rank has a part of its own.
    """
    host_block_bytes: int | None = None
    """Bytes of host memory that a block takes on one rank, if it is packed there. None: `block_bytes`."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not self.groups:
            raise ConfigError("groups", self.groups, "at least one attention group")
        if len(self.groups) > _GROUPS_MAX:
            raise ConfigError("groups", f"{len(self.groups)} groups", f"at most {_GROUPS_MAX}")
        for name in ("block_bytes", "device_blocks", "ranks", "step_tokens"):
            parse_count(name, getattr(self, name))
        if self.parts is not None and (parse_count("parts", self.parts) > self.ranks or self.ranks % self.parts):
            raise ConfigError("parts", self.parts, f"a divisor of the {self.ranks} ranks")
        if self.host_block_bytes is not None:
            parse_count("host_block_bytes", self.host_block_bytes)
        for group in self.groups:
            _check_group(group)
        largest = max(group.block_tokens for group in self.groups)
        for group in self.groups:
            if largest % group.block_tokens:
                raise ConfigError("block_tokens", group.block_tokens, f"a divisor of the largest block size, {largest}")
        boundary = common_boundary(self.groups)
        needed = sum(boundary // group.block_tokens - group.first_needed(boundary) for group in self.groups)
        if needed > self.device_blocks:
            raise ConfigError(
                "device_blocks",
                self.device_blocks,
                f"at least {needed}: the first boundary that all groups can resume from is at {boundary} tokens",
            )

    @property
    def slot_bytes(self) -> int:
        """Bytes that one host slot takes, all parts together."""
        return (self.host_block_bytes or self.block_bytes) * (self.parts or self.ranks)


def _check_group(group: Group) -> None:
    parse_count("block_tokens", group.block_tokens)
    if isinstance(group, SlidingWindow):
        parse_count("window_tokens", group.window_tokens, minimum=2)
    elif isinstance(group, ChunkedLocal):
        parse_count("chunk_tokens", group.chunk_tokens)
        if group.chunk_tokens % group.block_tokens:
            raise ConfigError(
                "chunk_tokens",
                group.chunk_tokens,
                f"a multiple of the group's block size, {group.block_tokens}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BelowConfig:
    """What the tiers below host memory want, all of them together. Empty: no tier is written in this way."""

    through: frozenset[Admission] = frozenset()
    """Blocks sink as soon as they are on the host, or when they are loaded from there for the first time."""
    on_evict: frozenset[Admission] = frozenset()
    """Blocks sink when they leave the host: all, or those that were loaded at least once."""

    @property
    def second_use(self) -> bool:
        """Whether it matters that a block is used."""
        return "second-use" in self.through | self.on_evict


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadConfig:
    """A valid configuration. Made by `OffloadConfig.build`."""

    geometry: Geometry
    slots: int
    """Host slots. Every part has as many."""
    mode: Mode
    policy: str
    pin_budget_blocks: int
    """Most device blocks that stores may keep pinned at a time (F12)."""
    min_load_tokens: int | None
    """Fewer tokens than this are computed rather than loaded (F19). None: how many is learned."""
    events: bool
    """Whether stored and removed keys are kept for `take_events`."""
    min_fetch_tokens: int
    """Fewer tokens than this are computed rather than looked for below host memory (F19)."""
    below: BelowConfig | None = None
    """None: there is nothing below host memory."""
    admission: Admission = "all"
    """Which blocks are stored: all, or those that a second request has asked for."""

    @classmethod
    def build(
        cls, geometry: Geometry, options: Mapping[str, object], below: BelowConfig | None = None
    ) -> OffloadConfig:
        """Check `options` (see `OPTIONS`) against `geometry`. `below`: what the tiers want, if there are any."""
        check_names(options, OPTIONS)
        budget = parse_count("pin_budget", options.get("pin_budget", _default_pin_budget(geometry)))
        if budget > geometry.device_blocks:
            raise ConfigError("pin_budget", budget, f"at most the device pool, {geometry.device_blocks} blocks")
        return cls(
            geometry=geometry,
            slots=_slots(geometry, options),
            mode=parse_choice("mode", options.get("mode", "eager"), get_args(Mode)),
            policy=parse_choice("policy", options.get("policy", "prefix"), tuple(POLICIES)),
            pin_budget_blocks=budget,
            min_load_tokens=_min_load_tokens(options.get("min_load_tokens", 0)),
            events=parse_flag("events", options.get("events", False)),
            min_fetch_tokens=parse_count("min_fetch_tokens", options.get("min_fetch_tokens", 128)),
            below=below,
            admission=parse_choice("admission", options.get("admission", "all"), get_args(Admission)),
        )

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that all ranks take together."""
        return self.slots * self.geometry.slot_bytes


OPTIONS: Mapping[str, str] = {
    "host": 'host memory of one engine, in bytes or as text ("64GiB"); shared evenly by its ranks',
    "host_per_rank": "host memory for each rank, instead of host",
    "mode": "eager: store blocks once they are computed (default); lazy: store blocks that are about to be evicted",
    "policy": f"which block leaves the host first: {', '.join(POLICIES)} (default: prefix)",
    "admission": "which blocks are stored: all, or second-use: those that a second request asks for (default: all)",
    "pin_budget": "most device blocks that stores may keep pinned (default: a quarter of the device pool, or what two "
    "steps compute if that is more, up to half)",
    "min_load_tokens": "compute rather than load when fewer tokens than this would be loaded, or auto, which learns "
    "from which length on loading is faster (default: 0)",
    "min_fetch_tokens": "compute rather than ask the tiers below when fewer tokens than this are missing "
    "(default: 128)",
    "events": "keep an event stream of stored and removed keys (default: false)",
}
"""Every option people can write, with its meaning."""


def _default_pin_budget(geometry: Geometry) -> int:
    """Return a quarter of the device pool, or what two steps compute if that is more.

    Stores have to keep up: what one step has computed is stored while the next one computes, and engines hear of the
    end of a store another step later.
    """
    step_blocks = sum(-(-geometry.step_tokens // group.block_tokens) for group in geometry.groups)
    return max(1, geometry.device_blocks // 4, min(geometry.device_blocks // 2, 2 * step_blocks))


def _min_load_tokens(value: object) -> int | None:
    """Return the number, or None where it is learned."""
    if value == "auto":
        return None
    if isinstance(value, str):
        raise ConfigError("min_load_tokens", value, 'a whole number of at least 0, or "auto"')
    return parse_count("min_load_tokens", value, minimum=0)


def _slots(geometry: Geometry, options: Mapping[str, object]) -> int:
    """Return the slots of each part, from `host` or `host_per_rank`."""
    if ("host" in options) == ("host_per_rank" in options):
        raise ConfigError("host", options.get("host"), 'either host or host_per_rank, for example host="64GiB"')
    name = "host" if "host" in options else "host_per_rank"
    shares = 1 if name == "host" else geometry.ranks
    slots = parse_size(name, options[name]) * shares // geometry.slot_bytes
    if not slots:
        needed = -(-geometry.slot_bytes // shares)
        raise ConfigError(
            name, options[name], f'at least one block, {needed} bytes; a number alone is bytes, not GiB: "64GiB"'
        )
    return slots
