"""What the server is going to be asked for: the configuration, as people hand it to vLLM or to the doctor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvtide.core import FullAttention, Geometry, OffloadConfig
from kvtide.doctor.base import Finding, bad, ok
from kvtide.errors import ConfigError
from kvtide.options import parse_size, redacted
from kvtide.tiers import TierConfig
from kvtide.tiers.config import kind_of
from kvtide.vllm.options import DEFAULT_HOST, DP_RANK, read_options

CONNECTOR, SEVERAL, MODULE = "KVTideConnector", "MultiConnector", "kvtide.vllm"
_ANY_GEOMETRY = Geometry(groups=(FullAttention(16),), block_bytes=1, device_blocks=2**40)
"""The model is not known here, so sizes are compared with nothing."""
_SECRET = re.compile("pass|secret|token|key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration says, as far as it can be read."""

    given: bool = False
    """Whether there is one: otherwise it is what kvtide does by itself."""
    host_bytes: int = parse_size("host", DEFAULT_HOST)
    per_rank: bool = False
    """Whether each rank takes that much."""
    tiers: tuple[TierConfig, ...] = ()
    """Those that can be read."""
    named_module: bool = False
    """Whether it names kvtide's module, so that vLLM needs no plug-in to find it."""
    problems: tuple[ConfigError, ...] = ()
    """Why a server would refuse it."""

    @property
    def rdma(self) -> bool:
        """Whether a tier uses RDMA, which locks memory."""
        return any(getattr(tier, "protocol", "") == "rdma" for tier in self.tiers)


def read_wanted(config: str | None) -> Wanted:
    """Read `--config`: JSON or the path of a file with it. A `ConfigError` if it is neither."""
    if config is None:
        return Wanted()
    outer = _object_of(config)
    problems: list[ConfigError] = []
    ours = outer
    if {"kv_connector", "kv_connector_extra_config"} & outer.keys():  # the whole of --kv-transfer-config
        ours = _connector_of(outer) or outer
        if (name := ours.get("kv_connector")) != CONNECTOR:
            problems.append(ConfigError("kv_connector", name, f'"{CONNECTOR}"'))
        extra = ours.get("kv_connector_extra_config") or {}
    else:
        extra = outer
    if not isinstance(extra, Mapping):
        raise ConfigError("kv_connector_extra_config", type(extra).__name__, "an object with options, such as host")
    host, per_rank = _host_of(extra, problems)
    tiers = tuple(_tiers_of(extra.get("tiers", ()), problems))
    unlike = {str(problem): problem for problem in problems}
    return Wanted(True, host, per_rank, tiers, ours.get("kv_connector_module_path") == MODULE, tuple(unlike.values()))


def check_config(wanted: Wanted) -> Finding:
    """Say whether a server would take the configuration."""
    if not wanted.given:
        return ok(f"none given (--config): {DEFAULT_HOST} of host memory and no tiers are taken for granted")
    if wanted.problems:
        wrong = "; ".join(f"{problem.option}={_value_text(problem)}" for problem in wanted.problems)
        expected = "; ".join(f"{problem.option}: {problem.expected}" for problem in wanted.problems)
        return bad(f"a server would refuse {wrong}", f"expected are: {expected}")
    tiers = ", ".join(f"{tier.type} at {tier.place}" for tier in wanted.tiers)
    return ok(f"a server would take it; tiers: {tiers or 'none'}")


def _value_text(problem: ConfigError) -> str:
    """Return a refused value, unless a password may be in it."""
    value = problem.value
    if _SECRET.search(problem.option) or not isinstance(value, str | int | float | None):
        return "…"
    return repr(redacted(value) if isinstance(value, str) and "@" in value else value)


def _object_of(config: str) -> Mapping[str, object]:
    text = config
    if not config.lstrip().startswith(("{", "[")):
        try:
            text = Path(config).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "not text"
            raise ConfigError(
                "--config", redacted(config), f"JSON, or a file with it that can be read ({why})"
            ) from None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError("--config", _shown(config, text), f"JSON ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError("--config", _shown(config, text), 'an object such as {"host": "64GiB", "tiers": []}')
    return found


def _shown(config: str, text: str) -> str:
    """Return the name of the file. What is in it, or on the command line, may hold a password."""
    return "…" if config is text else config


def _connector_of(outer: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return kvtide's part of the configuration of several connectors. None: there is none."""
    extra = outer.get("kv_connector_extra_config")
    if outer.get("kv_connector") != SEVERAL or not isinstance(extra, Mapping):
        return None
    inner = extra.get("connectors")
    parts = [part for part in inner if isinstance(part, Mapping)] if isinstance(inner, list) else []
    return next((part for part in parts if part.get("kv_connector") == CONNECTOR), None)


def _host_of(extra: Mapping[str, object], problems: list[ConfigError]) -> tuple[int, bool]:
    """Read everything as a server does; return the host memory, and whether that is of each rank."""
    try:
        options = read_options(extra, events=False)
        config = OffloadConfig.build(_ANY_GEOMETRY, options.core, options.below)
    except ConfigError as problem:
        problems.append(problem)
        return parse_size("host", DEFAULT_HOST), False
    return config.host_bytes, "host_per_rank" in options.core


def _tiers_of(tiers: object, problems: list[ConfigError]) -> Iterator[TierConfig]:
    """Read each tier by itself: what is wrong with one keeps nobody from looking at the others."""
    for index, tier in enumerate(tiers) if isinstance(tiers, list) else ():
        if not isinstance(tier, dict) or "type" not in tier:
            continue  # refused already
        own_path = {"path": tier["path"].replace(DP_RANK, "0")} if isinstance(tier.get("path"), str) else {}
        try:
            yield kind_of(f"tiers[{index}].type", tier["type"]).parse(index, {**tier, **own_path})
        except ConfigError as problem:
            problems.append(problem)
