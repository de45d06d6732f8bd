"""Options in `kv_connector_extra_config`, with those of vLLM's SimpleCPUOffloadConnector as other names (F22)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtide.copy.arena import available_bytes
from kvtide.core import OPTIONS, BelowConfig, Geometry, OffloadConfig
from kvtide.errors import ConfigError
from kvtide.options import did_you_mean, parse_choice, parse_count, parse_flag, parse_size

if TYPE_CHECKING:
    from kvtide.tiers import TierConfig

DEFAULT_HOST = "8GiB"
"""What SimpleCPUOffloadConnector takes when nobody says how much."""

VLLM_OPTIONS: Mapping[str, str] = {
    **OPTIONS,
    "tiers": "places below host memory, nearest first: see docs/tiers.md (default: none)",
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

    @property
    def below(self) -> BelowConfig | None:
        """What the core has to know of the tiers."""
        if not self.tiers:
            return None
        from kvtide.tiers.stack import below_of  # noqa: PLC0415 (only for those who have tiers)

        return below_of(self.tiers)

    def build(self, geometry: Geometry) -> OffloadConfig:
        """Return the whole configuration, or refuse what this machine does not have."""
        config = OffloadConfig.build(geometry, self.core, self.below)
        available = available_bytes()
        if config.host_bytes > available:
            name = "host" if "host" in self.core else "host_per_rank"
            raise ConfigError(name, self.core[name], f"at most the {available} bytes that this machine has left")
        return config


def read_options(extra: Mapping[str, object], *, events: bool) -> Options:
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
    return Options(core, copying, _read_tiers(extra))


def _read_tiers(extra: Mapping[str, object]) -> tuple[TierConfig, ...]:
    if "tiers" not in extra:
        return ()
    from kvtide.tiers import parse_tiers  # noqa: PLC0415 (only for those who have tiers)

    return parse_tiers(extra["tiers"])


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
