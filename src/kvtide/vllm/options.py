"""Options in `kv_connector_extra_config`, with those of vLLM's SimpleCPUOffloadConnector as other names (F22)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvtide.copy.memory_left import memory_left, memory_limit
from kvtide.core import OPTIONS, BelowConfig, Geometry, OffloadConfig
from kvtide.errors import ConfigError
from kvtide.options import did_you_mean, parse_choice, parse_count, parse_flag, parse_size
from kvtide.tiers import TierConfig, parse_tiers
from kvtide.tiers.stack import below_of
from kvtide.units import size_text
from kvtide.vllm.placement import Placement

ALONE = Placement()
DP_RANK = "{dp_rank}"
"""In a path: the number of the engine."""
DEFAULT_HOST = "8GiB"
"""What SimpleCPUOffloadConnector takes when nobody says how much."""

VLLM_OPTIONS: Mapping[str, str] = {
    **OPTIONS,
    "tiers": "places below host memory, nearest first: see docs/operators/tiers.md (default: none)",
    "copy_threads": "threads that copy blocks on a CPU (default: 1)",
    "staging": "GPU memory of one staging buffer, of which each direction has two (default: 64MiB)",
    "cpu_bytes_to_use": "another name for host",
    "cpu_bytes_to_use_per_rank": "another name for host_per_rank; goes before cpu_bytes_to_use",
    "lazy_offload": "true: another name for mode=lazy; false: for mode=eager",
    "kv_offload_backend": 'only "cpu": for a disk, see tiers',
}
"""Every key that people can write, with its meaning."""


@dataclass(frozen=True, slots=True)
class Copying:
    """How blocks are copied."""

    threads: int
    """On a CPU."""
    staging_bytes: int
    """On a GPU, of each buffer."""


@dataclass(frozen=True, slots=True)
class Options:
    """What people wrote, checked as far as it can be without knowing the KV cache."""

    core: Mapping[str, object]
    """For `OffloadConfig.build`."""
    copying: Copying
    tiers: tuple[TierConfig, ...] = ()
    placement: Placement = ALONE

    @property
    def below(self) -> BelowConfig | None:
        """What the core has to know of the tiers."""
        return below_of(self.tiers)

    def build(self, geometry: Geometry) -> OffloadConfig:
        """Return the whole configuration, or refuse what this machine does not have.

        What other engines take already cannot be told from what others have: all of them together are compared with
        all memory, this one with what is left.
        """
        config = OffloadConfig.build(geometry, self.core, self.below)
        here = self.bytes_here(config)
        name = "host" if "host" in self.core else "host_per_rank"
        left, total, engines = memory_left(), memory_limit(), self.placement.engines_here
        if here > left.nbytes:
            raise ConfigError(name, self.core[name], left.expected)
        if here * engines > total:
            what = f"at most the {total} bytes there are for {engines} engines (--data-parallel-size) together"
            raise ConfigError(name, self.core[name], f"{what}, each of which takes {here}")
        return config

    def bytes_here(self, config: OffloadConfig) -> int:
        """Return the host memory that this engine takes of this machine: its other ranks may be elsewhere."""
        geometry = config.geometry
        return config.slots * geometry.block_bytes * self.placement.here(geometry.ranks)

    def where(self, config: OffloadConfig) -> str:
        """Say for the log what of it is on this machine, and that other engines take as much. Empty: it is alone."""
        here, placement = self.bytes_here(config), self.placement
        said = f", {size_text(here)} on this machine" if here < config.host_bytes else ""
        if placement.among_others:
            total = size_text(here * placement.engines_here)
            engines = f"{placement.engines_here} or more here, {total}"
            said += f"; engine {placement.engine}, each takes as much: {engines}"
        return said


def read_options(extra: Mapping[str, object], *, events: bool, placement: Placement = ALONE) -> Options:
    """Read `kv_connector_extra_config`. `events`: vLLM publishes KV cache events."""
    for name in extra:
        if name not in VLLM_OPTIONS:
            hint = did_you_mean(name, VLLM_OPTIONS)
            raise ConfigError(name, extra[name], f"a known option; {hint}known are {', '.join(VLLM_OPTIONS)}")
    core = {name: value for name, value in extra.items() if name in OPTIONS}
    _translate_sizes(extra, core)
    if "lazy_offload" in extra:
        _refuse_both("mode", "lazy_offload", extra)
        core["mode"] = "lazy" if parse_flag("lazy_offload", extra["lazy_offload"]) else "eager"
    if "kv_offload_backend" in extra:
        parse_choice("kv_offload_backend", extra["kv_offload_backend"], ("cpu",))
    if not {"host", "host_per_rank"} & core.keys():
        core["host"] = DEFAULT_HOST
    if events:
        core.setdefault("events", True)
    copying = Copying(
        parse_count("copy_threads", extra.get("copy_threads", 1)), parse_size("staging", extra.get("staging", "64MiB"))
    )
    tiers = parse_tiers(_own_paths(extra.get("tiers", ()), placement))
    return Options(core, copying, tiers, placement)


def _own_paths(tiers: object, placement: Placement) -> object:
    """Put the engine's number into paths. What is no list of tiers, others refuse."""
    if not isinstance(tiers, list | tuple):
        return tiers
    return [
        {**tier, "path": _own_path(f"tiers[{index}].path", tier["path"], placement)}
        if isinstance(tier, Mapping) and isinstance(tier.get("path"), str)
        else tier
        for index, tier in enumerate(tiers)
    ]


def _own_path(option: str, path: str, placement: Placement) -> str:
    if placement.engines_here > 1 and DP_RANK not in path:
        fix = f"{DP_RANK} in it, which stands for the number of the engine, for example {path.rstrip('/')}/{DP_RANK}"
        raise ConfigError(option, path, f"a folder for each engine of this server (--data-parallel-size): write {fix}")
    return path.replace(DP_RANK, str(placement.engine))


def _translate_sizes(extra: Mapping[str, object], core: dict[str, object]) -> None:
    """Take over sizes that were written for SimpleCPUOffloadConnector: whole server, or per rank, which wins."""
    for alias, name in (("cpu_bytes_to_use", "host"), ("cpu_bytes_to_use_per_rank", "host_per_rank")):
        if alias in extra:
            _refuse_both(name, alias, extra)
            core[name] = parse_size(alias, extra[alias])
    if "cpu_bytes_to_use_per_rank" in extra and "cpu_bytes_to_use" in extra:
        del core["host"]


def _refuse_both(name: str, alias: str, extra: Mapping[str, object]) -> None:
    if name in extra:
        raise ConfigError(alias, extra[alias], f"either {name} or {alias}, which mean the same")
