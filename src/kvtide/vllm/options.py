"""Options in `kv_connector_extra_config`, with those of vLLM's SimpleCPUOffloadConnector as other names (F22)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from kvtide.copy.memory_left import memory_left, memory_limit
from kvtide.core import OPTIONS, POLICIES, BelowConfig, Geometry, OffloadConfig
from kvtide.core.config import Admission, Mode
from kvtide.errors import ConfigError
from kvtide.node.option import STAND_IN_BLOCKS, refused_beside_node
from kvtide.options import parse_choice, parse_count, parse_size
from kvtide.schema import FLAG, SIZE, WRITTEN_SIZE, OptionsModel, Read, meaning, one_of, read_model, whole
from kvtide.tiers import TierConfig
from kvtide.tiers.config import KINDS, kind_of, read_tiers
from kvtide.tiers.stack import below_of
from kvtide.units import size_text
from kvtide.vllm.node_option import NODE
from kvtide.vllm.placement import Placement

ALONE = Placement()
DP_RANK = "{dp_rank}"
"""In a path: the number of the engine."""
Packing = Literal["auto", "on", "off"]
DEFAULT_PACKING: Packing = "off"
DEFAULT_HOST = "8GiB"
"""What SimpleCPUOffloadConnector takes when nobody says how much."""

_ALIASES = {"cpu_bytes_to_use": "host", "cpu_bytes_to_use_per_rank": "host_per_rank", "lazy_offload": "mode"}


def _tokens_or_auto(option: str, value: object) -> object:
    if value == "auto":
        return value
    if isinstance(value, str):
        raise ConfigError(option, value, 'a whole number of at least 0, or "auto"')
    return parse_count(option, value, minimum=0)


class ConnectorOptions(OptionsModel):
    """`kv_connector_extra_config`."""

    host: Annotated[int | str, WRITTEN_SIZE] = Field(default=DEFAULT_HOST, description=meaning(OPTIONS["host"]))
    host_per_rank: Annotated[int | str | None, WRITTEN_SIZE] = Field(
        default=None, description=meaning(OPTIONS["host_per_rank"])
    )
    node: Annotated[Path | None, NODE] = Field(
        default=None,
        description="the socket of a [node](node.md), which keeps host memory for all engines of this machine",
        json_schema_extra={"default_text": "none: this engine keeps its own"},
    )
    mode: Annotated[str, one_of(*get_args(Mode))] = Field(default="eager", description=meaning(OPTIONS["mode"]))
    policy: Annotated[str, one_of(*POLICIES)] = Field(default="prefix", description=meaning(OPTIONS["policy"]))
    admission: Annotated[str, one_of(*get_args(Admission))] = Field(
        default="all", description=meaning(OPTIONS["admission"])
    )
    pin_budget: Annotated[int | None, whole(1)] = Field(
        default=None,
        description=meaning(OPTIONS["pin_budget"]),
        json_schema_extra={
            "default_text": "a quarter of the device blocks, or what two steps compute if that is more, up to half"
        },
    )
    tiers: Annotated[Sequence[object], Read(lambda _, value: value, {"type": "array"})] = Field(
        default=(),
        description="places below host memory, nearest first: see [tiers.md](../operators/tiers.md)",
        json_schema_extra={"default_text": "none"},
    )
    min_fetch_tokens: Annotated[int, whole(1)] = Field(default=128, description=meaning(OPTIONS["min_fetch_tokens"]))
    min_load_tokens: Annotated[
        int | str, Read(_tokens_or_auto, {"anyOf": [{"type": "integer", "minimum": 0}, {"const": "auto"}]})
    ] = Field(default=0, description=meaning(OPTIONS["min_load_tokens"]))
    events: Annotated[bool | None, FLAG] = Field(
        default=None,
        description=meaning(OPTIONS["events"]),
        json_schema_extra={"default_text": "as vLLM's `--kv-events-config`"},
    )
    copy_threads: Annotated[int, whole(1)] = Field(
        default=1, description="threads that copy blocks on a CPU; a GPU has its own engine"
    )
    staging: Annotated[int | str, WRITTEN_SIZE] = Field(
        default="64MiB",
        description="on a GPU: memory of one staging buffer, of which each direction has two; smaller ones are slower "
        "beside large matrix products",
    )
    packing: Annotated[str, one_of(*get_args(Packing))] = Field(
        default=DEFAULT_PACKING,
        description="whether KV in bf16 is kept in three quarters of its bytes, on the host and below, without losing "
        "a bit: `on`, `off`, or `auto`: where that is possible; see [packing.md](packing.md)",
    )
    cpu_bytes_to_use: Annotated[int | None, SIZE] = Field(default=None, description="another name for `host`")
    cpu_bytes_to_use_per_rank: Annotated[int | None, SIZE] = Field(
        default=None, description="another name for `host_per_rank`; goes before `cpu_bytes_to_use`"
    )
    lazy_offload: Annotated[bool | None, FLAG] = Field(
        default=None, description="`true`: another name for `mode=lazy`; `false`: for `mode=eager`"
    )
    kv_offload_backend: Annotated[str | None, one_of("cpu")] = Field(
        default=None, description='only `"cpu"`: for a disk, see `tiers`'
    )

    @model_validator(mode="after")
    def _one_name_each(self) -> ConnectorOptions:
        given = self.model_fields_set
        for alias, name in _ALIASES.items():
            if {alias, name} <= given:
                raise ConfigError(alias, getattr(self, alias), f"either {name} or {alias}, which mean the same")
        core = self.core()
        if {"host", "host_per_rank"} <= core.keys():
            raise ConfigError("host", core["host"], 'either host or host_per_rank, for example host="64GiB"')
        return self

    def core(self) -> dict[str, object]:
        """Return what was written for `OffloadConfig.build`. A size for each rank goes before one for all."""
        core = {name: getattr(self, name) for name in self.model_fields_set & OPTIONS.keys()}
        if self.cpu_bytes_to_use_per_rank is not None:
            core["host_per_rank"] = self.cpu_bytes_to_use_per_rank
        elif self.cpu_bytes_to_use is not None:
            core["host"] = self.cpu_bytes_to_use
        if self.lazy_offload is not None:
            core["mode"] = "lazy" if self.lazy_offload else "eager"
        if self.node is None and not {"host", "host_per_rank"} & core.keys():
            core["host"] = DEFAULT_HOST
        return core


@dataclass(frozen=True, slots=True)
class Copying:
    """How blocks are copied."""

    threads: int
    """On a CPU."""
    staging_bytes: int
    """On a GPU, of each buffer."""
    packed: bool = False
    """Whether blocks are packed on the host: decided when the KV cache is known."""
    trial: bool = False
    """And whether that is decided once more, by the first blocks."""


@dataclass(frozen=True, slots=True)
class Options:
    """What people wrote, checked as far as it can be without knowing the KV cache."""

    core: Mapping[str, object]
    """For `OffloadConfig.build`."""
    copying: Copying
    tiers: tuple[TierConfig, ...] = ()
    placement: Placement = ALONE
    packing: Packing = DEFAULT_PACKING
    packing_off: str | None = None
    """Why it is off though it may be on (`auto`): what it needs."""
    node: Path | None = None
    """The socket of the node that keeps host memory. None: this engine has its own."""

    @property
    def below(self) -> BelowConfig | None:
        """What the core has to know of the tiers."""
        return below_of(self.tiers)

    def build(self, geometry: Geometry) -> OffloadConfig:
        """Return the whole configuration, or refuse what this machine does not have.

        What other engines take already cannot be told from what others have: all of them together are compared with
        all memory, this one with what is left.
        """
        config = self.build_unchecked(geometry)
        if self.node is not None:
            return config
        here = self.bytes_here(config)
        left = memory_left()
        if here > left.nbytes:
            raise self._refused_size(left.expected)
        if (never := self._never(here)) is not None:
            raise never
        return config

    def build_unchecked(self, geometry: Geometry) -> OffloadConfig:
        """Return the whole configuration, whatever memory there is."""
        core = self.core
        if self.node is not None:
            core = {**core, "host": STAND_IN_BLOCKS * geometry.device_blocks * geometry.slot_bytes}
        return OffloadConfig.build(geometry, core, self.below)

    def too_much(self, ranks: int) -> ConfigError | None:
        """Refuse a size for which all memory of this machine is not enough: known before the KV cache is."""
        if self.node is not None:
            return None
        host = self.core.get("host")
        per_rank = parse_size("host", host) // ranks if host else parse_size("host", self.core["host_per_rank"])
        return self._never(per_rank * self.placement.here(ranks))

    def _never(self, here: int) -> ConfigError | None:
        total, engines = memory_limit(), self.placement.engines_here
        if here * engines <= total:
            return None
        if engines == 1:
            return self._refused_size(f"at most the {total} bytes that this machine has")
        what = f"at most the {total} bytes there are for {engines} engines (--data-parallel-size) together"
        return self._refused_size(f"{what}, each of which takes {here}")

    def _refused_size(self, expected: str) -> ConfigError:
        name = "host" if "host" in self.core else "host_per_rank"
        return ConfigError(name, self.core[name], expected)

    def bytes_here(self, config: OffloadConfig) -> int:
        """Return the host memory that this engine takes of this machine: its other ranks may be elsewhere."""
        geometry = config.geometry
        return config.host_bytes * self.placement.here(geometry.ranks) // geometry.ranks

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
    """Read `kv_connector_extra_config`, or raise what is wrong. `events`: vLLM publishes KV cache events."""
    options, errors = check_options(extra, events=events, placement=placement)
    if options is None:
        raise errors[0]
    return options


def check_options(
    extra: Mapping[str, object], *, events: bool = False, placement: Placement = ALONE
) -> tuple[Options | None, list[ConfigError]]:
    """Read `kv_connector_extra_config`: return the options, or everything that is wrong with them."""
    found, errors = read_model(ConnectorOptions, extra)
    paths, path_errors = _own_paths(extra.get("tiers", ()), placement)
    tiers, tier_errors = ((), []) if path_errors else read_tiers(paths)
    errors += path_errors + tier_errors + refused_beside_node(extra)
    if found is None or errors:
        return None, errors
    core = found.core()
    if events and found.node is None:
        core.setdefault("events", True)
    copying = Copying(found.copy_threads, parse_size("staging", found.staging))
    packing: Packing = parse_choice("packing", found.packing, get_args(Packing))
    return Options(core, copying, tuple(tiers), placement, packing, node=found.node), []


def options_schema() -> dict[str, object]:
    """Return the JSON schema of `kv_connector_extra_config`, with all types of tiers whose packages are installed."""
    schema = ConnectorOptions.model_json_schema()
    kinds = []
    for name in KINDS:
        with suppress(ConfigError):
            kind = kind_of("type", name).CONFIG.model_json_schema()
            kind["properties"]["type"] = {**kind["properties"]["type"], "enum": [name]}
            kinds.append(kind)
    schema["properties"]["tiers"]["items"] = {"oneOf": kinds}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _own_paths(tiers: object, placement: Placement) -> tuple[object, list[ConfigError]]:
    """Put the engine's number into paths. What is no list of tiers, others refuse."""
    if not isinstance(tiers, list | tuple):
        return tiers, []
    errors: list[ConfigError] = []
    own: list[object] = []
    for index, tier in enumerate(tiers):
        path = tier.get("path") if isinstance(tier, Mapping) else None
        if not isinstance(path, str):
            own.append(tier)
        elif placement.engines_here > 1 and DP_RANK not in path:
            fix = (
                f"{DP_RANK} in it, which stands for the number of the engine, for example {path.rstrip('/')}/{DP_RANK}"
            )
            each = f"a folder for each engine of this server (--data-parallel-size): write {fix}"
            errors.append(ConfigError(f"tiers[{index}].path", path, each))
        else:
            own.append({**tier, "path": path.replace(DP_RANK, str(placement.engine))})
    return own, errors
